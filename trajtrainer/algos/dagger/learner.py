"""DAgger (Ross et al. 2011): an expert says what it would have done wherever the learner comes, and that is imitated.

Shape legend: B packed steps, C continuous actions, K discrete branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.algos.algorithm import Algorithm, LearningContext, Statistics
from trajtrainer.algos.dagger.labels import labels
from trajtrainer.algos.dagger.settings import DAggerHyperparameters
from trajtrainer.algos.off_policy import Pace, ReplayBatches
from trajtrainer.algos.offline.closed_form import cloning_step
from trajtrainer.algos.offline.policy import make_actor
from trajtrainer.algos.offline.rows import tensors
from trajtrainer.algos.schedules import MIN_LEARNING_RATE, decayed
from trajtrainer.core.steps import WORKER_SHIFT, FloatArray
from trajtrainer.data.replay import Replay, rows_for
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.trainer import TrainerSettings

_EXTRA = "dagger"
_LEAD = 128


class DAggerLearner(Algorithm):
    """Imitates an expert on what its own policy sees, at the pace of the experience.

    The rounds of the paper are as short as can be here: what is labelled is learnt from at once, together with all that
    was labelled before. Rewards are counted and not learnt from.

    Attributes:
        replay: what was seen, with the expert's actions in place of its own.
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
        self._step = cloning_step(self.actor, hyper)
        self.replay = Replay(
            context.spec,
            context.obs_dtypes,
            num_rows=rows_for(hyper.buffer_size, settings.time_horizon) if context.training else 2,
            sequence_length=1 if memory is None else memory.sequence_length,
            memory_size=self.actor.memory_size,
        )
        self._batches = ReplayBatches(
            self.replay,
            signals,
            batch_size=hyper.batch_size,
            action_size=0,
            seed=context.draws_seed,
            device=context.device,
        )
        self._pace = Pace(hyper.steps_per_update, 0)
        # Of each agent whose episode goes on, what the expert remembers.
        self._memories: dict[int, FloatArray] = {}

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """See ``Algorithm``: an actor."""
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, DAggerHyperparameters)
        return {"actor": make_actor(context.spec, context.settings.network_settings, hyper)}

    @staticmethod
    def max_lead(settings: TrainerSettings) -> int:
        """See ``Algorithm``: few gradient steps, so that what is learnt is acted on; a few trajectories at least."""
        hyper = settings.hyperparameters
        assert isinstance(hyper, DAggerHyperparameters)
        return int(min(max(_LEAD * hyper.steps_per_update, 4 * settings.time_horizon), hyper.buffer_size))

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:  # noqa: ARG002
        """See ``Algorithm``: the expert labels the steps."""
        context = self.context
        assert context.expert is not None
        wanted = labels(context.expert, packed, self._memories)
        statistics = self._differences(packed, wanted)
        if context.settings.network_settings.normalize:
            self.actor.update_normalization([torch.from_numpy(column).to(context.device) for column in packed.obs])
        self.replay.add(replace(packed, steps=packed.steps.with_columns(wanted)))
        return statistics

    def _differences(self, packed: PackedSteps, wanted: Mapping[str, NDArray[Any]]) -> Statistics:
        """Return how far what the learner did is from what the expert wanted, as ``OfflineLearner.validate`` does."""
        head, found = self.actor.head, {}
        if head.continuous_size:
            done = head.to_env(torch.from_numpy(packed["continuous"])).numpy()
            found["Policy/Expert Error"] = np.square(done - wanted["continuous"]).mean()
        if head.branches:
            found["Policy/Expert Agreement"] = (packed["discrete"] == wanted["discrete"]).mean()
        return {tag: np.array([value]) for tag, value in found.items()}

    def is_ready(self, step: int) -> bool:
        """See ``Algorithm``: there is a minibatch, and a gradient step is due."""
        return self.replay.num_steps >= self._hyper.batch_size and bool(self._pace.due(step))

    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:
        """See ``Algorithm``. Shows its progress between two blocks of minibatches."""
        hyper = self._hyper
        rate = decayed(
            hyper.learning_rate_schedule, hyper.learning_rate, MIN_LEARNING_RATE, self.context.settings.max_steps, step
        )
        due = self._pace.due(step)
        found: list[dict[str, Tensor]] = []
        for block in self._batches.blocks(due):
            for batch in self.until_stop(block):
                with self.context.timers(self.timer):
                    found.append(self._step(batch, [rate]))
                self._pace.made(1)
                self.gradient_steps += 1
            if self.context.is_stopping():
                break
            if len(found) < due:
                show_progress(len(found) / due)
        return {**tensors(found), "Policy/Learning Rate": np.array([rate])} if found else {}

    def reset_worker(self, worker: int | None) -> None:
        """See ``Algorithm``."""
        for agent in [one for one in self._memories if worker is None or one >> WORKER_SHIFT == worker]:
            del self._memories[agent]

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """See ``Algorithm``."""
        return self._step.states()

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """See ``Algorithm``."""
        self._step.load_states(states)

    def generators(self) -> dict[str, torch.Generator]:
        """See ``Algorithm``."""
        return self._batches.generators()

    def extra_state(self) -> dict[str, Any]:
        """See ``Algorithm``: the pace. The replay is apart."""
        return {_EXTRA: {"pace": self._pace.state()}}

    def load_extra_state(self, extra: Mapping[str, Any], step: int) -> None:
        """See ``Algorithm``."""
        self._pace.load(extra.get(_EXTRA, {}).get("pace"), step)

    @property
    def saved_replay(self) -> Replay | None:
        """See ``Algorithm``."""
        return self.replay if self._hyper.save_replay_buffer else None
