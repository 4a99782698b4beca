"""Acting by an MLP on vectors, perhaps with a memory, in as few operations as it takes.

A dozen agents' decision by small layers is hardly any arithmetic: what it costs is the number of calls. So the layers
are called as functions and everything around them is numpy, whose operations on so few numbers cost a third of torch's.

Shapes: N agents, O observation size, D sum of branches, H memory size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trajtrainer.core.steps import BoolArray, FloatArray, ObservationArray
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.conditioning import Mlp, activated_layers, weights
from trajtrainer.nn.fast.acting_head import ActingHead, HeadActions
from trajtrainer.nn.fast.lstm import end_step, gate_scale
from trajtrainer.nn.memory import Memory

_ENCODER = "body.encoder."  # of such actors there is nothing in it but normalisers


def is_mlp(actor: Actor) -> bool:
    """Return whether an actor is an MLP on vectors, perhaps with a memory, that has something to decide.

    One whose noise depends on the state is none.
    """
    head = actor.head
    return actor.body.is_mlp and not head.use_sde and (head.mu is not None or head.discrete is not None)


class Acting:
    """Act by an actor's weights, which it shares; ``weights_changed`` tells when they change.

    Twin of ``trajtrainer.nn.actor.Actor``: the same numbers to rounding, and the same draws.
    """

    def __init__(self, actor: Actor) -> None:
        assert is_mlp(actor)
        body = actor.body
        assert isinstance(body.layers, Mlp)
        self._layers = [(weight.detach(), bias.detach()) for weight, bias in map(weights, body.layers.linears)]
        self._activation = body.layers.activation
        self._memory = None if body.memory is None else _OneStep(body.memory)
        self._head = ActingHead(actor.head)
        self._normalizers = [*body.encoder.normalizers().values()]
        self._normalizers_changed()

    def weights_changed(self, names: Collection[str]) -> None:
        """Compute anew what follows from these entries of the actor's ``state_dict``."""
        self._normalizers_changed()
        if all(name.startswith(_ENCODER) for name in names):
            return
        self._head.weights_changed()
        if self._memory is not None:
            self._memory.weights_changed()

    def _normalizers_changed(self) -> None:
        if self._normalizers:
            self._clip = self._normalizers[0].clip
            self._mean: FloatArray = np.concatenate([one.mean.numpy() for one in self._normalizers])
            self._scale: FloatArray = np.concatenate([one.standard_deviation().numpy() for one in self._normalizers])

    def __call__(
        self,
        obs: Sequence[ObservationArray],
        mask: BoolArray,
        memory: FloatArray,
        generator: torch.Generator | None,
    ) -> tuple[HeadActions, FloatArray]:
        """Decide for N agents.

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
        """Return what the layers make of the observations [N, hidden_units]."""
        rows: FloatArray = np.concatenate(obs, 1, dtype=np.float32)  # a copy, since what was received is read-only
        if self._normalizers:
            rows -= self._mean
            rows /= self._scale
            np.maximum(rows, -self._clip, out=rows)
            np.minimum(rows, self._clip, out=rows)
        return activated_layers(torch.from_numpy(rows), self._layers, activation=self._activation)


class _OneStep:
    """Make one step of an LSTM by a memory's weights, which it copies; ``weights_changed`` takes them over anew."""

    def __init__(self, memory: Memory) -> None:
        self._lstm = memory.lstm
        self._units = memory.hidden_size
        self.weights_changed()

    def weights_changed(self) -> None:
        """Make one layer for features and last output side by side, scaled as ``end_step`` takes it."""
        scale = torch.from_numpy(gate_scale(self._units))
        by_input, by_hidden, *biases = (one.detach() for one in self._lstm.all_weights[0])
        self._weight = torch.cat((by_input, by_hidden), 1).mul_(scale[:, None])
        self._bias = torch.add(*biases).mul_(scale)

    def __call__(self, x: Tensor, memory: FloatArray) -> tuple[Tensor, FloatArray]:
        """Return the output [N, H / 2] and the memory [N, H] for features [N, hidden_units] and the memory before."""
        hidden, cells = memory[:, : self._units], memory[:, self._units :]
        known = torch.from_numpy(np.concatenate((x.numpy(), hidden), 1))
        step = end_step(F.linear(known, self._weight, self._bias).numpy(), cells)
        return torch.from_numpy(step.hidden), np.concatenate((step.hidden, step.cells), 1)
