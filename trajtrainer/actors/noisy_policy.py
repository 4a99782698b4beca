"""A policy with exploration noise, for actors of off-policy trainers.

Shape legend: N agents, D sum of branch sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from trajtrainer.algos.acting import Policy
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, IntArray, ObservationArray
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.distribution import ENV_CLIP


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
