"""Mirror images, with XQC."""

from __future__ import annotations

import pytest

from tests.learning.algos import test_symmetry
from tests.learning.algos.test_symmetry import HYPER, MIRROR
from trajtrainer.learning.algos.xqc.settings import XQCHyperparameters


def test_it_learns_and_goes_on_after_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    hyper = XQCHyperparameters(batch_size=8, buffer_size=100, steps_per_update=4, learning_starts=8, symmetry=MIRROR)
    monkeypatch.setitem(HYPER, "xqc", hyper)
    test_symmetry.test_a_trainer_learns_and_goes_on_after_a_checkpoint("xqc")
