"""``trajtrainer init``: writes a first configuration for an environment, from what some hundred random steps show."""

import argparse
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from trajtrainer.core import atomic
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError
from trajtrainer.core.filenames import behavior_file_name
from trajtrainer.core.printable import counted, one_line
from trajtrainer.core.seeds import derived_seeds
from trajtrainer.core.spec import BehaviorId, BehaviorSpec, ObservationSpec, ObservationType
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.envs.select import is_player
from trajtrainer.policies.play.agents import Turn
from trajtrainer.policies.play.loop import PlayLoop
from trajtrainer.policies.play.scripted import random_policy
from trajtrainer.run.acting import opened, settled
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.flags import FLAGS, ValueKind
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.suggestions import WHICH_ALGORITHM, Exchange, Seen, suggest
from trajtrainer.settings.yaml.commented import write
from trajtrainer.settings.yaml.convert import load

_SUFFIX = ".yaml"
_MESSAGES = 300
_WARMUP = 5
_LONGEST_S = 15.0


@dataclass(frozen=True, slots=True)
class FirstSettings:
    """What was found and written. Without a file it was interrupted, with that exit code."""

    behaviors: list[Seen]
    exchange: Exchange
    file: Path | None
    exit_code: int = 0


def look_and_write(
    settings: RunSettings, given: argparse.Namespace, output: Path | None, *, overwrite: bool
) -> FirstSettings:
    """Connect to an environment, survey it, and write a configuration for it.

    Args:
        settings: of the environment.
        given: options of the command line; those of the environment and its engine are written, too.
        output: the file; None for one in the current folder with the name of the first behavior.
        overwrite: a file that is there may be replaced.

    Raises:
        SettingsError: the file exists already, or cannot be written.
        TrajtrainerError: the environment cannot be started, fails, or has a sensor that no encoder takes.
    """
    if output is not None:
        check_target(output, overwrite=overwrite)
    stop = StopRequest()
    settings = settled(settings)
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
    """The YAML of a configuration.

    Raises:
        UnsupportedError: a sensor that no encoder takes.
    """
    # Section -> the given options that belong to it.
    others: dict[str, dict[str, Any]] = {"env_settings": {}, "engine_settings": {}}
    for flag in FLAGS:
        section, _, key = flag.path.partition(".")
        if section in others and hasattr(given, flag.name):
            others[section][key] = True if flag.kind is ValueKind.SWITCH else getattr(given, flag.name)
    where = others["env_settings"].get("env_path", "the Editor")
    head = [
        f"Settings to begin with for {where}, from its agents (trajtrainer init; docs/guides/first-settings.md).",
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
    load(text, str(output))  # whatever the name of the environment, its file can be read again
    return text


def paced(behaviors: Sequence[Seen], exchange: Exchange) -> str:
    """How fast the environment is, in words."""
    if not exchange.ms:
        return "No exchange was seen, so it is not known how fast the environment is."
    return f"{str(exchange).capitalize()} ({counted(sum(seen.agents for seen in behaviors), 'agent')})."


def described(seen: Seen) -> Iterator[str]:
    """What a behavior is, in words: agents, what they see, what they do."""
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


def check_target(output: Path, *, overwrite: bool) -> None:
    """Check that a file may be written.

    Raises:
        SettingsError: it exists already, or its folder does not.
    """
    if output.is_dir() or not output.parent.is_dir():
        found = "is a folder" if output.is_dir() else f"is in the folder {output.parent}, which does not exist"
        raise SettingsError(f"{output} {found}. Expected a file in a folder that exists, with -o FILE.")
    if output.exists() and not overwrite:
        raise SettingsError(
            f"{output} exists already. Choose another name with -o FILE, or replace it with --overwrite."
        )


def save(output: Path, text: str, *, overwrite: bool) -> None:
    """Write a file, whole or not at all.

    Raises:
        SettingsError: it exists already, or cannot be written.
    """
    check_target(output, overwrite=overwrite)
    try:
        atomic.write_text(output, text)
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror or error}.") from error


def survey(
    environment: Environment, seed: int, stopped: Callable[[], bool] = lambda: False
) -> tuple[list[Seen], Exchange]:
    """Let all agents act at random for a while.

    Args:
        environment: not closed.
        seed: of the actions.
        stopped: asked after each step whether to end early.

    Returns:
        What was seen of each behavior, in order of appearance, and what an exchange took, with workers as players.

    Raises:
        EnvironmentFaultError: it fails, or has no agents.
    """
    game, stopwatch = _Survey(seed), Stopwatch(environment)
    PlayLoop(stopwatch, game, announce=game.announce).run(stopped=stopped)
    if not game.looks and not stopped():
        raise EnvironmentFaultError("No agent asked for a decision, so there is nothing to train.")
    found: dict[str, Seen] = {}
    for behavior_id, look in game.looks.items():
        behavior = BehaviorId.parse(behavior_id)
        seen = found.setdefault(behavior.name, Seen(behavior.name, look.spec))
        seen.teams.add(behavior.team)
        seen.agents += look.agents
        seen.group = max(seen.group, look.group)
        seen.largest = max(seen.largest, look.largest)
    return list(found.values()), stopwatch.exchange


class Stopwatch:
    """An environment that measures its exchanges: the time from sending actions to having the next steps.

    Choosing actions is not part of it, and the answer to a reset is left out. An environment in this process has one
    exchange for all its copies, which it steps one after the other, as in training.
    """

    def __init__(self, environment: Environment, clock: Callable[[], float] = time.perf_counter) -> None:
        self.num_workers = environment.num_workers
        self.set_parameters = environment.set_parameters
        self.close = environment.close
        self.kill = environment.kill
        self._environment = environment
        self._clock = clock
        # Both by worker.
        self._sent_s: dict[int, float] = {}
        self._durations_s: dict[int, list[float]] = {}

    @property
    def exchange(self) -> Exchange:
        """The median, without the first exchanges of each worker, which may be slower."""
        durations_s = [each for found in self._durations_s.values() for each in found[min(_WARMUP, len(found) // 2) :]]
        return Exchange(1000 * median(durations_s), len(self._durations_s)) if durations_s else Exchange()

    def reset(self, parameters: Parameters) -> None:
        self._sent_s.clear()
        self._environment.reset(parameters)

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        events = self._environment.wait(timeout_s)
        now_s = self._clock()
        for event in events:
            sent_s = self._sent_s.pop(event.worker, None)
            if sent_s is not None and not event.is_reset:
                self._durations_s.setdefault(event.worker, []).append(now_s - sent_s)
        return events

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        self._sent_s[worker] = self._clock()
        self._environment.send(worker, actions)


@dataclass(slots=True)
class _Look:
    """What was seen of one behavior id.

    Attributes:
        messages: with agents of it.
        active: worker -> agents that are in an episode.
        agents: the most that were in an episode at once.
        group, largest: as ``Seen`` has them.
    """

    spec: BehaviorSpec
    messages: int = 0
    active: dict[int, int] = field(default_factory=dict)
    agents: int = 0
    group: int = 1
    largest: float = 0.0


class _Survey:
    """A game at random, until there were enough messages."""

    def __init__(self, seed: int) -> None:
        self.looks: dict[str, _Look] = {}
        self._seed = seed
        self._messages = 0
        self._end_s = time.monotonic() + _LONGEST_S

    @property
    def is_over(self) -> bool:
        return self._messages >= _MESSAGES or (bool(self.looks) and time.monotonic() > self._end_s)

    def rests(self, worker: int) -> bool:  # noqa: ARG002
        return False

    def announce(self, specs: Mapping[str, BehaviorSpec]) -> None:
        for behavior_id, spec in specs.items():
            self.looks.setdefault(behavior_id, _Look(spec))

    def start_over(self, worker: int) -> None:
        for look in self.looks.values():
            look.active.pop(worker, None)

    def observe(self, event: EnvironmentEvent, turns: Sequence[Turn]) -> None:
        self._messages += 1
        for turn in turns:
            look = self.looks[turn.behavior.full]
            look.active[event.worker] = turn.num_active
            look.agents = max(look.agents, sum(look.active.values()))
            groups = turn.batch.group[turn.batch.num_terminal :]
            if groups.any():
                look.group = max(look.group, int(np.unique(groups[groups != 0], return_counts=True)[1].max()))
            for column in turn.batch.obs:
                if column.ndim == 2 and column.size:
                    look.largest = max(look.largest, float(np.abs(column).max()))
            # The actions of each message have a seed of their own.
            policy = random_policy(
                look.spec, derived_seeds(self._seed, f"survey {turn.behavior.full} {look.messages}")[0]
            )
            look.messages += 1
            for agent in turn.deciding:
                agent.play_with(policy)

    def progress(self) -> str:
        return f"{self._messages} of {_MESSAGES} messages were seen."
