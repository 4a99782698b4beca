"""Sensors that only the critics see, with XQC."""

from __future__ import annotations

import pytest

from tests.learning.algos import test_critic_only
from tests.learning.algos.test_critic_only import KINDS, PICTURED, SPEC
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.learning.algos.xqc.settings import XQCHyperparameters


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    hyper = XQCHyperparameters(batch_size=8, buffer_size=200, steps_per_update=8, learning_starts=8)
    monkeypatch.setitem(KINDS, "xqc", ("xqc", hyper))


@pytest.mark.parametrize(("spec", "memory"), [(SPEC, None), (SPEC, 8), (PICTURED, None)])
def test_the_critics_alone_see_it(spec: BehaviorSpec, memory: int | None, caplog: pytest.LogCaptureFixture) -> None:
    test_critic_only.test_the_critics_alone_see_it("xqc", spec, memory, caplog)


def test_a_checkpoint_goes_on_as_if_nothing_had_been() -> None:
    test_critic_only.test_a_checkpoint_goes_on_as_if_nothing_had_been("xqc")
