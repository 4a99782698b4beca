"""Lessons of the environment parameters, as a state machine that uses no files, clocks or environments.

Given the progress of each behavior, it decides which samplers to use, and whether the environment must be reset
(docs/explanation/mlagents-behavior.md#environment-parameters).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from trajtrainer.core.errors import SettingsError
from trajtrainer.settings.environment import (
    CompletionCriteria,
    ConstantSettings,
    EnvironmentParameterSettings,
    GaussianSettings,
    Lesson,
    Measure,
    Sampler,
    UniformSettings,
    seeded,
)

LESSON_NUM = "lesson_num"
# Weight of the newest mean in the smoothed reward (docs/explanation/mlagents-behavior.md#environment-parameters).
_NEW_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class BehaviorProgress:
    """Progress of a behavior.

    Attributes:
        step: agent steps recorded so far.
        max_steps: agent steps to train for.
        rewards: returns of the latest episodes since the last lesson change of any parameter, at most
            ``Curriculum.reward_buffer_length``.
        group_rewards: group rewards of these episodes, one entry per agent.
        elo: rating of the behavior; None without self-play.
    """

    step: int
    max_steps: int
    rewards: Collection[float]
    group_rewards: Collection[float] = ()
    elo: float | None = None


@dataclass(frozen=True, slots=True)
class LessonChange:
    """Result of checking the completion criteria.

    Attributes:
        advanced: the parameters that have moved to a new lesson, in the order of the configuration. If it is not empty,
            the reward buffers of all behaviors must be cleared.
        require_reset: True if a completed lesson requires a reset of the environment. Otherwise, only the new samplers
            are sent.
    """

    advanced: tuple[str, ...] = ()
    require_reset: bool = False


@dataclass(slots=True)
class _Parameter:
    """The lessons of one parameter.

    Attributes:
        lessons: all lessons, in order.
        lesson_num: number of the current lesson, starting from 0.
        smoothed: the smoothed reward. It starts at 0 in every session, and is not reset when the lesson changes.
    """

    lessons: list[Lesson]
    lesson_num: int = 0
    smoothed: float = 0.0

    @property
    def lesson(self) -> Lesson:
        return self.lessons[self.lesson_num]

    @property
    def criteria(self) -> CompletionCriteria | None:
        """The completion criteria of the current lesson; always None in the last lesson."""
        return self.lesson.completion_criteria if self.lesson_num + 1 < len(self.lessons) else None


class Curriculum:
    """The environment parameters of a run and their current lessons."""

    def __init__(self, parameters: Mapping[str, EnvironmentParameterSettings] | None, run_seed: int) -> None:
        """Start at the first lesson of every parameter.

        Args:
            parameters: settings of each parameter by name, from the configuration; None if there are no parameters.
            run_seed: samplers without a seed get ``run_seed``, ``run_seed + 1``, ... in the order of the configuration
                (docs/explanation/mlagents-behavior.md#seeds).
        """
        resolved = seeded(dict(parameters or {}), run_seed)
        self._states = {name: _Parameter(parameter.curriculum) for name, parameter in resolved.items()}

    @property
    def samplers(self) -> dict[str, Sampler]:
        """The sampler of each parameter in its current lesson, with resolved seeds."""
        return {name: parameter.lesson.value for name, parameter in self._states.items()}

    @property
    def lesson_numbers(self) -> dict[str, int]:
        """The number of each parameter's current lesson, starting from 0."""
        return {name: parameter.lesson_num for name, parameter in self._states.items()}

    @property
    def lesson_names(self) -> dict[str, str]:
        """The name of the current lesson of each parameter that has several lessons."""
        return {name: parameter.lesson.name for name, parameter in self._states.items() if len(parameter.lessons) > 1}

    @property
    def num_completed(self) -> int:
        """The number of lessons that all parameters together have completed."""
        return sum(self.lesson_numbers.values())

    @property
    def has_next_lesson(self) -> bool:
        """True if any parameter has another lesson to move to. Otherwise, ``advance`` has no effect."""
        return any(parameter.criteria is not None for parameter in self._states.values())

    def reward_buffer_length(self, behavior: str) -> int:
        """Return the required size of ``BehaviorProgress.rewards``: the largest ``min_lesson_length``, at least 1."""
        return max((criteria.min_lesson_length for criteria in self._criteria_of(behavior)), default=1) or 1

    def measures(self, behavior: str) -> bool:
        """Return whether the criteria of any lesson depend on this behavior."""
        return any(self._criteria_of(behavior))

    def _criteria_of(self, behavior: str) -> Iterator[CompletionCriteria]:
        criteria = (lesson.completion_criteria for parameter in self._states.values() for lesson in parameter.lessons)
        return (c for c in criteria if c is not None and c.behavior == behavior)

    @property
    def awaits_groups_of(self) -> set[str]:
        """The behaviors whose group rewards are the completion criterion of a current lesson."""
        criteria = (parameter.criteria for parameter in self._states.values())
        return {c.behavior for c in criteria if c is not None and c.measure is Measure.GROUP_REWARD}

    def advance(self, progress: Mapping[str, BehaviorProgress]) -> LessonChange:
        """Check every parameter, and move it to its next lesson if the current one is complete.

        Smoothing counts every check as another value, so call this once per message, as ML-Agents does.

        Args:
            progress: progress by behavior name. Criteria that refer to missing behaviors are not met.
        """
        advanced = []
        require_reset = False
        for name, parameter in self._states.items():
            criteria = parameter.criteria
            if criteria is None or criteria.behavior not in progress:
                continue
            done, parameter.smoothed = is_lesson_done(criteria, progress[criteria.behavior], parameter.smoothed)
            if done:
                parameter.lesson_num += 1
                advanced.append(name)
                require_reset |= criteria.require_reset
        return LessonChange(tuple(advanced), require_reset)

    def descriptions(self, names: Iterable[str] | None = None) -> list[str]:
        """Return a console line with the lesson and value of each parameter, or of those in ``names``."""
        return [
            f"Parameter '{name}' is in lesson '{self._states[name].lesson.name}' and has value "
            f"'{describe(self._states[name].lesson.value)}'."
            for name in (self._states if names is None else names)
        ]

    def restore(self, state: Mapping[str, object]) -> None:
        """Move to the lessons in ``state``. Parameters that are not in it start at their first lesson.

        Args:
            state: content of ``training_status.json``, with ``{parameter: {"lesson_num": n}}`` among other entries.

        Raises:
            SettingsError: a lesson in ``state`` does not exist in the configuration.
        """
        lessons = {}
        for name, parameter in self._states.items():
            entry = state.get(name)
            if not isinstance(entry, Mapping) or LESSON_NUM not in entry:
                # There is no entry for this parameter. There may be one for a behavior with the same name, because the
                # file does not distinguish them: docs/explanation/mlagents-behavior.md#training-status.
                lessons[name] = 0
                continue
            lesson_num, count = entry[LESSON_NUM], len(parameter.lessons)
            if not isinstance(lesson_num, int) or not 0 <= lesson_num < count:
                raise SettingsError(
                    f"The saved run was in lesson number {lesson_num!r} of environment parameter '{name}', but the "
                    f"configuration has the lessons 0 to {count - 1}. Give '{name}' the lessons that it had when the "
                    "run was saved, or start a new run."
                )
            lessons[name] = lesson_num
        for name, lesson_num in lessons.items():
            self._states[name].lesson_num = lesson_num


def is_lesson_done(criteria: CompletionCriteria, progress: BehaviorProgress, smoothed: float) -> tuple[bool, float]:
    """Return whether a lesson is complete, and the new smoothed reward.

    See docs/explanation/mlagents-behavior.md#environment-parameters.

    Args:
        criteria: criteria of the current lesson.
        progress: progress of the behavior in the criteria.
        smoothed: the parameter's smoothed reward so far.
    """
    rewards = progress.group_rewards if criteria.measure is Measure.GROUP_REWARD else progress.rewards
    if len(rewards) < criteria.min_lesson_length:
        return False, smoothed
    if criteria.measure is Measure.PROGRESS:
        return progress.step / progress.max_steps > criteria.threshold, smoothed
    if criteria.measure is Measure.ELO:
        return progress.elo is not None and progress.elo > criteria.threshold, smoothed
    reward = float(np.mean(list(rewards))) if rewards else math.nan
    if math.isnan(reward):
        return False, smoothed
    if criteria.signal_smoothing:
        reward = smoothed = (1 - _NEW_SHARE) * smoothed + _NEW_SHARE * reward
    return reward > criteria.threshold, smoothed


def describe(sampler: Sampler) -> str:
    """Describe a sampler in the format of ML-Agents' console output (docs/explanation/mlagents-behavior.md#console)."""
    if isinstance(sampler, ConstantSettings):
        return f"Float: value={sampler.value}"
    if isinstance(sampler, UniformSettings):
        return f"Uniform sampler: min={sampler.min_value}, max={sampler.max_value}"
    if isinstance(sampler, GaussianSettings):
        return f"Gaussian sampler: mean={sampler.mean}, stddev={sampler.st_dev}"
    return f"MultiRangeUniform sampler: intervals={sampler.intervals}"
