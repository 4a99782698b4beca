"""Layers with ML-Agents' initial weights (docs/explanation/mlagents-behavior.md#body-and-heads).

The random numbers come from torch's global generator, as everywhere in torch. :func:`seeded` gives one network its
own stream and leaves the global generator where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trajtrainer.settings.network import Initialization


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator within the block. Not for several threads at once: the generator is global."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _linear(in_features: int, out_features: int, fill: Callable[[Tensor], object]) -> nn.Linear:
    """A layer with weights from ``fill`` and biases 0.

    torch's own initial weights would cost time and random numbers. The layer is on torch's default device, so that a
    whole network can be made on "meta", without memory. There is nothing to fill there, and torch would import its
    compiler to find out (measured: 1 s).
    """
    layer = nn.Linear(in_features, out_features, device="meta")
    weight = torch.empty(out_features, in_features)
    if not weight.is_meta:
        fill(weight)
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(out_features))
    return layer


def kaiming_linear(in_features: int, out_features: int, gain: float = 1.0) -> nn.Linear:
    """A layer with weights Normal(0, gain / sqrt(in_features)), biases 0."""
    return _linear(in_features, out_features, lambda weight: weight.normal_(std=gain / math.sqrt(in_features)))


def xavier_linear(in_features: int, out_features: int) -> nn.Linear:
    """A layer with Xavier-uniform weights, biases 0."""
    return _linear(in_features, out_features, nn.init.xavier_uniform_)


def embedding_linear(in_features: int, embedding: int) -> nn.Linear:
    """A layer of attention with weights Normal(0, 1) * sqrt(0.125 / embedding), biases 0."""
    return _linear(in_features, embedding, lambda weight: weight.normal_(std=math.sqrt(0.125 / embedding)))


def uniform_linear(in_features: int, out_features: int, bound: float) -> nn.Linear:
    """A layer with weights uniform in ±bound, biases 0."""
    return _linear(in_features, out_features, lambda weight: weight.uniform_(-bound, bound))


def unit_linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """A layer with orthogonal weights, of length 1 for each unit, and biases 0, if any."""
    layer = _linear(in_features, out_features, _fill_with_unit_rows)
    if not bias:
        layer.register_parameter("bias", None)
    return layer


def make_unit_rows(module: nn.Module) -> None:
    """Replace the weights of linear layers by those of ``unit_linear``."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and not layer.weight.is_meta:
            with torch.no_grad():
                _fill_with_unit_rows(layer.weight)


def _fill_with_unit_rows(weight: Tensor) -> None:
    nn.init.orthogonal_(weight)
    weight.div_(weight.norm(dim=1, keepdim=True))


def initialize(layers: nn.Module, initialization: Initialization, gain: float = math.sqrt(2.0)) -> None:
    """Replace ML-Agents' initial weights of linear layers, if ``initialization`` asks for others.

    Orthogonal ones (Saxe et al. 2014) are multiplied by ``gain``, and biases stay. Those of torch, including biases,
    are uniform within 1 / sqrt(in_features), with a third of the variance of ``kaiming_linear``.
    """
    if initialization is Initialization.MLAGENTS:
        return
    for layer in layers.modules():
        if isinstance(layer, nn.Linear) and initialization is Initialization.ORTHOGONAL:
            nn.init.orthogonal_(layer.weight, gain)
        elif isinstance(layer, nn.Linear):
            layer.reset_parameters()


def init_lstm(lstm: nn.LSTM) -> None:
    """Initialize each gate block Xavier-uniformly, and both bias vectors with 1 for the forget gate and 0 elsewhere."""
    hidden = lstm.hidden_size
    with torch.no_grad():
        for name, parameter in lstm.named_parameters():
            if name.startswith("weight"):
                for gate in range(4):
                    nn.init.xavier_uniform_(_block(parameter, gate, hidden))
            else:
                nn.init.zeros_(parameter)
                _block(parameter, 1, hidden).fill_(1.0)


def _block(parameter: Tensor, gate: int, hidden: int) -> Tensor:
    return parameter[gate * hidden : (gate + 1) * hidden]
