"""Sets the environment parameters to the values of their current lessons."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from trajtrainer.envs.protocol import Parameters
from trajtrainer.policies.folder.status import TrainingStatus
from trajtrainer.run.behavior import Behavior
from trajtrainer.run.curriculum import BehaviorProgress, Curriculum

# If a behavior has no groups in this many episodes, it probably has no groups at all.
_ENOUGH_EPISODES = 10
# After this many checks with the same rewards, the smoothed mean no longer changes.
_MOST_CHECKS = 64

logger = logging.getLogger(__name__)


class Stage(Protocol):
    """The environment methods that ``LessonController`` calls."""

    def reset(self, parameters: Parameters) -> None: ...

    def set_parameters(self, parameters: Parameters) -> None: ...


class LessonController:
    """Sends the current samplers to the environment, if there is one, at every reset and after every lesson change."""

    def __init__(self, curriculum: Curriculum, environment: Stage | None, status: TrainingStatus) -> None:
        self.curriculum = curriculum
        self._environment = environment
        self._status = status
        self._without_groups: set[str] = set()  # behaviors for which a warning was logged
        self._note_lessons()

    def reset_environment(self) -> None:
        """Reset every worker with the current samplers."""
        if self._environment is not None:
            self._environment.reset(self.curriculum.samplers)

    def log_lessons(self) -> None:
        for line in self.curriculum.descriptions():
            logger.info(line)

    def update(self, behaviors: Mapping[str, Behavior], num_messages: int = 1) -> bool:
        """Check all completion criteria, once per recorded message. Returns whether any lesson has changed."""
        has_changed = False
        for _ in range(min(num_messages, _MOST_CHECKS)):
            if not self.curriculum.has_next_lesson:
                break
            has_changed |= self._check(behaviors)
        return has_changed

    def _check(self, behaviors: Mapping[str, Behavior]) -> bool:
        progress = {
            name: BehaviorProgress(
                step=behavior.recorded_step,
                max_steps=behavior.trainer.context.settings.max_steps,
                rewards=behavior.learner.recorded.rewards,
                group_rewards=behavior.learner.recorded.group_rewards,
                elo=None if behavior.self_play is None else behavior.self_play.elo,
            )
            for name, behavior in behaviors.items()
        }
        change = self.curriculum.advance(progress)
        if not change.advanced:
            for name in (self.curriculum.awaits_groups_of & behaviors.keys()) - self._without_groups:
                episodes = behaviors[name].learner.recorded
                if episodes.num_episodes >= _ENOUGH_EPISODES and not episodes.has_groups:
                    self._without_groups.add(name)
                    logger.warning(
                        "A lesson waits for group rewards of behavior %r (measure: group_reward), but none of its %d "
                        "episodes so far belonged to a group, so the lesson cannot end. Register the agents with a "
                        "group in Unity, or use measure: reward.",
                        name,
                        episodes.num_episodes,
                    )
            return False
        self._note_lessons()
        for behavior in behaviors.values():
            behavior.learner.recorded.begin_lesson(self.curriculum.num_completed)
        for line in self.curriculum.descriptions(change.advanced):
            logger.info(line)
        if change.require_reset:
            self.reset_environment()
        elif self._environment is not None:
            self._environment.set_parameters(self.curriculum.samplers)
        return True

    def _note_lessons(self) -> None:
        for name, number in self.curriculum.lesson_numbers.items():
            self._status.set_lesson(name, number)

    def statistics(self) -> dict[str, float]:
        """Return the lesson number of each parameter, for the summaries."""
        return {f"Environment/Lesson Number/{name}": float(n) for name, n in self.curriculum.lesson_numbers.items()}
