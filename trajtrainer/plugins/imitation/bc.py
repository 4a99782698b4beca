"""Behavioral cloning: imitates a data set's recorded actions, or a teacher's actions for the recorded observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import LearningContext, Statistics
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.fast.adam import Adam
from trajtrainer.learning.nn.minibatch import Minibatch, masked_mean
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.plugins.imitation.distillation import as_seen, labels
from trajtrainer.plugins.imitation.offline import Offline, imitation_losses, limit_sigma, make_student
from trajtrainer.plugins.imitation.settings import CloningHyperparameters


class Cloner:
    """Makes gradient steps of behavioral cloning for both kinds of policies (``policy: ppo`` or ``sac``)."""

    def __init__(self, actor: Actor, hyper: CloningHyperparameters) -> None:
        self._actor = actor
        self._hyper = hyper
        self._adam = Adam(actor.parameters(), hyper.learning_rate, weight_decay=hyper.weight_decay)

    def gradient_step(self, batch: Minibatch, learning_rate: float) -> dict[str, Tensor]:
        """Make a gradient step, and return statistics as 0-d tensors."""
        # L = -log pi(a | s), or KL(teacher || pi), averaged over the steps.
        distribution, _ = self._actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
        loss = masked_mean(imitation_losses(self._actor, distribution, batch), batch.loss_mask)
        self._adam.descend(loss, learning_rate)
        limit_sigma(self._actor, self._hyper.min_std)
        return {"Losses/Policy Loss": loss.detach()}

    def state(self) -> dict[str, dict[str, Any]]:
        """Return Adam's state under the name that it has in the checkpoint."""
        return {"policy": self._adam.state_dict()}

    def load_state(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what ``state`` returned.

        Raises:
            KeyError: ``states`` has no entry ``policy``.
            ValueError: the state is from a different policy.
        """
        self._adam.load_state_dict(states["policy"])


class BC(Offline):
    """Imitates recorded actions, or a teacher's distribution over actions."""

    timer: ClassVar[str] = "BC.update"

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        self.cloner = Cloner(self.actor, self.hyper)

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        return {"actor": make_student(context)}

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:
        teacher = self.context.expert
        if teacher is not None:
            # Every trajectory is a whole episode, so each starts with an empty memory.
            apart = replace(packed, agent=np.arange(packed.num_trajectories))
            wanted = labels(teacher, apart, {}, self.actor)
            packed = replace(packed, steps=packed.steps.with_columns(wanted))
        return super().add(as_seen(packed, self.actor), rewards)

    def gradient_step(self, batch: Minibatch, step: int) -> dict[str, Tensor]:
        return self.cloner.gradient_step(batch, self.decayed(self.hyper.learning_rate, step))

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        return self.cloner.state()

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        self.cloner.load_state(states)
