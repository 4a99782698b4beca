"""Masks that forbid everything."""

from __future__ import annotations

import numpy as np
import pytest

from trajtrainer.core.masks import MaskCheck


def test_only_a_whole_branch_is_reported_and_only_once(caplog: pytest.LogCaptureFixture) -> None:
    check = MaskCheck("Behavior 'Pilot'", (2, 3))
    check(np.array([[True, False, False, True, True], [False, True, True, False, False]]))
    assert not caplog.records
    for _ in range(2):
        check(np.array([[False] * 5, [False, True, True, True, True]]))
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Behavior 'Pilot': an action mask forbids all 3 choices of discrete branch 1."
    )


def test_agents_without_discrete_actions_have_no_masks(caplog: pytest.LogCaptureFixture) -> None:
    MaskCheck("Behavior 'Pilot'", ())(np.zeros((3, 0), np.bool_))
    assert not caplog.records
