"""Returns of episodes, which may span many trajectories, and their statistics.

Shape legend: X kinds of reward, B packed steps, S trajectories, E trajectories that end an episode.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from trajtrainer.core.numeric import count_in
from trajtrainer.core.printable import counted
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import Aggregation, FloatArray
from trajtrainer.experience.source import Chunk
from trajtrainer.experience.trajectory import EpisodeSums, PackedSteps

DEFAULT_REWARD_BUFFER = 100


@dataclass(frozen=True, slots=True)
class MeanReturn:
    """The mean return of a behavior during training. A return includes the rewards of the agent and its group.

    Attributes:
        mean: the mean return of the episodes.
        episodes: number of episodes.
        step: label of the summary, which covers the episodes that ended since the previous summary; None for the mean
            over all episodes in this process.
    """

    mean: float
    episodes: int
    step: int | None = None

    def __str__(self) -> str:
        of = "all episodes so far" if self.step is None else f"the summary of step {self.step}"
        return f"mean return {self.mean:.3f} of {of} ({counted(self.episodes, 'episode')})"


class EpisodeRecord:
    """The rewards of finished episodes that the trainer has read, for statistics and checkpoints.

    Attributes:
        lesson: number of completed curriculum lessons when the newest episodes ended.
        reward_buffer: rewards of the newest episodes since the last lesson change, up to the number that the curriculum
            averages.
        group_reward_buffer: group rewards of the newest episodes, with one entry for each member that ended with its
            group. If the algorithm does not need groups, members that ended earlier also have entries.
        summary: the mean return of the newest summary that contains episodes since the last lesson change, if any.
        num_episodes: number of episodes that ended in this process.
        num_total: number of episodes including those of earlier processes of this run.
        returns_since_update: returns of the episodes since the last policy update.
        best_reward: highest mean of ``reward_buffer`` at a summary; None before the first episode.
    """

    def __init__(self, reporter: StatsReporter) -> None:
        self.reward_buffer: deque[float] = deque(maxlen=DEFAULT_REWARD_BUFFER)
        self.group_reward_buffer: deque[float] = deque(maxlen=DEFAULT_REWARD_BUFFER)
        self.lesson = 0
        self.summary: MeanReturn | None = None
        self.num_episodes = self.num_total = 0
        self.returns_since_update: list[float] = []
        self.best_reward: float | None = None
        self._reporter = reporter
        self._sums = EpisodeSums()
        self._since_summary: list[float] = []
        self._total, self._count = 0.0, 0  # since the last lesson change

    @property
    def so_far(self) -> MeanReturn | None:
        """The mean return of all episodes in this process since the last lesson change; None if there are none."""
        return MeanReturn(self._total / self._count, self._count) if self._count else None

    @property
    def newest(self) -> MeanReturn | None:
        """The mean return that best represents the current policy; None if there are no episodes."""
        return self.summary or self.so_far

    def summarize(self, step: int) -> None:
        """Summarize the episodes that ended since the last call, under the label ``step``."""
        if self._since_summary:
            self.summary = MeanReturn(float(np.mean(self._since_summary)), len(self._since_summary), step)
            self._since_summary = []

    def add(self, packed: PackedSteps, titles: Sequence[str], rewards: FloatArray) -> None:
        """Add trajectories in order.

        Args:
            packed: the steps of the trajectories.
            titles: the names of the reward signals in tags.
            rewards: f32 [len(titles), B], multiplied by the signals' strength.
        """
        everything = np.concatenate([packed["reward"][None], rewards, packed["group_reward"][None]])
        finished = self._sums.add(everything, packed.offset, packed.agent, packed.ended)
        if not finished.size:
            return
        # A group's reward is recorded for the members that ended last, not for those that ended earlier.
        counts = packed["group"][packed.offset[1:] - 1] > 0
        if packed.groups is not None:
            counts &= packed.groups.all_done
        of_groups = finished[-1][counts[packed.ended]]
        returns, with_groups = finished[0].tolist(), (finished[0] + finished[-1]).tolist()
        self.reward_buffer.extend(returns)
        self.group_reward_buffer.extend(of_groups.tolist())
        self._since_summary += with_groups
        self._total += math.fsum(with_groups)
        self._count += len(with_groups)
        self.num_episodes += len(returns)
        self.num_total += len(returns)
        self.returns_since_update += returns
        self._reporter.add_many("Environment/Cumulative Reward", finished[0], Aggregation.HISTOGRAM)
        for title, sums in zip(titles, finished[1 : 1 + len(titles)], strict=True):
            self._reporter.add_many(f"Policy/{title} Reward", sums)
        if packed.groups is not None and len(of_groups):
            self._reporter.add_many("Environment/Group Cumulative Reward", of_groups, Aggregation.HISTOGRAM)

    def reset_worker(self, worker: int | None) -> None:
        """Drop the unfinished episodes of one worker, or of all workers (None)."""
        self._sums.reset_worker(worker)

    def set_reward_buffer_size(self, size: int) -> None:
        """Keep the rewards of the newest ``size`` episodes, which the curriculum averages."""
        self.reward_buffer = deque(self.reward_buffer, maxlen=size)
        self.group_reward_buffer = deque(self.group_reward_buffer, maxlen=size)

    def begin_lesson(self, number: int) -> None:
        """Drop the rewards of the previous lesson. ``number`` is the number of completed lessons."""
        self.lesson = number
        self.reward_buffer.clear()
        self.group_reward_buffer.clear()
        self.summary, self._since_summary = None, []
        self._total, self._count = 0.0, 0

    @property
    def reward_since_update(self) -> float | None:
        """The mean return of the episodes since the last policy update; None if there are no episodes."""
        return float(np.mean(self.returns_since_update)) if self.returns_since_update else None

    def note_best(self) -> None:
        """Update ``best_reward`` with the current mean."""
        if self.reward_buffer:
            mean = math.fsum(self.reward_buffer) / len(self.reward_buffer)
            self.best_reward = mean if self.best_reward is None else max(self.best_reward, mean)

    def state(self) -> dict[str, Any]:
        """Return the state as plain data, without unfinished episodes."""
        return {
            "reward_buffer": list(self.reward_buffer),
            "group_reward_buffer": list(self.group_reward_buffer),
            "returns_since_update": list(self.returns_since_update),
            "best_reward": self.best_reward,
            "summary": None if self.summary is None else list(astuple(self.summary)),
            "num_total": self.num_total,
            "lesson": self.lesson,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``state``, except rewards of an earlier lesson. Missing parts are reset."""
        self.reward_buffer.clear()
        self.reward_buffer.extend(state.get("reward_buffer", ()))
        self.group_reward_buffer.clear()
        self.group_reward_buffer.extend(state.get("group_reward_buffer", ()))
        self.returns_since_update = list(state.get("returns_since_update", ()))
        self.best_reward = state.get("best_reward")
        summary = state.get("summary")  # absent in checkpoints of 0.1.0
        self.summary = None if summary is None else MeanReturn(*summary)
        self.num_total = count_in(state.get("num_total", 0))
        if state.get("lesson", self.lesson) != self.lesson:  # absent in checkpoints of 0.1.0
            self.begin_lesson(self.lesson)


class ArrivedEpisodes:
    """Counts of steps and episodes at arrival, before the trainer reads them.

    They are used for lessons, ``stop`` and the live view. Only the main loop's thread may use this class.
    ``EpisodeRecord`` is updated later, when the trainer reads the same trajectories.

    Attributes:
        rewards: like ``EpisodeRecord.reward_buffer``; empty unless lessons depend on this behavior.
        group_rewards: like ``EpisodeRecord.group_reward_buffer``; empty unless lessons depend on this behavior.
        has_groups: True if lessons depend on this behavior and an episode of a group member has ended.
        num_steps: number of steps in the trajectories that arrived in this process.
        num_episodes: number of episodes that ended in this process.
        num_total: number of episodes including those of earlier processes of this run.
        on_lesson: called with the number of completed lessons when a lesson starts.
    """

    def __init__(self, most_rewards: int = 0) -> None:
        """Start counting.

        Args:
            most_rewards: number of episodes that lessons average; 0 if no lesson depends on this behavior.
        """
        self.rewards: deque[float] = deque(maxlen=most_rewards)
        self.group_rewards: deque[float] = deque(maxlen=most_rewards)
        self.has_groups = False
        self.num_steps = self.num_episodes = self.num_total = 0
        self.on_lesson: Callable[[int], object] = lambda _: None
        self._is_measured = most_rewards > 0
        self._sums = EpisodeSums()

    def add(self, chunk: Chunk) -> None:
        num_ended = chunk.num_ended
        self.num_steps += chunk.num_steps
        self.num_episodes += num_ended
        self.num_total += num_ended
        if self._is_measured:
            of = chunk.environment_rewards()
            own, group = self._sums.add(of.rewards, of.offset, of.agent, of.ended)
            self.has_groups |= bool((of.in_group & of.ended).any())
            counts = of.in_group if of.all_done is None else of.in_group & of.all_done
            self.rewards.extend(own.tolist())
            self.group_rewards.extend(group[counts[of.ended]].tolist())

    def reset_worker(self, worker: int) -> None:
        """Drop the unfinished episodes of one worker."""
        self._sums.reset_worker(worker)

    def begin_lesson(self, number: int) -> None:
        """Drop the rewards of the previous lesson. ``number`` is the number of completed lessons."""
        self.rewards.clear()
        self.group_rewards.clear()
        self.on_lesson(number)

    def resume(self, record: EpisodeRecord) -> None:
        """Continue from the record that the trainer has restored."""
        self.num_total = record.num_total
        self.rewards.extend(record.reward_buffer)
        self.group_rewards.extend(record.group_reward_buffer)
