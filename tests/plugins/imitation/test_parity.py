"""The twins of the offline trainers against their references."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.learning.algos.samples import SPECS
from tests.learning.algos.twins import Numbers, Suite, Tolerance, check, twins_below
from tests.plugins.imitation.offline_steps import numbers_of
from trajtrainer.plugins.imitation import bc, iql

SUITE = Suite()
twin = SUITE.twin


@twin(bc.CloningClosedForm, SPECS, rtol=2e-4, atol=2e-5)
def cloned(spec_name: str) -> tuple[Numbers, Numbers]:
    return numbers_of("bc", spec_name)


@twin(iql.IQLClosedForm, SPECS, rtol=2e-4, atol=2e-5)
def learnt_offline(spec_name: str) -> tuple[Numbers, Numbers]:
    return numbers_of("iql", spec_name)


@pytest.mark.parametrize(("compare", "shape", "tolerance"), SUITE.cases)
def test_a_twin_says_what_its_reference_says(compare: Any, shape: Any, tolerance: Tolerance) -> None:
    check(compare, shape, tolerance)


def test_every_twin_names_a_reference_and_is_in_the_suite() -> None:
    assert SUITE.twins == twins_below("trajtrainer.plugins.imitation")
    assert all(inspect.getdoc(one) for one in SUITE.twins)
