"""Behavioral cloning from a data set: imitates the recorded actions, or a teacher on the recorded observations.

Shape legend: b rows of a minibatch, W widest output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import LearningContext, Statistics
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.fast.acting import is_mlp
from trajtrainer.learning.nn.fast.adam import Adam, ParameterView, adam_state, load_adam_state, whole
from trajtrainer.learning.nn.fast.batched_mlps import BatchedMlps
from trajtrainer.learning.nn.fast.distribution import Decisions
from trajtrainer.learning.nn.minibatch import Minibatch, masked_mean
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.plugins.imitation.distillation import as_seen, labels
from trajtrainer.plugins.imitation.offline import Offline, imitation_losses, limit_sigma, make_student
from trajtrainer.plugins.imitation.settings import CloningHyperparameters


class Cloner:
    """Makes gradient steps of cloning for policies of either kind (``policy: ppo`` or ``sac``).

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
        """Make a gradient step. Returns statistics as 0-d tensors."""
        # L = -log pi(a | s), or KL(teacher || pi), the mean over the steps.
        loss = self.differentiate(batch) if self.closed_form is None else self.closed_form.differentiate(batch)
        self._adam.param_groups[0]["lr"] = learning_rate
        self._adam.step()
        limit_sigma(self._actor, self._hyper.min_std)
        return {"Losses/Policy Loss": loss}

    def differentiate(self, batch: Minibatch) -> Tensor:
        """Differentiate the loss by autograd. Returns the loss."""
        distribution, _ = self._actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
        loss = masked_mean(imitation_losses(self._actor, distribution, batch), batch.loss_mask)
        for leaf in self._leaves:
            leaf.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def state(self) -> dict[str, dict[str, Any]]:
        """Name in the checkpoint -> Adam's state."""
        return {"policy": adam_state(self._adam, self._pieces)}

    def load_state(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what ``state`` returned.

        Raises:
            KeyError: it has no state of a policy.
            ValueError: it belongs to another policy.
        """
        load_adam_state(self._adam, self._pieces, states["policy"])


class BC(Offline):
    """Imitates recorded actions, or a teacher's distribution over actions."""

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


def has_closed_form(actor: Actor) -> bool:
    """Whether the actor is an MLP on the CPU whose standard deviation does not depend on the state."""
    on_cpu = next(actor.parameters()).device.type == "cpu"
    return on_cpu and is_mlp(actor) and not actor.memory_size and not actor.head.conditional_sigma


def closed_form(actor: Actor) -> CloningClosedForm | None:
    """The closed form if there is one. The choice changes numbers by rounding at most."""
    return CloningClosedForm(actor) if has_closed_form(actor) else None


class Likelihood:
    """The log-probability of recorded actions under a policy, and its gradient, without autograd."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._width = actor.head.continuous_size + sum(actor.head.branches)
        parameter = actor.head.log_sigma
        self.leaves: list[Tensor] = []
        self._log_sigma: FloatArray = np.zeros((1, 0), np.float32)
        if parameter is not None:
            leaf = parameter.detach()
            leaf.grad = torch.zeros_like(leaf)
            self._log_sigma, self._gradient = leaf.numpy(), leaf.grad
            self.leaves.append(leaf)

    def __call__(self, outputs: FloatArray, batch: Minibatch) -> tuple[FloatArray, Decisions]:
        """The log-probability of each row [b] for ``outputs`` [b, W], and the argument of ``gradient``."""
        head = self._actor.head
        raw = batch.with_rows({"continuous": head.from_env(batch["continuous"])})
        decisions = Decisions(outputs[:, : self._width], self._log_sigma, raw, head.branches)
        return decisions.log_prob.sum(1), decisions

    def gradient(self, decisions: Decisions, grad_rows: FloatArray, out: FloatArray) -> None:
        """Continue the gradient with respect to log-probabilities [b] to the outputs, ``out`` [b, W], and the leaf."""
        grad_log_prob = np.repeat(grad_rows[:, None], decisions.log_prob.shape[1], 1)
        grad_outputs, grad_log_sigma = decisions.gradient(grad_log_prob, 0.0, 1.0)
        out[:, : self._width] = grad_outputs
        if self.leaves:
            self._gradient.copy_(torch.from_numpy(grad_log_sigma))

    def pieces(self, stack: BatchedMlps) -> list[ParameterView]:
        """The policy's parameters, in the module's order, as views of the leaves."""
        own = self._actor.head.log_sigma
        pieces = stack.pieces(list(self._actor.parameters()))
        return [ParameterView(self.leaves[0], piece.view) if piece.leaf is own else piece for piece in pieces]


class CloningClosedForm:
    """The gradient of the cloning loss. The policy remains usable: its parameters become parts of larger tensors.

    Twin of ``trajtrainer.plugins.imitation.bc.Cloner.differentiate``. With two layers of 128 units and 256 rows it
    takes an eighth less time than autograd.

    Attributes:
        pieces: the policy's parameters, as views of the leaves.
    """

    def __init__(self, actor: Actor) -> None:
        self._encoder = actor.body.encoder
        self._stack = BatchedMlps([actor], [1])
        self._likelihood = Likelihood(actor)
        self.pieces = self._likelihood.pieces(self._stack)

    @torch.no_grad()
    def differentiate(self, batch: Minibatch) -> Tensor:
        """Write the gradient of the loss into the leaves. Returns the loss."""
        run = self._stack(self._encoder(batch.obs)[0].unsqueeze(0), 0, 1)
        with np.errstate(all="ignore"):  # The trainer looks for numbers that are not finite.
            log_prob, decisions = self._likelihood(run.outputs[0].numpy(), batch)
            grad: FloatArray = np.empty(run.outputs.shape, np.float32)
            rows = np.full(len(batch), -1.0 / len(batch), np.float32)
            self._likelihood.gradient(decisions, rows, grad[0])
        self._stack.backward(run, torch.from_numpy(grad))
        return torch.tensor(-float(log_prob.mean()))
