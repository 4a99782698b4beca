"""``trajtrainer evaluate A B ...``: measures how good trained models are, with confidence intervals."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from trajtrainer.core.printable import one_line
from trajtrainer.run.console import acting_settings, add_count, console, print_table
from trajtrainer.settings import flags
from trajtrainer.settings.evaluation import MAX_DECISIONS
from trajtrainer.settings.flags import ACTING_FLAGS

if TYPE_CHECKING:
    from rich.table import Table

    from trajtrainer.policies.play.result import EpisodeSample
    from trajtrainer.tools.evaluate.evaluate import FinishedEvaluation

_EPISODES = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a run id, the folder of a run or of one of its behaviors (the newest checkpoint of each; append @best "
        "for the best), a .pt file of trajtrainer or ML-Agents, an .onnx, 'random' or 'heuristic'; 'RUN/*', in quotes, "
        "stands for all checkpoints of a run. The other models are compared with the first one",
    )
    add_count(parser, "--episodes", "episodes", "number of episodes per behavior and team", default=_EPISODES)
    add_count(
        parser,
        "--max-decisions",
        "decisions",
        "truncate an episode after this many decisions of its agent, and count the return up to then",
        default=MAX_DECISIONS,
    )
    parser.add_argument(
        "--at-least",
        metavar="[BEHAVIOR=]REWARD",
        type=_requirement,
        action="append",
        default=[],
        help="exit with code 3 if a mean return is lower than this, for use in CI",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to this file")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write one line per episode to this file")
    parser.add_argument(
        "--environment-parameters",
        metavar="NAME=VALUE",
        nargs="+",
        type=_parameter,
        action="extend",
        default=[],
        help="environment parameters: each value is a number, or a sampler as in a configuration's section "
        "environment_parameters (default: the parameters of the first model's run)",
    )
    parser.add_argument(
        "--video",
        metavar="FILE",
        type=Path,
        help="film the first episodes, as .mp4 (needs the extra 'video') or .gif; works with Gymnasium and PettingZoo "
        "environments that can render, and with the built-in simulations",
    )
    add_count(parser, "--video-episodes", "episodes", "how many episodes to film", default=1)
    flags.add_options(parser, ACTING_FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Play, print the table, and return the exit code.

    Raises:
        TrajtrainerError: a model or the environment does not exist, they do not match, or the environment failed.
    """
    with console(debug=hasattr(arguments, "debug"), quiet=hasattr(arguments, "quiet"), to_stderr=True):
        sections = {"environment_parameters": dict(arguments.environment_parameters)}
        from trajtrainer.policies.folder.saved_policies import SCRIPTED

        trained = [word for word in arguments.models if word not in SCRIPTED][:1]
        settings = acting_settings(arguments, trained, sections if arguments.environment_parameters else {})
        from trajtrainer.run import acting

        env = settings.env_settings
        env = evolve(env, num_envs=min(env.num_envs, arguments.episodes))
        settings = acting.for_inference(evolve(settings, env_settings=env), arguments.models)
        outputs = {f"--{name}": getattr(arguments, name) for name in ("json", "csv")}
        # A film has a player of its own, which comes first and needs the same port.
        launching = nullcontext() if arguments.video else acting.launching(settings, arguments.models, outputs)
        with launching as players:
            from trajtrainer.tools.evaluate.evaluate import EvaluateOptions, evaluate  # imports torch

            options = EvaluateOptions(**{each.name: getattr(arguments, each.name) for each in fields(EvaluateOptions)})
            evaluation = evaluate(arguments.models, settings, options, players)
    print_table(make_table(evaluation))
    return evaluation.exit_code


def make_table(evaluation: FinishedEvaluation) -> Table:
    """Create the table of results: a row for each behavior of each model, followed by rows for teams and groups."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from trajtrainer.policies.play.result import actions_in_words

    compared = len(evaluation.results) > 1
    truncated = any(result.num_truncated for each in evaluation.results for result in each.behaviors.values())
    how = actions_in_words(deterministic=evaluation.settings.deterministic)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    table.caption = Text(one_line(f"{how}; {evaluation.parameters}"))
    for title in ("model", "behavior"):
        table.add_column(title, overflow="fold")
    numbers = ["episodes", *["truncated"] * truncated, "mean", "std", "95 % interval", "length", "decisions/s"]
    for title in numbers + ["difference", "its interval"] * compared:
        table.add_column(title, justify="right", no_wrap=True)

    def add_row(model: str, behavior: str, sample: EpisodeSample, cut: str, *others: str) -> None:
        numbers = [f"{len(sample)}", *[cut] * truncated, f"{sample.mean:.3f}", f"{sample.std:.3f}", _interval(sample)]
        table.add_row(*map(Text, [one_line(model), one_line(behavior), *numbers, *others]))

    for number, evaluated in enumerate(evaluation.results):
        model = evaluated.model.name
        for name, result in evaluated.behaviors.items():
            better = evaluation.difference(number, name)
            others = [f"{result.lengths.mean:.1f}", f"{result.decisions_per_second:,.0f}"]
            others += [] if better is None else [f"{better.mean:+.3f}", _interval(better, "+.3f")]
            add_row(model, name, result.returns, str(result.num_truncated), *others)
            for team_id, team in result.teams.items() if len(result.teams) > 1 else ():
                add_row("", f"  team {team_id}", team.returns, str(team.num_truncated), f"{team.lengths.mean:.1f}")
            if result.groups:
                add_row("", "  groups", result.group_returns, "")
            model = ""
    return table


def _interval(sample: EpisodeSample, form: str = ".3f") -> str:
    low, high = sample.ci95()
    return f"[{low:{form}}, {high:{form}}]"


def _requirement(text: str) -> tuple[str | None, float]:
    name, equals, number = text.rpartition("=")
    try:
        return (name if equals else None), float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a reward; expected a number or BEHAVIOR=NUMBER") from None


def _parameter(text: str) -> tuple[str, Any]:
    import yaml

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE (models go before the options)")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError:
        raise argparse.ArgumentTypeError(f"{text!r}: the value is not valid YAML") from None
