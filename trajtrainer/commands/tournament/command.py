"""``trajtrainer tournament``: finds the models, lets them play against each other, and writes the ratings."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trajtrainer.commands.acting import (
    FAILED,
    INTERRUPTED,
    check_acting,
    check_file,
    fault_after,
    image_order_of_runs,
    log_parameters,
    opened,
    parameters_of_run,
    settled,
    write_file,
)
from trajtrainer.commands.tournament.play import GameResult, play
from trajtrainer.commands.tournament.standings import Standing, draw, standings, to_json
from trajtrainer.core import atomic
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError
from trajtrainer.core.printable import counted
from trajtrainer.envs.protocol import Parameters
from trajtrainer.play.models import ActingOptions, Model, find_models
from trajtrainer.report.pictures import check_picture
from trajtrainer.run.device import set_threads
from trajtrainer.run.preflight import Preflight
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.run import RunSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TournamentOutcome:
    """A tournament that is over.

    Attributes:
        table: the best model first.
        exit_code: 0, or after a signal 128 and its number: the table is of the games that were over by then.
    """

    table: list[Standing]
    exit_code: int


def hold(
    models: Sequence[str],
    settings: RunSettings,
    *,
    games: int,
    max_decisions: int,
    json_file: Path | None,
    picture: Path | None,
) -> TournamentOutcome:
    """Hold a tournament.

    Args:
        models: as ``find_entrants`` takes them.
        settings: of the environment, the device, the seed and the folder of runs.
        games: of each pair.
        max_decisions: of an agent in one game; a longer game is truncated.
        json_file: where the result is written.
        picture: where ratings over steps are drawn.

    Raises:
        TrajtrainerError: models, files or environment that do not exist or do not fit, or the environment failed.
    """
    settings = settled(settings)
    seed = settings.env_settings.seed
    with Preflight() as check:
        check(check_file, "--json", json_file)
        check(check_file, "--plot", picture)
        if picture is not None:
            check(check_picture, picture, "--plot")
        options = check_acting(check, settings)
        entrants = check(find_entrants, models, Path(settings.checkpoint_settings.results_dir), options)
    set_threads()
    pairs = len(entrants) * (len(entrants) - 1) // 2
    logger.info("%d models, %s, %d games; seed %d.", len(entrants), counted(pairs, "pair"), pairs * games, seed)
    settings = settings.presuming(image_order_of_runs(entrants))
    parameters = parameters_of_run(next((each for each in entrants if not each.scripted), entrants[0]))
    log_parameters(parameters)
    stop = StopRequest()
    results: list[GameResult] = []
    failure = _play(entrants, settings, games, max_decisions, parameters, stop, results)
    if truncated := sum(result.truncated for result in results):
        logger.warning(
            "%d of %d games were truncated after %d decisions (--max-decisions).",
            truncated,
            len(results),
            max_decisions,
        )
    results.sort(key=lambda result: result.match.number or 0)
    table = standings(entrants, results)
    head = {"environment": settings.env_settings.env_path, "seed": seed, "games_per_pair": games}
    text = json.dumps({**head, **to_json(table, entrants, results)}, indent=2) + "\n"
    written = [
        json_file is None or write_file(json_file, lambda path: atomic.write_text(path, text)),
        picture is None or write_file(picture, lambda path: draw(table, path)),
    ]
    if len(results) < pairs * games:
        logger.warning("%d of %d games were played.", len(results), pairs * games)
        return TournamentOutcome(table, FAILED if failure else stop.exit_code or INTERRUPTED)
    return TournamentOutcome(table, 0 if all(written) else FAILED)


def _play(
    entrants: Sequence[Model],
    settings: RunSettings,
    games: int,
    max_decisions: int,
    parameters: Parameters,
    stop: StopRequest,
    results: list[GameResult],
) -> EnvironmentFaultError | None:
    """Append each game's result. Return why the environment failed, if it did after some."""
    env = settings.env_settings
    try:
        with opened(settings, stop) as environment:
            if environment is None:
                return None
            play(
                environment,
                entrants,
                results,
                games=games,
                seed=env.seed,
                max_decisions=max_decisions,
                num_areas=env.num_areas,
                parameters=parameters,
                stopped=lambda: stop.requested,
            )
    except EnvironmentFaultError as fault:
        return fault_after(results, fault, stop)
    return None


_FEWEST = 2


def find_entrants(words: Sequence[str], results: Path, options: ActingOptions) -> list[Model]:
    """Find models, each once; see ``find_models``.

    Raises:
        SettingsError: some words match no model, or only one is left. All mistakes are reported.
    """
    entrants: dict[tuple[Path, ...], Model] = {}
    for model in find_models(words, results, options, scripted=True):
        files = tuple(file.path.resolve() for file in model.policies.values())
        entrants.setdefault(files or (Path(model.name),), model)
    if len(entrants) < _FEWEST:
        raise SettingsError(
            f"A tournament needs at least two models, but only one was given: {next(iter(entrants.values())).name}. "
            "Add runs, checkpoints or .onnx files; 'RUN/*' means all checkpoints of a run."
        )
    return list(entrants.values())
