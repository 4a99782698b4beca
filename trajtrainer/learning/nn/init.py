"""Layers with ML-Agents' initial weights (docs/explanation/mlagents-behavior.md#body-and-heads).

The random numbers come from torch's global generator, as usual in torch. :func:`seeded` gives a network its own random
stream and restores the state of the global generator afterwards.
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
    """Seed torch's CPU generator within the block. This is not thread-safe, because the generator is global."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _linear(in_features: int, out_features: int, fill: Callable[[Tensor], object]) -> nn.Linear:
    """Create a layer with zero biases and weights filled by ``fill``.

    This skips torch's own initialization, which would take time and consume random numbers. The layer is created on
    torch's default device, so a whole network can be created on "meta" without allocating memory. On "meta", ``fill``
    is not called, because it would only make torch import its compiler (measured: 1 s).
    """
    layer = nn.Linear(in_features, out_features, device="meta")
    weight = torch.empty(out_features, in_features)
    if not weight.is_meta:
        fill(weight)
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(out_features))
    return layer


def kaiming_linear(in_features: int, out_features: int, gain: float = 1.0) -> nn.Linear:
    """Create a layer with weights from Normal(0, gain / sqrt(in_features)) and zero biases."""
    return _linear(in_features, out_features, lambda weight: weight.normal_(std=gain / math.sqrt(in_features)))


def xavier_linear(in_features: int, out_features: int) -> nn.Linear:
    """Create a layer with Xavier-uniform weights and zero biases."""
    return _linear(in_features, out_features, nn.init.xavier_uniform_)


def embedding_linear(in_features: int, embedding: int) -> nn.Linear:
    """Create an attention layer with weights from Normal(0, 1) * sqrt(0.125 / embedding) and zero biases."""
    return _linear(in_features, embedding, lambda weight: weight.normal_(std=math.sqrt(0.125 / embedding)))


def uniform_linear(in_features: int, out_features: int, bound: float) -> nn.Linear:
    """Create a layer with weights uniform in ±bound and zero biases."""
    return _linear(in_features, out_features, lambda weight: weight.uniform_(-bound, bound))


def unit_linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """Create a layer with orthogonal weights, scaled to length 1 for each unit, and zero biases if it has any."""
    layer = _linear(in_features, out_features, _fill_with_unit_rows)
    if not bias:
        layer.register_parameter("bias", None)
    return layer


def make_unit_rows(module: nn.Module) -> None:
    """Reinitialize the weights of linear layers in the same way as ``unit_linear``."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and not layer.weight.is_meta:
            with torch.no_grad():
                _fill_with_unit_rows(layer.weight)


def _fill_with_unit_rows(weight: Tensor) -> None:
    nn.init.orthogonal_(weight)
    weight.div_(weight.norm(dim=1, keepdim=True))


def initialize(layers: nn.Module, initialization: Initialization, gain: float = math.sqrt(2.0)) -> None:
    """Reinitialize the weights of linear layers, unless ``initialization`` selects ML-Agents' weights.

    Orthogonal weights (Saxe et al. 2014) are multiplied by ``gain``, and the biases are kept. torch's initialization
    draws weights and biases uniformly within ±1 / sqrt(in_features), with a third of the variance of
    ``kaiming_linear``.
    """
    if initialization is Initialization.MLAGENTS:
        return
    for layer in layers.modules():
        if isinstance(layer, nn.Linear) and initialization is Initialization.ORTHOGONAL:
            nn.init.orthogonal_(layer.weight, gain)
        elif isinstance(layer, nn.Linear):
            layer.reset_parameters()


def init_lstm(lstm: nn.LSTM) -> None:
    """Initialize the weights of each gate Xavier-uniformly; set biases to 1 for the forget gate and to 0 elsewhere."""
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
