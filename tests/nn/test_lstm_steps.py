"""The recurrence that is written out against torch's LSTM and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from trajtrainer.nn.lstm_steps import backward, run

NETWORKS, SEQUENCES, LENGTH, SIZE, UNITS = 2, 3, 5, 4, 6
Floats = NDArray[np.float32]


def make() -> tuple[list[nn.LSTM], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Networks, their inputs [n, L, S, size] and memories [n, S, 2U], and the stacked weight_hh."""
    generator = torch.Generator().manual_seed(0)
    networks = [nn.LSTM(SIZE, UNITS) for _ in range(NETWORKS)]
    x = torch.randn(NETWORKS, LENGTH, SEQUENCES, SIZE, generator=generator, requires_grad=True)
    memory = torch.randn(NETWORKS, SEQUENCES, 2 * UNITS, generator=generator)
    return networks, x, memory, torch.stack([weights(network)[1] for network in networks])


def weights(network: nn.LSTM) -> list[torch.Tensor]:
    """weight_ih, weight_hh, bias_ih, bias_hh."""
    return [parameter.detach() for parameter in network.parameters()]


def sums_of(networks: list[nn.LSTM], x: torch.Tensor) -> Floats:
    """[L, n, S, 4U]"""
    found = []
    for n, network in enumerate(networks):
        by_input, _, input_bias, hidden_bias = weights(network)
        found.append(nn.functional.linear(x[n], by_input, input_bias + hidden_bias))
    sums: Floats = torch.stack(found, 1).detach().numpy()
    return sums


def by_torch(networks: list[nn.LSTM], x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Outputs [n, L, S, U]."""
    outputs = []
    for n, network in enumerate(networks):
        hidden, cells = (part.contiguous() for part in memory[n][None].chunk(2, 2))
        outputs.append(network(x[n], (hidden, cells))[0])
    return torch.stack(outputs)


def test_the_steps_are_torchs() -> None:
    networks, x, memory, weight = make()
    steps = run(sums_of(networks, x), weight, memory.numpy())
    hidden = np.stack([step.hidden for step in steps], 1)
    np.testing.assert_allclose(hidden, by_torch(networks, x, memory).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_the_gradient_is_autograds() -> None:
    networks, x, memory, weight = make()
    by_hidden = torch.randn(NETWORKS, LENGTH, SEQUENCES, UNITS, generator=torch.Generator().manual_seed(1))
    by_torch(networks, x, memory).backward(by_hidden)  # type: ignore[no-untyped-call]
    sums = sums_of(networks, x)
    found = backward(run(sums, weight, memory.numpy()), weight, memory.numpy(), by_hidden.transpose(0, 1).numpy())
    assert x.grad is not None
    for n, network in enumerate(networks):
        *_, hidden_bias = network.parameters()
        by_sums = torch.from_numpy(found[:, n])
        torch.testing.assert_close(by_sums.sum((0, 1)), hidden_bias.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(by_sums @ weights(network)[0], x.grad[n], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [-1000.0, 1000.0])
def test_gates_far_off_saturate_without_a_warning(value: float) -> None:
    _, _, memory, weight = make()
    (step,) = run(np.full((1, NETWORKS, SEQUENCES, 4 * UNITS), value, np.float32), weight, memory.numpy())
    assert set(np.unique(step.gates[..., : 2 * UNITS])) == {float(value > 0)}
    assert np.isfinite(step.hidden).all()
