"""The command line of the player program."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from trajtrainer.core.steps import Aggregation, Statistic
from trajtrainer.envs.sim.registry import SIMULATIONS, GameKind, Kind, simulation_kinds
from trajtrainer.envs.sim.simulation import SimulationOptions
from trajtrainer.envs.sim.wire import API_VERSION, PACKAGE_VERSION, WireStyle

EDITOR_PORT = 5004


@dataclass(frozen=True, slots=True)
class PlayerOptions:
    """Options of a player.

    Attributes:
        simulations: name, kind and options of each simulation.
        teams: number of teams of each behavior.
        port: where the trainer listens.
        seed: None to use that of the handshake.
        style: what the messages look like.
        log_file: None for the standard error output.
        step_seconds: how long each step takes, in addition to what it computes.
        connect_seconds: how long to wait for the trainer at the start.
        statistics: values that are sent with every step.
        render: send a picture for people with every step.
        hooks: see ``hooked``.
    """

    simulations: tuple[tuple[str, Kind, SimulationOptions], ...]
    teams: int
    port: int
    seed: int | None
    style: WireStyle
    log_file: Path | None
    step_seconds: float
    connect_seconds: float
    statistics: tuple[Statistic, ...]
    render: bool
    hooks: tuple[tuple[str, str], ...]


class PlayerParser(argparse.ArgumentParser):
    """Also writes usage errors to the log, because a trainer that launched the player shows the end of it."""

    log_file: Path | None = None

    def error(self, message: str) -> NoReturn:
        if self.log_file is not None:
            with contextlib.suppress(OSError):
                self.log_file.write_text(f"{self.prog}: error: {message}\n")
        self.exit(2, f"{self.format_usage()}{self.prog}: error: {message}\n")


def parse_player_options(arguments: list[str]) -> PlayerOptions:
    """Read the command line. Ends the process with exit code 2 and the reason if it is wrong."""
    listing = "\n".join(f"  {name:<16} {kind.summary}" for name, kind in SIMULATIONS.items())
    parser = PlayerParser(
        prog="python -m trajtrainer.envs.sim",
        description="A built-in simulation as a player that speaks to a trainer as a Unity build does.",
        epilog=f"simulations:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("names", metavar="NAME[+NAME...]", help="the simulations, first on the command line")
    add("--mlagents-port", dest="port", type=int, default=EDITOR_PORT, metavar="PORT", help="where the trainer listens")
    add("--seed", type=int, help="use this seed instead of the trainer's")
    add("--teams", type=int, default=1, metavar="N", help="teams of each behavior, each with all its agents")
    add("-logFile", "-logfile", dest="log_file", type=Path, metavar="PATH", help="write the log to this file")
    add("-nographics", action="store_true", help="accepted, as by every Unity player")
    add("-batchmode", action="store_true", help="accepted, as by every Unity player")
    add("--package-version", default=PACKAGE_VERSION, help="version of com.unity.ml-agents to imitate; before 3.0, "
        "pictures are height, width, channels")  # fmt: skip
    add("--api-version", default=API_VERSION, help="version of the wire to speak, 1.0.0 to 1.5.0")
    add("--png", action="store_true", help="send pictures as PNG")
    add("--step-ms", type=float, default=0.0, metavar="X", help="make every step this much longer")
    add(
        "--connect-seconds", type=float, default=60.0, metavar="S", help="how long to wait for the trainer at the start"
    )
    add("--stat", type=_statistic, action="append", default=[], metavar="KEY=VALUE[:AGGREGATION]",
        help="report a statistic with every step: average, most_recent, sum or histogram")  # fmt: skip
    add("--render", action="store_true", help="send a picture of everything with every step, for a film")
    add_hook_option(parser)

    # The log file is needed before it is known that the command line is right.
    flags = [at for at, argument in enumerate(arguments[:-1]) if argument.lower() == "-logfile"]
    parser.log_file = Path(arguments[flags[-1] + 1]) if flags else None
    kinds: dict[str, Kind] = {}
    names = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if names is not None:
        try:
            kinds = simulation_kinds(names)
        except ValueError as error:
            parser.error(str(error))
    add_simulation_options(parser, kinds)
    parsed = parser.parse_args(arguments)
    if names is not None and len(kinds) < len(names.split("+")):
        parser.error(f"{names!r} names a simulation twice; use --teams for several teams")
    if parsed.teams < 1:
        parser.error(f"--teams must be at least 1, found {parsed.teams}")
    games = [name for name, kind in kinds.items() if isinstance(kind, GameKind)]
    if parsed.teams > 1 and games:
        parser.error(f"{games[0]} has teams of its own; leave --teams out")
    try:
        simulations = tuple((name, kind, simulation_options(kind, vars(parsed))) for name, kind in kinds.items())
    except ValueError as error:
        parser.error(str(error))
    return PlayerOptions(
        simulations=simulations,
        teams=parsed.teams,
        port=parsed.port,
        seed=parsed.seed,
        style=WireStyle(parsed.api_version, parsed.package_version, parsed.png),
        log_file=parsed.log_file,
        step_seconds=parsed.step_ms / 1000.0,
        connect_seconds=parsed.connect_seconds,
        statistics=tuple(parsed.stat),
        render=parsed.render,
        hooks=tuple(map(tuple, parsed.hook)),
    )


def add_hook_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--hook``, see ``hooked``."""
    parser.add_argument(
        "--hook", nargs=2, action="append", default=[], metavar=("FILE", "TEXT"),
        help="for tests: let a Python file change what the player says, as TEXT describes",
    )  # fmt: skip


def hooked(kind: str, wrapped: Any, port: int, hooks: Sequence[tuple[str, str]]) -> Any:
    """Wrap what a player says in the hooks of its command line, the first one innermost.

    Tests use them for players that crash, hang or send rubbish: the package has no code for that.

    Args:
        kind: of player. The hook's file has a function of this name, called as ``function(wrapped, port, text)``, which
            returns a replacement of ``wrapped``.
        wrapped: a ``Conversation`` for ``converse``; a function from a message to the bytes of its answer for
            ``answer_godot``.
        port: where the trainer listens.
        hooks: file and text of each.
    """
    for file, text in hooks:
        wrapped = runpy.run_path(file)[kind](wrapped, port, text)
    return wrapped


def add_simulation_options(parser: argparse.ArgumentParser, kinds: Mapping[str, Kind]) -> None:
    """Declare the options of all simulations."""
    group = parser.add_argument_group("options of the simulation")
    known = set()
    for name, kind in kinds.items():
        for entry in dataclasses.fields(kind.options):
            if entry.name in known:
                continue
            known.add(entry.name)
            flag = "--" + entry.name.replace("_", "-")
            default = entry.default
            shown = ",".join(map(str, default)) or "none" if isinstance(default, tuple) else str(default)
            text = f"{entry.metadata['help']} ({name}: {shown})"
            if isinstance(default, bool):
                group.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=text)
            else:
                convert = _integers if isinstance(default, tuple) else type(default)
                group.add_argument(flag, type=convert, default=argparse.SUPPRESS, metavar="X", help=text)


def simulation_options(kind: Kind, values: Mapping[str, Any]) -> SimulationOptions:
    """Pick the options of one simulation from all that were given.

    Raises:
        ValueError: an option does not fit.
    """
    names = [entry.name for entry in dataclasses.fields(kind.options)]
    return kind.options(**{name: values[name] for name in names if name in values})


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


def _statistic(text: str) -> Statistic:
    key, _, rest = text.partition("=")
    value, _, aggregation = rest.partition(":")
    try:
        return Statistic(key, float(value), Aggregation[(aggregation or "average").upper()])
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE[:AGGREGATION]") from None
