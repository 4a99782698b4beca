"""One run, from settings to exit code: assembles the parts, runs the loop, and closes everything at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from trajtrainer.core.plugins import Registry, blaming_packages
from trajtrainer.core.timers import Timers
from trajtrainer.envs.select import make_environment as environment_of_settings
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.policies.folder.status import TrainingStatus
from trajtrainer.run.hooks import Hooks
from trajtrainer.run.launching import LaunchedPlayers, can_launch
from trajtrainer.run.logs import ConsoleHandler, log_file
from trajtrainer.run.preflight import Preflight, check_training, load_datasets
from trajtrainer.run.signals import StopRequest, stop_on_signals
from trajtrainer.settings.components import ALGORITHMS, REWARD_SIGNALS
from trajtrainer.settings.environment import UNSEEDED
from trajtrainer.settings.network import ENCODERS
from trajtrainer.settings.run import RunSettings

if TYPE_CHECKING:
    from trajtrainer.run.assembly import Session
    from trajtrainer.run.placement import EnvironmentFactory

_LARGEST_DRAWN_SEED = 10_000
_OF_PACKAGES: tuple[Registry[Any], ...] = (ALGORITHMS, REWARD_SIGNALS, ENCODERS)


def run(settings: RunSettings, handler: ConsoleHandler, timers: Timers, resume_command: str) -> int:
    """Train for the command line, and return the exit code. Raises the same errors as ``train``."""
    return train(settings, handler, timers=timers, resume_command=resume_command).exit_code


def train(
    settings: RunSettings,
    handler: ConsoleHandler | None,
    make_environment: EnvironmentFactory = environment_of_settings,
    stop: StopRequest | None = None,
    timers: Timers | None = None,
    resume_command: str = "",
) -> Session:
    """Train until done or stopped; with ``--inference``, act without training. For the arguments, see ``session``.

    Raises:
        TrajtrainerError: an error ended the run early. Everything has been saved.
    """
    with session(settings, handler, make_environment, stop, timers, resume_command) as opened:
        while opened.step():
            pass
    return opened


@contextmanager
def session(
    settings: RunSettings,
    handler: ConsoleHandler | None,
    make_environment: EnvironmentFactory = environment_of_settings,
    stop: StopRequest | None = None,
    timers: Timers | None = None,
    resume_command: str = "",
    hooks: Hooks | None = None,
) -> Iterator[Session]:
    """Open a run, and save and close it at the end of the ``with`` block, whatever happens inside.

    Args:
        settings: settings of the run.
        handler: the console handler of the log, whose lines appear above the live view; None for no view.
        make_environment: makes the environment.
        stop: the stop request, which signals set while the run is open.
        timers: timers to use, which may already contain measurements; None for new ones.
        resume_command: the command to log at the end if training is not complete.
        hooks: the user's callbacks.

    Raises:
        TrajtrainerError: an error ended the run early. Everything has been saved.
    """
    timers = Timers() if timers is None else timers
    stop = StopRequest() if stop is None else stop
    is_own = make_environment is not environment_of_settings
    with timers("run_training.setup"):
        seed = settings.env_settings.seed
        if seed == UNSEEDED:
            seed = int(np.random.default_rng().integers(_LARGEST_DRAWN_SEED))
        settings = settings.with_seed(seed)
        with Preflight() as check:
            settings = check_training(check, settings, env_path=None if is_own else settings.env_settings.env_path)
            folder = check(_checked_folder, settings)
            if check.errors:  # Nothing will be launched, so the slow import of torch delays no player.
                from trajtrainer.run.device import choose_device

                check(choose_device, settings.torch_settings.device)
    with ExitStack() as stack:
        stack.enter_context(folder.exclusive())
        stack.enter_context(log_file(folder.trainer_log, handler))
        stack.enter_context(blaming_packages(*_OF_PACKAGES))
        stack.enter_context(stop_on_signals(stop, saves=folder.writes))
        players = None
        with timers("run_training.setup"):
            folder.create()
            status = TrainingStatus.of(folder)
            if not is_own and can_launch(settings):
                # Assume the raw image order that earlier sessions detected, if any.
                players = LaunchedPlayers(settings.presuming(status.raw_image_order()), folder)
                stack.callback(players.close)
                stop.on_abort(players.kill)
        with timers("run_training.import"):  # imported only now, while players load, because this imports torch
            from trajtrainer.run.assembly import Session, looping
            from trajtrainer.run.device import choose_device, freeze_imports, keep_freed_memory, set_threads
            from trajtrainer.run.run import make_run
        with timers("run_training.setup"):
            device = choose_device(settings.torch_settings.device)
            set_threads()
            keep_freed_memory()
            if stop.ends_process:
                freeze_imports()
            datasets = load_datasets(settings)
            run = make_run(settings, folder, status, device, timers, stop, hooks or Hooks(), datasets)
        opened = Session(settings, folder, run, stop)
        with looping(opened, handler, make_environment, players, resume_command):
            yield opened


def _checked_folder(settings: RunSettings) -> RunFolder:
    folder = RunFolder(settings.checkpoint_settings)
    folder.check({name: each.init_path for name, each in settings.behaviors.items()})
    return folder
