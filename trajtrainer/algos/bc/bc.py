"""Behavioral cloning from a data set alone: recorded actions become likely, or those that a teacher would take there.

Shape legend: b rows of a minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from trajtrainer.algos.algorithm import LearningContext, Statistics
from trajtrainer.algos.bc.closed_form import closed_form
from trajtrainer.algos.bc.settings import CloningHyperparameters
from trajtrainer.algos.distillation import as_seen, labels
from trajtrainer.algos.offline.offline import Offline, imitation_losses, limit_sigma, make_student
from trajtrainer.core.steps import FloatArray
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.fast.adam import Adam, adam_state, load_adam_state, whole
from trajtrainer.nn.minibatch import Minibatch, masked_mean
from trajtrainer.rewards.signal import RewardSignal


class Cloner:
    """Makes gradient steps of cloning. The policy may be of either kind (``policy: ppo`` or ``sac``).

    Attributes:
        closed_form: differentiates the loss by hand; None for autograd.
    """

    def __init__(self, actor: Actor, hyper: CloningHyperparameters, *, has_teacher: bool = False) -> None:
        self._actor = actor
        self._hyper = hyper
        self.closed_form = None if has_teacher else closed_form(actor)
        if self.closed_form is None:
            self._pieces = [whole(parameter) for parameter in actor.parameters()]
        else:
            self._pieces = self.closed_form.pieces
        self._leaves = list(dict.fromkeys(piece.leaf for piece in self._pieces))
        self._adam = Adam(self._leaves, hyper.learning_rate, weight_decay=hyper.weight_decay)

    def gradient_step(self, batch: Minibatch, learning_rate: float) -> dict[str, Tensor]:
        """Make a gradient step. Return statistics as 0-d tensors."""
        # L = -log pi(a | s), or KL(teacher || pi), mean over the steps.
        loss = self.differentiate(batch) if self.closed_form is None else self.closed_form.differentiate(batch)
        self._adam.param_groups[0]["lr"] = learning_rate
        self._adam.step()
        limit_sigma(self._actor, self._hyper.min_std)
        return {"Losses/Policy Loss": loss}

    def differentiate(self, batch: Minibatch) -> Tensor:
        """Differentiate the loss by autograd, and return it."""
        distribution, _ = self._actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
        loss = masked_mean(imitation_losses(self._actor, distribution, batch), batch.loss_mask)
        for leaf in self._leaves:
            leaf.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def state(self) -> dict[str, dict[str, Any]]:
        """Return Adam's state by its name in the checkpoint."""
        return {"policy": adam_state(self._adam, self._pieces)}

    def load_state(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what ``state`` gave.

        Raises:
            KeyError: there is none of a policy.
            ValueError: it is of another policy.
        """
        load_adam_state(self._adam, self._pieces, states["policy"])


class BC(Offline):
    """A policy that does what was recorded, or what its teacher would do, with the same spread."""

    timer: ClassVar[str] = "BC.update"

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        self.cloner = Cloner(self.actor, self.hyper, has_teacher=context.has_teacher)

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        return {"actor": make_student(context)}

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:
        teacher = self.context.expert
        if teacher is not None:
            # Every trajectory is a whole episode, so each begins with an empty memory.
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
