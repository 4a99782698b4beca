"""The parts of commands that act in an environment and train nothing: settings, the environment, files of results."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from attrs import evolve

from trajtrainer.core.errors import EnvironmentFaultError, SettingsError, TrajtrainerError
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.envs.select import check as check_environment
from trajtrainer.envs.select import make_separate_environments
from trajtrainer.envs.unity_environment import LogFolder, PlayerLogs
from trajtrainer.play.models import ActingOptions
from trajtrainer.run.device import choose_device
from trajtrainer.run.preflight import Preflight
from trajtrainer.run.signals import StopInterrupt, StopRequest, stop_on_signals
from trajtrainer.settings.environment import UNSEEDED, ConstantSettings
from trajtrainer.settings.run import RunSettings

logger = logging.getLogger(__name__)

FAILED = 1
INTERRUPTED = 130
_LARGEST_DRAWN_SEED = 10_000


def settled(settings: RunSettings) -> RunSettings:
    """Return the settings with a seed, and as those of a run that writes nothing."""
    seed = settings.env_settings.seed
    seed = int(np.random.default_rng().integers(_LARGEST_DRAWN_SEED)) if seed == UNSEEDED else seed
    checkpoints = evolve(settings.checkpoint_settings, inference=True)
    return evolve(settings.with_seed(seed), checkpoint_settings=checkpoints)


def check_acting(check: Preflight, settings: RunSettings) -> ActingOptions:
    """Check the environment and the device; return the way in which models act."""
    check(check_environment, settings.env_settings.env_path)
    return ActingOptions(settings.deterministic, check(choose_device, settings.torch_settings.device) or "cpu")


def tell_parameters(parameters: Parameters) -> None:
    """Log the parameters with which the environment is reset, if there are any."""
    if parameters:
        logger.info("Environment parameters: %s.", in_words(parameters))


def in_words(parameters: Parameters) -> str:
    """Return parameters as a user writes them; what is drawn by its settings."""
    values = {key: each.value if isinstance(each, ConstantSettings) else each for key, each in parameters.items()}
    return ", ".join(f"{key}={value}" for key, value in values.items())


@contextlib.contextmanager
def opened(
    settings: RunSettings,
    stop: StopRequest,
    make: Callable[[RunSettings, PlayerLogs], Environment] = make_separate_environments,
) -> Iterator[Environment | None]:
    """Start the environment, and close it in the end.

    Players write their logs and output into a folder for temporary files. It is removed in the end, but kept after an
    error, whose message names the log.

    Meanwhile the signals are connected with ``stop``; None if one came before the environment was there.

    Raises:
        TrajtrainerError: see ``make_environment``.
    """
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop, saves=False))
        logs = stack.enter_context(_player_logs())
        environment = None
        try:
            with stop.interrupting():
                environment = make(settings, logs)
                stack.callback(_close, environment, stop)
        except StopInterrupt:
            environment = None
        if environment is not None:
            stop.on_abort(environment.kill)
        yield environment


@contextlib.contextmanager
def _player_logs() -> Iterator[PlayerLogs]:
    folder = Path(tempfile.mkdtemp(prefix="trajtrainer-players-"))
    try:
        yield LogFolder(folder)
    except TrajtrainerError:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _close(environment: Environment, stop: StopRequest) -> None:
    with stop.limiting(environment.kill):
        environment.close()


def fault_after(
    results: Sequence[object], fault: EnvironmentFaultError, stop: StopRequest
) -> EnvironmentFaultError | None:
    """Return a fault that cost what was still to come, and tell it; None where the end was asked for.

    Raises:
        EnvironmentFaultError: the fault, where there are no results.
    """
    if stop.requested:  # whoever stops a whole group of processes ends the environments, too
        return None
    if not results:
        raise fault
    logger.error("%s", fault)
    return fault


def check_file(option: str, path: Path | None) -> None:
    """Look whether a file of results can be written, before hours of work.

    Raises:
        SettingsError: it cannot.
    """
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        found = "is a folder" if path.is_dir() else f"is in the folder {path.parent}, which does not exist"
        raise SettingsError(f"{option} {path} {found}. Expected a file in a folder that exists.")


def write_file(path: Path, write: Callable[[Path], None]) -> bool:
    """Write a file of results; a failure is logged, and must not cost the others. Returns whether it went well."""
    try:
        write(path)
    except OSError as error:
        logger.error("%s could not be written: %s.", path, error.strerror or error)
        return False
    logger.info("Wrote %s.", path)
    return True
