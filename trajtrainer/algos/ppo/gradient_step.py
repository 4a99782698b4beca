"""A gradient step of PPO: by autograd, by autograd on two cores, or by a hand-written backward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trajtrainer.algos.ppo import closed_form
from trajtrainer.algos.ppo.losses import ratio_statistics
from trajtrainer.algos.ppo.settings import OnPolicy
from trajtrainer.algos.schedules import Coefficients
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.critic import AnyCritic, ValueNetwork
from trajtrainer.nn.fast.acting import is_mlp
from trajtrainer.nn.fast.adam import Adam, Piece, adam_state, load_adam_state, whole
from trajtrainer.nn.fast.decisions import Decisions
from trajtrainer.nn.fast.side_by_side import SideBySide
from trajtrainer.nn.fast.stacked_networks import StackedNetworks
from trajtrainer.nn.minibatch import Minibatch
from trajtrainer.nn.multi_agent import GroupCritic
from trajtrainer.settings.hyperparameters import ScheduleType

# Multiply-adds of one body's forward pass of a minibatch, as ``multiply_adds`` estimates them.
#
# Below the first number the hand-written backward pass of two MLPs is the fastest: measured with 128 to 512 units, one
# to three layers, 64 to 2,048 rows, with and without memories. Above, arithmetic is what takes the time.
_HAND_WRITTEN_BELOW = 20_000_000
# From the second one on autograd takes more than 2 ms for both networks, for which it is worth to hand one of them to a
# second thread: measured with every picture encoder at 10x10 to 64x84, lists of 4 and 20 entities and goal-conditioned
# layers of 16 to 128 units, 8 to 512 rows. What uses a weight several times per row, as convolutions do, takes longer
# than estimated; the smallest of those networks is where the number is.
_TWO_THREADS_FROM = 500_000
_CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it

Statistics = dict[str, Tensor]
# A loss, and its statistics: tag -> 0-d tensor without gradient.
Loss = tuple[Tensor, Statistics]


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss of a minibatch, by its coefficients and with diagnostics or without, and what it trains.

    Two objectives have no parameter in common. One may take two cores by itself.
    """

    parameters: Sequence[Tensor]
    loss: Callable[[Minibatch, Coefficients, bool], Loss]
    takes_two_cores: bool = False


class GradientStep(ABC):
    """Minimise by Adam. How the gradient is computed, a subclass knows.

    Args:
        pieces: the objectives' parameters, one after the other, as parts of what is trained.
        hyper: of these the learning rate (until the first step), ``adam_eps`` and ``max_grad_norm`` count, and whether
            the step depends on the KL divergence.

    Attributes:
        follows_kl: whether it does.
    """

    def __init__(self, pieces: Sequence[Piece], hyper: OnPolicy) -> None:
        self.pieces = pieces
        self.parameters = list(dict.fromkeys(piece.leaf for piece in pieces))
        self._adam = Adam(self.parameters, hyper.learning_rate, eps=hyper.adam_eps)
        self._max_grad_norm = hyper.max_grad_norm
        self.follows_kl = hyper.target_kl is not None or hyper.learning_rate_schedule is ScheduleType.ADAPTIVE
        self._waits = self.follows_kl or self._max_grad_norm is not None

    def encoded(self, obs: Sequence[Tensor]) -> Tensor | None:  # noqa: ARG002
        """Return what the layers take of observations, per sensor [N, *O], as long as no normaliser changes: [N, in].

        Minibatches that bring their rows of it need not compute them. None where that is no use.
        """
        return None

    def __call__(
        self,
        minibatch: Minibatch,
        coefficients: Coefficients,
        *,
        diagnostics: bool,
        rate: Callable[[Statistics], float | None] | None = None,
    ) -> Statistics:
        """Make one step.

        Args:
            minibatch: on the networks' device.
            coefficients: of the trainer's step.
            diagnostics: whether the statistics are to have the KL divergence, the clip fraction and the gradient's
                norm, too.
            rate: with ``follows_kl``, gives the learning rate by the statistics; None leaves the step out.

        Returns:
            Statistics tag -> 0-d tensor without gradient, on the networks' device; nothing is read back.
        """
        group = self._adam.param_groups[0]
        group["lr"] = coefficients.learning_rate
        statistics = self._descend(minibatch, coefficients, diagnostics)
        if self._max_grad_norm is not None:
            norm = self._clip(self._max_grad_norm)
        elif diagnostics:
            norm = torch.nn.utils.get_total_norm(self._gradients())
        found = coefficients.learning_rate if rate is None else rate(statistics)
        if self._waits and found is not None:
            group["lr"] = found
            self._adam.step()
        if diagnostics:
            statistics["Policy/Gradient Norm"] = norm
        return statistics

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def _clip(self, most: float) -> Tensor:
        """Scale the gradients of all objectives together to a norm of at most this. Return what it was."""
        gradients = self._gradients()
        norm = torch.nn.utils.get_total_norm(gradients)
        torch._foreach_mul_(gradients, (most / (norm + _CLIP_EPSILON)).clamp(max=1.0))
        return norm

    @abstractmethod
    def _descend(self, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool) -> Statistics:
        """Write the gradient into the parameters' ``grad`` and let Adam make its step unless that ``_waits``."""

    def state(self) -> dict[str, Any]:
        """Return the Adam's state as ``torch.optim.Adam.state_dict`` does, in the order of the objectives' parameters.

        Its tensors go on changing: copy or save it before the next step.
        """
        return adam_state(self._adam, self.pieces)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take what ``state`` gave, or moments of some of the parameters; the others start anew.

        Settings of the Adam other than its moments and counts are not taken over.

        Raises:
            ValueError: the state is of networks of another shape.
        """
        load_adam_state(self._adam, self.pieces, state)


class Autograd(GradientStep):
    """Differentiate each objective by autograd: the reference, for all networks.

    Args:
        objectives: what to minimise.
        hyper: see ``GradientStep``.
        threads: to differentiate them at the same time, which changes no number; None for one after the other.
    """

    def __init__(self, objectives: Sequence[Objective], hyper: OnPolicy, threads: SideBySide | None = None) -> None:
        super().__init__([whole(one) for objective in objectives for one in objective.parameters], hyper)
        self._objectives = objectives
        self.threads = threads

    def _descend(self, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool) -> Statistics:
        arguments = [(objective, minibatch, coefficients, diagnostics) for objective in self._objectives]
        if self.threads is None:
            found = [self._descend_one(*each) for each in arguments]
        else:
            found = self.threads.run(self._descend_one, arguments)
        return {tag: value for statistics in found for tag, value in statistics.items()}

    def _descend_one(
        self, objective: Objective, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool
    ) -> Statistics:
        loss, statistics = objective.loss(minibatch, coefficients, diagnostics)
        # What zero_grad does, without its profiling hooks.
        for parameter in objective.parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        if not self._waits:
            self._adam.step(objective.parameters)
        return statistics


class ClosedForm(GradientStep):
    """Differentiate PPO's loss by a hand-written backward pass. The networks' modules go on working.

    Twin of ``trajtrainer.algos.ppo.optimizer.PPO.loss`` and its ``backward``: the same to rounding, several times
    faster where the networks are small.
    """

    def __init__(self, actor: Actor, critic: ValueNetwork, hyper: OnPolicy) -> None:
        self._stack = StackedNetworks(actor, critic)
        super().__init__(self._stack.pieces, hyper)
        self._branches = actor.head.branches
        self._value_clipping = hyper.value_clipping
        self._joint_ratio = hyper.joint_ratio
        self._entropy_columns = actor.head.continuous_size if hyper.joint_entropy else 1
        self._vf_coef = np.float32(hyper.vf_coef)

    def encoded(self, obs: Sequence[Tensor]) -> Tensor:
        """See ``GradientStep.encoded``."""
        return self._stack.encoded(obs)

    def _descend(self, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool) -> Statistics:
        with np.errstate(all="ignore"):  # the trainer looks for what is not finite, once per update
            statistics = self._differentiate(minibatch, coefficients, diagnostics)
        if not self._waits:
            self._adam.step()
        return statistics

    def _differentiate(self, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool) -> Statistics:
        stack, epsilon = self._stack, coefficients.epsilon
        row_weight = closed_form.row_weight(len(minibatch), minibatch.loss_mask)
        encoded = minibatch.rows.get("encoded")
        if encoded is None:
            encoded = stack.encoded(minibatch.obs)
        outputs = stack(encoded, (minibatch.memory, minibatch.critic_memory), minibatch.sequence_length)
        decisions = Decisions(outputs.policy, stack.log_sigma, minibatch, self._branches)
        log_ratio = decisions.log_prob - minibatch["log_prob"].numpy()
        if self._joint_ratio:
            log_ratio = np.add.reduce(log_ratio, 1, keepdims=True)
        ratio = np.exp(log_ratio)
        policy_loss, grad_log_prob = closed_form.policy_loss(ratio, minibatch["advantage"].numpy(), epsilon, row_weight)
        old_values = minibatch["value"].numpy() if self._value_clipping else None
        value_loss, grad_values = closed_form.value_loss(
            outputs.values, minibatch["returns"].numpy(), old_values, epsilon, row_weight
        )
        grad_policy, grad_log_sigma = decisions.gradient(
            np.broadcast_to(grad_log_prob, decisions.log_prob.shape),
            coefficients.beta,
            row_weight,
            self._entropy_columns,
        )
        grad_values *= self._vf_coef
        stack.backward(outputs, grad_policy, grad_values, grad_log_sigma)
        statistics = {
            "Losses/Policy Loss": torch.tensor(abs(policy_loss)),
            "Losses/Value Loss": torch.tensor(value_loss),
        }
        if diagnostics:
            ratios = torch.from_numpy(log_ratio), torch.from_numpy(ratio)
            statistics |= ratio_statistics(*ratios, epsilon, minibatch.loss_mask)
        return statistics


def gradient_step(
    actor: Actor,
    critic: AnyCritic | GroupCritic,
    objectives: Sequence[Objective],
    hyper: OnPolicy,
) -> GradientStep:
    """Return the fastest gradient step for these networks and settings. The choice changes numbers by rounding at most.

    Args:
        actor: on its device.
        critic: on the same.
        objectives: the actor's and the critic's, or one for both where they have a body in common.
        hyper: of the algorithm.
    """
    work = multiply_adds(actor, hyper.batch_size)
    on_cpu = next(actor.parameters()).device.type == "cpu"
    # A critic of its own body has one of the same kind and shapes.
    if on_cpu and is_mlp(actor) and isinstance(critic, ValueNetwork) and work < _HAND_WRITTEN_BELOW:
        return ClosedForm(actor, critic, hyper)
    are_two = len(objectives) > 1 and not any(objective.takes_two_cores for objective in objectives)
    two_threads = on_cpu and are_two and work >= _TWO_THREADS_FROM
    return Autograd(objectives, hyper, SideBySide() if two_threads else None)


def multiply_adds(actor: Actor, rows: int) -> int:
    """Estimate the multiply-adds of the actor's body for so many rows: each weight counts once per row."""
    return rows * sum(weight.numel() for weight in actor.body.parameters() if weight.dim() > 1)
