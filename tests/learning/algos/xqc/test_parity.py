"""XQC's twins against their references."""

from __future__ import annotations

import inspect
import itertools
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from tests.learning.algos.twins import Numbers, Suite, Tolerance, check, randn, twins_below
from tests.learning.algos.xqc import steps
from trajtrainer.learning.algos.xqc import normalized, products
from trajtrainer.learning.algos.xqc.closed_form import CriticsClosedForm, PolicyClosedForm
from trajtrainer.learning.nn.normalization import EPSILON, MOMENTUM, BatchNorm, batch_statistics

SUITE = Suite()
twin = SUITE.twin


@twin(
    products.product,
    itertools.product([(3, 5, 4), (40, 1, 16), (1, 7, 130)], [False, True], ["rows", "transposed", "parts"]),
)
def products_with_bias(shape: tuple[tuple[int, int, int], bool, str]) -> tuple[Numbers, Numbers]:
    """Of factors with several strides, by both of torch's libraries."""
    (a, b, c), relu, strides = shape
    x, other, bias = randn(a, c), randn(b, c, seed=1), randn(b, seed=2)
    if strides == "transposed":
        x, other = (one.t().contiguous().t() for one in (x, other))
    elif strides == "parts":
        x, other = (torch.cat((one, one), 1)[:, :c] for one in (x, other))
    expected = nn.functional.linear(x, other, bias)
    found: Numbers = {}
    # Only one of them is chosen on this processor.
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    onednn = torch.ops.mkldnn._linear_pointwise.default if has_onednn else None
    for name, operation in {"oneDNN": onednn, "torch": None}.items():
        with mock.patch.object(products, "_onednn", operation):
            found |= {name: products.product(x, other, bias, relu=relu)}
            found |= {f"{name}, without bias": products.product(x, other) + bias}
    activated = expected.relu() if relu else expected
    return found, {name: expected if "bias" in name else activated for name in found}


@twin(normalized.normalize, [(1, 2), (5, 40)], rtol=1e-4)
def batch_normalization(shape: tuple[int, int]) -> tuple[Numbers, Numbers]:
    """Of numbers far from 0."""
    x, reference = 20.0 + randn(*shape), BatchNorm(shape[0])
    with torch.no_grad():
        reference.scale.copy_(randn(shape[0], seed=1))
        reference.shift.copy_(randn(shape[0], seed=2))
        with batch_statistics(reference):
            expected = reference(x.t()).t()
        made = normalized.normalize(x, reference.scale, reference.shift)
    moved = {"mean": made.mean * (1.0 - MOMENTUM), "var": (made.inverse.pow(-2.0) - EPSILON) * (1.0 - MOMENTUM)}
    return {"x": made.x, **moved}, {"x": expected, "mean": reference.mean, "var": reference.var - MOMENTUM}


@twin(CriticsClosedForm, steps.CASES, atol=1e-5)
def distributions(case: tuple[str, int, int]) -> tuple[Numbers, Numbers]:
    return steps.means(case, by_hand=True), steps.means(case, by_hand=False)


@twin(normalized.NormalizedNetworks, steps.CASES, by_largest=True)
@twin(CriticsClosedForm, steps.CASES, by_largest=True)
def gradient_of_distributions(case: tuple[str, int, int]) -> tuple[Numbers, Numbers]:
    """Of a joint pass by every parameter, with what it gives and what it remembers."""
    return steps.joint(case, by_hand=True), steps.joint(case, by_hand=False)


@twin(PolicyClosedForm, steps.CASES, rtol=1e-4, by_largest=True)
def gradient_of_the_policy(case: tuple[str, int, int]) -> tuple[Numbers, Numbers]:
    """By every parameter and entropy coefficient, with the loss and what the policy remembers."""
    return steps.policy(case, by_hand=True), steps.policy(case, by_hand=False)


@twin(CriticsClosedForm, steps.CASES, rtol=1e-4, atol=1e-5)
def updates_of_distributions(case: tuple[str, int, int]) -> tuple[Numbers, Numbers]:
    """Weights and moments after three updates, of which the twin made the first and the last, or none."""
    return steps.after(case, "crc"), steps.after(case, "rrr")


@twin(CriticsClosedForm, steps.CASES, rtol=0, atol=0)
def distributions_handed_over(case: tuple[str, int, int]) -> tuple[Numbers, Numbers]:
    """Weights and moments after three updates by the twin, handed to the reference and back or not."""
    return steps.after(case, "c-c-c"), steps.after(case, "ccc")


@pytest.mark.parametrize(("compare", "shape", "tolerance"), SUITE.cases)
def test_a_twin_says_what_its_reference_says(compare: Any, shape: Any, tolerance: Tolerance) -> None:
    check(compare, shape, tolerance)


def test_every_twin_names_a_reference_and_is_in_the_suite() -> None:
    assert SUITE.twins == twins_below("trajtrainer.learning.algos.xqc")
    assert all(inspect.getdoc(one) for one in SUITE.twins)
