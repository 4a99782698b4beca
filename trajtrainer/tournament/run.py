"""A tournament from its settings to its result: find the models, start the environment, play, write what came out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from attrs import evolve

from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.select import make_separate_environments
from trajtrainer.errors import EnvironmentFaultError, SettingsError
from trajtrainer.evaluation.models import ActingOptions, Model
from trajtrainer.run.device import choose_device, set_threads
from trajtrainer.run.signals import StopInterrupt, StopRequest, stop_on_signals
from trajtrainer.rundir import atomic
from trajtrainer.rundir.folder import RunFolder
from trajtrainer.settings.environment import UNSEEDED
from trajtrainer.settings.run import RunSettings
from trajtrainer.tournament.entrants import find_entrants
from trajtrainer.tournament.picture import check_picture, draw
from trajtrainer.tournament.play import Result, play
from trajtrainer.tournament.standings import Standing, standings, to_json

logger = logging.getLogger(__name__)

_LARGEST_DRAWN_SEED = 10_000
_INTERRUPTED = 130
_FAILED = 1


@dataclass(frozen=True, slots=True)
class Held:
    """A tournament that is over.

    Attributes:
        table: the best model first.
        exit_code: 0, or after a signal 128 and its number: the table is of the games that were over by then.
    """

    table: list[Standing]
    exit_code: int


def hold(
    models: Sequence[str], settings: RunSettings, *, games: int, json_file: Path | None, picture: Path | None
) -> Held:
    """Hold a tournament.

    Args:
        models: as ``find_entrants`` takes them.
        settings: of the environment, the device, the seed and the folder of runs.
        games: of each pair.
        json_file: where the result goes, too.
        picture: where ratings over steps are drawn.

    Raises:
        TrajtrainerError: models, files or environment that do not exist or do not fit, or the environment failed.
    """
    _check_files(json_file, picture)
    settings = _settled(settings)
    seed = settings.env_settings.seed
    set_threads()
    options = ActingOptions(settings.deterministic, choose_device(settings.torch_settings.device))
    entrants = find_entrants(models, Path(settings.checkpoint_settings.results_dir), options)
    pairs = len(entrants) * (len(entrants) - 1) // 2
    logger.info("%d models, %d pairs, %d games; seed %d.", len(entrants), pairs, pairs * games, seed)
    stop = StopRequest()
    results: list[Result] = []
    failure = _play(entrants, settings, games, stop, results)
    results.sort(key=lambda result: result.match.number or 0)
    table = standings(entrants, results)
    head = {"environment": settings.env_settings.env_path, "seed": seed, "games_per_pair": games}
    written = [
        json_file is None or _written(json_file, lambda path: _write_json(path, head, table, entrants, results)),
        picture is None or _written(picture, lambda path: draw(table, path)),
    ]
    if len(results) < pairs * games:
        logger.warning("%d of %d games were played.", len(results), pairs * games)
        return Held(table, _FAILED if failure else stop.exit_code or _INTERRUPTED)
    return Held(table, 0 if all(written) else _FAILED)


def _check_files(json_file: Path | None, picture: Path | None) -> None:
    """Look whether the results can be written, before hours of games."""
    for option, path in (("--json", json_file), ("--plot", picture)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            found = "is a folder" if path.is_dir() else f"is in the folder {path.parent}, which does not exist"
            raise SettingsError(f"{option} {path} {found}. Expected a file in a folder that exists.")
    if picture is not None:
        check_picture(picture)


def _settled(settings: RunSettings) -> RunSettings:
    """Return the settings with a seed, and as those of a run that writes nothing."""
    seed = settings.env_settings.seed
    seed = int(np.random.default_rng().integers(_LARGEST_DRAWN_SEED)) if seed == UNSEEDED else seed
    checkpoints = evolve(settings.checkpoint_settings, inference=True)
    return evolve(settings.with_seed(seed), checkpoint_settings=checkpoints)


def _play(
    entrants: Sequence[Model], settings: RunSettings, games: int, stop: StopRequest, results: list[Result]
) -> EnvironmentFaultError | None:
    """Put the results into ``results`` as they come. Return why the environment failed, if it did after some."""
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop, saves=False))
        try:
            with stop.interrupting():
                environment = make_separate_environments(settings, RunFolder(settings.checkpoint_settings))
                stack.callback(_close, environment, stop)
        except StopInterrupt:
            return None
        stop.on_abort(environment.kill)
        env = settings.env_settings
        try:
            for result in play(environment, entrants, games=games, seed=env.seed, num_areas=env.num_areas):
                if result is not None:
                    results.append(result)
                if stop.requested:
                    break
        except EnvironmentFaultError as fault:
            # Whoever stops a whole group of processes ends the environments, too.
            if stop.requested:
                return None
            if not results:
                raise
            logger.error("%s", fault)
            return fault
    return None


def _close(environment: Environment, stop: StopRequest) -> None:
    with stop.limiting(environment.kill):
        environment.close()


def _write_json(
    path: Path,
    head: Mapping[str, object],
    table: Sequence[Standing],
    entrants: Sequence[Model],
    results: Sequence[Result],
) -> None:
    atomic.write_text(path, json.dumps({**head, **to_json(table, entrants, results)}, indent=2) + "\n")


def _written(path: Path, write: Callable[[Path], None]) -> bool:
    """Write a file; a failure is logged, and must not cost the games."""
    try:
        write(path)
    except OSError as error:
        logger.error("%s could not be written: %s.", path, error.strerror or error)
        return False
    logger.info("Wrote %s.", path)
    return True
