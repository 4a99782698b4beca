"""Helpers for commands that act in an environment without training.

They provide settings, results files, and the environment, which is by default the one that the model was trained in.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve

from trajtrainer.core.errors import CheckpointError, EnvironmentFaultError, SettingsError, TrajtrainerError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.seeds import seed_global_generators
from trajtrainer.envs.protocol import Environment, LogFolder, Parameters, PlayerLogs
from trajtrainer.envs.select import check as check_environment
from trajtrainer.envs.select import is_player, make_separate_environments
from trajtrainer.envs.unity.launcher import is_simulation
from trajtrainer.envs.workers.guard import guarded_folder
from trajtrainer.policies.folder.saved_policies import files_of
from trajtrainer.policies.folder.status import TrainingStatus, origin_of
from trajtrainer.run.curriculum import Curriculum
from trajtrainer.run.launching import LaunchedPlayers
from trajtrainer.run.preflight import Preflight
from trajtrainer.run.signals import StopInterrupt, StopRequest, stop_on_signals
from trajtrainer.settings.environment import UNSEEDED, ConstantSettings
from trajtrainer.settings.evaluation import EvaluationSettings
from trajtrainer.settings.flags import run_settings_with
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import read_file

if TYPE_CHECKING:
    from trajtrainer.policies.play.models import ActingOptions, Model

logger = logging.getLogger(__name__)

FAILED = 1
INTERRUPTED = 130
_LARGEST_DRAWN_SEED = 10_000

_STATUS = Path("run_logs", "training_status.json")
_NOT_USED = "The environment settings in %s are ignored: %s"


def for_inference(settings: RunSettings, models: Iterable[str] = ()) -> RunSettings:
    """Return settings for a run that writes no files.

    If there is no seed, a random one is filled in. The models are words of ``find_models``; their runs show in which
    order raw images are sent.
    """
    seed = settings.env_settings.seed
    seed = int(np.random.default_rng().integers(_LARGEST_DRAWN_SEED)) if seed == UNSEEDED else seed
    checkpoints = evolve(settings.checkpoint_settings, inference=True)
    settings = evolve(settings.with_seed(seed), checkpoint_settings=checkpoints)
    return settings.presuming(_image_order_of_runs(models, Path(checkpoints.results_dir)))


def check_acting(check: Preflight, settings: RunSettings) -> ActingOptions:
    """Check the environment and the device, and return the options for loading models. Imports torch."""
    from trajtrainer.policies.play.models import ActingOptions
    from trajtrainer.run.device import choose_device

    check(check_environment, settings.env_settings.env_path)
    return ActingOptions(settings.deterministic, check(choose_device, settings.torch_settings.device) or "cpu")


def log_parameters(parameters: Parameters) -> None:
    """Log the environment parameters, if any."""
    if parameters:
        logger.info("Environment parameters: %s.", in_words(parameters))


def in_words(parameters: Parameters) -> str:
    """Format parameters as ``key=value``, separated by commas. A sampler is shown as its settings."""
    values = {key: each.value if isinstance(each, ConstantSettings) else each for key, each in parameters.items()}
    return ", ".join(f"{key}={value}" for key, value in values.items())


@contextlib.contextmanager
def launching(
    settings: RunSettings, models: Sequence[str], outputs: Mapping[str, Path | None]
) -> Iterator[LaunchedPlayers | None]:
    """Launch the players of a command's first environment, which load while torch is imported.

    Yields None if the environment consists of no players, or if something is wrong with the arguments. In that case,
    the command reports all mistakes before it starts anything.

    Args:
        settings: settings from ``for_inference``.
        models: the models, as for ``find_models``.
        outputs: the files to write, by option.
    """
    with ExitStack() as stack:
        players = None
        if _can_launch(settings, models, outputs):
            seed_global_generators(settings.env_settings.seed)
            resources = stack.enter_context(ExitStack())
            players = LaunchedPlayers(settings, resources.enter_context(_player_logs()), resources)
            stack.callback(players.close)
        yield players


def _can_launch(settings: RunSettings, models: Sequence[str], outputs: Mapping[str, Path | None]) -> bool:
    path = settings.env_settings.env_path
    try:
        check_environment(path)
        for word in models:
            files_of(word, Path(settings.checkpoint_settings.results_dir))
        for option, file in outputs.items():
            check_file(option, file)
        return path is None or is_player(path)
    except TrajtrainerError:
        return False


@contextlib.contextmanager
def opened(
    settings: RunSettings,
    stop: StopRequest,
    make: Callable[[RunSettings, PlayerLogs], Environment] = make_separate_environments,
    players: LaunchedPlayers | None = None,
) -> Iterator[Environment | None]:
    """Start an environment, or use players that have been launched, and close it at the end.

    Yields None if a signal arrives before the environment is ready.

    Players write their logs and output into a temporary folder. It is removed at the end, except after an error,
    because the error message refers to a log file. Inside the ``with`` block, signals set ``stop``. The global random
    generators are seeded first, so that all environments of a command start with the same state.

    Raises:
        TrajtrainerError: see ``make_environment``.
    """
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop, saves=False))
        if players is not None:
            stack.enter_context(players.resources)  # after a fault, the logs stay, although the command may go on
        start = players.connected if players else partial(make, settings, stack.enter_context(_player_logs()))
        seed_global_generators(settings.env_settings.seed)
        environment = None
        try:
            with stop.interrupting():
                environment = start()
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
        with guarded_folder(folder):
            yield LogFolder(folder)
    except TrajtrainerError:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise
    except BaseException:  # such as Ctrl-C while torch is imported
        shutil.rmtree(folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _close(environment: Environment, stop: StopRequest) -> None:
    with stop.limiting(environment.kill):
        environment.close()


def fault_after(
    results: Sequence[object], fault: EnvironmentFaultError, stop: StopRequest
) -> EnvironmentFaultError | None:
    """Log and return the fault that ended the command early; return None if a stop was requested.

    Raises:
        EnvironmentFaultError: the fault, if there are no results yet.
    """
    if stop.requested:  # the fault is a consequence of the signal, which the environments also received
        return None
    if not results:
        raise fault
    logger.error("%s", fault)
    return fault


def exit_code(failure: object, stop: StopRequest, *, is_written: bool = True) -> int:
    """Return the exit code of a command that acts: 1 after a failure, 128 plus the signal number after a signal."""
    if failure is not None or not (stop.requested or is_written):
        return FAILED
    return stop.exit_code or INTERRUPTED if stop.requested else 0


def check_file(option: str, path: Path | None) -> None:
    """Check that a results file can be written, so that problems are found before hours of work.

    Raises:
        SettingsError: the path is a folder, or its parent folder does not exist.
    """
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        found = "is a folder" if path.is_dir() else f"is in the folder {path.parent}, which does not exist"
        raise SettingsError(f"{option} {path} {found}. Expected a file in an existing folder.")


def write_file(path: Path | None, write: Callable[[Path], None]) -> bool:
    """Write a results file, unless ``path`` is None.

    A failure is logged but not raised, so that other files can still be written.

    Returns:
        False if the file could not be written.
    """
    if path is None:
        return True
    try:
        write(path)
    except OSError as error:
        logger.error("%s could not be written: %s.", path, error.strerror or error)
        return False
    logger.info("Wrote %s.", path)
    return True


def as_trained(word: str, results: Path, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the environment, ``env_args`` and ``wrappers`` of a model's run, as far as the user did not set them.

    The environment is used only if it is a Python environment or a simulation: without a Unity build, the user may want
    the Editor. ``env_args`` and ``wrappers`` are also used if the user sets the same environment as in the run, because
    the task would be different without them. Wrappers for the run's evaluations take precedence over those for
    training.

    Args:
        word: the model, as for ``find_models``. If the model does not exist, nothing is returned here, and
            ``find_models`` raises an error.
        results: the folder that contains the runs.
        given: the fields of ``env_settings`` that the user set.

    Returns:
        The additional fields of ``env_settings``.

    Raises:
        SettingsError: the run was downloaded from the hub, and would execute code that the user did not explicitly
            allow.
    """
    try:
        folder = _folder_of_run(files_of(word, results)[0])
    except CheckpointError:
        return {}
    run = None if folder is None else _settings_of_run(folder, "env_settings")
    path = None if run is None else run.env_settings.env_path
    if folder is None or run is None or path is None or given.get("env_path", path) != path:
        return {}
    if is_player(path) and not is_simulation(path):
        return {}
    trained, own = run.env_settings, run.evaluation or EvaluationSettings()
    wrappers = trained.wrappers if own.wrappers is None else own.wrappers
    taken: dict[str, Any] = {"env_path": path, "wrappers": wrappers, "env_args": trained.env_args}
    taken = {name: value for name, value in taken.items() if value and name not in given}
    if not taken:
        return {}
    options = [f"--env {path}"] if "env_path" in taken else []
    options += [f"--wrapper {wrapper}" for wrapper in taken.get("wrappers", ())]
    options += [f"--env-args {' '.join(taken['env_args'])}"] if "env_args" in taken else []
    if (origin := origin_of(folder)) is not None:
        raise SettingsError(
            f"{folder} was downloaded from {origin}, so code that it specifies is not run unless you ask for it: "
            f"{', '.join(options)}. If you trust it, pass these options yourself, or pass different ones; "
            "to use none, pass --wrapper or --env-args without a value."
        )
    logger.info("Using options from the run of %s: %s.", word, ", ".join(options))
    return taken


def parameters_of_run(model: Model) -> Parameters:
    """Return the environment parameters of a model's run, in the lessons that training had reached."""
    if model.scripted:
        return {}
    folder = _folder_of_run(next(iter(model.policies.values())).path)
    settings = None if folder is None else _settings_of_run(folder, "environment_parameters")
    if folder is None or settings is None:
        return {}
    curriculum = Curriculum(settings.environment_parameters, settings.env_settings.seed)
    status = folder / _STATUS
    try:
        if status.is_file():
            curriculum.restore(TrainingStatus.load(status, writes=False).lessons())
    except SettingsError as error:
        logger.warning(_NOT_USED, folder, error)
        return {}
    return curriculum.samplers


def _image_order_of_runs(models: Iterable[str], results: Path) -> RawImageOrder:
    """Return the order in which the models' runs read raw images; ``AUTO`` if it is unknown or differs between runs."""
    files: list[Path] = []
    for word in models:
        with contextlib.suppress(CheckpointError):  # ``find_models`` will report it
            files += files_of(word, results)
    found = set()
    for folder in {_folder_of_run(file) for file in files} - {None}:
        assert folder is not None
        try:
            content = json.loads((folder / _STATUS).read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        sections = content.items() if isinstance(content, dict) else ()
        status = TrainingStatus(None, {name: each for name, each in sections if isinstance(each, dict)})
        found.add(status.raw_image_order())
    known = found - {RawImageOrder.AUTO}
    return known.pop() if len(known) == 1 else RawImageOrder.AUTO


def _folder_of_run(file: Path) -> Path | None:
    return next((each for each in file.absolute().parents[:2] if (each / "configuration.yaml").is_file()), None)


def _settings_of_run(folder: Path, section: str) -> RunSettings | None:
    """Return the settings of a run; None if they lack ``section``, or can no longer be read."""
    try:
        root, problems = read_file(folder / "configuration.yaml")
        return run_settings_with(root, {}, problems, behaviors_required=False) if section in root.mapping else None
    except SettingsError as error:
        logger.warning(_NOT_USED, folder, error)
        return None
