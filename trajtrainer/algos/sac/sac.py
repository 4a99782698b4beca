"""Soft actor-critic (SAC), with the conventions of ML-Agents (docs/mlagents-behavior.md#networks-and-update).

With a value network (Haarnoja et al. 2018a, arXiv:1801.01290), as ML-Agents has it, or without one (2018b,
arXiv:1812.05905); the entropy coefficient is learned as in 2018b, discrete actions as in Christodoulou 2019
(arXiv:1910.07207).

Symbols are the papers': pi policy, Q1 and Q2, V, their slow copies V' and Q', alpha entropy coefficient (temperature),
gamma discount, r reward, s state, a action, and the entropy H of the policy.

Shape legend: V reward signals, B packed steps, S trajectories, b rows of a batch, C continuous actions, K discrete
branches, D sum of branch sizes, P numbers that a Q network gives per signal: 1 without discrete actions, else D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.algos.algorithm import Algorithm, LearningContext, Statistics
from trajtrainer.algos.off_policy import Pace, ReplayBatches
from trajtrainer.algos.sac import losses
from trajtrainer.algos.sac.networks import FOLLOWS, Critics, Decision, StackedCritics, fastest, second_memory
from trajtrainer.algos.sac.settings import SACHyperparameters
from trajtrainer.algos.schedules import MIN_LEARNING_RATE, decayed
from trajtrainer.algos.symmetry import Symmetry
from trajtrainer.algos.values import ValueEstimator, mean_values
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.steps import FloatArray
from trajtrainer.data.replay import Replay, rows_for
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.demos.demonstrations import load_demonstrations
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.conditioning import Mlp, Regularization
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.nn.fast.adam import Adam, adam_state, load_adam_state, whole
from trajtrainer.nn.minibatch import Minibatch
from trajtrainer.nn.mlagents import POLICY, CheckpointLayout, NetworkPlace, OptimizerPlace
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.demonstrations import DemonstrationSettings
from trajtrainer.settings.trainer import TrainerSettings

_EXTRA = "sac"  # entry of a checkpoint
# Gradient steps that acting may be ahead in a thread of its own. Where learning is the slower side, which is the rule,
# acting is always as far ahead as it may be, and a short run would be over before anything was learned.
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
    # What ML-Agents does not have is where it would be there.
    {**_POLICY, **_Q, **{f"{name}_target": NetworkPlace("Optimizer:target_network", _Q[name].prefix) for name in _Q}},
    _optimizers("q1", "q2"),
    copies={"q1_target": "q1", "q2_target": "q2"},
)
"""Of SAC in checkpoints, with a value network and without."""


class SAC(Algorithm):
    """Keeps experience in a replay and learns from draws of it at the pace of the experience.

    Every gradient step that the experience so far makes due is made before the next drain, or after a resumption if the
    run is to end meanwhile. In a thread of its own it shows its progress block by block: so acting is never further
    ahead than ``max_lead``, and when it is, waits for no more gradient steps than make room for its next steps.

    Attributes:
        replay: the experience.
        values: the value networks by name (see ``algos.sac.networks``).
        critics: evaluates them.
        log_alpha_discrete: [K], logarithms of the entropy coefficients.
        log_alpha_continuous: [1].
    """

    may_be_nan = frozenset({"Policy/Discrete Entropy Coeff"})  # without discrete actions
    holds_rows = True
    clones = True
    wanted_entropy: ClassVar[float] = -1.0  # per continuous action, where the settings say nothing

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
        self._batches = ReplayBatches(
            self.replay,
            signals,
            batch_size=hyper.batch_size,
            action_size=context.spec.action_spec.continuous_size,
            seed=context.draws_seed,
            device=device,
            n_step=hyper.n_step,
            decides_next=not hyper.value_network,
            recorded=self._demonstrations(hyper.demonstrations) if context.training else None,
            ratio=0.0 if hyper.demonstrations is None else hyper.demonstrations.ratio,
        )
        self._pace = Pace(hyper.steps_per_update, hyper.first_update)
        self._symmetry = None if hyper.symmetry is None else Symmetry(hyper.symmetry, context.spec, device)
        self._signal_pace = Pace(hyper.reward_signal_steps_per_update, hyper.first_update)

        # Gradient steps. One Adam makes the steps of ML-Agents' three optimizers.
        head = self.actor.head
        wanted = self.wanted_entropy * head.continuous_size
        self._target_entropy = wanted if hyper.target_entropy is None else hyper.target_entropy
        self._sum_by_branch = torch.eye(len(head.branches), device=device).repeat_interleave(head.branch_sizes, 0)
        start = math.log(hyper.init_entcoef if hyper.ent_coef is None else hyper.ent_coef)
        learns = hyper.ent_coef is None
        self.log_alpha_discrete = torch.full((len(head.branches),), start, device=device).requires_grad_(learns)
        self.log_alpha_continuous = torch.full((1,), start, device=device).requires_grad_(learns)
        self.critics = self.make_critics()
        self._pieces = {
            "policy": [whole(parameter) for parameter in self.actor.parameters()],
            "value": self.critics.pieces,
            "entropy": [whole(self.log_alpha_discrete), whole(self.log_alpha_continuous)],
        }
        used = ([self.log_alpha_discrete] if head.branches else []) + (
            [self.log_alpha_continuous] if head.continuous_size else []
        )
        self._parameters = [*self.actor.parameters(), *self.critics.parameters, *used]
        self._optimizer = Adam(self._parameters, hyper.learning_rate)

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """Make a policy with squashed actions and a sigma that depends on the state, and four value networks."""
        spec, network, hyper = context.spec, context.settings.network_settings, context.settings.hyperparameters
        assert isinstance(hyper, SACHyperparameters)
        signals = list(context.settings.reward_signals)
        actor = Actor(spec, network, conditional_sigma=True, tanh_squash=True)
        # Of the Q networks, whose estimates of actions never taken are to be kept in bounds.
        regularization = None
        layer_norm = hyper.layer_norm or hyper.demonstrations is not None
        if layer_norm or hyper.dropout_rate:
            regularization = Regularization(layer_norm=layer_norm, dropout_rate=hyper.dropout_rate)

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

    def make_critics(self) -> Critics | StackedCritics:
        """The fastest way to evaluate ``values``."""
        return fastest(self.values, self.actor.body.encoder)

    def _demonstrations(self, settings: DemonstrationSettings | None) -> Replay | None:
        if settings is None:
            return None
        spec = self.context.spec
        return Replay.of(spec, load_demonstrations([settings.demo_path], spec=spec).packed)

    @staticmethod
    def max_lead(settings: TrainerSettings) -> int:
        """Few gradient steps' worth, so that what is learned is acted on; a few trajectories at least."""
        hyper = settings.hyperparameters
        assert isinstance(hyper, SACHyperparameters)
        lead = max(_LEAD * hyper.steps_per_update, 4 * settings.time_horizon)
        return int(min(lead, hyper.buffer_size))

    # Experience

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:  # noqa: ARG002
        """Add trajectories to the replay. Rewards are evaluated again when steps are drawn."""
        device = self.context.device
        obs = [torch.from_numpy(column).to(device) for column in packed.obs]
        if self.context.settings.network_settings.normalize:
            self.actor.update_normalization(obs)
            for network in self.values.values():
                network.body.copy_normalization(self.actor.body, obs)
        if self._estimator is None or (self.context.is_stopping() and not self.actor.memory_size):
            self.replay.add(packed, None)  # there are no estimates, or nobody will see their statistics
            return {}
        bootstrap_obs = [torch.from_numpy(column).to(device) for column in packed.bootstrap.obs]
        estimates = self._estimator.estimate(packed, obs, bootstrap_obs)
        self.replay.add(packed, None if estimates.memory is None else estimates.memory.cpu().numpy())
        means = mean_values(estimates.values, packed)
        return {f"Policy/{signal.title} Value": m for signal, m in zip(self.signals, means, strict=True)}

    def reset_worker(self, worker: int | None) -> None:
        if self._estimator is not None:
            self._estimator.reset_worker(worker)

    # Update

    def is_ready(self, step: int) -> bool:
        """Whether there is a minibatch, and a gradient step is due."""
        if step < self._hyper.first_update or not self.replay.num_steps:
            return False
        enough = self.replay.num_steps >= self._hyper.batch_size or self.replay.is_full
        return enough and bool(self._pace.due(step) or self._signal_pace.due(step))

    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:
        """Make the gradient steps that are due. Shows its progress between two blocks of minibatches."""
        found: dict[str, list[Tensor]] = {}

        def note(statistics: Mapping[str, Tensor]) -> None:
            for tag, value in statistics.items():
                found.setdefault(tag, []).append(value)

        # Of policy, values and entropy coefficients.
        learning_rate, due, made = self.learning_rate(step), self._pace.due(step), 0
        for block in self._batches.blocks(due):
            for batch in self.until_stop(block):
                of_policy = (self.gradient_steps + 1) % self._hyper.policy_delay == 0
                with self.context.timers("TorchSACOptimizer.update"):
                    note(self.gradient_step(batch, learning_rate, of_policy))
                note({tag: torch.tensor(value) for tag, value in self.clone(step).items()})
                self._pace.made(1)
                self.gradient_steps += 1
                made += 1
            if self.context.is_stopping():
                break
            if made < due:
                show_progress(made / due)

        # Of the reward signals' networks, on draws of their own.
        learning, due = [signal for signal in self.signals if signal.modules()], self._signal_pace.due(step)
        if not learning:
            self._signal_pace.made(due)
            due = 0
        for block in self.until_stop(self._batches.blocks(due, with_recorded=False)):
            for batch in self.until_stop(block):
                for signal in learning:
                    note(signal.update(batch))
                self._signal_pace.made(1)

        # Read back from the device once per update.
        statistics: Statistics = {tag: torch.stack(values).cpu().numpy() for tag, values in found.items()}
        return statistics | {"Policy/Learning Rate": np.array([learning_rate])} if found else {}

    def learning_rate(self, step: int) -> float:
        """The learning rate of all networks at trainer step ``step``."""
        hyper, last = self._hyper, self.context.settings.max_steps
        return decayed(hyper.learning_rate_schedule, hyper.learning_rate, MIN_LEARNING_RATE, last, step)

    def gradient_step(self, batch: Minibatch, learning_rate: float, of_policy: bool = True) -> dict[str, Tensor]:
        """Make one gradient step of everything, and a step of the slow copies.

        What one of the losses trains enters no other loss of the same step, so they are added and go through one
        backward pass. Without V the policy follows the Q networks as they are before the step, not after it, for the
        same reason.

        Args:
            batch: on the networks' device.
            learning_rate: of this step.
            of_policy: False leaves the policy and the entropy coefficients as they are.

        Returns:
            Statistics, tag -> 0-d tensor without gradient on the networks' device: nothing is read back.
        """
        # Add the mirror image of each row (Mittal et al. 2024).
        if self._symmetry is not None:
            batch = self._symmetry(batch)
        mask, head, has_value = batch.loss_mask, self.actor.head, self._hyper.value_network

        # What the policy does now, a ~ pi(.|s), and without V what it does next, a' ~ pi(.|s').
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

        # Targets: of Q1 and Q2 r + gamma V'(s'), and of V what s is worth to the policy (2018a, equations 8 and 3).
        # Without V, of Q1 and Q2 r + gamma times what s' is worth by their slow copies (2018b, 5).
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
            # Policy loss J_pi = -(Q(s, a) + alpha H), by Q1 or without V by the smaller one, the mean over the reward
            # signals (2018a, 12; Christodoulou 2019, 12). With both kinds of actions Q counts twice, as in ML-Agents.
            # Loss of the entropy coefficients J(alpha) = ln alpha (H - target); 2018b (18) has alpha, not ln alpha.
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

        # Adam.
        for parameter in self._parameters:
            parameter.grad = None  # what zero_grad does, without its profiling hooks
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.step()

        # Slow copies: tau of the way (2018a, algorithm 1).
        self.critics.follow(self._hyper.tau)
        with torch.no_grad():
            statistics["Policy/Discrete Entropy Coeff"] = self.log_alpha_discrete.exp().mean()
            statistics["Policy/Continuous Entropy Coeff"] = self.log_alpha_continuous.exp().squeeze(0)
        return statistics

    def decide(
        self, obs: Sequence[Tensor], mask: Tensor, noise: Tensor, memory: Tensor | None, length: int
    ) -> Decision:
        """Pi(.|s) in b states and a ~ pi(.|s), reparameterized: a = tanh(mu + sigma noise) (2018b, appendix C).

        Args:
            obs: per sensor [b, *O].
            mask: bool [b, D], True = forbidden.
            noise: f32 [b, C], standard normal.
            memory: of the actor before each sequence [Q, H].
            length: b / Q.
        """
        encoded = self.actor.body.encoder(obs)
        encoding, _ = self.actor.body.of_encoded(encoded, None, memory, length)
        policy = self.actor.head(encoding, mask)
        action = continuous_entropy = discrete_entropy = None
        if self.actor.head.continuous_size:
            action = policy.continuous_from_noise(noise)
            continuous_entropy = -policy.continuous_log_prob(action).sum(1)
        if self.actor.head.branches:
            discrete_entropy = -(policy.probs * policy.all_log_probs) @ self._sum_by_branch
        return Decision(encoded, policy, action, continuous_entropy, discrete_entropy)

    def worth(self, q: Tensor, decision: Decision) -> Tensor:
        """What states are worth to the policy, min(Q1, Q2)(s, a) + alpha H [V, b], by ``q`` [2, V, b, P]."""
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
        """The states of three Adams, as ML-Agents has them.

        ``policy``, ``value`` (over q1, q2, critic) and ``entropy`` (over the discrete, then the continuous
        coefficients).
        """
        return {name: adam_state(self._optimizer, pieces) for name, pieces in self._pieces.items()}

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Take moments of all or some of the parameters; the others start over."""
        for name, pieces in self._pieces.items():
            load_adam_state(self._optimizer, pieces, states[name])

    def generators(self) -> dict[str, torch.Generator]:
        layers = self.values["q1"].body.layers
        regularization = layers.regularization if isinstance(layers, Mlp) else None
        of_layers = {} if regularization is None else {"dropout": regularization.generator}
        return {**self._batches.generators(), **of_layers}

    def extra_state(self) -> dict[str, Any]:
        """The pace, and the entropy coefficients, which ML-Agents' checkpoints lack.

        See docs/mlagents-behavior.md#entropy-coefficients.
        """
        coefficients = {"discrete": self.log_alpha_discrete, "continuous": self.log_alpha_continuous}
        return {
            _EXTRA: {
                "log_alpha": {kind: log_alpha.detach().clone() for kind, log_alpha in coefficients.items()},
                "pace": self._pace.state(),
                "signal_pace": self._signal_pace.state(),
            }
        }

    @torch.no_grad()
    def load_extra_state(self, extra: Mapping[str, Any], step: int) -> None:
        """Take what ``extra_state`` gave.

        After a checkpoint of ML-Agents training begins with the entropy coefficients of the settings, and with no
        updates due. Coefficients that the settings fix stay as they are.
        """
        mine = extra.get(_EXTRA, {})
        try:
            if "log_alpha" in mine and self._hyper.ent_coef is None:
                self.log_alpha_discrete.copy_(mine["log_alpha"]["discrete"])
                self.log_alpha_continuous.copy_(mine["log_alpha"]["continuous"])
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"Behavior {self.context.behavior!r}: the checkpoint's entropy coefficients are of other actions "
                f"({error})."
            ) from error
        self._pace.load(mine.get("pace"), step)
        self._signal_pace.load(mine.get("signal_pace"), step)

    @property
    def saved_replay(self) -> Replay | None:
        return self.replay if self._hyper.save_replay_buffer else None
