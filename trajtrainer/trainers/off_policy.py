"""SAC's trainer: keeps experience in a replay and learns from draws of it at the pace of the experience.

Letters: V reward signals, B packed steps, S trajectories.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.algos.sac import SAC, make_networks
from trajtrainer.data.replay import Replay, rows_for
from trajtrainer.data.trajectory import PackedSteps, TrajectoryBatch
from trajtrainer.errors import CheckpointError
from trajtrainer.nn.init import seeded
from trajtrainer.rewards.factory import create_reward_signals
from trajtrainer.settings.trainer import SACHyperparameters, TrainerSettings
from trajtrainer.steps import FloatArray
from trajtrainer.trainers.divergence import check_finite
from trajtrainer.trainers.loan import Loan
from trajtrainer.trainers.pace import Pace
from trajtrainer.trainers.replay_batches import ReplayBatches
from trajtrainer.trainers.rl_trainer import RLTrainer
from trajtrainer.trainers.values import ValueEstimator

_EXTRA = "sac"
_MAY_BE_NAN = "Policy/Discrete Entropy Coeff"  # without discrete actions


class OffPolicyTrainer(RLTrainer):
    """Soft actor-critic (reference 3.7, 4.4).

    Every gradient step that the experience so far makes due is made before the next drain, or after a resumption if the
    run is to end meanwhile. In a thread of its own (``threaded: true``) the trainer keeps the rows of a drain until it
    has made the gradient steps for them, block by block, and publishes the policy after each block. So acting is never
    further ahead than the pool's limit (``max_lead``), and when it is, waits for no more gradient steps than make room
    for its next steps.

    Attributes:
        replay: the experience.
    """

    replay: Replay

    @staticmethod
    def max_lead(settings: TrainerSettings) -> int:
        """How many steps acting may be ahead of learning: a few horizons, so that neither waits for the other's
        bursts."""
        return min(settings.hyperparameters.buffer_size, max(4096, 4 * settings.time_horizon))

    def _build(self, seeds: Sequence[int]) -> None:
        settings, hyper = self.settings, self.settings.hyperparameters
        assert isinstance(hyper, SACHyperparameters)
        self._hyper = hyper
        weights_seed, draws_seed = seeds
        with seeded(weights_seed):
            self.actor, networks = make_networks(self.spec, settings)
            self.signals = create_reward_signals(self.behavior, self.spec, settings, self._device)
        self.actor.to(self._device)
        self._networks = networks.to(self._device)
        self._sac = SAC(self.actor, networks, settings)
        memory = settings.network_settings.memory
        length = memory.sequence_length if memory is not None else 1
        self._values = ValueEstimator(networks.critic, length)
        self.replay = Replay(
            self.spec,
            [column.dtype for column in self.pool.obs],
            num_rows=rows_for(hyper.buffer_size, settings.time_horizon) if self._training else 2,
            sequence_length=length,
            memory_size=self.actor.memory_size,
            critic_memory_size=networks.critic.memory_size,
        )
        self._batches = ReplayBatches(
            self.replay,
            self.signals,
            batch_size=hyper.batch_size,
            action_size=self.spec.action_spec.continuous_size,
            seed=draws_seed,
            device=self._device,
        )
        self._pace = Pace(hyper.steps_per_update, hyper.buffer_init_steps)
        self._signal_pace = Pace(hyper.reward_signal_steps_per_update, hyper.buffer_init_steps)
        self._loan = Loan(self.pool)

    def advance(self) -> bool:
        try:
            return super().advance()
        finally:
            self._loan.settle()

    def _give_back(self, batches: Sequence[TrajectoryBatch]) -> None:
        if self.settings.threaded:
            self._loan.take(batches)
        else:
            super()._give_back(batches)

    def _learn_from(self, packed: PackedSteps, rewards: FloatArray) -> bool:  # noqa: ARG002
        obs = [torch.from_numpy(column).to(self._device) for column in packed.obs]
        bootstrap_obs = [torch.from_numpy(column).to(self._device) for column in packed.bootstrap.obs]
        normalizes = self.settings.network_settings.normalize
        if normalizes:
            self.actor.update_normalization(obs)
            self._sac.copy_normalization()
        if self._is_stopping() and not self._networks.critic.memory_size:
            self.replay.add(packed, None)  # nobody will see statistics of the estimates
            return normalizes
        estimates = self._values.estimate(packed, obs, bootstrap_obs)
        memory = None if estimates.memory is None else estimates.memory.cpu().numpy()
        self.replay.add(packed, memory)
        means = np.add.reduceat(estimates.values, packed.offset[:-1], axis=1) / packed.lengths
        for signal, values in zip(self.signals, means, strict=True):
            self._reporter.add_many(f"Policy/{signal.title} Value", values)
        return normalizes

    def _is_ready(self) -> bool:
        if self.step < self._hyper.buffer_init_steps or not self.replay.num_steps:
            return False
        enough = self.replay.num_steps >= self._hyper.batch_size or self.replay.is_full
        return enough and bool(self._pace.due(self.step) or self._signal_pace.due(self.step))

    def _update(self) -> None:
        begin = time.perf_counter()
        learning_rate = self._sac.learning_rate(self.step)
        statistics: dict[str, list[Tensor]] = {}
        made = 0
        due = self._pace.due(self.step)
        for block in self._batches.blocks(due):
            for batch in self._until_stop(block):
                with self._timers("TorchSACOptimizer.update"):
                    _collect(statistics, self._sac.update(batch, learning_rate))
                self._pace.made(1)
                made += 1
            if self._is_stopping():
                break
            if made < due:
                self._tell_progress(made / due)
        self._update_signals(statistics)
        self._report(statistics, learning_rate)
        self._reporter.add("Perf/Update Seconds", time.perf_counter() - begin)

    def _tell_progress(self, share: float) -> None:
        """Lets the acting side, if it goes on meanwhile, have room for its next steps and the policy as it is now."""
        if self.settings.threaded:
            self._version += 1
            self.policies.put(self.policy_update())
            self._loan.give_back(share)

    def _update_signals(self, statistics: dict[str, list[Tensor]]) -> None:
        """Trains the reward signals' networks on draws of their own."""
        due = self._signal_pace.due(self.step)
        learning = [signal for signal in self.signals if signal.modules()]
        if not learning:
            self._signal_pace.made(due)
            return
        for block in self._until_stop(self._batches.blocks(due)):
            for batch in self._until_stop(block):
                for signal in learning:
                    _collect(statistics, signal.update(batch))
                self._signal_pace.made(1)

    def _report(self, statistics: Mapping[str, list[Tensor]], learning_rate: float) -> None:
        """Reads the statistics back from the device, once per round of updates."""
        values = {tag: torch.stack(each).cpu().numpy() for tag, each in statistics.items()}
        check_finite(self.behavior, self.step, {t: float(v.mean()) for t, v in values.items() if t != _MAY_BE_NAN})
        for tag, each in values.items():
            self._reporter.add_many(tag, each)
        if values:
            self._reporter.add("Policy/Learning Rate", learning_rate)

    def _forget(self, worker: int | None) -> None:
        super()._forget(worker)
        self._values.forget(worker)

    def checkpoint_state(self) -> dict[str, Any]:
        """As of the base class; ``extra`` has the entropy coefficients and the pace, too. The replay is apart."""
        state = super().checkpoint_state()
        # Copies, because parameters of small networks are parts of larger tensors, which would be saved whole.
        state["modules"] = {
            name: {key: value.clone(memory_format=torch.contiguous_format) for key, value in module.items()}
            for name, module in state["modules"].items()
        }
        state["extra"][_EXTRA] = {
            "log_alpha": self._sac.coefficients(),
            "pace": self._pace.state(),
            "signal_pace": self._signal_pace.state(),
        }
        return state

    def restore(self, state: Mapping[str, Any], *, reset_step: bool) -> None:
        """As of the base class. A checkpoint of ML-Agents, and a new run, begin with the entropy coefficients of the
        settings, and with no updates due.

        Raises:
            CheckpointError: the state is not of networks like these.
        """
        super().restore(state, reset_step=reset_step)
        if reset_step:
            return
        extra = state.get("extra", {}).get(_EXTRA, {})
        try:
            if "log_alpha" in extra:
                self._sac.load_coefficients(extra["log_alpha"])
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"Behavior {self.behavior!r}: the checkpoint's entropy coefficients are of other actions ({error})."
            ) from error
        self._pace.load(extra.get("pace"), self.step)
        self._signal_pace.load(extra.get("signal_pace"), self.step)

    def _modules(self) -> dict[str, nn.Module]:
        networks = self._networks
        return {
            "actor": self.actor,
            "q1": networks.q1,
            "q2": networks.q2,
            "critic": networks.critic,
            "target": networks.target,
        }

    def _optimizer_states(self) -> dict[str, dict[str, Any]]:
        return self._sac.states()

    def _load_optimizers(self, states: Mapping[str, dict[str, Any]]) -> None:
        self._sac.load_states(states)

    def _rng_states(self) -> dict[str, Tensor]:
        return self._batches.rng_states()

    def _load_rng(self, states: Mapping[str, Tensor]) -> None:
        self._batches.load_rng(states.get("replay"), states.get("noise"))


def _collect(statistics: dict[str, list[Tensor]], found: Mapping[str, Tensor]) -> None:
    for tag, value in found.items():
        statistics.setdefault(tag, []).append(value)
