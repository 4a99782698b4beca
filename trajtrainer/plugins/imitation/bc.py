"""Behavioral cloning: imitates a data set's recorded actions, or a teacher's actions for the recorded observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from trajtrainer.core.spec import sensors_named, with_sensors
from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import Algorithm, LearningContext, Statistics
from trajtrainer.learning.nn.fast.adam import Adam
from trajtrainer.learning.nn.minibatch import Minibatch, masked_mean
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.plugins.imitation.distillation import as_seen, labels
from trajtrainer.plugins.imitation.offline import Offline, imitation_losses, limit_sigma, make_actor
from trajtrainer.plugins.imitation.settings import BCHyperparameters, CloningHyperparameters, DAggerHyperparameters


class Cloning(Algorithm):
    """Computes gradient steps of behavioral cloning for both kinds of policies (``policy: ppo`` or ``sac``)."""

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, CloningHyperparameters)
        self._min_std = hyper.min_std
        self._adam = Adam(self.actor.parameters(), hyper.learning_rate, weight_decay=hyper.weight_decay)

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """Create a policy. If the settings list ``student_sensors``, it only sees these.

        Raises:
            SettingsError: the behavior has no sensor with that name.
            UnsupportedError: no encoder can handle a sensor.
        """
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, BCHyperparameters | DAggerHyperparameters)
        sees = sensors_named(context.spec, hyper.student_sensors) if hyper.student_sensors else None
        actor = make_actor(with_sensors(context.spec, sees), context.settings.network_settings, hyper)
        actor.sees = sees
        return {"actor": actor}

    def imitate(self, batch: Minibatch, learning_rate: float) -> dict[str, Tensor]:
        """Make a gradient step, and return statistics as 0-d tensors."""
        # L = -log pi(a | s), or KL(teacher || pi), averaged over the steps.
        actor = self.actor
        distribution, _ = actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
        loss = masked_mean(imitation_losses(actor, distribution, batch), batch.loss_mask)
        self._adam.descend(loss, learning_rate)
        limit_sigma(actor, self._min_std)
        return {"Losses/Policy Loss": loss.detach()}

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        return {"policy": self._adam.state_dict()}

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        self._adam.load_state_dict(states["policy"])


class BC(Cloning, Offline):
    """Imitates recorded actions, or a teacher's distribution over actions."""

    timer: ClassVar[str] = "BC.update"

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:
        teacher = self.context.expert
        if teacher is not None:
            # Every trajectory is a complete episode, so it starts with an empty memory.
            apart = replace(packed, agent=np.arange(packed.num_trajectories))
            wanted = labels(teacher, apart, {}, self.actor)
            packed = replace(packed, steps=packed.steps.with_columns(wanted))
        return super().add(as_seen(packed, self.actor), rewards)

    def gradient_step(self, batch: Minibatch, step: int) -> dict[str, Tensor]:
        return self.imitate(batch, self.decayed(self.hyper.learning_rate, step))
