"""Soft actor-critic (SAC), with ML-Agents' conventions (docs/explanation/mlagents-behavior.md#networks-and-update).

There are two variants: with a value network, as in ML-Agents (Haarnoja et al. 2018a, arXiv:1801.01290), and without
one (2018b, arXiv:1812.05905). The entropy coefficient is learned as in 2018b. Discrete actions follow Christodoulou
2019 (arXiv:1910.07207).

Symbols as in the papers: pi, policy; Q1, Q2 and V, value networks; Q' and V', their target networks; alpha, entropy
coefficient (temperature); gamma, discount factor; r, reward; s, state; a, action; H, entropy of the policy.

Shape legend: V reward signals, B packed steps, S trajectories, b rows of a minibatch, C continuous actions, K discrete
branches, D sum of branch sizes, P outputs of a Q network per signal: 1 without discrete actions, else D.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.replay import Replay, rows_for
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import Algorithm, LearningContext, Statistics
from trajtrainer.learning.algos.off_policy import AutoPace, ReplayBatches, lead_of, pace_of
from trajtrainer.learning.algos.sac import losses
from trajtrainer.learning.algos.sac.demonstrated_returns import DemonstratedReturns
from trajtrainer.learning.algos.sac.networks import (
    FOLLOWS,
    BatchedCritics,
    Critics,
    Decision,
    fastest,
    second_memory,
)
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.algos.schedules import MIN_LEARNING_RATE, decayed
from trajtrainer.learning.algos.symmetry import Symmetry
from trajtrainer.learning.algos.values import ValueEstimator, mean_values
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.conditioning import Mlp, Regularization
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.fast.adam import Adam
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.mlagents import POLICY, CheckpointLayout, NetworkPlace, OptimizerPlace
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.settings.trainer import TrainerSettings

logger = logging.getLogger(__name__)

_EXTRA = "sac"  # key in a checkpoint
# Maximum lead of acting over learning, in gradient steps, if acting continues during updates. Learning is usually
# slower than acting, so acting uses up its whole lead. Without a limit, a short run could end before anything is
# learned.
_LEAD = 128
_LOSSES = ("Losses/Value Loss", "Losses/Q1 Loss", "Losses/Q2 Loss")

_POLICY = {"actor": NetworkPlace(POLICY)}
_Q = {name: NetworkPlace("Optimizer:q_network", f"{name}_network.") for name in ("q1", "q2")}


def _optimizers(*values: str) -> dict[str, OptimizerPlace]:
    return {
        "policy": OptimizerPlace("Optimizer:policy_optimizer", ("actor",)),
        "value": OptimizerPlace("Optimizer:value_optimizer", values),
        "entropy": OptimizerPlace("Optimizer:entropy_optimizer"),
    }


LAYOUT = CheckpointLayout(
    {
        **_POLICY,
        **_Q,
        "critic": NetworkPlace("Optimizer:value_network"),
        "target": NetworkPlace("Optimizer:target_network"),
    },
    _optimizers("q1", "q2", "critic"),
)
TWIN_LAYOUT = CheckpointLayout(
    # ML-Agents has no target Q networks. They are stored with the keys that ML-Agents would use.
    {**_POLICY, **_Q, **{f"{name}_target": NetworkPlace("Optimizer:target_network", _Q[name].prefix) for name in _Q}},
    _optimizers("q1", "q2"),
    copies={"q1_target": "q1", "q2_target": "q2"},
)
"""Checkpoint layouts of SAC with a value network and without one."""


class SAC(Algorithm):
    """Stores experience in a replay buffer, and learns from random minibatches as experience arrives.

    All gradient steps that are due are made before the next drain; if the run ends first, they are made after it is
    resumed. If acting continues during updates, an update reports its progress after each block of minibatches. Acting
    is therefore never more than ``max_lead`` rows ahead, and if it has to wait, it continues as soon as enough rows are
    free.

    Attributes:
        replay: the replay buffer.
        values: the value networks by name (see ``algos.sac.networks``).
        critics: evaluates the value networks.
        log_alpha_discrete: [K], logarithms of the branches' entropy coefficients.
        log_alpha_continuous: [1], logarithm of the continuous actions' entropy coefficient.
    """

    may_be_nan = frozenset({"Policy/Discrete Entropy Coeff"})  # NaN without discrete actions
    holds_rows = True
    wanted_entropy: ClassVar[float] = -1.0  # default of target_entropy, per continuous action

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        settings, hyper, device = context.settings, context.settings.hyperparameters, context.device
        assert isinstance(hyper, SACHyperparameters)
        self._hyper = hyper
        self.checkpoint_layout = LAYOUT if hyper.value_network else TWIN_LAYOUT
        self.values = {name: network for name, network in networks.items() if isinstance(network, ValueNetwork)}

        # Experience.
        memory, critic = settings.network_settings.memory, self.values.get("critic")
        length = 1 if memory is None else memory.sequence_length
        self._estimator = None if critic is None else ValueEstimator(critic, length)
        self.replay = Replay(
            context.spec,
            context.obs_dtypes,
            num_rows=rows_for(hyper.buffer_size, settings.time_horizon) if context.training else 2,
            sequence_length=length,
            memory_size=self.actor.memory_size,
            critic_memory_size=0 if critic is None else critic.memory_size,
        )
        recorded = self._demonstrated = None
        if hyper.demonstrations is not None and context.training:
            # Imported here because only behaviors with demonstrations need it.
            from trajtrainer.experience.recordings.demonstrations import load_demonstrations

            packed = load_demonstrations([hyper.demonstrations.demo_path], spec=context.spec).packed
            recorded, self._demonstrated = Replay.of(context.spec, packed), DemonstratedReturns(packed)
            earned = self._demonstrated.mean_return
            logger.info(
                "Behavior %r: the demonstrations have %d steps and %s.",
                context.behavior,
                len(packed),
                "no complete episode" if earned is None else f"a mean return of {earned:.4g}",
            )
        self._batches = ReplayBatches(
            self.replay,
            signals,
            batch_size=hyper.batch_size,
            action_size=context.spec.action_spec.continuous_size,
            seed=context.draws_seed,
            device=device,
            n_step=hyper.n_step,
            decides_next=not hyper.value_network,
            recorded=recorded,
            ratio=0.0 if hyper.demonstrations is None else hyper.demonstrations.ratio,
        )
        self._pace = pace_of(hyper.steps_per_update, hyper.first_update, context.messages)
        self._symmetry = None if hyper.symmetry is None else Symmetry(hyper.symmetry, context.spec, device)
        self._signal_pace = pace_of(hyper.reward_signal_steps_per_update, hyper.first_update, context.messages)

        # Gradient steps. A single Adam replaces ML-Agents' three optimizers.
        head = self.actor.head
        wanted = self.wanted_entropy * head.continuous_size
        self._target_entropy = wanted if hyper.target_entropy is None else hyper.target_entropy
        self._sum_by_branch = torch.eye(len(head.branches), device=device).repeat_interleave(head.branch_sizes, 0)
        start = math.log(hyper.init_entcoef if hyper.ent_coef is None else hyper.ent_coef)
        learns = hyper.ent_coef is None
        self.log_alpha_discrete = torch.full((len(head.branches),), start, device=device).requires_grad_(learns)
        self.log_alpha_continuous = torch.full((1,), start, device=device).requires_grad_(learns)
        self.critics = self.make_critics()
        followed = [self.values[name] for name in ("q1", "q2", "critic") if name in self.values]
        self._optimized: dict[str, list[Tensor]] = {
            "policy": [*self.actor.parameters()],
            "value": [parameter for network in followed for parameter in network.parameters()],
            "entropy": [self.log_alpha_discrete, self.log_alpha_continuous],
        }
        used = ([self.log_alpha_discrete] if head.branches else []) + (
            [self.log_alpha_continuous] if head.continuous_size else []
        )
        trained = [*self.actor.parameters(), *self.critics.parameters, *used]
        self._optimizer = Adam(trained, hyper.learning_rate)

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """Create a policy with squashed actions and a state-dependent sigma, and four value networks."""
        spec, network, hyper = context.spec, context.settings.network_settings, context.settings.hyperparameters
        assert isinstance(hyper, SACHyperparameters)
        signals = list(context.settings.reward_signals)
        actor = Actor(spec, network, conditional_sigma=True, tanh_squash=True)
        # Regularization limits the Q values of actions that were never taken.
        regularization = None
        if hyper.layer_norm or hyper.dropout_rate:
            regularization = Regularization(layer_norm=hyper.layer_norm, dropout_rate=hyper.dropout_rate)

        def q() -> ValueNetwork:
            return ValueNetwork(
                spec,
                network,
                signals,
                action_size=int(spec.action_spec.continuous_size),
                outputs=max(1, sum(spec.action_spec.discrete_branches)),
                regularization=regularization,
            )

        if hyper.value_network:
            critic, target = ValueNetwork(spec, network, signals), ValueNetwork(spec, network, signals)
            values = {"q1": q(), "q2": q(), "critic": critic, "target": target}
        else:
            values = {"q1": q(), "q2": q(), "q1_target": q(), "q2_target": q()}
        for name in FOLLOWS.keys() & values.keys():
            values[name].load_state_dict(values[FOLLOWS[name]].state_dict())
        return {"actor": actor, **values}

    def make_critics(self) -> Critics | BatchedCritics:
        """Choose how to evaluate ``values``. Subclasses may override this."""
        return fastest(self.values, self.actor.body.encoder)

    @staticmethod
    def max_lead(settings: TrainerSettings) -> int:
        """Return how many rows acting may run ahead of learning: at least four trajectories."""
        hyper = settings.hyperparameters
        assert isinstance(hyper, SACHyperparameters)
        lead = max(lead_of(hyper.steps_per_update, _LEAD), 4 * settings.time_horizon)
        return int(min(lead, hyper.buffer_size))

    # Experience

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:  # noqa: ARG002
        """Add trajectories to the replay buffer. Rewards are evaluated again when steps are sampled."""
        device = self.context.device
        if self._demonstrated is not None:
            self._demonstrated.add(packed)
        obs = [torch.from_numpy(column).to(device) for column in packed.obs]
        if self.context.settings.network_settings.normalize:
            self.actor.update_normalization(obs)
            for network in self.values.values():
                network.body.copy_normalization(self.actor.body, obs)
        if self._estimator is None:
            self.replay.add(packed, None)
            return {}
        bootstrap_obs = [torch.from_numpy(column).to(device) for column in packed.bootstrap.obs]
        estimates = self._estimator.estimate(packed, obs, bootstrap_obs)
        self.replay.add(packed, None if estimates.memory is None else estimates.memory.cpu().numpy())
        means = mean_values(estimates.values, packed)
        return {f"Policy/{signal.title} Value": m for signal, m in zip(self.signals, means, strict=True)}

    def reset_worker(self, worker: int | None) -> None:
        for memory in (self._estimator, self._demonstrated):
            if memory is not None:
                memory.reset_worker(worker)

    # Update

    def is_ready(self, step: int) -> bool:
        due = max(self._pace.due(step), self._signal_pace.due(step))
        if step < self._hyper.first_update or not self.replay.num_steps:
            return False
        enough = self.replay.num_steps >= self._hyper.batch_size or self.replay.is_full
        return enough and due > 0

    def uses_spare_time(self, step: int) -> bool:
        return isinstance(self._pace, AutoPace) and self.is_ready(step)

    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:
        """Make the gradient steps that are due, and report progress between blocks of minibatches."""
        found: dict[str, list[Tensor]] = {}

        def note(statistics: Mapping[str, Tensor]) -> None:
            for tag, value in statistics.items():
                found.setdefault(tag, []).append(value)

        # Gradient steps of the policy, value networks and entropy coefficients.
        learning_rate, due, block_size = self.learning_rate(step), self._pace.due(step), self._batches.block_size
        with_recorded = self._demonstrated is not None and self._demonstrated.are_better
        blocks = self._batches.blocks(due, with_recorded=with_recorded)
        for made, batch in enumerate(self.until_stop(chain.from_iterable(blocks)), start=1):
            of_policy = (self.gradient_steps + 1) % self._hyper.policy_delay == 0
            with self.context.timers("TorchSACOptimizer.update"):
                note(self.gradient_step(batch, learning_rate, of_policy))
            note({tag: torch.tensor(value) for tag, value in self.clone(step).items()})
            self._pace.made(1)
            self.gradient_steps += 1
            if made < due and made % block_size == 0:
                show_progress(made / due)

        # Gradient steps of the reward signals' networks, on separately sampled minibatches.
        learning, due = [signal for signal in self.signals if signal.modules()], self._signal_pace.due(step)
        if not learning:
            self._signal_pace.made(due)
            due = 0
        for batch in self.until_stop(chain.from_iterable(self._batches.blocks(due, with_recorded=False))):
            for signal in learning:
                note(signal.update(batch))
            self._signal_pace.made(1)

        # Copy statistics from the device only once per update.
        statistics: Statistics = {tag: torch.stack(values).cpu().numpy() for tag, values in found.items()}
        if not found:
            return {}
        if self._hyper.demonstrations is not None:
            recorded = self._batches.num_recorded if with_recorded else 0
            statistics |= {"Policy/Demonstration Ratio": np.array([recorded / self._hyper.batch_size])}
        return statistics | {"Policy/Learning Rate": np.array([learning_rate])}

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of all networks at trainer step ``step``."""
        hyper, last = self._hyper, self.context.settings.max_steps
        return decayed(hyper.learning_rate_schedule, hyper.learning_rate, MIN_LEARNING_RATE, last, step)

    def gradient_step(self, batch: Minibatch, learning_rate: float, of_policy: bool = True) -> dict[str, Tensor]:
        """Make a gradient step for all networks, and move the target networks.

        No parameter receives gradients from two losses, so one backward pass can differentiate their sum. For the same
        reason, without V, the policy loss uses the Q networks before this step instead of after it.

        Args:
            batch: a minibatch on the networks' device.
            learning_rate: the learning rate of this step.
            of_policy: False to leave the policy and the entropy coefficients unchanged.

        Returns:
            Statistics by tag, 0-d tensors without gradient. They stay on the networks' device to avoid waiting for it.
        """
        # Add the mirror image of each row (Mittal et al. 2024).
        if self._symmetry is not None:
            batch = self._symmetry(batch)
        mask, head, has_value = batch.loss_mask, self.actor.head, self._hyper.value_network

        # Sample the policy's actions a ~ pi(.|s) and, without V, a' ~ pi(.|s').
        now = after = None
        if of_policy or has_value:
            with torch.set_grad_enabled(of_policy):
                now = self.decide(batch.obs, batch["mask"], batch["noise"], batch.memory, batch.sequence_length)
        if not has_value:
            with torch.no_grad():
                memory = second_memory(self.actor.body, batch, batch.memory)
                after = self.decide(
                    batch.next_obs, batch["next_mask"], batch["next_noise"], memory, batch.sequence_length
                )
        value, q, sampled_q, following = self.critics(batch, now, after)

        # Targets: r + gamma V'(s') for Q1 and Q2, and the soft value of s for V (2018a, equations 8 and 3).
        # Without V: r + gamma times the soft value of s' according to the target networks Q1' and Q2' (2018b, 5).
        with torch.no_grad():
            q_target = torch.addcmul(
                batch["rewards"].t(),
                batch["discount"].t(),
                following if after is None else self.worth(following, after),
            )
            targets = [q_target, q_target]
            if value is not None:
                assert now is not None
                assert sampled_q is not None
                targets.insert(0, self.worth(sampled_q, now))

        # Critic loss J_Q + J_V: half the mean squared errors (2018a, 7 and 5).
        taken = losses.taken_q(q, batch["discrete"], head.branch_starts) if head.branches else q.squeeze(3)
        estimates = taken if value is None else torch.cat((value.unsqueeze(0), taken))
        loss, each = losses.value_loss(estimates, torch.stack(targets), mask)
        statistics = dict(zip(_LOSSES[-len(each) :], each.unbind(), strict=True))
        if value is None:
            with torch.no_grad():
                means = losses.mean_of_rows(taken.amin(0).t(), mask)
            statistics |= {
                f"Policy/{s.title} Value": mean for s, mean in zip(self.signals, means.unbind(), strict=True)
            }

        if of_policy:
            assert now is not None
            assert sampled_q is not None
            # Policy loss: J_pi = -(Q(s, a) + alpha H), averaged over the reward signals, where Q is Q1 with V, and
            # min(Q1, Q2) without V (2018a, 12; Christodoulou 2019, 12). With both continuous and discrete actions, Q
            # counts twice, as in ML-Agents. Loss of the entropy coefficients: J(alpha) = ln alpha (H - target); 2018b
            # (18) uses alpha instead of ln alpha.
            followed = sampled_q[0] if has_value else sampled_q.amin(0)
            followed = followed.mean(0) if len(followed) > 1 else followed[0]
            expected = losses.mean_of_rows(followed * now.policy.probs if head.branches else followed, mask).sum()
            gain = coefficient_loss = expected.new_zeros(())
            if now.continuous_entropy is not None:
                entropy = losses.mean_of_rows(now.continuous_entropy, mask)
                gain = gain + expected + entropy * self.log_alpha_continuous.detach().exp().squeeze(0)
                surplus = entropy.detach() - self._target_entropy
                coefficient_loss = coefficient_loss + self.log_alpha_continuous.squeeze(0) * surplus
            if now.discrete_entropy is not None:
                entropies = losses.mean_of_rows(now.discrete_entropy, mask)
                gain = gain + expected + entropies @ self.log_alpha_discrete.detach().exp()
                surplus = entropies.detach() - losses.entropy_target(batch["mask"], self._sum_by_branch, mask)
                coefficient_loss = coefficient_loss + (self.log_alpha_discrete * surplus).mean()
            loss = coefficient_loss - gain + loss
            statistics["Losses/Policy Loss"] = -gain.detach()

        # Update the parameters with Adam.
        self._optimizer.descend(loss, learning_rate)

        # Move the target networks by the fraction tau (2018a, algorithm 1).
        self.critics.follow(self._hyper.tau)
        with torch.no_grad():
            statistics["Policy/Discrete Entropy Coeff"] = self.log_alpha_discrete.exp().mean()
            statistics["Policy/Continuous Entropy Coeff"] = self.log_alpha_continuous.exp().squeeze(0)
        return statistics

    def decide(
        self, obs: Sequence[Tensor], mask: Tensor, noise: Tensor, memory: Tensor | None, length: int
    ) -> Decision:
        """Compute the policy's decisions in b states, with a = tanh(mu + sigma noise) (2018b, appendix C).

        Args:
            obs: observations of each sensor [b, *O].
            mask: bool [b, D]; True marks a forbidden action.
            noise: f32 [b, C], standard normal.
            memory: the actor's memory before each sequence [Q, H].
            length: the sequence length, b / Q.
        """
        encoded = self.actor.body.encoder(obs)
        encoding, _ = self.actor.body.of_encoded(encoded, None, memory, length)
        policy = self.actor.head(encoding, mask)
        action = continuous_entropy = discrete_entropy = None
        if policy.mu.shape[1]:
            action = policy.continuous_from_noise(noise)
            continuous_entropy = -policy.continuous_log_prob(action).sum(1)
        if policy.branches:
            discrete_entropy = -(policy.probs * policy.all_log_probs) @ self._sum_by_branch
        return Decision(encoded, policy, action, continuous_entropy, discrete_entropy)

    def worth(self, q: Tensor, decision: Decision) -> Tensor:
        """Return the soft value of states, min(Q1, Q2)(s, a) + alpha H, [V, b], from ``q`` [2, V, b, P]."""
        branches = len(self.actor.head.branches)
        expected = losses.expected_q(q, decision.policy.probs, branches) if branches else q.squeeze(3)
        continuous, discrete = decision.continuous_entropy, decision.discrete_entropy
        if continuous is not None:
            continuous = continuous * self.log_alpha_continuous.exp()
        if discrete is not None:
            discrete = discrete @ self.log_alpha_discrete.exp() / branches
        return losses.value_target(expected, continuous, discrete)

    # Checkpoints

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Return the states of ML-Agents' three optimizers.

        They are ``policy``, ``value`` (for q1, q2 and critic) and ``entropy`` (for the discrete coefficients, followed
        by the continuous one).
        """
        return {name: self._optimizer.state_dict(parameters) for name, parameters in self._optimized.items()}

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Restore the state returned by ``optimizer_states``. Parameters without saved moments start with new ones."""
        for name, parameters in self._optimized.items():
            self._optimizer.load_state_dict(states[name], parameters)

    def generators(self) -> dict[str, torch.Generator]:
        layers = self.values["q1"].body.layers
        regularization = layers.regularization if isinstance(layers, Mlp) else None
        of_layers = {} if regularization is None else {"dropout": regularization.generator}
        return {**self._batches.generators(), **of_layers}

    def extra_state(self) -> dict[str, Any]:
        # ML-Agents' checkpoints do not contain the coefficients
        # (docs/explanation/mlagents-behavior.md#entropy-coefficients).
        coefficients = {"discrete": self.log_alpha_discrete, "continuous": self.log_alpha_continuous}
        mine: dict[str, Any] = {
            "log_alpha": {kind: log_alpha.detach().clone() for kind, log_alpha in coefficients.items()},
            "pace": self._pace.state(),
            "signal_pace": self._signal_pace.state(),
        }
        if self._demonstrated is not None:
            mine["latest_returns"] = self._demonstrated.state()
        return {_EXTRA: mine}

    @torch.no_grad()
    def load_extra_state(self, extra: Mapping[str, Any], step: int) -> None:
        """Restore the state returned by ``extra_state``.

        A checkpoint of ML-Agents has no such state: training then starts with the entropy coefficients from the
        settings, and no update is due. Fixed coefficients (``ent_coef``) are not restored.
        """
        mine = extra.get(_EXTRA, {})
        try:
            if "log_alpha" in mine and self._hyper.ent_coef is None:
                self.log_alpha_discrete.copy_(mine["log_alpha"]["discrete"])
                self.log_alpha_continuous.copy_(mine["log_alpha"]["continuous"])
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"Behavior {self.context.behavior!r}: the checkpoint's entropy coefficients do not fit the agents' "
                f"actions ({error})."
            ) from error
        self._pace.load(mine.get("pace"), step)
        self._signal_pace.load(mine.get("signal_pace"), step)
        if self._demonstrated is not None:
            self._demonstrated.load_state(mine.get("latest_returns", ()))

    @property
    def saved_replay(self) -> Replay | None:
        return self.replay if self._hyper.save_replay_buffer else None
