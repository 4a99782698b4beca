"""``trajtrainer init``: writes a first configuration for an environment, based on a few hundred random steps."""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajtrainer.core import atomic
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.filenames import behavior_file_name
from trajtrainer.core.printable import counted, one_line
from trajtrainer.core.spec import ObservationSpec, ObservationType
from trajtrainer.envs.select import is_player
from trajtrainer.run.acting import for_inference, opened
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.flag import ValueKind
from trajtrainer.settings.flags import FLAGS
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.suggestions import WHICH_ALGORITHM, Exchange, Seen, suggest
from trajtrainer.settings.yaml.commented import write
from trajtrainer.settings.yaml.convert import load
from trajtrainer.tools.output import check_target
from trajtrainer.tools.survey import survey

_SUFFIX = ".yaml"


@dataclass(frozen=True, slots=True)
class FirstSettings:
    """The behaviors that were found and the file that was written.

    If the command was interrupted, there is no file, and ``exit_code`` is that of the signal.
    """

    behaviors: list[Seen]
    exchange: Exchange
    file: Path | None
    exit_code: int = 0


def look_and_write(
    settings: RunSettings, given: argparse.Namespace, output: Path | None, *, overwrite: bool
) -> FirstSettings:
    """Connect to an environment, survey it, and write a configuration for it.

    Args:
        settings: environment settings.
        given: command line options. Options for the environment and its engine are also written to the file.
        output: path of the file; None for a file in the current folder, named after the first behavior.
        overwrite: whether an existing file may be replaced.

    Raises:
        SettingsError: the file already exists, or cannot be written.
        TrajtrainerError: the environment cannot be started, fails, or has a sensor that no encoder supports.
    """
    if output is not None:
        check_target(output, overwrite=overwrite)
    stop = StopRequest()
    settings = for_inference(settings)
    with opened(settings, stop) as environment:
        if environment is None:
            return FirstSettings([], Exchange(), None, stop.exit_code)
        behaviors, exchange = survey(environment, settings.env_settings.seed, lambda: stop.requested)
    if not is_player(settings.env_settings.env_path or ""):
        exchange = Exchange(exchange.ms, players=0)
    if stop.requested:
        return FirstSettings(behaviors, exchange, None, stop.exit_code)
    output = output or Path(behavior_file_name(behaviors[0].name) + _SUFFIX)
    save(output, configuration(behaviors, exchange, given, output), overwrite=overwrite)
    return FirstSettings(behaviors, exchange, output)


def configuration(behaviors: Sequence[Seen], exchange: Exchange, given: argparse.Namespace, output: Path) -> str:
    """Return the YAML text of a configuration.

    Raises:
        UnsupportedError: no encoder supports a sensor.
    """
    # Section -> the command line options that set its keys.
    others: dict[str, dict[str, Any]] = {"env_settings": {}, "engine_settings": {}}
    for flag in FLAGS:
        section, _, key = flag.path.partition(".")
        if section in others and hasattr(given, flag.name):
            others[section][key] = True if flag.kind is ValueKind.SWITCH else getattr(given, flag.name)
    where = others["env_settings"].get("env_path", "the Editor")
    head = [
        f"Initial settings for {where}, based on its agents (trajtrainer init; docs/train/first-settings.md).",
        "",
        f"  trajtrainer learn {shlex.quote(str(output))} --run-id=first",
        "",
        paced(behaviors, exchange),
        f"Which algorithm fits: {WHICH_ALGORITHM}",
        "All keys and their meaning: docs/reference/settings/index.md. All settings of a run: trajtrainer config.",
        "",
    ]
    about = {seen.name: "; ".join(described(seen)) for seen in behaviors}
    text = write(head, suggest(behaviors, exchange), about, others)
    load(text, str(output))  # check that the file can be read again, whatever characters the environment's name has
    return text


def paced(behaviors: Sequence[Seen], exchange: Exchange) -> str:
    """Describe how fast the environment is."""
    if not exchange.ms:
        return "No exchange was measured, so the speed of the environment is unknown."
    return f"{str(exchange).capitalize()} ({counted(sum(seen.agents for seen in behaviors), 'agent')})."


def described(seen: Seen) -> Iterator[str]:
    """Yield lines that describe a behavior: its agents, their observations and their actions."""
    agents = counted(seen.agents, "agent")
    if len(seen.teams) > 1:
        agents += f" in the teams {', '.join(map(str, sorted(seen.teams)))}"
    if seen.group > 1:
        agents += f", groups of up to {seen.group}"
    yield agents
    yield "sees " + ", ".join(_sensor(sensor) for sensor in seen.spec.observation_specs)
    actions = seen.spec.action_spec
    does = [counted(actions.continuous_size, "continuous action")] if actions.continuous_size else []
    if actions.discrete_size:
        sizes = ", ".join(map(str, actions.discrete_branches))
        does.append(f"discrete branches of {sizes}" if actions.discrete_size > 1 else f"a discrete branch of {sizes}")
    yield "does " + " and ".join(does)


def _sensor(sensor: ObservationSpec) -> str:
    match tuple(sensor.shape):
        case (size,):
            text = counted(size, "number")
        case (most, size):
            text = f"a list of up to {most} with {counted(size, 'number')} each"
        case shape:
            text = f"a picture {shape}"
    goal = ", a goal signal" if sensor.observation_type is ObservationType.GOAL_SIGNAL else ""
    return one_line(f"{sensor.name} ({text}{goal})")


def save(output: Path, text: str, *, overwrite: bool) -> None:
    """Write a file, completely or not at all.

    Raises:
        SettingsError: the file already exists, or cannot be written.
    """
    check_target(output, overwrite=overwrite)
    try:
        atomic.write_text(output, text)
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror or error}.") from error
