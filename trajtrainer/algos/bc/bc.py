"""Behavioral cloning from a data set alone: the likelihood of what was recorded, maximized.

Shape legend: b rows of a minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from trajtrainer.algos.algorithm import LearningContext
from trajtrainer.algos.bc.closed_form import closed_form
from trajtrainer.algos.bc.settings import CloningHyperparameters, OfflineHyperparameters
from trajtrainer.algos.offline.offline import Offline
from trajtrainer.algos.offline.policy import limit_sigma, log_likelihood, make_actor
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.fast.adam import Adam, adam_state, load_adam_state, whole
from trajtrainer.nn.minibatch import Minibatch, masked_mean
from trajtrainer.rewards.signal import RewardSignal


class Cloner:
    """Makes gradient steps of cloning. The policy may be of either kind (``policy: ppo`` or ``sac``).

    Attributes:
        closed_form: differentiates the loss by hand; None for autograd.
    """

    def __init__(self, actor: Actor, hyper: CloningHyperparameters) -> None:
        self._actor = actor
        self._hyper = hyper
        self.closed_form = closed_form(actor)
        if self.closed_form is None:
            self._pieces = [whole(parameter) for parameter in actor.parameters()]
        else:
            self._pieces = self.closed_form.pieces
        self._leaves = list(dict.fromkeys(piece.leaf for piece in self._pieces))
        self._adam = Adam(self._leaves, hyper.learning_rate, weight_decay=hyper.weight_decay)

    def gradient_step(self, batch: Minibatch, learning_rate: float) -> dict[str, Tensor]:
        """Make a gradient step. Return statistics as 0-d tensors."""
        # L = -log pi(a | s), mean over the recorded steps.
        loss = self.differentiate(batch) if self.closed_form is None else self.closed_form.differentiate(batch)
        self._adam.param_groups[0]["lr"] = learning_rate
        self._adam.step()
        limit_sigma(self._actor, self._hyper.min_std)
        return {"Losses/Policy Loss": loss}

    def differentiate(self, batch: Minibatch) -> Tensor:
        """Differentiate the loss by autograd, and return it."""
        loss = -masked_mean(log_likelihood(self._actor, batch), batch.loss_mask)
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
    """A policy that does what was recorded, its standard deviation included."""

    timer: ClassVar[str] = "BC.update"

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        self.cloner = Cloner(self.actor, self.hyper)

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, OfflineHyperparameters)
        return {"actor": make_actor(context.spec, context.settings.network_settings, hyper)}

    def gradient_step(self, batch: Minibatch, step: int) -> dict[str, Tensor]:
        return self.cloner.gradient_step(batch, self.decayed(self.hyper.learning_rate, step))

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        return self.cloner.state()

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        self.cloner.load_state(states)
