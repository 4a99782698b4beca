"""Skips what needs packages that are not there."""

from __future__ import annotations

import pytest

pytest.importorskip("gymnasium")
