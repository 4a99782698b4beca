"""Proximal policy optimisation (Schulman et al. 2017) with the conventions of ML-Agents (reference 4.2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trajtrainer.algos import losses, ppo_gradient
from trajtrainer.algos.adam import Adam
from trajtrainer.algos.adam_moments import adam_state, load_adam_state, whole
from trajtrainer.algos.minibatch import Minibatch
from trajtrainer.algos.ppo_gradient import Decisions
from trajtrainer.algos.schedules import MIN_BETA, MIN_EPSILON, MIN_LEARNING_RATE, decayed
from trajtrainer.algos.side_by_side import SideBySide
from trajtrainer.algos.stacked_networks import StackedNetworks, can_stack, stacking_pays
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.critic import AnyCritic, Critic, SharedCritic
from trajtrainer.nn.heads import ActionDistribution
from trajtrainer.settings.trainer import PPOHyperparameters, TrainerSettings

# How long a gradient step of both networks must take for a second thread to be worth handing the work over, and of how
# many the fastest counts: the first ones of a process take longer.
_LONG_S, _TRIALS = 2e-3, 5

# A loss, and its statistics: tag -> 0-d tensor without gradient.
Loss = tuple[Tensor, dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What the schedules give at one trainer step."""

    learning_rate: float
    epsilon: float
    beta: float


class PPO:
    """Updates actor and critic together by one Adam.

    On the CPU the gradient of plain layers on vectors, perhaps with a memory, is written out (``stacked_networks``,
    ``ppo_gradient``), which is the same to rounding, too, and several times faster where the networks are small; that
    of all other networks is autograd's. Where that takes long, actor and critic learn side by side, which changes no
    number.

    Letters: b rows of a minibatch, V reward signals.
    """

    def __init__(self, actor: Actor, critic: AnyCritic, settings: TrainerSettings) -> None:
        """Takes the networks as they are, on their device.

        Args:
            actor: of PPO's kind (state-independent deviation, no tanh).
            critic: with one head per reward signal. A ``SharedCritic`` has its heads on the actor's body.
            settings: with ``PPOHyperparameters``.
        """
        assert isinstance(settings.hyperparameters, PPOHyperparameters)
        self.actor = actor
        self.critic = critic
        self._hyper = settings.hyperparameters
        self._max_steps = settings.max_steps
        self._stack: StackedNetworks | None = None
        self._threads = SideBySide()
        self._seconds: list[float] = []
        self._parameters: list[Tensor] = [*actor.parameters(), *critic.parameters()]
        self._pieces = [whole(parameter) for parameter in self._parameters]
        if isinstance(critic, Critic) and can_stack(actor, critic) and stacking_pays(actor, self._hyper.batch_size):
            self._stack = StackedNetworks(actor, critic)
            self._parameters, self._pieces = [self._stack.flat], self._stack.pieces
        self._optimizer = Adam(self._parameters, self._hyper.learning_rate)

    def coefficients(self, step: int) -> Coefficients:
        """Learning rate, clipping range and entropy weight at trainer step ``step``."""
        hyper, last = self._hyper, self._max_steps
        return Coefficients(
            learning_rate=decayed(hyper.learning_rate_schedule, hyper.learning_rate, MIN_LEARNING_RATE, last, step),
            epsilon=decayed(hyper.epsilon_schedule, hyper.epsilon, MIN_EPSILON, last, step),
            beta=decayed(hyper.beta_schedule, hyper.beta, MIN_BETA, last, step),
        )

    def encoded(self, obs: Sequence[Tensor]) -> Tensor | None:
        """What the layers take of observations, per sensor [N, *O], as long as no normaliser changes: [N, in].

        Minibatches that bring their rows of it need not compute them. None where that is no use.
        """
        return None if self._stack is None else self._stack.encoded(obs)

    def update(
        self, minibatch: Minibatch, coefficients: Coefficients, *, diagnostics: bool = True
    ) -> dict[str, Tensor]:
        """One gradient step.

        Args:
            minibatch: on the networks' device.
            coefficients: of the trainer's step.
            diagnostics: whether to compute the KL divergence, the clip fraction and the gradient norm too; they take
                about a twentieth of the time of a small update, so a trainer asks for them now and then.

        Returns:
            Statistics tag -> 0-d tensor without gradient, on the networks' device. Nothing is read back from
            the device, so that the minibatch loop never waits for it.
        """
        self._optimizer.param_groups[0]["lr"] = coefficients.learning_rate
        if self._stack is not None:
            with np.errstate(all="ignore"):  # the trainer looks for what is not finite, once per update
                statistics = self._write_gradient(self._stack, minibatch, coefficients, diagnostics=diagnostics)
            self._optimizer.step()
        elif isinstance(self.critic, SharedCritic):
            statistics = self._descend(self._parameters, self.loss, minibatch, coefficients, diagnostics)
        else:
            statistics = self._descend_side_by_side(minibatch, coefficients, diagnostics)
        if diagnostics:
            statistics["Policy/Gradient Norm"] = self._gradient_norm()
        return statistics

    def _descend_side_by_side(
        self, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool
    ) -> dict[str, Tensor]:
        """A gradient step of two networks that have nothing in common but the minibatch."""
        networks: list[tuple[Any, ...]] = [
            (list(self.actor.parameters()), self._actor_loss, minibatch, coefficients, diagnostics),
            (list(self.critic.parameters()), self._critic_loss, minibatch, coefficients, diagnostics),
        ]
        is_known = len(self._seconds) == _TRIALS
        if is_known and min(self._seconds) > _LONG_S and minibatch.advantage.device.type == "cpu":
            found = self._threads.run(self._descend, networks)
        else:
            begin = time.perf_counter()
            found = [self._descend(*network) for network in networks]
            if not is_known:
                self._seconds.append(time.perf_counter() - begin)
        return found[0] | found[1]

    def _descend(
        self,
        parameters: Sequence[Tensor],
        loss_of: Callable[[Minibatch, Coefficients, bool], Loss],
        minibatch: Minibatch,
        coefficients: Coefficients,
        diagnostics: bool,
    ) -> dict[str, Tensor]:
        """A gradient step of some of the parameters, by autograd."""
        loss, statistics = loss_of(minibatch, coefficients, diagnostics)
        # What zero_grad does, without its profiling hooks.
        for parameter in parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step(parameters)
        return statistics

    def _write_gradient(
        self, stack: StackedNetworks, minibatch: Minibatch, coefficients: Coefficients, *, diagnostics: bool
    ) -> dict[str, Tensor]:
        """What ``loss`` and its ``backward`` do, for plain layers."""
        epsilon, share = coefficients.epsilon, ppo_gradient.row_share(len(minibatch), minibatch.loss_mask)
        encoded = stack.encoded(minibatch.obs) if minibatch.encoded is None else minibatch.encoded
        outputs = stack(encoded, (minibatch.memory, minibatch.critic_memory), minibatch.sequence_length)
        decisions = Decisions(outputs.policy, stack.log_sigma, minibatch, self.actor.head.branches)
        log_ratio = decisions.log_prob - minibatch.log_prob.numpy()
        ratio = np.exp(log_ratio)
        policy_loss, by_log_prob = ppo_gradient.of_policy_loss(ratio, minibatch.advantage.numpy(), epsilon, share)
        old_values = minibatch.old_values.numpy().T if self._hyper.value_clipping else None
        value_loss, by_values = ppo_gradient.of_value_loss(
            outputs.values, minibatch.returns.numpy().T, old_values, epsilon, share
        )
        by_policy, by_log_sigma = decisions.gradient(by_log_prob, coefficients.beta, share)
        by_values *= np.float32(0.5)
        stack.backward(outputs, by_policy, by_values, by_log_sigma)
        statistics = {
            "Losses/Policy Loss": torch.tensor(abs(policy_loss)),
            "Losses/Value Loss": torch.tensor(value_loss),
        }
        if diagnostics:
            ratios = torch.from_numpy(log_ratio), torch.from_numpy(ratio)
            statistics |= _diagnostics(*ratios, epsilon, minibatch.loss_mask)
        return statistics

    def loss(self, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool = False) -> Loss:
        """``policy loss + value loss / 2 - beta * entropy`` and its statistics (without gradient)."""
        if isinstance(self.critic, SharedCritic):
            distribution, values, _ = self.critic.actor_and_values(
                minibatch.obs, minibatch.mask, minibatch.memory, minibatch.sequence_length
            )
            of_policy = self._policy_loss(distribution, minibatch, coefficients, diagnostics)
            of_values = self._value_loss(values, minibatch, coefficients)
        else:
            of_policy = self._actor_loss(minibatch, coefficients, diagnostics)
            of_values = self._critic_loss(minibatch, coefficients)
        return of_policy[0] + of_values[0], of_policy[1] | of_values[1]

    def _actor_loss(self, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool) -> Loss:
        distribution, _ = self.actor.distribution(
            minibatch.obs, minibatch.mask, minibatch.memory, minibatch.sequence_length
        )
        return self._policy_loss(distribution, minibatch, coefficients, diagnostics)

    def _critic_loss(self, minibatch: Minibatch, coefficients: Coefficients, _diagnostics: bool = False) -> Loss:
        values, _ = self.critic(minibatch.obs, minibatch.critic_memory, minibatch.sequence_length)
        return self._value_loss(values, minibatch, coefficients)

    def _policy_loss(
        self, distribution: ActionDistribution, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool
    ) -> Loss:
        mask, epsilon = minibatch.loss_mask, coefficients.epsilon
        log_ratio = distribution.log_prob(minibatch.continuous, minibatch.discrete) - minibatch.log_prob
        ratio = log_ratio.exp()
        policy_loss = losses.clipped_policy_loss(ratio, minibatch.advantage, epsilon, mask)
        entropy = losses.masked_mean(distribution.entropy(), mask)
        with torch.no_grad():
            statistics = {"Losses/Policy Loss": policy_loss.abs()}
            if diagnostics:
                statistics |= _diagnostics(log_ratio, ratio, epsilon, mask)
        return policy_loss - coefficients.beta * entropy, statistics

    def _value_loss(self, values: Tensor, minibatch: Minibatch, coefficients: Coefficients) -> Loss:
        old_values = minibatch.old_values if self._hyper.value_clipping else None
        value_loss = losses.value_loss(
            values, minibatch.returns, minibatch.loss_mask, old_values=old_values, epsilon=coefficients.epsilon
        )
        return 0.5 * value_loss, {"Losses/Value Loss": value_loss.detach()}

    def _gradient_norm(self) -> Tensor:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def state(self) -> dict[str, Any]:
        """The Adam's state as ``torch.optim.Adam.state_dict`` gives it, the actor's parameters first.

        Its tensors go on changing: copy or save it before the next update.
        """
        return adam_state(self._optimizer, self._pieces)

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes what ``state`` gave, or moments of some of the parameters; the others start anew.

        Settings of the Adam other than its moments and counts are not taken over.

        Raises:
            ValueError: the state is of networks of another shape.
        """
        load_adam_state(self._optimizer, self._pieces, state)


def _diagnostics(log_ratio: Tensor, ratio: Tensor, epsilon: float, mask: Tensor | None) -> dict[str, Tensor]:
    return {
        "Policy/Approximate KL": losses.approximate_kl(log_ratio, ratio, mask),
        "Policy/Clip Fraction": losses.clip_fraction(ratio, epsilon, mask),
    }
