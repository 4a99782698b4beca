"""``trajtrainer evaluate``: plays episodes with one model after another and writes the results.

The environment is restarted with the same seed for each model.
"""

import csv
import io
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trajtrainer.core import atomic
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError, UnsupportedError
from trajtrainer.core.printable import counted
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.spelling import closest
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Environment, Parameters, PlayerLogs
from trajtrainer.envs.select import make_filmed_environment, make_separate_environments
from trajtrainer.policies.play.loop import play
from trajtrainer.policies.play.models import Model, Roles, find_models
from trajtrainer.policies.play.result import EpisodeSample, EvaluationResult, actions_in_words, difference
from trajtrainer.run import acting
from trajtrainer.run.curriculum import Curriculum
from trajtrainer.run.device import set_threads
from trajtrainer.run.launching import LaunchedPlayers
from trajtrainer.run.preflight import Preflight
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.run import RunSettings
from trajtrainer.tools.evaluate.film import Film, check_film

logger = logging.getLogger(__name__)

TOO_LOW = 3
"""Exit code if a mean return is below the one required by ``--at-least``."""

_CSV_COLUMNS = (
    "model", "behavior", "team", "copy", "episode", "seed", "return", "reward", "group_reward", "length", "interrupted",
    "truncated",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """The command line options of an evaluation, except for models and settings.

    Attributes:
        episodes: number of episodes for each behavior and team.
        at_least: pairs of a behavior and the mean return that it must reach. None instead of a behavior means all
            behaviors that are not listed.
        json, csv: files for the results.
        video: file for a video of the first episodes. With several models, a number is added to the name.
        video_episodes: number of episodes to film.
        max_decisions: maximum number of decisions in an episode; longer episodes are truncated.
    """

    episodes: int
    at_least: Sequence[tuple[str | None, float]]
    json: Path | None
    csv: Path | None
    video: Path | None
    video_episodes: int
    max_decisions: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The results of one model.

    Attributes:
        model: the model that played.
        behaviors: name -> result.
        copies: number of copies of the environment.
        seeded: True if each episode started with its own seed: the evaluation's seed + the number of the copy + the
            number of copies * the number of the episode within the copy.
    """

    model: Model
    behaviors: Mapping[str, EvaluationResult]
    copies: int
    seeded: bool


@dataclass(frozen=True, slots=True)
class FinishedEvaluation:
    """A finished evaluation.

    Attributes:
        results: the models' results, in the order of the models; if it ended early, without those that did not play.
        settings: the settings, including the seed that was used.
        parameters: a description of the environment parameters that all models played with.
        exit_code: 0; ``TOO_LOW``; 1 if it failed; 128 plus the signal's number if it was interrupted.
    """

    results: list[Evaluated]
    settings: RunSettings
    parameters: str
    exit_code: int = 0

    def difference(self, number: int, behavior: str) -> EpisodeSample | None:
        """Return the difference between a model's episodes and the first model's; None for the first model."""
        first = self.results[0].behaviors.get(behavior)
        if number == 0 or first is None:
            return None
        return difference(self.results[number].behaviors[behavior], first)


def evaluate(
    models: Sequence[str], settings: RunSettings, options: EvaluateOptions, players: LaunchedPlayers | None
) -> FinishedEvaluation:
    """Evaluate models, one after another.

    Args:
        models: the models' names, see ``find_models``.
        settings: settings from ``acting.for_inference``.
        options: the number of episodes, the files for the results, and other options.
        players: players for the first model, if they have been launched.

    Raises:
        TrajtrainerError: a model, a file or the environment does not exist or does not match the others, or the
            environment failed before anything was evaluated.
    """
    seed = settings.env_settings.seed
    with Preflight() as check:
        for option, path in (("--json", options.json), ("--csv", options.csv), ("--video", options.video)):
            check(acting.check_file, option, path)
        if options.video is not None:
            check(check_film, options.video)
        how = acting.check_acting(check, settings)
        found = check(find_models, models, Path(settings.checkpoint_settings.results_dir), how, scripted=True)
        for model in found or ():
            check(_check_names, model, options)
    set_threads()
    given = Curriculum(settings.environment_parameters, seed).samplers
    whose = next((each for each in found if not each.scripted), found[0])
    of_run = acting.parameters_of_run(whose)
    acting.log_parameters(parameters := {**of_run, **given})
    stop = StopRequest()
    results: list[Evaluated] = []
    failure = None
    for number, model in enumerate(found, 1):
        try:
            if options.video is not None:
                name = options.video.stem if len(found) == 1 else f"{options.video.stem}-{number}"
                _film(model, settings, options, parameters, stop, options.video.with_stem(name))
            drawn = "" if model.scripted else f", {actions_in_words(deterministic=settings.deterministic)}"
            logger.info("%s: %s%s; seed %d.", model.name, counted(options.episodes, "episode"), drawn, seed)
            result = _play(model, settings, options, parameters, stop, options.episodes, players=players)
            players = None
        except EnvironmentFaultError as fault:
            failure = acting.fault_after(results, fault, stop)
            break
        if result is not None and any(each.episodes for each in result.behaviors.values()):
            results.append(result)
            for name, each in result.behaviors.items():
                if each.num_truncated:
                    amount = f"{each.num_truncated} of {len(each.episodes)} episodes of {name}"
                    limit = f"{options.max_decisions} decisions (--max-decisions)"
                    logger.warning("%s: %s were truncated after %s.", model.name, amount, limit)
        if stop.requested:
            break
    sources = [f"the environment parameters that {whose.name} was trained with"] if of_run else []
    sources += [f"given {acting.in_words(given)}"] if given else []
    evaluation = FinishedEvaluation(results, settings, ", ".join(sources) or "the environment's own parameters")
    text = json.dumps(to_json(evaluation), indent=2) + "\n"
    is_written = acting.write_file(options.json, lambda path: atomic.write_text(path, text))
    is_written &= acting.write_file(options.csv, lambda path: _write_csv(path, evaluation))
    if failure or stop.requested:
        logger.warning("The evaluation ended early.")
    code = acting.exit_code(failure, stop, is_written=is_written)
    return replace(evaluation, exit_code=code or (TOO_LOW if _are_too_low(results, dict(options.at_least)) else 0))


def _play(
    model: Model,
    settings: RunSettings,
    options: EvaluateOptions,
    parameters: Parameters,
    stop: StopRequest,
    episodes: int,
    make: Callable[[RunSettings, PlayerLogs], Environment] = make_separate_environments,
    players: LaunchedPlayers | None = None,
) -> Evaluated | None:
    """Play episodes with one model for all behaviors and teams. Return None if a signal arrived before they started.

    Raises:
        SettingsError: the model does not match the agents, or cannot play a behavior in ``options.at_least``.
        EnvironmentFaultError: the environment failed and could not be restarted.
        PolicyDivergedError: the model's actions are NaN.
    """
    env, roles = settings.env_settings, Roles([model])

    def announce(specs: Mapping[str, BehaviorSpec]) -> None:
        roles.announce(specs)
        _check_names(model, options, [BehaviorId.parse(id_).name for id_ in specs])

    with acting.opened(settings, stop, make, players) as environment:
        if environment is None:
            return None
        seeded = isinstance(environment, InProcessEnvironment) and environment.seed_episodes(env.seed)
        results = play(
            environment,
            lambda behavior_id, _, seed: roles.policy(0, behavior_id.name, seed),
            episodes,
            parameters,
            seed=env.seed,
            max_decisions=options.max_decisions,
            announce=announce,
            stopped=lambda: stop.requested,
        )
        return Evaluated(model, results, environment.num_workers, seeded)


def _film(
    model: Model, settings: RunSettings, options: EvaluateOptions, parameters: Parameters, stop: StopRequest, path: Path
) -> None:
    """Film the first episodes in a separate environment, so that filming does not slow down the evaluation.

    Raises:
        UnsupportedError: the environment sends no images.
        TrajtrainerError: see ``_play``.
    """

    def play_to(temporary: Path) -> None:
        with closing(Film(temporary)) as film:
            make = partial(make_filmed_environment, take=film.add)
            _play(model, settings, options, parameters, stop, options.video_episodes, make)
        if not film.num_frames:
            raise UnsupportedError(
                f"The environment {settings.env_settings.env_path} cannot be filmed: it sent no images. A Unity build "
                "sends them through a side channel: docs/measure/evaluation.md#video."
            )

    try:
        acting.write_file(path, lambda path: atomic.write_with(path, play_to))
    except UnsupportedError:
        if not stop.requested:
            raise


def _check_names(model: Model, options: EvaluateOptions, behaviors: Collection[str] = ()) -> None:
    """Check that a model can play the behaviors in ``--at-least``. For ``behaviors``, see ``Model.plays``.

    Raises:
        SettingsError: the model cannot play one of them, even if the environment announces more behaviors later.
    """
    for name, _ in options.at_least:
        if name is not None and not model.plays(name, behaviors):
            known = ", ".join(model.policies)
            hint = closest(name, model.policies) or "."
            raise SettingsError(f"--at-least {name}: {model.name} plays only {known}{hint}")


def _are_too_low(results: Sequence[Evaluated], at_least: Mapping[str | None, float]) -> bool:
    """Return whether a mean is below its threshold, or a behavior with a threshold did not play. Log each case."""
    faults = []
    for evaluated in results:
        for missing in at_least.keys() - {None, *evaluated.behaviors}:
            played = f"the behaviors that played are {', '.join(evaluated.behaviors)}"
            faults.append(f"{evaluated.model.name}: there is no mean return for {missing}; {played}.")
        for name, result in evaluated.behaviors.items():
            wanted, mean = at_least.get(name, at_least.get(None)), result.returns.mean
            if wanted is not None and not mean >= wanted:
                faults.append(f"{evaluated.model.name}: the mean return of {name} is {mean:.3f}, below {wanted:g}.")
    for fault in faults:
        logger.error("%s", fault)
    return bool(faults)


def to_json(evaluation: FinishedEvaluation) -> dict[str, Any]:
    """Convert all results to plain data (docs/measure/evaluation.md#json)."""
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
