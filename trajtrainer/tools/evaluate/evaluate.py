"""``trajtrainer evaluate``: plays with each model in turn and writes the results.

The environment is started again for each model, with the same seed.
"""

import csv
import io
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve

from trajtrainer.core import atomic
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError, UnsupportedError
from trajtrainer.core.printable import counted
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.envs.select import make_filmed_environment
from trajtrainer.policies.play.loop import play
from trajtrainer.policies.play.models import Model, Roles, find_models
from trajtrainer.policies.play.result import EpisodeSample, EvaluationResult, actions_in_words, difference
from trajtrainer.run import acting
from trajtrainer.run.curriculum import Curriculum
from trajtrainer.run.device import set_threads
from trajtrainer.run.preflight import Preflight
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.checks import closest
from trajtrainer.settings.evaluation import MAX_DECISIONS
from trajtrainer.settings.run import RunSettings
from trajtrainer.tools.evaluate.film import Film, check_film

logger = logging.getLogger(__name__)

TOO_LOW = 3
"""Exit code of an evaluation that is over, with a mean below what was asked for."""

_CSV_COLUMNS = (
    "model", "behavior", "team", "copy", "episode", "seed", "return", "reward", "group_reward", "length", "interrupted",
    "truncated",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """Options of an evaluation besides its models and settings.

    Attributes:
        episodes: of each behavior and team.
        at_least: behavior -> the mean return that it must reach; None is for all that are not named.
        json_file, csv_file: where the results are written.
        film: where a film of episodes is written; with several models a number is added to the name.
        filmed: how many.
        max_decisions: of an episode; a longer one is truncated.
    """

    episodes: int
    at_least: Mapping[str | None, float]
    json_file: Path | None = None
    csv_file: Path | None = None
    film: Path | None = None
    filmed: int = 1
    max_decisions: int = MAX_DECISIONS


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The results of one model.

    Attributes:
        model: that played.
        behaviors: name -> result.
        copies: of the environment.
        seeded: each episode began with a seed of its own: that of the evaluation, plus the number of the copy, plus the
            number of copies for each earlier one.
    """

    model: Model
    behaviors: Mapping[str, EvaluationResult]
    copies: int
    seeded: bool


@dataclass(frozen=True, slots=True)
class FinishedEvaluation:
    """An evaluation that is over.

    Attributes:
        results: of the models in their order; without those that had no time left.
        settings: with the seed that was used.
        exit_code: 0; ``TOO_LOW``; 1 if it failed; after a signal 128 and its number.
        parameters: with which environment parameters all of them played, in words.
    """

    results: list[Evaluated]
    settings: RunSettings
    exit_code: int
    parameters: str

    def difference(self, number: int, behavior: str) -> EpisodeSample | None:
        """How much better a model's episodes are than those of the first; None for the first."""
        first = self.results[0].behaviors.get(behavior)
        if number == 0 or first is None:
            return None
        return difference(self.results[number].behaviors[behavior], first)


def evaluate(models: Sequence[str], settings: RunSettings, options: EvaluateOptions) -> FinishedEvaluation:
    """Evaluate models, one after the other.

    Args:
        models: as for ``find_models``.
        settings: of the environment, its parameters, the device, the seed and the folder of runs.
        options: how much, and where the results go.

    Raises:
        TrajtrainerError: models, files or environment that do not exist or do not fit, or the environment failed before
            anything was evaluated.
    """
    settings = acting.settled(settings)
    seed = settings.env_settings.seed
    with Preflight() as check:
        check(acting.check_file, "--json", options.json_file)
        check(acting.check_file, "--csv", options.csv_file)
        check(acting.check_file, "--video", options.film)
        if options.film is not None:
            check(check_film, options.film)
        how = acting.check_acting(check, settings)
        found = check(find_models, models, Path(settings.checkpoint_settings.results_dir), how, scripted=True)
        for model in found or ():
            check(_check_names, model, options.at_least)
    set_threads()
    settings = settings.presuming(acting.image_order_of_runs(found))
    given = Curriculum(settings.environment_parameters, seed).samplers
    whose = next((each for each in found if not each.scripted), found[0])
    of_run = acting.parameters_of_run(whose)
    acting.log_parameters(parameters := {**of_run, **given})
    stop = StopRequest()
    results: list[Evaluated] = []
    failure = None
    for number, model in enumerate(found, 1):
        try:
            if options.film is not None:
                film = options.film if len(found) == 1 else options.film.with_stem(f"{options.film.stem}-{number}")
                _film(model, settings, options, parameters, stop, film)
            drawn = "" if model.scripted else f", {actions_in_words(deterministic=settings.deterministic)}"
            logger.info("%s: %s%s; seed %d.", model.name, counted(options.episodes, "episode"), drawn, seed)
            result = _evaluate(model, settings, options, parameters, stop)
        except EnvironmentFaultError as fault:
            failure = acting.fault_after(results, fault, stop)
            break
        if result is not None and any(each.episodes for each in result.behaviors.values()):
            results.append(result)
        if stop.requested:
            break
    sources = [f"environment parameters as {whose.name} was trained with"] if of_run else []
    sources += [f"given {acting.in_words(given)}"] if given else []
    evaluation = FinishedEvaluation(results, settings, 0, ", ".join(sources) or "the environment's own parameters")
    text = json.dumps(to_json(evaluation), indent=2) + "\n"
    files = [
        options.json_file is None or acting.write_file(options.json_file, lambda path: atomic.write_text(path, text)),
        options.csv_file is None or acting.write_file(options.csv_file, lambda path: _write_csv(path, evaluation)),
    ]
    if failure or stop.requested:
        logger.warning("The evaluation ended early.")
        code = acting.FAILED if failure else stop.exit_code or acting.INTERRUPTED
    elif not all(files):
        code = acting.FAILED
    else:
        code = TOO_LOW if _are_too_low(results, options.at_least) else 0
    return replace(evaluation, exit_code=code)


def _evaluate(
    model: Model, settings: RunSettings, options: EvaluateOptions, parameters: Parameters, stop: StopRequest
) -> Evaluated | None:
    env = settings.env_settings
    settings = evolve(settings, env_settings=evolve(env, num_envs=min(env.num_envs, options.episodes)))
    with acting.opened(settings, stop) as environment:
        if environment is None:
            return None
        seeded = seed_episodes(environment, env.seed)
        results = play_model(model, environment, options, options.episodes, env.seed, parameters, stop)
        for name, result in results.items():
            if result.num_truncated:
                amount = f"{result.num_truncated} of {len(result.episodes)} episodes of {name}"
                limit = f"{options.max_decisions} decisions (--max-decisions)"
                logger.warning("%s: %s were truncated after %s.", model.name, amount, limit)
        return Evaluated(model, results, environment.num_workers, seeded)


def _film(
    model: Model, settings: RunSettings, options: EvaluateOptions, parameters: Parameters, stop: StopRequest, path: Path
) -> None:
    """Film the first episodes, in an environment of its own, so that it does not slow down the evaluation.

    Raises:
        UnsupportedError: the environment has no pictures.
        TrajtrainerError: see ``play_model``.
    """

    def play_to(temporary: Path) -> None:
        film, env = Film(temporary), settings.env_settings
        try:
            make = partial(make_filmed_environment, take=film.add)
            with acting.opened(settings, stop, make) as environment:
                if environment is not None:
                    seed_episodes(environment, env.seed)
                    play_model(model, environment, options, options.filmed, env.seed, parameters, stop)
        finally:
            film.close()
        if not film.num_frames:
            raise UnsupportedError(
                f"The environment {env.env_path} cannot be filmed: it sent no images. A Unity build sends them through "
                "a side channel: docs/guides/evaluation.md#video."
            )

    try:
        atomic.write_with(path, play_to)
    except UnsupportedError:
        if not stop.requested:
            raise
    except OSError as error:
        logger.error("%s could not be written: %s.", path, error.strerror or error)
    else:
        logger.info("Wrote %s.", path)


def seed_episodes(environment: Environment, seed: int) -> bool:
    """Let each episode begin with a seed of its own. Returns whether the environment supports that."""
    return isinstance(environment, InProcessEnvironment) and environment.seed_episodes(seed)


def play_model(
    model: Model,
    environment: Environment,
    options: EvaluateOptions,
    episodes: int,
    seed: int,
    parameters: Parameters,
    stop: StopRequest,
) -> dict[str, EvaluationResult]:
    """Play episodes with one model for all behaviors and teams.

    Raises:
        SettingsError: it does not fit, or ``options.at_least`` names a behavior that it cannot play here.
        EnvironmentFaultError: the environment failed for good.
        PolicyDivergedError: the model gives NaN.
    """
    roles = Roles([model])

    def announce(specs: Mapping[str, BehaviorSpec]) -> None:
        roles.announce(specs)
        _check_names(model, options.at_least, [BehaviorId.parse(id_).name for id_ in specs])

    return play(
        environment,
        lambda behavior_id, _, own_seed: roles.policy(0, behavior_id.name, own_seed),
        episodes,
        seed=seed,
        max_decisions=options.max_decisions,
        parameters=parameters,
        announce=announce,
        stopped=lambda: stop.requested,
    )


def _check_names(model: Model, at_least: Mapping[str | None, float], behaviors: Collection[str] = ()) -> None:
    """Check that a model plays the behaviors that ``--at-least`` names; ``behaviors`` as for ``Model.plays``.

    Raises:
        SettingsError: it cannot, whatever the environment has still to announce.
    """
    for name in at_least:
        if name is not None and not model.plays(name, behaviors):
            known = ", ".join(model.policies)
            hint = closest(name, model.policies) or "."
            raise SettingsError(f"--at-least {name}: {model.name} plays only {known}{hint}")


def _are_too_low(results: Sequence[Evaluated], at_least: Mapping[str | None, float]) -> bool:
    """Log each mean below its threshold, and each behavior that has a threshold and did not play."""
    low = False
    for evaluated in results:
        for missing in at_least.keys() - {None, *evaluated.behaviors}:
            low = True
            played = f"the behaviors that played are {', '.join(evaluated.behaviors)}"
            logger.error("%s: there is no mean return of %s; %s.", evaluated.model.name, missing, played)
        for name, result in evaluated.behaviors.items():
            wanted, mean = at_least.get(name, at_least.get(None)), result.returns.mean
            if wanted is not None and not mean >= wanted:
                low = True
                logger.error("%s: the mean return of %s is %.3f, below %g.", evaluated.model.name, name, mean, wanted)
    return low


def to_json(evaluation: FinishedEvaluation) -> dict[str, Any]:
    """All results as plain data (docs/guides/evaluation.md#json)."""
    env = evaluation.settings.env_settings
    how = {"environment": env.env_path, "seed": env.seed, "deterministic": evaluation.settings.deterministic}
    how["environment_parameters"] = evaluation.parameters
    results = []
    for number, evaluated in enumerate(evaluation.results):
        behaviors: dict[str, Any] = {}
        for name, result in evaluated.behaviors.items():
            better = evaluation.difference(number, name)
            compared = {} if better is None else {"difference": {"episodes": len(better), **better.to_json()}}
            behaviors[name] = {**result.to_json(), **compared, **how}
        results.append({"model": evaluated.model.name, "behaviors": behaviors})
    return {"results": results}


def _write_csv(path: Path, evaluation: FinishedEvaluation) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_CSV_COLUMNS)
    env = evaluation.settings.env_settings
    for evaluated in evaluation.results:
        for name, result in evaluated.behaviors.items():
            for each in result.episodes:
                seed = env.seed + each.worker + each.number * evaluated.copies if evaluated.seeded else ""
                writer.writerow(
                    (evaluated.model.name, name, each.team, each.worker, each.number, seed, each.total, each.reward,
                     each.group_reward, each.length, int(each.interrupted), int(each.truncated))
                )  # fmt: skip
    atomic.write_text(path, text.getvalue())
