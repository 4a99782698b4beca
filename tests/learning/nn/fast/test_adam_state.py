"""The moments of an optimizer in a checkpoint that somebody has changed, or that were damaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trajtrainer.learning.nn.fast.adam import Adam


def trained() -> Adam:
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    adam = Adam([parameter], 0.1)
    parameter.grad = torch.ones(2, 3)
    adam.step()
    return adam


def state_of(adam: Adam) -> dict[str, Any]:
    state = adam.state_dict()
    state["state"][0] = {name: tensor.clone() for name, tensor in state["state"][0].items()}
    return state


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("exp_avg_sq", torch.tensor([7.0]), r"exp_avg_sq 0 has the shape \(1,\), expected \(2, 3\)"),
        ("exp_avg_sq", torch.tensor(7.0), r"the shape \(\), expected"),
        ("exp_avg_sq", torch.ones(3), r"the shape \(3,\), expected"),
        ("exp_avg", torch.ones(2, 1), r"exp_avg 0 has the shape \(2, 1\)"),
        ("exp_avg_sq", torch.full((2, 3), -1.0), "negative"),
        ("exp_avg_sq", torch.full((2, 3), torch.inf), "infinite"),
        ("exp_avg", torch.full((2, 3), torch.nan), "NaN"),
    ],
)
def test_moments_of_another_shape_are_refused(name: str, value: torch.Tensor, expected: str) -> None:
    adam = trained()
    before = state_of(adam)["state"][0]
    changed = state_of(adam)
    changed["state"][0][name] = value
    with pytest.raises(ValueError, match=expected):
        adam.load_state_dict(changed)
    after = state_of(adam)["state"][0]
    assert all(torch.equal(before[each], after[each]) for each in before), "nothing of it was taken"


@pytest.mark.parametrize("index", [1, -1])
def test_moments_of_no_parameter_are_refused(index: int) -> None:
    adam = trained()
    state = state_of(adam)
    state["state"] = {index: state["state"][0]}
    with pytest.raises(ValueError, match=f"moments for parameter {index}, but there are 1 parameters"):
        adam.load_state_dict(state)
