"""Soft actor-critic: with a value network (Haarnoja et al. 2018a), as ML-Agents has it, or without one (2018b).

See docs/mlagents-behavior.md#networks-and-update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trajtrainer.algos.sac import losses as sac_losses
from trajtrainer.algos.sac.closed_form import twin_evaluation, value_evaluation
from trajtrainer.algos.sac.settings import SACHyperparameters
from trajtrainer.algos.sac.values import (
    Considered,
    Evaluation,
    Networks,
    Owner,
    TwinEvaluation,
    TwinNetworks,
    ValueNetworks,
    by_name,
    second_memory,
)
from trajtrainer.algos.schedules import MIN_LEARNING_RATE, decayed
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.conditioning import Regularization
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.nn.distribution import ActionDistribution
from trajtrainer.nn.fast.adam import Adam, adam_state, load_adam_state, whole
from trajtrainer.nn.minibatch import Minibatch
from trajtrainer.nn.mlagents import POLICY, CheckpointLayout, OptimizerPlace, Place
from trajtrainer.settings.trainer import TrainerSettings

_LOSSES = ("Losses/Value Loss", "Losses/Q1 Loss", "Losses/Q2 Loss")

_POLICY = {"actor": Place(POLICY)}
_Q = {name: Place("Optimizer:q_network", f"{name}_network.") for name in ("q1", "q2")}


def _optimizers(*values: str) -> dict[str, OptimizerPlace]:
    return {
        "policy": OptimizerPlace("Optimizer:policy_optimizer", ("actor",)),
        "value": OptimizerPlace("Optimizer:value_optimizer", values),
        "entropy": OptimizerPlace("Optimizer:entropy_optimizer"),
    }


LAYOUT = CheckpointLayout(
    {**_POLICY, **_Q, "critic": Place("Optimizer:value_network"), "target": Place("Optimizer:target_network")},
    _optimizers("q1", "q2", "critic"),
)
TWIN_LAYOUT = CheckpointLayout(
    # What ML-Agents does not have is where it would be there.
    {**_POLICY, **_Q, **{f"{name}_target": Place("Optimizer:target_network", _Q[name].prefix) for name in _Q}},
    _optimizers("q1", "q2"),
    copies={"q1_target": "q1", "q2_target": "q2"},
)
"""Of SAC in checkpoints, with a value network and without."""


def make_networks(spec: BehaviorSpec, settings: TrainerSettings) -> tuple[Actor, Networks]:
    """Return a policy with squashed actions and a standard deviation that depends on the state.

    And value networks with a head per reward signal.

    Raises:
        UnsupportedError: a sensor that no encoder takes.
    """
    network, names, hyper = settings.network_settings, list(settings.reward_signals), settings.hyperparameters
    assert isinstance(hyper, SACHyperparameters)
    continuous = int(spec.action_spec.continuous_size)
    outputs = max(1, sum(spec.action_spec.discrete_branches))
    actor = Actor(spec, network, conditional_sigma=True, tanh_squash=True)
    of_q: dict[str, Any] = {"action_size": continuous, "outputs": outputs, "regularization": _regularization(hyper)}
    if not hyper.value_network:
        q1, q2, q1_target, q2_target = (ValueNetwork(spec, network, names, **of_q) for _ in range(4))
        q1_target.load_state_dict(q1.state_dict())
        q2_target.load_state_dict(q2.state_dict())
        return actor, TwinNetworks(q1, q2, q1_target, q2_target)
    critic, target = ValueNetwork(spec, network, names), ValueNetwork(spec, network, names)
    q1, q2 = (ValueNetwork(spec, network, names, **of_q) for _ in range(2))
    target.load_state_dict(critic.state_dict())
    return actor, ValueNetworks(q1, q2, critic, target)


def _regularization(hyper: SACHyperparameters) -> Regularization | None:
    """Return that of the Q networks, whose estimates of actions never taken are what is to be kept in bounds."""
    if not hyper.layer_norm and not hyper.dropout_rate:
        return None
    return Regularization(layer_norm=hyper.layer_norm, dropout_rate=hyper.dropout_rate)


class _Entropy(NamedTuple):
    """Entropy of the policy in b states. Without one kind of actions its fields are None.

    Attributes:
        continuous: ``-ln pi`` of the sampled continuous action, summed over the dimensions [b].
        discrete: ``-sum of p ln p`` of each branch [b, K].
    """

    continuous: Tensor | None
    discrete: Tensor | None


class _Decision(NamedTuple):
    """The policy in b states.

    Attributes:
        considered: the observations, and its sampled actions.
        policy: its distribution.
        entropy: its entropy.
    """

    considered: Considered
    policy: ActionDistribution
    entropy: _Entropy


class _Regression(NamedTuple):
    """The values of n networks, and what else is learnt from.

    Attributes:
        values: what they tell of the batch [n, V, b]: of V, if there is one, Q1 and Q2.
        targets: what they should [n, V, b].
        now: what the policy would do; None where it is not learnt.
        followed: values that it follows [V, b, P]; None where it is not learnt.
        statistics: tag -> 0-d tensor without gradient.
    """

    values: Tensor
    targets: Tensor
    now: _Decision | None
    followed: Tensor | None
    statistics: dict[str, Tensor]


class SAC:
    """Updates policy, value networks and entropy coefficients, each by its own loss.

    All losses are of the same weights: what one of ML-Agents' three optimizers changes enters no other loss of the same
    update. So they are added, go through one backward pass, and one Adam (torch's fused one) makes the three's steps.
    Without V the policy follows the smaller value of both Q networks as they are before the step, not after it, for the
    same reason. Shapes as in ``sac_losses``.

    Attributes:
        actor: the policy.
        networks: the value networks.
        log_alpha_discrete: [K], logarithms of the entropy coefficients.
        log_alpha_continuous: [1].
    """

    def __init__(
        self, actor: Actor, networks: Networks, settings: TrainerSettings, *, stacked: bool | None = None
    ) -> None:
        """Take the networks as they are, on their device; of small ones the parameters move into common tensors.

        Args:
            actor: of SAC's kind (state-dependent standard deviation, tanh).
            networks: with one head per reward signal, as ``make_networks`` gave them for these settings.
            settings: with ``SACHyperparameters``.
            stacked: whether to evaluate the value networks together; by default where it is faster.
        """
        hyper = settings.hyperparameters
        assert isinstance(hyper, SACHyperparameters)
        self.actor = actor
        self.networks = networks
        self._hyper = hyper
        self._max_steps = settings.max_steps
        branches, device = actor.head.branches, actor.head.branch_sizes.device
        self._num_branches, self._continuous_size = len(branches), actor.head.continuous_size
        self._target_entropy = -self._continuous_size if hyper.target_entropy is None else hyper.target_entropy
        start = math.log(hyper.init_entcoef if hyper.ent_coef is None else hyper.ent_coef)
        learns = hyper.ent_coef is None
        self.log_alpha_discrete = torch.full((len(branches),), start, device=device).requires_grad_(learns)
        self.log_alpha_continuous = torch.full((1,), start, device=device).requires_grad_(learns)
        columns = actor.head.branch_sizes
        self._sum_by_branch = torch.eye(len(branches), device=device).repeat_interleave(columns, 0)  # [D, K]
        self._evaluate: Owner
        self._regress: Callable[[Minibatch, bool], _Regression]
        if isinstance(networks, ValueNetworks):
            self._evaluate = values = value_evaluation(networks, actor.body.encoder, stacked)
            self._regress = partial(self._with_value_network, values)
        else:
            self._evaluate = twins = twin_evaluation(networks, actor.body.encoder, stacked)
            self._regress = partial(self._with_twins, twins)
        self._pieces = {
            "policy": [whole(parameter) for parameter in actor.parameters()],
            "value": self._evaluate.pieces,
            "entropy": [whole(self.log_alpha_discrete), whole(self.log_alpha_continuous)],
        }
        used = ([self.log_alpha_discrete] if branches else []) + (
            [self.log_alpha_continuous] if self._continuous_size else []
        )
        self._parameters = [*actor.parameters(), *self._evaluate.parameters, *used]
        self._optimizer = Adam(self._parameters, hyper.learning_rate)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of all networks at trainer step ``step``."""
        hyper = self._hyper
        return decayed(hyper.learning_rate_schedule, hyper.learning_rate, MIN_LEARNING_RATE, self._max_steps, step)

    def copy_normalization(self) -> None:
        """Take the actor's normalisers over into the value networks.

        To be called when those have changed, ahead of ``update``.
        """
        for network in by_name(self.networks).values():
            network.body.copy_normalization(self.actor.body)

    def update(self, batch: Minibatch, learning_rate: float, of_policy: bool = True) -> dict[str, Tensor]:
        """Make one gradient step of everything, and a step of the target network.

        Args:
            batch: on the networks' device.
            learning_rate: of this step.
            of_policy: False leaves the policy and the entropy coefficients as they are.

        Returns:
            Statistics tag -> 0-d tensor without gradient, on the networks' device; nothing is read back.
        """
        loss, statistics = self.loss(batch, of_policy=of_policy)
        # What zero_grad does, without its profiling hooks.
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.step()
        self._evaluate.follow(self._hyper.tau)
        return statistics | self._coefficients()

    def loss(self, batch: Minibatch, *, of_policy: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of all losses, and each of them (without gradient) by its tag. Arguments as ``update``."""
        made = self._regress(batch, of_policy)
        loss, each = sac_losses.value_loss(made.values, made.targets, batch.loss_mask)
        statistics = dict(zip(_LOSSES[-len(each) :], each.unbind(), strict=True)) | made.statistics
        if of_policy:
            assert made.now is not None
            assert made.followed is not None
            policy_loss, coefficient_loss = self._policy_losses(made.now, made.followed, batch)
            loss = policy_loss + coefficient_loss + loss
            statistics["Losses/Policy Loss"] = policy_loss.detach()
        return loss, statistics

    def _with_value_network(self, evaluate: Evaluation, batch: Minibatch, of_policy: bool) -> _Regression:
        """Return targets as in ML-Agents: V's by the Q networks and the policy's entropy, theirs by V's copy."""
        with torch.set_grad_enabled(of_policy):
            now = self._decide(batch.obs, batch["mask"], batch["noise"], batch.memory, batch.sequence_length)
        estimates = evaluate(batch, now.considered)
        with torch.no_grad():
            q_target = torch.addcmul(batch["rewards"].t(), batch["discount"].t(), estimates.next_value)
            targets = torch.stack((self._worth(estimates.sampled_q, now), q_target, q_target))
        values = torch.cat((estimates.value.unsqueeze(0), self._of_batch(estimates.stored_q, batch)))
        return _Regression(values, targets, now, estimates.sampled_q[0], {})

    def _with_twins(self, evaluate: TwinEvaluation, batch: Minibatch, of_policy: bool) -> _Regression:
        """Return targets of the Q networks by their copies, of what the policy would do next."""
        length, now = batch.sequence_length, None
        if of_policy:
            now = self._decide(batch.obs, batch["mask"], batch["noise"], batch.memory, length)
        with torch.no_grad():
            memory = second_memory(self.actor.body, batch, batch.memory)
            after = self._decide(batch.next_obs, batch["next_mask"], batch["next_noise"], memory, length)
        estimates = evaluate(batch, None if now is None else now.considered, after.considered)
        values = self._of_batch(estimates.stored_q, batch)
        with torch.no_grad():
            target = torch.addcmul(batch["rewards"].t(), batch["discount"].t(), self._worth(estimates.next_q, after))
            means = sac_losses.mean_of_rows(values.amin(0).t(), batch.loss_mask)
        titles = (f"Policy/{name.capitalize()} Value" for name in self.networks.q1.signals)
        told = dict(zip(titles, means.unbind(), strict=True))
        followed = None if estimates.sampled_q is None else estimates.sampled_q.amin(0)
        return _Regression(values, torch.stack((target, target)), now, followed, told)

    def _decide(
        self, obs: Sequence[Tensor], mask: Tensor, noise: Tensor, memory: Tensor | None, length: int
    ) -> _Decision:
        """Return the policy in b states, with the continuous actions that the noise leads to."""
        encoded = self.actor.body.encoder(obs)
        encoding, _ = self.actor.body.of_encoded(encoded, None, memory, length)
        policy = self.actor.head(encoding, mask)
        sampled = continuous = discrete = None
        if self._continuous_size:
            sampled = policy.continuous_from_noise(noise)
            continuous = -policy.continuous_log_prob(sampled).sum(1)
        if self._num_branches:
            discrete = -(policy.probs * policy.all_log_probs) @ self._sum_by_branch
        return _Decision(Considered(encoded, sampled), policy, _Entropy(continuous, discrete))

    def _policy_losses(self, now: _Decision, q: Tensor, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Return ``-(Q + alpha * entropy)``, by these values [V, b, P] and as the mean over reward signals.

        And ``ln alpha * (entropy - target)``, which moves the coefficients until the entropy meets its target.

        With both kinds of actions the values of the discrete ones count twice, as in ML-Agents. That the coefficients'
        loss is by their logarithms is its way, too (docs/mlagents-behavior.md#networks-and-update).
        """
        (_, policy, entropy), mask = now, batch.loss_mask
        mean_q = q.mean(0) if len(q) > 1 else q[0]
        value = sac_losses.mean_of_rows(mean_q if not self._num_branches else mean_q * policy.probs, mask).sum()
        gain = coefficient_loss = value.new_zeros(())
        if entropy.continuous is not None:
            mean = sac_losses.mean_of_rows(entropy.continuous, mask)
            gain = gain + value + mean * self.log_alpha_continuous.detach().exp().squeeze(0)
            surplus = mean.detach() - self._target_entropy
            coefficient_loss = coefficient_loss + self.log_alpha_continuous.squeeze(0) * surplus
        if entropy.discrete is not None:
            means = sac_losses.mean_of_rows(entropy.discrete, mask)
            gain = gain + value + means @ self.log_alpha_discrete.detach().exp()
            surplus = means.detach() - sac_losses.entropy_target(batch["mask"], self._sum_by_branch, mask)
            coefficient_loss = coefficient_loss + (self.log_alpha_discrete * surplus).mean()
        return -gain, coefficient_loss

    def _worth(self, q: Tensor, decision: _Decision) -> Tensor:
        """Return what states are worth [V, b], where both Q networks say ``q`` [2, V, b, P] of the decision there."""
        continuous, discrete = decision.entropy
        if continuous is not None:
            continuous = continuous * self.log_alpha_continuous.exp()
        if discrete is not None:
            discrete = discrete @ self.log_alpha_discrete.exp() / self._num_branches
        return sac_losses.value_target(self._of_policy(q, decision.policy), continuous, discrete)

    def _of_policy(self, q: Tensor, policy: ActionDistribution) -> Tensor:
        """Return what the Q networks expect of the policy: [2, V, b] from [2, V, b, P]."""
        if not self._num_branches:
            return q.squeeze(3)
        return sac_losses.expected_q(q, policy.probs, self._num_branches)

    def _of_batch(self, q: Tensor, batch: Minibatch) -> Tensor:
        """Return values of the actions in the batch: [2, V, b] from [2, V, b, P]."""
        if not self._num_branches:
            return q.squeeze(3)
        return sac_losses.taken_q(q, batch["discrete"], self.actor.head.branch_starts)

    @torch.no_grad()
    def _coefficients(self) -> dict[str, Tensor]:
        """Return the entropy coefficients; NaN for discrete actions where there are none."""
        return {
            "Policy/Discrete Entropy Coeff": self.log_alpha_discrete.exp().mean(),
            "Policy/Continuous Entropy Coeff": self.log_alpha_continuous.exp().squeeze(0),
        }

    def coefficients(self) -> dict[str, Tensor]:
        """Return the logarithms of the entropy coefficients, a copy: ML-Agents' checkpoints lack them.

        See docs/mlagents-behavior.md#entropy-coefficients.
        """
        return {
            "discrete": self.log_alpha_discrete.detach().clone(),
            "continuous": self.log_alpha_continuous.detach().clone(),
        }

    @torch.no_grad()
    def load_coefficients(self, coefficients: Mapping[str, Tensor]) -> None:
        """Take what ``coefficients`` gave, unless the settings fix them.

        Raises:
            KeyError: one kind is missing.
            RuntimeError: there are more or fewer of them.
        """
        if self._hyper.ent_coef is not None:
            return
        self.log_alpha_discrete.copy_(coefficients["discrete"])
        self.log_alpha_continuous.copy_(coefficients["continuous"])

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the states of three Adams, as ML-Agents has them.

        ``policy``, ``value`` (over q1, q2, critic) and ``entropy`` (over the discrete, then the continuous
        coefficients). Their tensors go on changing.
        """
        return {name: adam_state(self._optimizer, pieces) for name, pieces in self._pieces.items()}

    def load_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what ``states`` gave, or moments of some of the parameters; the others start anew.

        Raises:
            KeyError: one of the three is missing.
            ValueError: moments that fit no parameter.
        """
        for name, pieces in self._pieces.items():
            load_adam_state(self._optimizer, pieces, states[name])
