"""Warnings about settings that wait for a value that the run never measures. ML-Agents accepts such settings."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from trajtrainer.settings.checks import Fault, mismatch
from trajtrainer.settings.environment import CompletionCriteria, Measure
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings

logger = logging.getLogger(__name__)


def summary_fault(path: tuple[str, ...], behavior: TrainerSettings, consequence: str) -> Iterator[Fault]:
    """Yield a fault if the behavior at ``path`` finishes before its first summary."""
    if behavior.summary_freq > behavior.max_steps:
        expected = f"at most max_steps ({behavior.max_steps}): the run ends before its first summary, so {consequence}"
        yield mismatch((*path, "summary_freq"), behavior.summary_freq, expected)


def unmeasured(settings: RunSettings) -> Iterator[Fault]:
    """Yield a fault for each setting that waits for a value that the run never measures."""
    trained: dict[tuple[str, ...], TrainerSettings]
    trained = {("behaviors", name): behavior for name, behavior in settings.behaviors.items()}
    if not trained and settings.default_settings is not None:
        trained["default_settings",] = settings.default_settings
    for path, behavior in trained.items():
        stop, evaluations = behavior.stop, settings.evaluations_of(behavior)
        waiting = [key for key in ("reward", "patience") if stop is not None and getattr(stop, key) is not None]
        conditions = " and ".join(f"stop.{key}" for key in waiting)
        if evaluations is None:
            lost = ["the last model is kept as the best"] if behavior.keep_best else []
            lost += [f"{conditions} cannot end it"] if waiting else []
            if lost:
                yield from summary_fault(path, behavior, ", and ".join(lost))
        elif waiting and evaluations.interval > behavior.max_steps:
            own = behavior.evaluation is not None and behavior.evaluation.interval is not None
            place = (*path, "evaluation", "interval") if own else ("evaluation", "interval")
            expected = f"at most max_steps ({behavior.max_steps}): the only evaluation is at the end, so"
            yield mismatch(place, evaluations.interval, f"{expected} {conditions} cannot end the run")
    for parameter, lessons in (settings.environment_parameters or {}).items():
        for index, lesson in enumerate(lessons.curriculum[:-1]):
            reason = lesson.completion_criteria and _endless(lesson.completion_criteria, settings)
            if reason:
                place = ("environment_parameters", parameter, "curriculum", str(index), "completion_criteria")
                yield Fault(place, f"this lesson never ends, because {reason}")


def _endless(criteria: CompletionCriteria, settings: RunSettings) -> str | None:
    """Return the reason why a lesson never ends; None if it can end."""
    behavior = settings.behaviors.get(criteria.behavior, settings.default_settings)
    if behavior is None:
        listed = ", ".join(settings.behaviors) or "none"
        return f"the configuration has no behavior {criteria.behavior!r} (listed: {listed})"
    if criteria.measure is Measure.PROGRESS:
        return "training ends when the progress reaches 1" if criteria.threshold >= 1 else None
    if behavior.is_offline:
        return f"behavior {criteria.behavior!r} learns from recordings and has no episodes"
    return None


def warn_of_unmeasured(settings: RunSettings) -> None:
    """Log a warning for each fault that ``unmeasured`` finds."""
    for fault in unmeasured(settings):
        logger.warning("%s.", fault)
