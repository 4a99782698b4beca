"""PPO: gathers a buffer of fresh experience, learns from it for some epochs, drops it.

Shape legend: V reward signals, B packed steps, S trajectories, Q sequences of the buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.algos.algorithm import Algorithm, LearningContext, Statistics
from trajtrainer.algos.ppo.losses import explained_variance, normalized
from trajtrainer.algos.ppo.optimizer import PPO
from trajtrainer.algos.ppo.settings import OnPolicy, PPOHyperparameters
from trajtrainer.algos.ppo.update_buffer import Targets, UpdateBuffer
from trajtrainer.algos.ppo.weights import WEIGHT_TAG, ImportanceWeights
from trajtrainer.algos.returns import gae, v_trace
from trajtrainer.algos.values import ValueEstimator, mean_values
from trajtrainer.core.columns import Columns, Store, entries_of, entry_bytes
from trajtrainer.core.steps import BoolArray, FloatArray
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.critic import SharedCritic, ValueNetwork, update_normalizations
from trajtrainer.nn.minibatch import Minibatch
from trajtrainer.nn.mlagents import CRITIC, POLICY, CheckpointLayout, OptimizerPlace, Place
from trajtrainer.nn.multi_agent import GroupCritic
from trajtrainer.rewards.extrinsic import ExtrinsicReward
from trajtrainer.rewards.novelty import RunningReturns
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.hyperparameters import ScheduleType

# Steps that wait to be taken in: of pictures, whose taking in takes as long per step however many there are, few.
_WAITING_BYTES = 1 << 22

# One minibatch in so many also gives KL divergence, clip fraction and gradient norm; where an epoch has fewer, the
# first one of as many epochs as have so many.
_DIAGNOSTICS_EVERY = 8

_EXTRA = "on_policy"  # entry of a checkpoint
LAYOUT, SHARED_LAYOUT = (
    CheckpointLayout(
        networks={"actor": Place(POLICY), "critic": Place(critic)},
        optimizers={"adam": OptimizerPlace("Optimizer:value_optimizer", ("actor", "critic"))},
    )
    for critic in (CRITIC, POLICY)
)
"""Of PPO in checkpoints, with an own and with a shared critic."""


class PPOLearner(Algorithm):
    """Proximal policy optimisation (Schulman et al. 2017).

    When the run shall end, an update ends between two gradient steps and the buffer is dropped, as it is at every stop:
    its steps count, but no checkpoint holds it, since a resumed run must learn from the policy it goes on with. What is
    saved is the state after the gradient steps that were made, an update of fewer epochs.

    Attributes:
        optimizer_class: its losses.
        estimator_class: what tells values at collection time.
        buffer_class: what gathers the experience.
        timer: name of a gradient step.
    """

    optimizer_class: ClassVar[type[PPO]] = PPO
    estimator_class: ClassVar[Callable[..., Any]] = ValueEstimator
    buffer_class: ClassVar[type[UpdateBuffer]] = UpdateBuffer
    timer: ClassVar[str] = "TorchPPOOptimizer.update"
    clones = True
    checkpoint_layout = LAYOUT

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        settings, hyper, critic = context.settings, context.settings.hyperparameters, networks["critic"]
        assert isinstance(hyper, OnPolicy)
        assert isinstance(critic, ValueNetwork | SharedCritic | GroupCritic)
        memory = settings.network_settings.memory
        length = memory.sequence_length if memory is not None else 1
        self._hyper = hyper
        self._critic = critic
        if isinstance(critic, SharedCritic):
            self.checkpoint_layout = SHARED_LAYOUT
        self._ppo = self.optimizer_class(self.actor, critic, settings)
        self._values = self.estimator_class(critic, length)
        corrects = bool(context.max_policy_lag) if hyper.v_trace is None else hyper.v_trace
        self._weights = ImportanceWeights(self.actor, hyper, length) if corrects else None
        self._buffer = self.buffer_class(
            context.spec,
            context.obs_dtypes,
            num_signals=len(signals),
            sequence_length=length,
            memory_size=self.actor.memory_size,
            critic_memory_size=0 if isinstance(critic, SharedCritic) else critic.memory_size,
            capacity=hyper.buffer_size + 1 if context.training else 0,
            device=context.device,
            needs=frozenset().union(*(signal.needs for signal in signals)),
            weighted=corrects,
        )
        gamma = next((signal.gamma for signal in signals if isinstance(signal, ExtrinsicReward)), 0.0)
        self._returns = RunningReturns(gamma, episodic=True) if hyper.norm_reward else None
        self._normalizes_at_once = settings.network_settings.normalize and not hyper.normalize_after_update
        self._normalizes_late = settings.network_settings.normalize and hyper.normalize_after_update
        self._shuffle = torch.Generator().manual_seed(context.draws_seed)
        entries = entries_of(Store.POOL, context.spec, context.obs_dtypes, memory_size=self.actor.memory_size)
        # Normalisers that act a quarter of a buffer late make 3DBall learn visibly later.
        half = 0 if self._normalizes_at_once else hyper.buffer_size // 2
        self._steps_to_wait_for = max(hyper.batch_size, min(half, _WAITING_BYTES // entry_bytes(entries)))

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """See ``Algorithm``: an actor, and a critic of its own body or (``shared_critic``) on the actor's."""
        hyper, network = context.settings.hyperparameters, context.settings.network_settings
        assert isinstance(hyper, PPOHyperparameters)
        names = list(context.settings.reward_signals)
        actor = Actor(context.spec, network)
        critic = SharedCritic(actor, names) if hyper.shared_critic else ValueNetwork(context.spec, network, names)
        return {"actor": actor, "critic": critic}

    @property
    def drain_threshold(self) -> tuple[int, int]:
        """See ``Algorithm``. The acting side's normalizers, if there are any, are up to a minibatch late."""
        return self._hyper.buffer_size + 1 - self._buffer.num_rows, self._steps_to_wait_for

    def reserve(self, num_steps: int) -> Columns[NDArray[Any]] | None:
        """See ``Algorithm``."""
        return self._buffer.reserve(num_steps)

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:
        """See ``Algorithm``."""
        device = self.context.device
        obs = [torch.from_numpy(column).to(device) for column in packed.obs]
        bootstrap_obs = [torch.from_numpy(column).to(device) for column in packed.bootstrap.obs]
        if self._normalizes_at_once:
            update_normalizations(self.actor, self._critic, obs)
        if self.context.is_stopping():
            return {}  # there is no update to come
        if self._returns is not None:
            rewards = self._scaled(self._returns, packed, rewards)
        targets, statistics = self._targets(packed, rewards, obs, bootstrap_obs)
        self._buffer.append(packed, targets)
        return statistics

    def _scaled(self, returns: RunningReturns, packed: PackedSteps, rewards: FloatArray) -> FloatArray:
        """Return rewards [V, B], the environment's divided by the deviation of its discounted sums, and limited."""
        scaled, most = rewards.copy(), np.float32(self._hyper.clip_reward)
        for row, signal in zip(scaled, self.signals, strict=True):
            if isinstance(signal, ExtrinsicReward):
                returns.add(packed, row)
                np.clip(row / np.float32(returns.deviation), -most, most, out=row)
        return scaled

    def _targets(
        self, packed: PackedSteps, rewards: FloatArray, obs: Sequence[Tensor], bootstrap_obs: Sequence[Tensor]
    ) -> tuple[Targets, Statistics]:
        """Return what is to be learnt of trajectories, whose observations are on the critic's device, too."""
        estimates = self._values.estimate(packed, obs, bootstrap_obs)
        bootstrap = self._bootstrap(estimates.bootstrap, packed.terminated)
        gammas = [signal.gamma for signal in self.signals]
        followed = rewards, estimates.values, bootstrap, packed.offset, gammas, self._hyper.lambd
        statistics = self._means("Value Estimate", estimates.values, packed)
        weights = None
        if self._weights is None:
            advantage = gae(*followed)
            returns = advantage + estimates.values
        else:
            weights = self._weights.of(packed, obs)
            returns, actions = v_trace(*followed, weights.rho, weights.trace)
            advantage = actions - estimates.values
            statistics[WEIGHT_TAG] = weights.rho
        targets = Targets(
            value=estimates.values,
            returns=returns,
            advantage=advantage.mean(0),
            critic_memory=estimates.memory,
            weights=weights,
        )
        return targets, statistics

    def _bootstrap(self, values: FloatArray, over: BoolArray) -> FloatArray:
        """Return values [V, S] of what comes after each trajectory: 0 where nothing does, unless the signal goes on."""
        bootstrap = values.copy()
        for row, signal in zip(bootstrap, self.signals, strict=True):
            if not signal.ignore_done:
                row[over] = 0.0
        return bootstrap

    def _means(self, what: str, values: FloatArray, packed: PackedSteps) -> Statistics:
        """Return the mean of estimates [V, B] over each trajectory, by its tag."""
        means = mean_values(values, packed)
        return {f"Policy/{signal.title} {what}": mean for signal, mean in zip(self.signals, means, strict=True)}

    def is_ready(self, step: int) -> bool:  # noqa: ARG002
        """See ``Algorithm``: the buffer is full, whatever the step."""
        return self._buffer.num_rows > self._hyper.buffer_size

    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:  # noqa: ARG002
        """See ``Algorithm``. The policy acts as it is after the whole update."""
        buffer, hyper = self._buffer, self._hyper
        coefficients = self._ppo.coefficients(step)
        variance = explained_variance(buffer.column("value").sum(1), buffer.column("returns").sum(1))
        columns = {}
        if not hyper.normalize_advantage_per_mini_batch:
            columns["advantage"] = normalized(buffer.column("advantage"), buffer.loss_mask, buffer.weight)
        encoded = self._ppo.encoded(buffer.observations)
        if encoded is not None:
            columns["encoded"] = encoded
        found: dict[str, list[Tensor]] = {}
        for diagnostics, minibatch in self.until_stop(self._minibatches(columns)):
            with self.context.timers(self.timer):
                statistics = self._ppo.update(minibatch, coefficients, diagnostics=diagnostics)
            for signal in self.signals:
                statistics |= signal.update(minibatch)
            for tag, value in statistics.items():
                found.setdefault(tag, []).append(value)
            if self._ppo.has_moved_far:
                break
            self.gradient_steps += 1
        if self._normalizes_late:
            update_normalizations(self.actor, self._critic, buffer.observed())
        buffer.clear()
        # Read back from the device once per update.
        means = {tag: torch.stack(values).mean().item() for tag, values in found.items()}
        means |= self.clone(step)
        means["Policy/Learning Rate"] = coefficients.learning_rate
        means["Policy/Epsilon"] = coefficients.epsilon
        means["Policy/Beta"] = coefficients.beta
        explained = variance.item()
        if math.isfinite(explained):
            means["Policy/Explained Variance"] = explained
        return {tag: np.array([mean]) for tag, mean in means.items()}

    def _minibatches(self, columns: Mapping[str, Tensor]) -> Iterator[tuple[bool, Minibatch]]:
        """Yield the minibatches of all epochs, and which of them give diagnostics.

        The epochs follow on each other as one, so that of a small buffer the rows of several are gathered at a time.
        """
        buffer, hyper = self._buffer, self._hyper
        # A buffer that is smaller than a minibatch is one minibatch; ML-Agents learns nothing then.
        batch_size = min(hyper.batch_size, buffer.num_rows)
        sequences = max(1, batch_size // buffer.sequence_length)
        per_epoch = buffer.num_sequences // sequences
        apart = math.ceil(_DIAGNOSTICS_EVERY / per_epoch)
        orders = [self._epoch_order(buffer.num_sequences)[: per_epoch * sequences] for _ in range(hyper.num_epoch)]
        order = torch.cat(orders).to(self.context.device)
        for number, minibatch in enumerate(buffer.minibatches(order, batch_size, columns)):
            epoch, place = divmod(number, per_epoch)
            yield epoch % apart == 0 and place % _DIAGNOSTICS_EVERY == 0, minibatch

    def _epoch_order(self, num_sequences: int) -> Tensor:
        """Return the order of the sequences in one epoch, i64 [Q]."""
        return torch.randperm(num_sequences, generator=self._shuffle)

    def reset_worker(self, worker: int | None) -> None:
        """See ``Algorithm``."""
        self._values.reset_worker(worker)
        if self._returns is not None:
            self._returns.of_agent.reset_worker(worker)

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """See ``Algorithm``."""
        return {"adam": self._ppo.state()}

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """See ``Algorithm``."""
        self._ppo.load_state(states["adam"])

    def generators(self) -> dict[str, torch.Generator]:
        """See ``Algorithm``."""
        return {"shuffle": self._shuffle}

    def extra_state(self) -> dict[str, Any]:
        """See ``Algorithm``: the adapted learning rate, and the scale of rewards."""
        state: dict[str, Any] = {}
        if self._hyper.learning_rate_schedule is ScheduleType.ADAPTIVE:
            state["learning_rate"] = self._ppo.adapted_rate
        if self._returns is not None:
            state["returns"] = self._returns.state()
        return {_EXTRA: state} if state else {}

    def load_extra_state(self, extra: Mapping[str, Any], step: int) -> None:  # noqa: ARG002
        """See ``Algorithm``."""
        state = extra.get(_EXTRA, {})
        if "learning_rate" in state:
            self._ppo.adapted_rate = float(state["learning_rate"])
        if self._returns is not None and "returns" in state:
            self._returns.load_state(state["returns"])
