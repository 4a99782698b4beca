"""The environment with which the run of a model trained, for whoever acts with the model."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.select import is_player
from trajtrainer.play.models import Model, file_of
from trajtrainer.run.curriculum import Curriculum
from trajtrainer.rundir.status import TrainingStatus, origin_of
from trajtrainer.settings.evaluation import EvaluationSettings
from trajtrainer.settings.flags import settle_with
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import read_file
from trajtrainer.unity.launcher import is_simulation

logger = logging.getLogger(__name__)

_STATUS = Path("run_logs", "training_status.json")
_NOT_USED = "What %s says of its environment is not used: %s"


def as_trained(word: str, results: Path, given: Mapping[str, object]) -> dict[str, Any]:
    """Return what is not given of the environment, its ``env_args`` and ``wrappers``, as a model's run trained with it.

    The environment is taken from there if it is one of Python or a simulation (of a build, the Editor may be meant),
    the others if the environment is the one of the run, which it would not be without them. Wrappers of the run's
    evaluations go before those of its training.

    Args:
        word: the model, as ``find_models`` takes it. Nothing is taken where there is none, which that tells.
        results: the folder where run ids are looked for.
        given: fields of ``env_settings``.

    Raises:
        SettingsError: the run was fetched from the hub, so nothing that it names is started unasked.
    """
    try:
        folder = _folder_of_run(file_of(word, results))
    except CheckpointError:
        return {}
    run = None if folder is None else _settings_of_run(folder, "env_settings")
    path = None if run is None else run.env_settings.env_path
    if folder is None or run is None or path is None or given.get("env_path", path) != path or not _is_ours(path):
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
            f"{folder} was fetched from {origin}, and what others wrote there is not started unasked: "
            f"{', '.join(options)}. Give it yourself if you trust it, or something else; --wrapper or --env-args alone "
            "means none."
        )
    logger.info("As the run of %s has it: %s.", word, ", ".join(options))
    return taken


def parameters_of_run(model: Model) -> Parameters:
    """Return the environment parameters with which a model's run trained, in the lessons that it has reached."""
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


def image_order_of_runs(models: Iterable[Model]) -> RawImageOrder:
    """Return how the runs of some models read raw images; ``AUTO`` if they do not tell, or differ."""
    files = [policy.path for model in models for policy in model.policies.values()]
    found = {_image_order(folder) for folder in map(_folder_of_run, files) if folder is not None}
    known = found - {RawImageOrder.AUTO}
    return known.pop() if len(known) == 1 else RawImageOrder.AUTO


def _image_order(folder: Path) -> RawImageOrder:
    try:
        content = json.loads((folder / _STATUS).read_bytes())
    except (OSError, ValueError, RecursionError):  # nothing is known then
        return RawImageOrder.AUTO
    sections = content.items() if isinstance(content, dict) else ()
    return TrainingStatus(None, {name: each for name, each in sections if isinstance(each, dict)}).raw_image_order()


def _is_ours(env_path: str) -> bool:
    """Return whether this is an environment of Python or a built-in simulation, and no build."""
    return not is_player(env_path) or is_simulation(env_path)


def _folder_of_run(file: Path) -> Path | None:
    return next((each for each in file.absolute().parents[:2] if (each / "configuration.yaml").is_file()), None)


def _settings_of_run(folder: Path, section: str) -> RunSettings | None:
    """Return the settings of a run that has a section; None if it has none, or they are not readable any more."""
    try:
        root, problems = read_file(folder / "configuration.yaml")
        return settle_with(root, {}, problems, behaviors_required=False) if section in root.mapping else None
    except SettingsError as error:
        logger.warning(_NOT_USED, folder, error)
        return None
