"""PPO's trainer: gathers a buffer of fresh experience, learns from it for some epochs, drops it.

Letters: V reward signals, B packed steps, S trajectories, Q sequences of the buffer.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.algos.losses import explained_variance, normalized
from trajtrainer.algos.minibatch import Minibatch
from trajtrainer.algos.ppo import PPO
from trajtrainer.algos.returns import gae
from trajtrainer.algos.schedules import Coefficients
from trajtrainer.columns import Columns
from trajtrainer.data.trajectory import PackedSteps, TrajectoryBatch
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.critic import AnyCritic, Critic, SharedCritic
from trajtrainer.nn.init import seeded
from trajtrainer.rewards.factory import create_reward_signals
from trajtrainer.settings.trainer import PPOHyperparameters
from trajtrainer.steps import FloatArray
from trajtrainer.trainers.divergence import check_finite
from trajtrainer.trainers.rl_trainer import RLTrainer
from trajtrainer.trainers.update_buffer import Targets, UpdateBuffer
from trajtrainer.trainers.values import ValueEstimator, sequence_offsets

logger = logging.getLogger(__name__)

# Steps that wait to be taken in: of pictures, whose taking in takes as long per step however many there are, few.
_WAITING_BYTES = 1 << 22

# One minibatch in so many also gives KL divergence, clip fraction and gradient norm.
_DIAGNOSTICS_EVERY = 8


class OnPolicyTrainer(RLTrainer):
    """Proximal policy optimisation (reference 3.7, 4.1, 4.2).

    When the run shall end, an update ends between two gradient steps and the buffer is dropped, as it is at every stop:
    its steps count, but no checkpoint holds it, since a resumed run must learn from the policy it goes on with. What is
    saved is the state after the gradient steps that were made, an update of fewer epochs.
    """

    def _build(self, seeds: Sequence[int]) -> None:
        settings, hyper = self.settings, self.settings.hyperparameters
        assert isinstance(hyper, PPOHyperparameters)
        self._hyper = hyper
        network = settings.network_settings
        weights_seed, shuffle_seed = seeds
        names = [kind.value for kind in settings.reward_signals]
        with seeded(weights_seed):
            self.actor = Actor(self.spec, network).to(self._device)
            shared = SharedCritic(self.actor, names) if hyper.shared_critic else None
            self._critic: AnyCritic = (shared or Critic(self.spec, network, names)).to(self._device)
            self.signals = create_reward_signals(self.behavior, self.spec, settings, self._device)
        self._ppo = PPO(self.actor, self._critic, settings)
        length = network.memory.sequence_length if network.memory is not None else 1
        self._values = ValueEstimator(self._critic, length)
        self._buffer = UpdateBuffer(
            self.spec,
            [column.dtype for column in self.pool.obs],
            num_signals=len(self.signals),
            sequence_length=length,
            memory_size=self.actor.memory_size,
            critic_memory_size=0 if shared is not None else self._critic.memory_size,
            capacity=hyper.buffer_size + 1 if self._training else 0,
            device=self._device,
        )
        self._shuffle = torch.Generator().manual_seed(shuffle_seed)
        few = _WAITING_BYTES * self.pool.capacity // self.pool.num_bytes
        # Normalisers that act a quarter of a buffer late make 3DBall learn visibly later.
        half = 0 if network.normalize else hyper.buffer_size // 2
        self._steps_to_wait_for = max(hyper.batch_size, min(half, few))

    def is_due(self) -> bool:
        """Taking in one short trajectory costs as much as taking in many, so some steps are waited for, unless an
        update or something else at a certain step is due earlier. That changes no step at which anything happens; the
        acting side's normalisers, if there are any, are up to a minibatch late. Without training nothing is waited for,
        as a certain number of episodes may end the run."""
        if not self._training:
            return True
        pending = self.trajectories.num_steps
        enough = pending >= self._steps_to_wait_for or self._rows_with(pending) > self._hyper.buffer_size
        return enough or self._comes_to_boundary(pending)

    def _rows_with(self, pending: int) -> int:
        """Rows of the buffer with the steps that wait in the queue."""
        length, rows = self._buffer.sequence_length, self._buffer.num_rows
        # A step makes at most a whole sequence, one real row and the rest padding.
        if rows + pending * length <= self._hyper.buffer_size or length == 1:
            return rows + pending * length
        batches = [item for item in self.trajectories.waiting() if isinstance(item, TrajectoryBatch)]
        return rows + length * sum(int(sequence_offsets(batch.lengths, length)[-1]) for batch in batches)

    def _room(self, num_steps: int) -> Columns[NDArray[Any]] | None:
        return self._buffer.room(num_steps) if self.should_still_train else None

    def _learn_from(self, packed: PackedSteps, rewards: FloatArray) -> bool:
        obs = [torch.from_numpy(column).to(self._device) for column in packed.obs]
        bootstrap_obs = [torch.from_numpy(column).to(self._device) for column in packed.bootstrap.obs]
        normalizes = self.settings.network_settings.normalize
        if normalizes:
            self._update_normalizers(obs)
        if self._is_stopping():
            return normalizes  # there is no update to come
        estimates = self._values.estimate(packed, obs, bootstrap_obs)
        bootstrap = estimates.bootstrap.copy()
        for row, signal in zip(bootstrap, self.signals, strict=True):
            if not signal.ignore_done:
                row[packed.terminated] = 0.0
        gammas = [signal.gamma for signal in self.signals]
        advantage = gae(rewards, estimates.values, bootstrap, packed.offset, gammas, self._hyper.lambd)
        targets = Targets(
            value=estimates.values,
            returns=advantage + estimates.values,
            advantage=advantage.mean(0),
            critic_memory=estimates.memory,
        )
        self._buffer.append(packed, targets)
        means = np.add.reduceat(estimates.values, packed.offset[:-1], axis=1) / packed.lengths
        for signal, values in zip(self.signals, means, strict=True):
            self._reporter.add_many(f"Policy/{signal.title} Value Estimate", values)
        return normalizes

    def _update_normalizers(self, obs: Sequence[Tensor]) -> None:
        """Takes all steps in at once: running sums do not depend on how rows are grouped.

        Actor and critic see the same rows, so one computes for both. On a shared body the peer counts each row twice.
        """
        if self._critic.body is self.actor.body:
            self.actor.update_normalization(obs, repeats=2)
        else:
            self.actor.update_normalization(obs)
            self._critic.body.copy_normalization(self.actor.body)

    def _is_ready(self) -> bool:
        return self._buffer.num_rows > self._hyper.buffer_size

    def _update(self) -> None:
        begin = time.perf_counter()
        buffer, hyper = self._buffer, self._hyper
        coefficients = self._ppo.coefficients(self.step)
        variance = explained_variance(buffer.column("value").sum(1), buffer.column("returns").sum(1))
        columns = {"advantage": normalized(buffer.column("advantage"), buffer.loss_mask)}
        encoded = self._ppo.encoded(buffer.observations)
        if encoded is not None:
            columns["encoded"] = encoded
        # A buffer that is smaller than a minibatch is one minibatch; the peer learns nothing then.
        batch_size = min(hyper.batch_size, buffer.num_rows)
        statistics: dict[str, list[Tensor]] = {}
        epochs = (self._epoch(batch_size, columns) for _ in range(hyper.num_epoch))
        for number, minibatch in self._until_stop(chain.from_iterable(epochs)):
            with self._timers("TorchPPOOptimizer.update"):
                diagnostics = number % _DIAGNOSTICS_EVERY == 0
                found = self._ppo.update(minibatch, coefficients, diagnostics=diagnostics)
            for signal in self.signals:
                found |= signal.update(minibatch)
            for tag, value in found.items():
                statistics.setdefault(tag, []).append(value)
        buffer.clear()
        self._report(statistics, coefficients, variance)
        self._reporter.add("Perf/Update Seconds", time.perf_counter() - begin)

    def _epoch(self, batch_size: int, columns: Mapping[str, Tensor]) -> Iterator[tuple[int, Minibatch]]:
        """The minibatches of one epoch, numbered."""
        order = self._epoch_order(self._buffer.num_sequences).to(self._device)
        return enumerate(self._buffer.minibatches(order, batch_size, columns))

    def _epoch_order(self, num_sequences: int) -> Tensor:
        """The order of the sequences in one epoch, i64 [Q]."""
        return torch.randperm(num_sequences, generator=self._shuffle)

    def _report(self, statistics: Mapping[str, list[Tensor]], coefficients: Coefficients, variance: Tensor) -> None:
        """Reads the statistics back from the device, once per update."""
        means = {tag: torch.stack(values).mean().item() for tag, values in statistics.items()}
        check_finite(self.behavior, self.step, means)
        means["Policy/Learning Rate"] = coefficients.learning_rate
        means["Policy/Epsilon"] = coefficients.epsilon
        means["Policy/Beta"] = coefficients.beta
        explained = variance.item()
        if math.isfinite(explained):
            means["Policy/Explained Variance"] = explained
        for tag, mean in means.items():
            self._reporter.add(tag, mean)

    def _forget(self, worker: int | None) -> None:
        super()._forget(worker)
        self._values.forget(worker)

    def _modules(self) -> dict[str, nn.Module]:
        return {"actor": self.actor, "critic": self._critic}

    def _optimizer_states(self) -> dict[str, dict[str, Any]]:
        return {"adam": self._ppo.state()}

    def _load_optimizers(self, states: Mapping[str, dict[str, Any]]) -> None:
        self._ppo.load_state(states["adam"])

    def _rng_states(self) -> dict[str, Tensor]:
        return {"shuffle": self._shuffle.get_state()}

    def _load_rng(self, states: Mapping[str, Tensor]) -> None:
        if "shuffle" in states:
            self._shuffle.set_state(states["shuffle"])
