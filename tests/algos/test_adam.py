"""Adam against torch's class."""

from __future__ import annotations

import torch

from trajtrainer.algos.adam import Adam
from trajtrainer.algos.adam_moments import adam_state, load_adam_state, whole


def test_the_same_as_torchs() -> None:
    ours = [
        torch.randn(3, 2, requires_grad=True),
        torch.randn(4, requires_grad=True),
        torch.zeros(1, requires_grad=True),
    ]
    theirs = [parameter.detach().clone().requires_grad_() for parameter in ours]
    adam, reference = Adam(ours, 0.1), torch.optim.Adam(theirs, lr=0.1, fused=True)
    for step in range(4):
        for own, other in zip(ours[:2], theirs[:2], strict=True):  # the third one has no gradient
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        adam.param_groups[0]["lr"] = reference.param_groups[0]["lr"] = 0.1 / (step + 1)
        adam.step()
        reference.step()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0)
    found = adam_state(adam, [whole(parameter) for parameter in ours])["state"]
    expected = reference.state_dict()["state"]
    assert found.keys() == expected.keys() == {0, 1}
    for index, entry in expected.items():
        assert found[index].keys() == entry.keys()
        assert all(torch.equal(found[index][name], value) for name, value in entry.items())


def test_a_loaded_state_goes_on_identically() -> None:
    first = torch.zeros(5, requires_grad=True)
    adam = Adam([first], 0.1)
    first.grad = torch.arange(5.0)
    adam.step()
    second = first.detach().clone().requires_grad_()
    other = Adam([second], 0.1)
    load_adam_state(other, [whole(second)], adam_state(adam, [whole(first)]))
    for optimizer, parameter in ((adam, first), (other, second)):
        parameter.grad = torch.ones(5)
        optimizer.step()
    assert torch.equal(first, second)
