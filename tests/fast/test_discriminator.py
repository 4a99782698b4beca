"""The hand-written gradient of GAIL's discriminator against autograd's."""

from __future__ import annotations

import pytest
import torch

from tests.nn.specs import behavior, network, vector
from trajtrainer.fast.discriminator import can_differentiate, differentiate
from trajtrainer.rewards.discriminator import Discriminator, Inputs, discriminate, gradient_penalty


def no_noise(like: torch.Tensor) -> torch.Tensor:
    raise AssertionError("there is no bottleneck")


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("use_actions", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_it_is_autograds(normalize: bool, use_actions: bool, layers: int) -> None:
    torch.manual_seed(layers)
    spec = behavior([vector(5), vector(3, "second")], 2, (3,))
    settings = network(hidden=12, layers=layers, normalize=normalize)
    discriminator = Discriminator(spec, settings, use_actions=use_actions, use_vail=False)
    assert can_differentiate(discriminator)
    with torch.no_grad():
        discriminator.estimator.weight *= 5  # a gradient whose norm is not far from 1
        discriminator.estimator.bias.add_(0.3)
    discriminator.encoder.update_normalization([torch.randn(30, 5) * 2 + 1, torch.randn(30, 3)])

    def inputs(scale: float) -> Inputs:
        # Some of it beyond the normaliser's limits.
        return Inputs([torch.randn(7, 5) * scale, torch.randn(7, 3)], torch.rand(7, 6) if use_actions else None)

    policy, demonstrated, between = inputs(4.0), inputs(1.0), inputs(6.0)
    found, penalty = differentiate(discriminator, policy, demonstrated, between)
    gradients = {name: one.grad for name, one in discriminator.named_parameters()}
    for one in discriminator.parameters():
        one.grad = None
    expected = discriminate(discriminator, policy, demonstrated, no_noise)
    expected_penalty = gradient_penalty(discriminator, between, no_noise)
    (expected.loss + expected_penalty).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found[:3], expected[:3])
    torch.testing.assert_close(penalty, expected_penalty)
    for name, one in discriminator.named_parameters():
        torch.testing.assert_close(gradients[name], one.grad, rtol=1e-4, atol=1e-5, msg=name)
