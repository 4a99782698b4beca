"""A first configuration for an environment: connect, look, write down what fits it."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trajtrainer.commands.acting import opened, settled
from trajtrainer.core import atomic
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError
from trajtrainer.core.filenames import behavior_file_name
from trajtrainer.core.printable import counted, one_line
from trajtrainer.core.spec import BehaviorId, BehaviorSpec, ObservationSpec, ObservationType
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, StepBatch
from trajtrainer.envs.protocol import Environment
from trajtrainer.play.scripted import random_policy
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.flags import FLAGS, Kind
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.suggestions import Seen, suggest
from trajtrainer.settings.yaml.commented import write
from trajtrainer.settings.yaml.convert import load

_SUFFIX = ".yaml"


@dataclass(frozen=True, slots=True)
class FirstSettings:
    """What was found and written. Without a file it was interrupted, with that exit code."""

    behaviors: list[Seen]
    file: Path | None
    exit_code: int = 0


def look_and_write(
    settings: RunSettings, given: argparse.Namespace, output: Path | None, *, overwrite: bool
) -> FirstSettings:
    """Connect to an environment, look at it, and write a configuration for it.

    Args:
        settings: of the environment.
        given: options of the command line; those of the environment and its engine are written, too.
        output: the file; None for one that is called as the first behavior, in the current folder.
        overwrite: a file that is there may be replaced.

    Raises:
        SettingsError: the file is there already, or cannot be written.
        TrajtrainerError: the environment cannot be started, fails, or has a sensor that no encoder takes.
    """
    if output is not None:
        check_target(output, overwrite=overwrite)
    stop = StopRequest()
    settings = settled(settings)
    with opened(settings, stop) as environment:
        if environment is None:
            return FirstSettings([], None, stop.exit_code)
        behaviors = survey(environment, settings.env_settings.seed, lambda: stop.requested)
    if stop.requested:
        return FirstSettings(behaviors, None, stop.exit_code)
    output = output or Path(behavior_file_name(behaviors[0].name) + _SUFFIX)
    save(output, configuration(behaviors, given, output), overwrite=overwrite)
    return FirstSettings(behaviors, output)


def configuration(behaviors: Sequence[Seen], given: argparse.Namespace, output: Path) -> str:
    """Return the YAML.

    Raises:
        UnsupportedError: a sensor that no encoder takes.
    """
    others = {section: _options(given, section) for section in ("env_settings", "engine_settings")}
    where = others["env_settings"].get("env_path", "the Editor")
    head = [
        f"Settings to begin with for {where}, by what was seen in it (trajtrainer init; docs/first-settings.md).",
        "",
        f"  trajtrainer learn {shlex.quote(str(output))} --run-id=first",
        "",
        "All keys, and what each is for: docs/settings.md. What a run would have: trajtrainer config.",
        "",
    ]
    about = {seen.name: "; ".join(described(seen)) for seen in behaviors}
    text = write(head, suggest(behaviors), about, others)
    load(text, str(output))  # whatever an environment is called, its file can be read again
    return text


def described(seen: Seen) -> Iterator[str]:
    """Yield what a behavior is: agents, what they see, what they do."""
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


def _options(given: argparse.Namespace, section: str) -> dict[str, Any]:
    """Return the options that were given and stand in a section: key -> value."""
    return {
        flag.path.partition(".")[2]: True if flag.kind is Kind.SWITCH else getattr(given, flag.name)
        for flag in FLAGS
        if flag.path.startswith(f"{section}.") and hasattr(given, flag.name)
    }


def check_target(output: Path, *, overwrite: bool) -> None:
    """Look whether a file may be written.

    Raises:
        SettingsError: it is there already, or its folder is not.
    """
    if output.is_dir() or not output.parent.is_dir():
        found = "is a folder" if output.is_dir() else f"is in the folder {output.parent}, which does not exist"
        raise SettingsError(f"{output} {found}. Expected a file in a folder that exists, with -o FILE.")
    if output.exists() and not overwrite:
        raise SettingsError(f"{output} exists already. Give another name with -o FILE, or replace it with --overwrite.")


def save(output: Path, text: str, *, overwrite: bool) -> None:
    """Write a file, whole or not at all.

    Raises:
        SettingsError: it is there already, or cannot be written.
    """
    check_target(output, overwrite=overwrite)
    try:
        atomic.write_text(output, text)
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror or error}.") from error


_MESSAGES = 300
_LONGEST_S = 15.0
_WAIT_S = 0.25


def survey(environment: Environment, seed: int, stopped: Callable[[], bool] = lambda: False) -> list[Seen]:
    """Let all agents act at random for a while; return what was seen of each behavior, in order of appearance.

    Args:
        environment: not closed.
        seed: of the actions.
        stopped: asked after each message whether to end early.

    Raises:
        EnvironmentFaultError: it fails, or has no agents.
    """
    environment.reset({})
    looks: dict[str, _Look] = {}
    messages, end_s = 0, time.monotonic() + _LONGEST_S
    while messages < _MESSAGES and not (looks and time.monotonic() > end_s) and not stopped():
        for event in environment.wait(_WAIT_S):
            messages += 1
            for behavior_id, spec in event.new_specs.items():
                looks.setdefault(behavior_id, _Look(spec, seed))
            environment.send(event.worker, _answers(event, looks))
    if not looks and not stopped():
        raise EnvironmentFaultError("No agent asked for a decision, so there is nothing to train.")
    return _by_name(looks)


@dataclass(slots=True)
class _Look:
    """One behaviour id: who is there, and what they see."""

    spec: BehaviorSpec
    seed: int
    present: set[int] = field(default_factory=set)
    agents: int = 0
    group: int = 1
    largest: float = 0.0

    def take(self, batch: StepBatch) -> ActionBatch:
        """Look at a message's agents; return random actions for those that ask."""
        decisions = slice(batch.num_terminal, None)
        self.present.difference_update(batch.agent[: batch.num_terminal].tolist())
        self.present.update(batch.agent[decisions].tolist())
        self.agents = max(self.agents, len(self.present))
        groups = batch.group[decisions]
        if groups.any():
            self.group = max(self.group, int(np.unique(groups[groups != 0], return_counts=True)[1].max()))
        for column in batch.obs:
            if column.ndim == 2 and column.size:
                self.largest = max(self.largest, float(np.abs(column).max()))
        policy = random_policy(self.spec, self.seed)
        self.seed += 1
        memory = np.zeros((batch.num_decisions, 0), np.float32)
        return policy.act([column[decisions] for column in batch.obs], batch.mask[decisions], memory)


def _answers(event: EnvironmentEvent, looks: dict[str, _Look]) -> dict[str, ActionBatch]:
    return {behavior_id: looks[behavior_id].take(batch) for behavior_id, batch in event.steps.items()}


def _by_name(looks: dict[str, _Look]) -> list[Seen]:
    """Return all teams of a behavior as one."""
    found: dict[str, Seen] = {}
    for behavior_id, look in looks.items():
        behavior = BehaviorId.parse(behavior_id)
        seen = found.setdefault(behavior.name, Seen(behavior.name, look.spec))
        seen.teams.add(behavior.team)
        seen.agents += look.agents
        seen.group = max(seen.group, look.group)
        seen.largest = max(seen.largest, look.largest)
    return list(found.values())
