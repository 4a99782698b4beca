"""``trajtrainer tournament``: find the models, let them play against each other, and write the ratings.

The results contain the wins, draws and losses of every model and pair, and ratings with their uncertainty.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from openskill.models import BradleyTerryFull

from trajtrainer.core import atomic
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError
from trajtrainer.core.printable import counted
from trajtrainer.policies.play.models import ActingOptions, Model, find_models
from trajtrainer.run import acting
from trajtrainer.run.device import set_threads
from trajtrainer.run.launching import LaunchedPlayers
from trajtrainer.run.preflight import Preflight
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.run import RunSettings
from trajtrainer.tools.pictures import check_picture
from trajtrainer.tools.tournament.play import GameResult, play

logger = logging.getLogger(__name__)

_FEWEST = 2
_ORDERS = 20
_SEED = 0
_SIZE_INCHES = (8.0, 5.0)


def hold(
    models: Sequence[str],
    settings: RunSettings,
    players: LaunchedPlayers | None,
    *,
    games: int,
    max_decisions: int,
    json_file: Path | None,
    picture: Path | None,
) -> tuple[list[Standing], int]:
    """Hold a tournament.

    Args:
        models: words that ``find_entrants`` accepts.
        settings: settings from ``acting.for_inference``.
        players: the players, if they have been launched.
        games: games per pair.
        max_decisions: maximum number of an agent's decisions in a game; a longer game is truncated.
        json_file: file to write the results to.
        picture: file to plot ratings over steps to.

    Returns:
        The table (one row per model, the best model first), and the exit code: 0 if all games were played, 128 plus
        the signal's number if a signal ended the tournament, or another code after a failure. If the tournament ended
        early, the table covers only the finished games.

    Raises:
        TrajtrainerError: a model, a file or the environment does not exist or does not fit, or the environment failed.
    """
    with Preflight() as check:
        check(acting.check_file, "--json", json_file)
        check(acting.check_file, "--plot", picture)
        if picture is not None:
            check(check_picture, picture, "--plot")
        options = acting.check_acting(check, settings)
        entrants = check(find_entrants, models, Path(settings.checkpoint_settings.results_dir), options)
    set_threads()
    pairs = len(entrants) * (len(entrants) - 1) // 2
    env = settings.env_settings
    logger.info("%d models, %s, %d games; seed %d.", len(entrants), counted(pairs, "pair"), pairs * games, env.seed)
    parameters = acting.parameters_of_run(next((each for each in entrants if not each.scripted), entrants[0]))
    acting.log_parameters(parameters)
    stop = StopRequest()
    results: list[GameResult] = []
    failure = None
    try:
        with acting.opened(settings, stop, players=players) as environment:
            if environment is not None:
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
        failure = acting.fault_after(results, fault, stop)
    if truncated := sum(result.truncated for result in results):
        amount, limit = f"{truncated} of {len(results)} games", f"{max_decisions} decisions (--max-decisions)"
        logger.warning("%s were truncated after %s.", amount, limit)
    results.sort(key=lambda result: result.match.number or 0)
    table = standings(entrants, results)
    head = {"environment": env.env_path, "seed": env.seed, "games_per_pair": games}
    text = json.dumps({**head, **to_json(table, entrants, results)}, indent=2) + "\n"
    is_written = acting.write_file(json_file, lambda path: atomic.write_text(path, text))
    is_written &= acting.write_file(picture, lambda path: plot(table, path))
    if len(results) < pairs * games:
        logger.warning("%d of %d games were played.", len(results), pairs * games)
        return table, acting.exit_code(failure, stop)
    return table, 0 if is_written else acting.FAILED


def find_entrants(words: Sequence[str], results: Path, options: ActingOptions) -> list[Model]:
    """Find models, without duplicates; see ``find_models``.

    Raises:
        SettingsError: some words match no model, or there is only one model. All mistakes are reported.
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


class Score(NamedTuple):
    """The results of one model's games.

    Attributes:
        games: number of games.
        wins, draws, losses: number of games with this result.
        truncated: number of games that were truncated at the limit of decisions.
    """

    games: int
    wins: int
    draws: int
    losses: int
    truncated: int


@dataclass(frozen=True, slots=True)
class Standing:
    """One row of the table.

    Attributes:
        entrant: the model.
        score: results against all other models.
        rating: mean of the model's skill as estimated from the games; every model starts at 25.
        uncertainty: standard deviation of the estimated skill.
    """

    entrant: Model
    score: Score
    rating: float
    uncertainty: float


def standings(entrants: Sequence[Model], results: Sequence[GameResult]) -> list[Standing]:
    """Return the table, the best model first.

    Ratings follow Weng and Lin (2011, JMLR 12, algorithm 1): the Bradley-Terry model with Bayesian updates. The updates
    give more weight to later games, but models do not learn between games. Therefore, ratings are averaged over several
    orders of the games.
    """
    random = np.random.default_rng(_SEED)
    orders = [random.permutation(len(results)) for _ in range(_ORDERS)]
    means, deviations = np.mean([_rate(len(entrants), [results[n] for n in order]) for order in orders], axis=0)
    rows = zip(entrants, means.tolist(), deviations.tolist(), strict=True)
    table = [Standing(each, _score(results, n), mean, deviation) for n, (each, mean, deviation) in enumerate(rows)]
    return sorted(table, key=lambda row: -row.rating)


def _rate(num_models: int, results: Sequence[GameResult]) -> tuple[list[float], list[float]]:
    """Return the models' ratings and standard deviations after playing the games in this order."""
    model = BradleyTerryFull(tau=0.0)  # tau=0: no uncertainty is added between games
    ratings = [model.rating() for _ in range(num_models)]
    for result in results:
        first, second = result.match.sides
        ranks = [-float(result.outcome), float(result.outcome)]
        ((ratings[first],), (ratings[second],)) = model.rate([[ratings[first]], [ratings[second]]], ranks=ranks)
    return [rating.mu for rating in ratings], [rating.sigma for rating in ratings]


def pairs(entrants: Sequence[Model], results: Sequence[GameResult]) -> list[dict[str, Any]]:
    """Return the results of every pair from its first model's point of view, in total and for each side."""
    found = []
    for first, second in itertools.combinations(range(len(entrants)), 2):
        own = [result for result in results if {first, second} == set(result.match.sides)]
        sides = [[result for result in own if result.match.sides[side] == first] for side in range(2)]
        by_side = [_score(side, first)._asdict() for side in sides]
        names = [entrants[first].name, entrants[second].name]
        found.append({"models": names, **_score(own, first)._asdict(), "by_side": by_side})
    return found


def to_json(table: Sequence[Standing], entrants: Sequence[Model], results: Sequence[GameResult]) -> Mapping[str, Any]:
    """Return the table and the pairs as plain data."""
    models = [
        {
            "name": row.entrant.name,
            "steps": row.entrant.steps,
            "files": {behavior: str(file.path) for behavior, file in row.entrant.policies.items()},
            **row.score._asdict(),
            "rating": row.rating,
            "uncertainty": row.uncertainty,
        }
        for row in table
    ]
    return {"models": models, "pairs": pairs(entrants, results)}


def _score(results: Sequence[GameResult], model: int) -> Score:
    own = [result for result in results if model in result.match.sides]
    outcomes = [result.outcome if result.match.sides[0] == model else -result.outcome for result in own]
    truncated = sum(result.truncated for result in own)
    return Score(len(own), outcomes.count(1), outcomes.count(0), outcomes.count(-1), truncated)


def plot(table: Sequence[Standing], path: Path) -> None:
    """Plot every model's rating and standard deviation: a line for the checkpoints of a run, a point for other models.

    Models with an unknown number of steps are plotted as horizontal lines.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=_SIZE_INCHES, layout="constrained")).add_subplot()
    series: dict[str, list[Standing]] = {}
    for row in table:
        series.setdefault(row.entrant.series or row.entrant.name, []).append(row)
    for label, rows in series.items():
        known = [(row.entrant.steps, row.rating, row.uncertainty) for row in rows if row.entrant.steps is not None]
        if known:
            steps, ratings, uncertainties = zip(*sorted(known), strict=True)
            axes.errorbar(steps, ratings, uncertainties, label=label, marker="o", capsize=3)
        else:
            axes.axhline(rows[0].rating, label=label, linestyle="--", color=f"C{list(series).index(label) % 10}")
    axes.set_xlabel("steps")
    axes.set_ylabel("rating")
    axes.grid(alpha=0.3)
    axes.legend()
    atomic.write_with(path, lambda temporary: figure.savefig(temporary, format=path.suffix[1:]))
