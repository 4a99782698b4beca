"""Acting with plain layers on vectors, perhaps with a memory, in as few operations as it takes.

The same numbers to rounding, and the same draws, as the ``Actor`` gives. A dozen agents' decision by small layers is
hardly any arithmetic: what it costs is the number of calls. So the layers are called as functions and everything
around them is numpy, whose operations on so few numbers cost a third of torch's.

Letters: N agents, O observation size, D sum of branches, H memory size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.nn.actor import Actor
from trajtrainer.nn.conditioning import Mlp
from trajtrainer.nn.lstm_steps import end_step, gate_scale
from trajtrainer.nn.memory import Memory
from trajtrainer.nn.normalizer import CLIP
from trajtrainer.nn.plain_heads import HeadActions, PlainHead
from trajtrainer.steps import BoolArray, FloatArray, ObservationArray

_ENCODER = "body.encoder."  # of plain actors there is nothing in it but normalisers


def is_plain(actor: Actor) -> bool:
    """Whether ``PlainPolicy`` can act for this actor."""
    return actor.body.is_plain and (actor.head.mu is not None or actor.head.discrete is not None)


class PlainPolicy:
    """Acts by an actor's weights, which it shares; ``weights_changed`` tells when they change."""

    def __init__(self, actor: Actor) -> None:
        assert is_plain(actor)
        body = actor.body
        assert isinstance(body.layers, Mlp)
        linears = [layer for layer in body.layers.layers if isinstance(layer, nn.Linear)]
        self._layers = [(one.weight.detach(), one.bias.detach()) for one in linears]
        self._memory = None if body.memory is None else _PlainMemory(body.memory)
        self._head = PlainHead(actor.head)
        self._normalizers = [*body.encoder.normalizers().values()]
        self._normalizers_changed()

    def weights_changed(self, names: Collection[str]) -> None:
        """Computes anew what follows from these entries of the actor's ``state_dict``."""
        self._normalizers_changed()
        if all(name.startswith(_ENCODER) for name in names):
            return
        self._head.weights_changed()
        if self._memory is not None:
            self._memory.weights_changed()

    def _normalizers_changed(self) -> None:
        if self._normalizers:
            self._mean: FloatArray = np.concatenate([one.mean.numpy() for one in self._normalizers])
            self._deviation: FloatArray = np.concatenate([one.deviation().numpy() for one in self._normalizers])

    def __call__(
        self,
        obs: Sequence[ObservationArray],
        mask: BoolArray,
        memory: FloatArray,
        generator: torch.Generator | None,
    ) -> tuple[HeadActions, FloatArray]:
        """Decides for N agents.

        Args:
            obs: per sensor f32 [N, O].
            mask: [N, D], True = forbidden.
            memory: before the step [N, H].
            generator: to draw by; None for the likeliest actions.

        Returns:
            The actions, and the memory after the step [N, H].
        """
        x = self._features(obs)
        if self._memory is not None:
            x, memory = self._memory(x, memory)
        return self._head(x, mask, generator), memory

    def _features(self, obs: Sequence[ObservationArray]) -> Tensor:
        """What the layers make of the observations [N, hidden_units]."""
        rows: FloatArray = np.concatenate(obs, 1, dtype=np.float32)  # a copy, since what was received is read-only
        if self._normalizers:
            rows -= self._mean
            rows /= self._deviation
            np.maximum(rows, -CLIP, out=rows)
            np.minimum(rows, CLIP, out=rows)
        x: Tensor = torch.from_numpy(rows)
        for weight, bias in self._layers:
            x = F.silu(F.linear(x, weight, bias), inplace=True)
        return x


class _PlainMemory:
    """One step of an LSTM by a memory's weights, which it copies; ``weights_changed`` takes them over anew."""

    def __init__(self, memory: Memory) -> None:
        self._lstm = memory.lstm
        self._units = memory.hidden_size
        self.weights_changed()

    def weights_changed(self) -> None:
        """One layer for features and last output side by side, scaled as ``end_step`` takes it."""
        scale = torch.from_numpy(gate_scale(self._units))
        by_input, by_hidden, *biases = (one.detach() for one in self._lstm.all_weights[0])
        self._weight = torch.cat((by_input, by_hidden), 1).mul_(scale[:, None])
        self._bias = torch.add(*biases).mul_(scale)

    def __call__(self, x: Tensor, memory: FloatArray) -> tuple[Tensor, FloatArray]:
        """From features [N, hidden_units] and memory [N, H]: the output [N, H / 2], and the memory [N, H]."""
        hidden, cells = memory[:, : self._units], memory[:, self._units :]
        known = torch.from_numpy(np.concatenate((x.numpy(), hidden), 1))
        step = end_step(F.linear(known, self._weight, self._bias).numpy(), cells)
        return torch.from_numpy(step.hidden), np.concatenate((step.hidden, step.cells), 1)
