"""The weights of a policy as one block of bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.algos.acting import Policy
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, IntArray, ObservationArray
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.distribution import ENV_CLIP

_ALIGNMENT = 64


class WeightsLayout:
    """Where each entry of a network's ``state_dict``, on the CPU, lies in the block."""

    def __init__(self, entries: Mapping[str, Tensor]) -> None:
        self._entries = {name: (tensor.numpy().dtype, tuple(tensor.shape)) for name, tensor in entries.items()}
        self.size = sum(_bytes(*entry) for entry in self._entries.values())

    def over(self, buffer: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the weights as views of ``buffer``."""
        found, position = {}, 0
        for name, (dtype, shape) in self._entries.items():
            found[name] = np.ndarray(shape, dtype, buffer, position)
            position += _bytes(dtype, shape)
        return found

    def written(self, entries: Mapping[str, Tensor]) -> NDArray[np.uint8]:
        """Return the bytes of these weights."""
        buffer = np.zeros(self.size, np.uint8)
        for name, place in self.over(buffer).items():
            place[...] = entries[name].numpy()
        return buffer


def _bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


class NoisyPolicy(Policy):
    """Adds noise to what a policy decides. The reported probabilities are those without noise.

    ``noise`` is the standard deviation added to continuous actions as the environment receives them, and the
    probability that a discrete branch is drawn uniformly from its allowed actions.
    """

    def __init__(
        self, actor: Actor, *, seed: int, deterministic: bool, noise: float, evenly_first: bool = False
    ) -> None:
        super().__init__(actor, seed=seed, deterministic=deterministic, evenly_first=evenly_first)
        head = actor.head
        self._noise = noise
        self._bound = 1.0 if head.tanh_squash else ENV_CLIP
        self._branches = tuple(accumulate(actor.spec.action_spec.discrete_branches, initial=0))
        self._draws = np.random.default_rng(seed)

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        actions = super().act(obs, mask, memory)
        continuous = actions.continuous
        if continuous.shape[1]:
            noise = self._draws.standard_normal(continuous.shape, np.float32) * np.float32(self._noise * self._bound)
            continuous = np.clip(continuous + noise, -self._bound, self._bound)
        return replace(
            actions,
            continuous=continuous,
            env_continuous=continuous / np.float32(self._bound),
            discrete=self._drawn(actions.discrete, mask),
        )

    def _drawn(self, discrete: IntArray, mask: BoolArray) -> IntArray:
        drawn = discrete.copy()
        for branch, (start, stop) in enumerate(pairwise(self._branches)):
            which = np.flatnonzero(self._draws.random(len(drawn)) < self._noise)
            # The largest of random numbers is a uniform draw.
            chances = np.where(mask[which, start:stop], -1.0, self._draws.random((len(which), stop - start)))
            drawn[which, branch] = chances.argmax(1)
        return drawn
