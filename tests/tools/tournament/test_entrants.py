"""Who takes part: each model once, and two at least."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.policies.play.test_models import run_with
from trajtrainer.core.errors import SettingsError
from trajtrainer.policies.play.models import ActingOptions
from trajtrainer.tools.tournament.tournament import find_entrants


def test_each_once(tmp_path: Path) -> None:
    run_with(tmp_path / "first", A=[9, 100])
    entrants = find_entrants(["first/*", str(tmp_path / "first" / "A" / "A-9.pt")], tmp_path, ActingOptions())

    assert [entrant.name for entrant in entrants] == ["first/9", "first/100"]


def test_one_is_too_few(tmp_path: Path) -> None:
    run_with(tmp_path / "first", A=[9])

    with pytest.raises(SettingsError) as caught:
        find_entrants(["first/*", "first/*"], tmp_path, ActingOptions())
    line = str(caught.value)
    assert line.startswith("A tournament needs at least two models, but only one was given: first/9.")
    assert "'RUN/*' means all checkpoints" in line
