"""DAgger (Ross et al. 2011, arXiv:1011.0686): imitates an expert that labels the states the learner visits.

Shape legend: B packed steps, C continuous actions, K discrete branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.core.columns import teacher_entries
from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.replay import Replay, rows_for
from trajtrainer.experience.trajectory import PackedSteps, PerAgent
from trajtrainer.learning.algos.algorithm import LearningContext, Statistics
from trajtrainer.learning.algos.off_policy import AutoPace, ReplayBatches, lead_of, pace_of
from trajtrainer.learning.algos.schedules import MIN_LEARNING_RATE, decayed
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.plugins.imitation.bc import Cloning
from trajtrainer.plugins.imitation.distillation import as_seen, labels
from trajtrainer.plugins.imitation.offline import tensors
from trajtrainer.plugins.imitation.settings import DAggerHyperparameters
from trajtrainer.settings.trainer import TrainerSettings

_EXTRA = "dagger"
_LEAD = 128


class DAgger(Cloning):
    """Imitates an expert in the states that the learner's own policy visits, while collecting experience.

    Unlike in the paper, there are no long rounds: new labels are used immediately, together with all earlier ones (the
    data set D). Rewards are reported, but not used for learning.

    Attributes:
        replay: the data set D, which contains the policy's observations and the expert's actions or distributions.
    """

    counts_group_rewards = True
    holds_rows = True
    timer: ClassVar[str] = "DAgger.update"

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        settings, hyper = context.settings, context.settings.hyperparameters
        assert isinstance(hyper, DAggerHyperparameters)
        memory = settings.network_settings.memory
        self._hyper = hyper
        actor, dtypes = self.actor, context.obs_dtypes
        self.replay = Replay(
            actor.spec,
            dtypes if actor.sees is None else [dtypes[number] for number in actor.sees],
            labels=teacher_entries(actor.spec) if context.has_teacher else {},
            num_rows=rows_for(hyper.buffer_size, settings.time_horizon) if context.training else 2,
            sequence_length=1 if memory is None else memory.sequence_length,
            memory_size=actor.memory_size,
        )
        self._batches = ReplayBatches(
            self.replay,
            signals,
            batch_size=hyper.batch_size,
            action_size=0,
            seed=context.draws_seed,
            device=context.device,
        )
        self._pace = pace_of(hyper.steps_per_update, 0, context.messages)
        # Agent -> the expert's memory in the agent's unfinished episode.
        self._memories = PerAgent[FloatArray]()

    @staticmethod
    def max_lead(settings: TrainerSettings) -> int:
        """Return the rows for a few gradient steps, but at least for a few trajectories."""
        hyper = settings.hyperparameters
        assert isinstance(hyper, DAggerHyperparameters)
        return int(min(max(lead_of(hyper.steps_per_update, _LEAD), 4 * settings.time_horizon), hyper.buffer_size))

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:  # noqa: ARG002
        context, head, statistics = self.context, self.actor.head, {}
        assert context.expert is not None
        # The expert labels the steps: D_i = {(s, pi*(s))}.
        wanted = labels(context.expert, packed, self._memories, self.actor)

        # Compare the learner's actions with the labels, as in Offline.validate.
        if head.continuous_size:
            done = head.to_env(torch.from_numpy(packed["continuous"])).numpy()
            statistics["Policy/Expert Error"] = np.array([np.square(done - wanted["continuous"]).mean()])
        if head.branches:
            statistics["Policy/Expert Agreement"] = np.array([(packed["discrete"] == wanted["discrete"]).mean()])

        # D = D + D_i.
        seen = as_seen(packed, self.actor)
        if context.settings.network_settings.normalize:
            self.actor.update_normalization([torch.from_numpy(column).to(context.device) for column in seen.obs])
        self.replay.add(replace(seen, steps=seen.steps.with_columns(wanted)))
        return statistics

    def is_ready(self, step: int) -> bool:
        return self._pace.due(step) > 0 and self.replay.num_steps >= self._hyper.batch_size

    def uses_spare_time(self, step: int) -> bool:
        return isinstance(self._pace, AutoPace) and self.is_ready(step)

    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:
        """Make the gradient steps that are due. Show the progress after each block of minibatches."""
        hyper = self._hyper
        rate = decayed(
            hyper.learning_rate_schedule, hyper.learning_rate, MIN_LEARNING_RATE, self.context.settings.max_steps, step
        )
        due = self._pace.due(step)
        found: list[dict[str, Tensor]] = []
        block_size = self._batches.block_size
        for batch in self.until_stop(chain.from_iterable(self._batches.blocks(due))):
            with self.context.timers(self.timer):
                found.append(self.imitate(batch, rate))
            self._pace.made(1)
            self.gradient_steps += 1
            if len(found) < due and len(found) % block_size == 0:
                show_progress(len(found) / due)
        return {**tensors(found), "Policy/Learning Rate": np.array([rate])} if found else {}

    def reset_worker(self, worker: int | None) -> None:
        self._memories.reset_worker(worker)

    def generators(self) -> dict[str, torch.Generator]:
        return self._batches.generators()

    def extra_state(self) -> dict[str, Any]:
        # The replay is saved in a separate file.
        return {_EXTRA: {"pace": self._pace.state()}}

    def load_extra_state(self, extra: Mapping[str, Any], step: int) -> None:
        self._pace.load(extra.get(_EXTRA, {}).get("pace"), step)

    @property
    def saved_replay(self) -> Replay | None:
        return self.replay if self._hyper.save_replay_buffer else None
