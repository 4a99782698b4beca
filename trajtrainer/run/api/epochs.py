"""Splits a run into epochs with a given number of steps, and computes the statistics of each epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trajtrainer.core.stats import Distribution
from trajtrainer.run.behavior import Behavior
from trajtrainer.run.hooks import BestCheckpoint, Evaluation
from trajtrainer.run.loop import TrainingLoop
from trajtrainer.run.writers import CUMULATIVE_REWARD

# The default number of agent steps in an epoch.
EPOCH_STEPS = 10_000

_EPISODE_LENGTH = "Environment/Episode Length"
_LOSSES = "Losses/"
# Maps each timer to its phase.
_PHASES = {
    "env_step": "collect",
    "evaluation": "evaluate",
    "trainer_advance": "learn",
    "RLTrainer._checkpoint": "save",
    "TrainerController._save_models": "save",
}


@dataclass(frozen=True, slots=True)
class PhaseStats:
    """Time spent in one phase of an epoch, such as learning.

    Attributes:
        seconds: total time in seconds, summed over all threads.
        steps_per_second: agent steps in the epoch, divided by ``seconds``; NaN if no time was spent.
    """

    seconds: float
    steps_per_second: float


@dataclass(frozen=True, slots=True)
class EpisodeStats:
    """Statistics of the episodes that ended in an epoch.

    Attributes:
        number: number of episodes.
        returns: distribution of the sum of the environment's rewards per episode.
        lengths: distribution of the lengths in agent steps. They are one higher than ML-Agents' values in the tag
            ``Environment/Episode Length``. Episodes that have just ended may be included here before they are included
            in ``returns``.
    """

    number: int
    returns: Distribution
    lengths: Distribution


@dataclass(frozen=True, slots=True)
class BehaviorStats:
    """Statistics of one behavior in an epoch.

    Attributes:
        name: name of the behavior.
        steps: agent steps that its trainer has processed in this epoch.
        total_steps: agent steps in the whole run, including earlier sessions.
        gradient_steps: gradient steps in this epoch.
        total_gradient_steps: gradient steps in the whole run, including earlier sessions.
        episodes: the episodes that ended in this epoch.
        losses: name ("Policy Loss") -> distribution of the reported values: one per update with PPO and POCA, one per
            gradient step with SAC.
        statistics: TensorBoard tag ("Policy/Entropy") -> distribution, for all statistics.
        evaluation: the newest evaluation of this session; None before the first.
        best: the best model so far; None before the first, and with ``inference``.
        elo: rating of the current policy; None without self-play.
    """

    name: str
    steps: int
    total_steps: int
    gradient_steps: int
    total_gradient_steps: int
    episodes: EpisodeStats
    losses: Mapping[str, Distribution]
    statistics: Mapping[str, Distribution]
    evaluation: Evaluation | None
    best: BestCheckpoint | None
    elo: float | None


@dataclass(frozen=True, slots=True)
class EpochStats:
    """Statistics of one epoch of a run.

    Attributes:
        epoch: number of the epoch, starting from 1. A resumed run continues the numbering.
        behaviors: statistics of each behavior by name, in order of appearance.
        environment_steps: number of environment steps. Copies in the same process are stepped together, which counts as
            one step.
        seconds: seconds since the end of the previous epoch.
        phases: "collect", "learn", "evaluate" and "save" -> time spent. Evaluations in other processes are not
            included.
        lessons: environment parameter -> name of its current lesson.
    """

    epoch: int
    behaviors: Mapping[str, BehaviorStats]
    environment_steps: int
    seconds: float
    phases: Mapping[str, PhaseStats]
    lessons: Mapping[str, str]

    @property
    def behavior(self) -> BehaviorStats:
        """The only behavior.

        Raises:
            ValueError: there are several.
        """
        if len(self.behaviors) != 1:
            raise ValueError(f"there are {len(self.behaviors)} behaviors: {', '.join(self.behaviors)}")
        return next(iter(self.behaviors.values()))

    @property
    def steps(self) -> int:
        """Agent steps of all behaviors in this epoch."""
        return sum(behavior.steps for behavior in self.behaviors.values())

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of all behaviors in this epoch."""
        return sum(behavior.gradient_steps for behavior in self.behaviors.values())

    @property
    def steps_per_second(self) -> float:
        """Agent steps per second of the whole epoch."""
        return _rate(self.steps, self.seconds)


class EpochMeter:
    """Determines when an epoch is over, and collects its statistics.

    Epoch n ends as soon as the trainers of all behaviors together have processed n times ``steps`` agent steps,
    including earlier sessions. Trainers process whole trajectories, several at a time, so an epoch may be somewhat
    longer or shorter than ``steps``. If several epochs end in the same iteration of the loop, they are merged into one.
    The remaining steps at the end of the run form another epoch.
    """

    def __init__(self, loop: TrainingLoop, steps: int) -> None:
        """Start the first epoch at the current state of the loop.

        Args:
            loop: the loop of the run.
            steps: number of steps in an epoch, at least 1.
        """
        self._loop = loop
        self._steps = steps
        self._last = 0
        self._begins: dict[str, _Count] = {}
        self._messages = loop.environment_steps
        self._begin_s = time.perf_counter()
        self._phases = self._seconds()
        for name, behavior in loop.behaviors.items():
            self._begins[name] = _Count.of(behavior)
            behavior.trainer.reporter.distributions()  # discard earlier values
        self._last = self._total() // steps

    @property
    def current(self) -> int:
        """The number of the current epoch."""
        return self._last + 1

    def is_over(self) -> bool:
        """Return whether the current epoch is over. Called after every iteration of the loop, so it must be fast."""
        behaviors = self._loop.behaviors
        if len(behaviors) != len(self._begins):
            # If a resumed behavior appears, its steps in earlier sessions count towards earlier epochs.
            for name, behavior in behaviors.items():
                if name not in self._begins:
                    self._begins[name] = _Count.at_first(behavior)
            before = sum(count.steps for count in self._begins.values())
            self._last = max(self._last, before // self._steps)
        if self._total() // self._steps <= self._last:
            return False
        # Extend the last epoch to the end of the run. Otherwise, the few steps beyond max_steps would form another
        # epoch.
        trainers = [behavior.trainer for behavior in behaviors.values()]
        return not self._loop.run.is_training or any(
            trainer.should_still_train and trainer.step < trainer.context.settings.max_steps for trainer in trainers
        )

    def finish(self) -> EpochStats:
        """Return the statistics of the current epoch, and start the next one."""
        begins, messages, begin_s, phases = self._begins, self._messages, self._begin_s, self._phases
        loop = self._loop
        self._begins = {name: _Count.of(behavior) for name, behavior in loop.behaviors.items()}
        self._messages, self._begin_s, self._phases = loop.environment_steps, time.perf_counter(), self._seconds()
        self._last = max(self._last + 1, self._total() // self._steps)
        behaviors = {
            name: _stats(behavior, begins.get(name) or _Count.at_first(behavior), self._begins[name])
            for name, behavior in loop.behaviors.items()
        }
        steps = sum(behavior.steps for behavior in behaviors.values())
        spent = {phase: seconds - phases[phase] for phase, seconds in self._phases.items()}
        return EpochStats(
            epoch=self._last,
            behaviors=MappingProxyType(behaviors),
            environment_steps=self._messages - messages,
            seconds=self._begin_s - begin_s,
            phases=MappingProxyType(
                {phase: PhaseStats(seconds, _rate(steps, seconds)) for phase, seconds in spent.items()}
            ),
            lessons=MappingProxyType(dict(loop.run.curriculum.lesson_names)),
        )

    def rest(self) -> EpochStats | None:
        """Return the incomplete epoch at the end of the run; None if it has no steps."""
        steps = {name: behavior.trainer.step for name, behavior in self._loop.behaviors.items()}
        began = {name: count.steps for name, count in self._begins.items()}
        return None if steps == began else self.finish()

    def _total(self) -> int:
        return sum(behavior.trainer.step for behavior in self._loop.behaviors.values())

    def _seconds(self) -> dict[str, float]:
        return self._loop.run.timers.seconds_by(_PHASES)


@dataclass(frozen=True, slots=True)
class _Count:
    """Step counts of a behavior at some point in time."""

    steps: int
    gradient_steps: int

    @classmethod
    def of(cls, behavior: Behavior) -> _Count:
        return cls(behavior.trainer.step, behavior.trainer.algorithm.gradient_steps)

    @classmethod
    def at_first(cls, behavior: Behavior) -> _Count:
        return cls(behavior.trainer.first_step, behavior.first_gradient_step)


def _stats(behavior: Behavior, begin: _Count, end: _Count) -> BehaviorStats:
    statistics = behavior.trainer.reporter.distributions()
    returns = statistics.get(CUMULATIVE_REWARD, Distribution())
    lengths = statistics.get(_EPISODE_LENGTH, Distribution())
    losses = {tag.removeprefix(_LOSSES): each for tag, each in statistics.items() if tag.startswith(_LOSSES)}
    return BehaviorStats(
        name=behavior.name,
        steps=end.steps - begin.steps,
        total_steps=end.steps,
        gradient_steps=end.gradient_steps - begin.gradient_steps,
        total_gradient_steps=end.gradient_steps,
        episodes=EpisodeStats(returns.number, returns, lengths.shifted(1.0)),
        losses=MappingProxyType(losses),
        statistics=MappingProxyType(statistics),
        evaluation=behavior.evaluation,
        best=behavior.best,
        elo=None if behavior.self_play is None else behavior.self_play.elo,
    )


def _rate(number: int, seconds: float) -> float:
    return number / seconds if seconds > 0 else float("nan")
