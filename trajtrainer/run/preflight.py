"""Checks that run before a command starts or writes anything. All problems are reported in a single error."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from attrs import evolve

from trajtrainer.core.cores import usable_cores
from trajtrainer.core.errors import DemonstrationError, SettingsError, TrajtrainerError
from trajtrainer.core.plugins import resolve
from trajtrainer.envs.select import check as check_environment
from trajtrainer.learning.trainers.demonstrations import check_demonstrations
from trajtrainer.run.experts import check_experts
from trajtrainer.run.followers import checks
from trajtrainer.settings.actors import ACTOR_BACKENDS
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.unmeasured import warn_of_unmeasured

if TYPE_CHECKING:
    from trajtrainer.experience.recordings.demonstrations import Demonstrations

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Preflight:
    """Collects the errors of checks, and raises them together at the end of its ``with`` block.

    If there is only one error, it is raised unchanged. Several errors are combined into one ``SettingsError`` with a
    line for each, in the same format as the problems of a configuration file.
    """

    def __init__(self) -> None:
        self.errors: list[TrajtrainerError] = []

    def __enter__(self) -> Preflight:
        return self

    def __call__(self, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of ``check``, or None if it failed. Use a possible None only as input of other checks."""
        try:
            return check(*args, **kwargs)
        except TrajtrainerError as error:
            self.errors.append(error)
            return cast("T", None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None or not self.errors:
            return
        if len(self.errors) == 1:
            raise self.errors[0]
        lines: list[str] = []
        for each in self.errors:
            lines += map(str, each.problems) if isinstance(each, ConfigurationError) else str(each).splitlines()
        raise SettingsError("\n  ".join([f"{len(lines)} problems were found, and nothing was started:", *lines]))


def with_recorded_names(settings: RunSettings) -> RunSettings:
    """If only ``default_settings`` has a data set and no behaviors are listed, add the behavior that it records.

    Raises:
        DemonstrationError: the recordings cannot be read.
    """
    default = settings.default_settings
    if settings.behaviors or default is None or not default.is_offline:
        return settings
    from trajtrainer.experience.recordings.demonstrations import load_demonstrations  # lazy: few runs need it

    name = load_demonstrations(default.dataset, max_steps=1).name.partition("?")[0]
    return evolve(settings, behaviors={name: default})


def load_datasets(settings: RunSettings, max_steps: int | None = None) -> dict[str, Demonstrations]:
    """Load the data set of each behavior that learns from one. With ``--inference``, nothing is loaded.

    Args:
        settings: settings of the run.
        max_steps: number of steps to read from each data set; None for all. One step is enough to check the files.

    Raises:
        DemonstrationError: files are missing, damaged or do not match; the message has one line per behavior.
    """
    offline = {name: behavior for name, behavior in settings.behaviors.items() if behavior.is_offline}
    if settings.checkpoint_settings.inference or not offline:
        return {}
    from trajtrainer.experience.recordings.demonstrations import load_demonstrations  # lazy: few runs need it

    found = {}
    faults = []
    for name, behavior in offline.items():
        try:
            found[name] = load_demonstrations(behavior.dataset, max_steps=max_steps)
        except DemonstrationError as error:
            faults.append(f"Behavior {name!r}, dataset: {error}")
    if faults:
        raise DemonstrationError("\n".join(faults))
    return found


def check_recordings(check: Preflight, settings: RunSettings) -> RunSettings:
    """Check the data sets. Returns the settings, plus the recorded behavior if they did not list any behavior."""
    if settings.missing_recordings:
        check.errors.append(ConfigurationError(settings.missing_recordings))
        return settings
    settings = check(with_recorded_names, settings) or settings
    check(load_datasets, settings, max_steps=1)
    return settings


def check_training(check: Preflight, settings: RunSettings, *, env_path: str | None) -> RunSettings:
    """Check everything that training needs, except the run's folder and the torch device.

    Imports torch only for opponents, experts and noise.

    Args:
        check: collects the errors.
        settings: settings of the run.
        env_path: path of the environment; None if the caller makes the environment.

    Returns:
        The settings, plus the recorded behavior if they did not list any behavior.
    """
    settings = check_recordings(check, settings)
    default = settings.default_settings
    behaviors = {**({} if default is None else {"default_settings": default}), **settings.behaviors}
    if not settings.checkpoint_settings.inference:
        if not settings.missing_recordings:
            check(check_demonstrations, behaviors)
        check(check_experts, settings)
    if any(each.self_play is not None and each.self_play.opponents for each in behaviors.values()):
        from trajtrainer.run.opponents import check_opponents  # lazy import, because it imports torch

        check(check_opponents, settings, behaviors)
    check(check_actors, settings)
    for each in checks(settings):
        check(each, settings)
    check(check_environment, env_path)
    if not check.errors and not settings.checkpoint_settings.inference:
        warn_of_unmeasured(settings)
    return settings


def check_actors(settings: RunSettings) -> None:
    """Check that the actors can run as configured. Called before anything is started.

    Raises:
        SettingsError: the settings contradict each other, or this machine does not meet their requirements.
    """
    given = settings.actors
    if given is None or not settings.acts_elsewhere:
        return
    backend = ACTOR_BACKENDS[given.backend]
    if backend.check is not None:
        resolve(backend.check)(given)
    if backend.is_local and given.cpu_affinity is not None:  # cannot be checked for other machines
        if hasattr(os, "sched_getaffinity"):
            present = os.sched_getaffinity(0)
            missing = sorted({core for each in given.cpu_affinity for core in each} - present)
            if missing:
                raise SettingsError(
                    f"actors.cpu_affinity has the cores {missing}, which this process may not use. It may use "
                    f"{sorted(present)}."
                )
        else:
            logger.warning("actors.cpu_affinity has no effect: this system cannot bind processes to cores.")
    if any(each.exploration_noise for each in given.overrides):
        # Lazy import, because it imports torch.
        from trajtrainer.learning.trainers.factory import is_paced, paced_algorithms

        behaviors = dict(settings.behaviors)
        if settings.default_settings is not None:
            behaviors["default_settings"] = settings.default_settings
        unfit = [f"{name} ({each.trainer_type})" for name, each in behaviors.items() if not is_paced(each)]
        if unfit:
            *others, last = paced_algorithms()
            raise SettingsError(
                f"actors.overrides has an exploration_noise, but {', '.join(unfit)} learns from the probabilities of "
                f"the actions, which noise would invalidate. Only {', '.join(others)} and {last} can use it."
            )
    cores = usable_cores()
    if backend.is_local and backend.has_own_process and given.count + 1 > cores:
        logger.warning(
            "actors.count is %d. With the learner that makes %d processes on %d cores, plus the environments, so they "
            "will compete for the cores. More than %d actors only help if the actors mostly wait for their "
            "environments.",
            given.count,
            given.count + 1,
            cores,
            max(1, cores - 1),
        )
