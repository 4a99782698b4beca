"""Proximal policy optimization (PPO; Schulman et al. 2017, arXiv:1707.06347), with the conventions of ML-Agents.

Symbols as in the paper: r, probability ratio of the new policy to the old one; A, advantage; V, value; R, return;
epsilon, half the width of the clipping range; c1, value loss coefficient (``vf_coef``); c2, entropy coefficient
(``beta``).

Shape legend: V reward signals, B packed steps, S trajectories, Q sequences, b rows of a minibatch, C continuous
actions, K discrete branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.core.columns import ColumnEntry, Columns, Store, entries_of, entry_bytes
from trajtrainer.core.steps import BoolArray, FloatArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import Algorithm, LearningContext, Statistics
from trajtrainer.learning.algos.ppo import losses
from trajtrainer.learning.algos.ppo.closed_form import closed_form
from trajtrainer.learning.algos.ppo.settings import OnPolicy, PPOHyperparameters
from trajtrainer.learning.algos.ppo.update_buffer import Memories, UpdateBuffer
from trajtrainer.learning.algos.schedules import MIN_BETA, MIN_EPSILON, MIN_LEARNING_RATE, Schedule, adapted, decayed
from trajtrainer.learning.algos.symmetry import Symmetry
from trajtrainer.learning.algos.values import ValueEstimator, gae, log_probabilities, mean_values, v_trace
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import SharedCritic, ValueNetwork, update_normalizations
from trajtrainer.learning.nn.distribution import ActionDistribution
from trajtrainer.learning.nn.fast.adam import Adam
from trajtrainer.learning.nn.fast.two_cores import picture_encoding, two_threads
from trajtrainer.learning.nn.minibatch import Minibatch, masked_mean
from trajtrainer.learning.nn.mlagents import CRITIC, POLICY, CheckpointLayout, NetworkPlace, OptimizerPlace
from trajtrainer.learning.nn.multi_agent import GroupCritic
from trajtrainer.learning.rewards.signal import ExtrinsicReward, RewardSignal
from trajtrainer.learning.rewards.trained import RunningReturns
from trajtrainer.settings.components import ScheduleType

WEIGHT_TAG = "Policy/Importance Weight"

# An update stops early if the KL divergence exceeds target_kl times this factor, as in Stable-Baselines3.
_TOO_FAR = 1.5

# Every nth minibatch also reports the KL divergence, clip fraction and gradient norm, which adds about 5 % to a small
# update. If an epoch has fewer minibatches, the last one of some epochs reports them. The first minibatch of an update
# usually does not, because its ratios are all 1.
_DIAGNOSTICS_EVERY = 8

# Maximum total size in bytes of steps waiting to be added. Adding many steps at once saves time, except for images.
_WAITING_BYTES = 1 << 22

_CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_
_EXTRA = "on_policy"  # key in a checkpoint
LAYOUT, SHARED_LAYOUT = (
    CheckpointLayout(
        networks={"actor": NetworkPlace(POLICY), "critic": NetworkPlace(critic)},
        optimizers={"adam": OptimizerPlace("Optimizer:value_optimizer", ("actor", "critic"))},
    )
    for critic in (CRITIC, POLICY)
)
"""Checkpoint layouts of PPO with a separate critic and with a shared one."""

# A loss, and its statistics by tag, 0-d tensors without gradient.
Loss = tuple[Tensor, dict[str, Tensor]]
_IN_CLOSED_FORM = ("policy_loss", "value_loss", "differentiate", "_actor_loss", "_critic_loss")


class Objective(NamedTuple):
    """A loss function of (minibatch, schedule, diagnostics), and the parameters that only this loss trains."""

    parameters: Sequence[Tensor]
    loss: Callable[[Minibatch, Schedule, bool], Loss]


class PPO(Algorithm):
    """Fills a buffer with new experience, learns from it for several epochs, and discards it.

    A subclass may override the targets and losses. If it overrides losses, autograd computes their gradient.

    When the run ends, an update stops after the current gradient step, and the buffer is discarded. The discarded steps
    still count as trainer steps, but they are not saved in a checkpoint, because a resumed run has to learn from the
    experience of its own policy.

    Attributes:
        estimator_class: class that estimates values when steps arrive.
        buffer_class: class that stores the experience until the update.
        timer: name of the timer for gradient steps.
        critic: the value network.
        objectives: the losses of actor and critic, or a single loss if they share a body.
        closed_form: computes the gradient without autograd; None to use autograd.
        leaves: the tensors that Adam trains.
        adapted_rate: the current learning rate with ``learning_rate_schedule: adaptive``.
        has_moved_far: True if the last gradient step was skipped because of ``target_kl``.
    """

    estimator_class: ClassVar[Callable[..., Any]] = ValueEstimator
    buffer_class: ClassVar[type[UpdateBuffer]] = UpdateBuffer
    timer: ClassVar[str] = "TorchPPOOptimizer.update"
    checkpoint_layout = LAYOUT

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        network, hyper, critic = context.settings.network_settings, context.settings.hyperparameters, networks["critic"]
        assert isinstance(hyper, OnPolicy)
        assert isinstance(critic, ValueNetwork | SharedCritic | GroupCritic)
        self.critic = critic
        self._hyper = hyper
        self._length = 1 if network.memory is None else network.memory.sequence_length
        self._shuffle = torch.Generator().manual_seed(context.draws_seed)

        # Collecting experience.
        self._values = self.estimator_class(critic, self._length)
        self._corrects = bool(context.max_policy_lag) if hyper.v_trace is None else hyper.v_trace
        critic_memory = 0 if isinstance(critic, SharedCritic) else critic.memory_size
        self._buffer = self.buffer_class(
            context.spec,
            context.obs_dtypes,
            num_signals=len(signals),
            sequence_length=self._length,
            memories={"memory": self.actor.memory_size, "critic_memory": critic_memory},
            capacity=hyper.buffer_size + 1 if context.training else 0,
            device=context.device,
            more={"weight": ColumnEntry(np.dtype(np.float32), ())} if self._corrects else {},
            needs=frozenset().union(*(signal.needs for signal in signals)),
        )
        gamma = next((signal.gamma for signal in signals if isinstance(signal, ExtrinsicReward)), 0.0)
        self._returns = RunningReturns(gamma, episodic=True) if hyper.norm_reward else None
        self._normalizes_at_once = network.normalize and not hyper.normalize_after_update
        entries = entries_of(Store.POOL, context.spec, context.obs_dtypes, memory_size=self.actor.memory_size)
        # Draining half a buffer at a time is faster. However, normalizers that are updated when experience arrives
        # would then lag by a quarter of a buffer on average, which makes 3DBall learn visibly more slowly.
        half = 0 if self._normalizes_at_once else hyper.buffer_size // 2
        self._steps_to_wait_for = max(hyper.batch_size, min(half, _WAITING_BYTES // entry_bytes(entries)))

        # Gradient steps.
        self.adapted_rate = hyper.learning_rate
        self.has_moved_far = False
        self._adapts = hyper.learning_rate_schedule is ScheduleType.ADAPTIVE
        self._encode_pictures = None
        of_actor, of_critic = list(self.actor.parameters()), list(critic.parameters())
        if isinstance(critic, SharedCritic):
            self.checkpoint_layout = SHARED_LAYOUT
            self._encode_pictures = picture_encoding(self.actor.body, hyper.batch_size)
            self.objectives = [Objective(of_actor + of_critic, self._shared_loss)]
        else:
            self.objectives = [Objective(of_actor, self._actor_loss), Objective(of_critic, self._critic_loss)]
        symmetry = hyper.symmetry if isinstance(hyper, PPOHyperparameters) else None
        self._symmetry = None if symmetry is None else Symmetry(symmetry, context.spec, context.device)
        self._threads = two_threads(self.actor.body, hyper.batch_size) if len(self.objectives) > 1 else None
        # The closed form implements only these losses, so a subclass that overrides them needs autograd.
        own_losses = all(getattr(type(self), name) is getattr(PPO, name) for name in _IN_CLOSED_FORM)
        self.closed_form = closed_form(self.actor, critic, hyper, self._length) if own_losses else None
        self._parameters = [one for objective in self.objectives for one in objective.parameters]
        self.leaves = self._parameters if self.closed_form is None else [self.closed_form.flat]
        self._adam = Adam(self.leaves, hyper.learning_rate, eps=hyper.adam_eps)

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """Create an actor and a critic. The critic has its own body, or shares the actor's with ``shared_critic``."""
        hyper, network = context.settings.hyperparameters, context.settings.network_settings
        assert isinstance(hyper, PPOHyperparameters)
        names = list(context.settings.reward_signals)
        actor = Actor(context.spec, network)
        critic = SharedCritic(actor, names) if hyper.shared_critic else ValueNetwork(context.spec, network, names)
        return {"actor": actor, "critic": critic}

    # Collecting experience

    @property
    def drain_threshold(self) -> tuple[int, int]:
        return self._hyper.buffer_size + 1 - self._buffer.num_rows, self._steps_to_wait_for

    def reserve(self, num_steps: int) -> Columns[NDArray[Any]] | None:
        return self._buffer.reserve(num_steps)

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:
        device = self.context.device
        obs = [torch.from_numpy(column).to(device) for column in packed.obs]
        bootstrap_obs = [torch.from_numpy(column).to(device) for column in packed.bootstrap.obs]
        if self._normalizes_at_once:
            update_normalizations(self.actor, self.critic, obs)
        if self.context.is_stopping():
            return {}  # The run ends before the next update.
        if self._returns is not None:
            # Divide the environment's rewards by the standard deviation of their discounted sums, and clip them.
            rewards, limit = rewards.copy(), np.float32(self._hyper.clip_reward)
            for row, signal in zip(rewards, self.signals, strict=True):
                if isinstance(signal, ExtrinsicReward):
                    self._returns.add(packed, row)
                    np.clip(row / np.float32(self._returns.deviation), -limit, limit, out=row)
        columns, memories, statistics = self.targets(packed, rewards, obs, bootstrap_obs)
        self._buffer.append(packed, columns, memories)
        return statistics

    def targets(
        self, packed: PackedSteps, rewards: FloatArray, obs: Sequence[Tensor], bootstrap_obs: Sequence[Tensor]
    ) -> tuple[dict[str, NDArray[Any]], Memories, Statistics]:
        """Compute advantages and returns.

        Args:
            packed: B steps of S trajectories.
            rewards: f32 [V, B], multiplied by the signals' strength.
            obs: observations of each sensor [B, *O], on the critic's device.
            bootstrap_obs: observations after each trajectory, for each sensor [S, *O], on the critic's device.

        Returns:
            Columns for the buffer [B, ...], the critic's memories before each sequence, and statistics.
        """
        # V(s) for each step and for the observation after each trajectory.
        values, bootstrap, memory = self._values.estimate(packed, obs, bootstrap_obs)
        statistics = self._means("Value Estimate", values, packed)
        bootstrap = self._bootstrap(bootstrap, packed.terminated)
        gammas = [signal.gamma for signal in self.signals]
        gae_arguments = rewards, values, bootstrap, packed.offset, gammas, self._hyper.lambd
        columns: dict[str, NDArray[Any]] = {"value": values.T}
        if not self._corrects:
            # Generalized advantage estimation (Schulman et al. 2016) and lambda-returns R = A + V.
            advantage = gae(*gae_arguments)
            returns = advantage + values
        else:
            # V-trace (Espeholt et al. 2018) corrects for older policies. ``log_prob`` is replaced with the current
            # policy's, so PPO's ratio is 1 in the first gradient step.
            columns["log_prob"], rho, trace = self._importance_weights(packed, obs)
            returns, q = v_trace(*gae_arguments, rho, trace)
            advantage = q - values
            columns["weight"] = statistics[WEIGHT_TAG] = rho
        columns |= {"returns": returns.T, "advantage": advantage.mean(0)}
        return columns, {"critic_memory": memory}, statistics

    def _importance_weights(
        self, packed: PackedSteps, obs: Sequence[Tensor]
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Compute log-probabilities [B, C + K] under the current policy, and V-trace's rho and c, [B] each."""
        log_prob = log_probabilities(self.actor, packed, obs, self._length)
        with np.errstate(over="ignore"):  # Truncation also removes infinity.
            ratio = np.exp((log_prob - packed["log_prob"]).sum(1))
        rho_bar, c_bar = np.float32(self._hyper.rho_bar), np.float32(self._hyper.c_bar)
        return log_prob, np.minimum(ratio, rho_bar), np.minimum(ratio, c_bar)

    def _bootstrap(self, values: FloatArray, over: BoolArray) -> FloatArray:
        """Set values [V, S] to 0 where the episode is ``over``, except for signals that ignore the end of episodes."""
        ends = np.array([not signal.ignore_done for signal in self.signals])[:, None] & over
        return np.where(ends, np.float32(0.0), values)

    def _means(self, what: str, values: FloatArray, packed: PackedSteps) -> Statistics:
        """Return the mean of estimates [V, B] over each trajectory, by tag."""
        means = mean_values(values, packed)
        return {f"Policy/{signal.title} {what}": mean for signal, mean in zip(self.signals, means, strict=True)}

    def reset_worker(self, worker: int | None) -> None:
        self._values.reset_worker(worker)
        if self._returns is not None:
            self._returns.of_agent.reset_worker(worker)

    # Update

    def is_ready(self, step: int) -> bool:  # noqa: ARG002
        return self._buffer.num_rows > self._hyper.buffer_size

    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:  # noqa: ARG002
        """Learn from the buffer for ``num_epoch`` epochs. The acting policy is replaced only after the last one."""
        buffer, hyper, network = self._buffer, self._hyper, self.context.settings.network_settings
        schedule = self.schedule(step)
        variance = losses.explained_variance(buffer.real("value").sum(1), buffer.real("returns").sum(1))

        # Normalize advantages over the whole buffer: mean 0, standard deviation 1.
        columns = {}
        if not hyper.normalize_advantage_per_mini_batch:
            columns["advantage"] = losses.normalized(buffer.column("advantage"), buffer.loss_mask, buffer.weight)

        # Normalize observations once for all epochs, unless a reward signal or symmetry needs the raw ones.
        needs_raw = self._symmetry is not None or any(signal.learns for signal in self.signals)
        if self.closed_form is not None and not needs_raw:
            columns["encoded"] = self.closed_form.encoded(buffer.observations)

        # Train on the minibatches of all epochs, until the run ends or the policy has changed too much.
        found: dict[str, list[Tensor]] = {}
        for diagnostics, minibatch in self.until_stop(self._minibatches(columns)):
            with self.context.timers(self.timer):
                statistics = self.gradient_step(minibatch, schedule, diagnostics=diagnostics)
            for signal in self.signals:
                statistics |= signal.update(minibatch)
            for tag, value in statistics.items():
                found.setdefault(tag, []).append(value)
            if self.has_moved_far:
                break
            self.gradient_steps += 1

        if network.normalize and hyper.normalize_after_update:
            update_normalizations(self.actor, self.critic, buffer.observed())
        buffer.clear()
        # Copy statistics from the device only once per update.
        means = {tag: torch.stack(values).mean().item() for tag, values in found.items()}
        means |= self.clone(step)
        means["Policy/Learning Rate"] = self.adapted_rate if self._adapts else schedule.learning_rate
        means["Policy/Epsilon"] = schedule.epsilon
        means["Policy/Beta"] = schedule.beta
        explained = variance.item()
        if math.isfinite(explained):
            means["Policy/Explained Variance"] = explained
        return {tag: np.array([mean]) for tag, mean in means.items()}

    def schedule(self, step: int) -> Schedule:
        """Return the scheduled hyperparameters at trainer step ``step``."""
        hyper, last = self._hyper, self.context.settings.max_steps
        rate = decayed(hyper.learning_rate_schedule, hyper.learning_rate, MIN_LEARNING_RATE, last, step)
        return Schedule(
            learning_rate=self.adapted_rate if self._adapts else rate,
            epsilon=decayed(hyper.epsilon_schedule, hyper.epsilon, MIN_EPSILON, last, step),
            beta=decayed(hyper.beta_schedule, hyper.beta, MIN_BETA, last, step),
        )

    def _minibatches(self, columns: Mapping[str, Tensor]) -> Iterator[tuple[bool, Minibatch]]:
        """Yield the minibatches of all epochs, each with a flag that is True to report diagnostics."""
        buffer, hyper = self._buffer, self._hyper
        # A buffer that is smaller than a minibatch becomes one minibatch; ML-Agents does not learn from it.
        batch_size = min(hyper.batch_size, buffer.num_rows)
        sequences = max(1, batch_size // buffer.sequence_length)
        per_epoch = buffer.num_sequences // sequences
        apart = math.ceil(_DIAGNOSTICS_EVERY / per_epoch)
        # Concatenate the orders of all epochs, so that the rows of several small epochs are gathered at once.
        orders = [self._epoch_order(buffer.num_sequences)[: per_epoch * sequences] for _ in range(hyper.num_epoch)]
        order = torch.cat(orders).to(self.context.device)
        for number, minibatch in enumerate(buffer.minibatches(order, batch_size, columns)):
            epoch, place = divmod(number, per_epoch)
            reports = (place + 1) % min(_DIAGNOSTICS_EVERY, per_epoch) == 0
            yield reports and (hyper.num_epoch - 1 - epoch) % apart == 0, minibatch

    def _epoch_order(self, num_sequences: int) -> Tensor:
        return torch.randperm(num_sequences, generator=self._shuffle)

    def gradient_step(self, minibatch: Minibatch, schedule: Schedule, *, diagnostics: bool = True) -> dict[str, Tensor]:
        """Make a gradient step with Adam, unless the policy has changed too much (``target_kl``).

        Returns:
            Statistics by tag, 0-d tensors without gradient on the networks' device. ``diagnostics`` adds the KL
            divergence, clip fraction and gradient norm.
        """
        hyper, rate = self._hyper, schedule.learning_rate
        follows_kl = self._adapts or hyper.target_kl is not None
        diagnostics |= follows_kl
        if hyper.normalize_advantage_per_mini_batch:
            advantage = losses.normalized(minibatch["advantage"], minibatch.loss_mask, minibatch.rows.get("weight"))
            minibatch = minibatch.with_rows({"advantage": advantage})

        # Add the mirror image of each row (Mittal et al. 2024, arXiv:2403.04359).
        if self._symmetry is not None:
            minibatch = self._symmetry(minibatch)

        # Gradient of -L^CLIP + c1 L^VF - c2 S (equation 9), by autograd or, if it is faster, in closed form.
        differentiate = self.differentiate if self.closed_form is None else self.closed_form.differentiate
        statistics = differentiate(minibatch, schedule, diagnostics)

        # Clip the global gradient norm of actor and critic together.
        if hyper.max_grad_norm is not None or diagnostics:
            gradients = [leaf.grad for leaf in self.leaves if leaf.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            if hyper.max_grad_norm is not None:
                torch._foreach_mul_(gradients, (hyper.max_grad_norm / (norm + _CLIP_EPSILON)).clamp(max=1.0))
            if diagnostics:
                statistics["Policy/Gradient Norm"] = norm

        # Use the KL divergence from the policy that acted to adapt the learning rate or to stop the update.
        if follows_kl:
            kl = statistics["Policy/Approximate KL"].item()
            if self._adapts:
                rate = self.adapted_rate = adapted(self.adapted_rate, kl, hyper.desired_kl)
            self.has_moved_far = hyper.target_kl is not None and kl > _TOO_FAR * hyper.target_kl

        # Update the parameters with Adam.
        if not self.has_moved_far:
            self._adam.param_groups[0]["lr"] = rate
            self._adam.step()
        return statistics

    # Losses

    def differentiate(self, minibatch: Minibatch, schedule: Schedule, diagnostics: bool) -> dict[str, Tensor]:
        """Write the loss's gradient into the parameters, using autograd, and return statistics."""

        def one(objective: Objective) -> dict[str, Tensor]:
            # Calls _actor_loss and _critic_loss, or _shared_loss.
            loss, statistics = objective.loss(minibatch, schedule, diagnostics)
            # This does the same as zero_grad, without the cost of its profiling hooks.
            for parameter in objective.parameters:
                parameter.grad = None
            loss.backward()  # type: ignore[no-untyped-call]
            return statistics

        objectives = [(objective,) for objective in self.objectives]
        found = [one(*each) for each in objectives] if self._threads is None else self._threads.run(one, objectives)
        return {tag: value for statistics in found for tag, value in statistics.items()}

    def loss(self, minibatch: Minibatch, schedule: Schedule, diagnostics: bool = False) -> Loss:
        """Return the total loss, ``-L^CLIP + c1 L^VF - c2 S``, and its statistics, for tests and analysis."""
        return _sum(*(objective.loss(minibatch, schedule, diagnostics) for objective in self.objectives))

    def _actor_loss(self, minibatch: Minibatch, schedule: Schedule, diagnostics: bool) -> Loss:
        distribution, _ = self.actor.distribution(
            minibatch.obs, minibatch["mask"], minibatch.memory, minibatch.sequence_length
        )
        return self.policy_loss(distribution, minibatch, schedule, diagnostics)

    def _critic_loss(self, minibatch: Minibatch, schedule: Schedule, _diagnostics: bool) -> Loss:
        values, _ = self.critic(minibatch.obs, minibatch.critic_memory, minibatch.sequence_length)
        return self.value_loss(values, minibatch, schedule)

    def _shared_loss(self, minibatch: Minibatch, schedule: Schedule, diagnostics: bool) -> Loss:
        assert isinstance(self.critic, SharedCritic)
        if self._encode_pictures is None:
            distribution, values, _ = self.critic.actor_and_values(
                minibatch.obs, minibatch["mask"], minibatch.memory, minibatch.sequence_length
            )
        else:
            distribution, values = self.critic.actor_and_values_of(
                self._encode_pictures(minibatch.obs), minibatch["mask"]
            )
        return _sum(
            self.policy_loss(distribution, minibatch, schedule, diagnostics),
            self.value_loss(values, minibatch, schedule),
        )

    def policy_loss(
        self, distribution: ActionDistribution, minibatch: Minibatch, schedule: Schedule, diagnostics: bool
    ) -> Loss:
        """Return the policy loss ``-L^CLIP - c2 S`` and its statistics."""
        mask, epsilon = minibatch.loss_mask, schedule.epsilon
        # Ratio r = pi(a|s) / pi_old(a|s), one per continuous action and branch, or one for the whole action.
        log_ratio = distribution.log_prob(minibatch["continuous"], minibatch["discrete"]) - minibatch["log_prob"]
        if self._hyper.joint_ratio:
            log_ratio = log_ratio.sum(1, keepdim=True)
        ratio = log_ratio.exp()
        # Surrogate loss -L^CLIP, where L^CLIP = E[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)] (equation 7).
        surrogate_loss = losses.clipped_policy_loss(ratio, minibatch["advantage"], epsilon, mask)
        # Entropy bonus S.
        entropy = masked_mean(distribution.entropy(joint=self._hyper.joint_entropy), mask)
        with torch.no_grad():
            statistics = {"Losses/Policy Loss": surrogate_loss.abs()}
            if diagnostics:
                acted = minibatch.acted
                statistics |= losses.ratio_statistics(acted(log_ratio), acted(ratio), epsilon, mask)
        return surrogate_loss - schedule.beta * entropy, statistics

    def value_loss(self, values: Tensor, minibatch: Minibatch, schedule: Schedule) -> Loss:
        """Return the value loss ``c1 L^VF`` for the critic's values [V, b], and its statistics."""
        # L^VF = E[(V - R)^2], clipped if value_clipping is on.
        old_values = minibatch["value"].t() if self._hyper.value_clipping else None
        value_loss = losses.value_loss(
            values, minibatch["returns"].t(), minibatch.loss_mask, old_values=old_values, epsilon=schedule.epsilon
        )
        return self._hyper.vf_coef * value_loss, {"Losses/Value Loss": value_loss.detach()}

    # Checkpoints

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Return ``adam`` in the format of ``torch.optim.Adam.state_dict``, with the actor's parameters first."""
        return {"adam": self._adam.state_dict(self._parameters)}

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Restore the state returned by ``optimizer_states``. Parameters without saved moments start with new ones."""
        self._adam.load_state_dict(states["adam"], self._parameters)

    def generators(self) -> dict[str, torch.Generator]:
        return {"shuffle": self._shuffle}

    def extra_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        if self._adapts:
            state["learning_rate"] = self.adapted_rate
        if self._returns is not None:
            state["returns"] = self._returns.state()
        return {_EXTRA: state} if state else {}

    def load_extra_state(self, extra: Mapping[str, Any], step: int) -> None:  # noqa: ARG002
        state = extra.get(_EXTRA, {})
        if "learning_rate" in state:
            self.adapted_rate = float(state["learning_rate"])
        if self._returns is not None and "returns" in state:
            self._returns.load_state(state["returns"])


def _sum(first: Loss, *others: Loss) -> Loss:
    total, statistics = first
    for loss, more in others:
        total, statistics = total + loss, statistics | more
    return total, statistics
