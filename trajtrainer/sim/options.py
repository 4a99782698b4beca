"""The command line of the player program."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from trajtrainer.core.steps import Aggregation, Statistic
from trajtrainer.sim.faults import Fault
from trajtrainer.sim.registry import SIMULATIONS, GameKind, Kind, simulation_kind
from trajtrainer.sim.simulation import SimulationOptions
from trajtrainer.sim.wire import API_VERSION, PACKAGE_VERSION, WireStyle

EDITOR_PORT = 5004


@dataclass(frozen=True, slots=True)
class PlayerOptions:
    """Options of a player.

    Attributes:
        simulations: name, kind and options of each simulation.
        teams: number of teams of each behaviour.
        port: where the trainer listens.
        seed: None to take the one of the handshake.
        style: what the messages look like.
        log_file: None for the standard error output.
        step_seconds: how long each step takes besides what it costs.
        connect_seconds: how long to wait for the trainer at the start.
        statistics: values that go out with every step.
        render: send a picture for people with every step.
        faults: misbehaviour on request.
        fault_once: see ``Faults``.
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
    faults: tuple[Fault, ...]
    fault_once: Path | None


class PlayerParser(argparse.ArgumentParser):
    """Writes a usage error into the log as well: a trainer that launched the player shows the end of that."""

    log_file: Path | None = None

    def error(self, message: str) -> NoReturn:
        if self.log_file is not None:
            with contextlib.suppress(OSError):
                self.log_file.write_text(f"{self.prog}: error: {message}\n")
        self.exit(2, f"{self.format_usage()}{self.prog}: error: {message}\n")


def parse_player_options(arguments: list[str]) -> PlayerOptions:
    """Read the command line. Ends the process with exit code 2 and the reason where it does not fit."""
    names = arguments[0].split("+") if arguments and not arguments[0].startswith("-") else []
    parser = _parser()
    parser.log_file = _log_file(arguments)
    kinds: dict[str, Kind] = {}
    try:
        kinds = {name: simulation_kind(name) for name in names}
    except ValueError as error:
        parser.error(str(error))
    add_simulation_options(parser, kinds)
    parsed = parser.parse_args(arguments)
    if len(kinds) < len(names):
        parser.error(f"{arguments[0]!r} names a simulation twice; several teams are given by --teams")
    if parsed.teams < 1:
        parser.error(f"--teams must be at least 1, found {parsed.teams}")
    games = [name for name, kind in kinds.items() if isinstance(kind, GameKind)]
    if parsed.teams > 1 and games:
        parser.error(f"{games[0]} has teams of its own; leave --teams out")
    values = vars(parsed)
    try:
        simulations = tuple((name, kind, simulation_options(kind, values)) for name, kind in kinds.items())
    except ValueError as error:
        parser.error(str(error))
    faults = tuple(parsed.fault) if parsed.fault_port in (None, parsed.port) else ()
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
        faults=faults,
        fault_once=parsed.fault_once,
    )


def _log_file(arguments: list[str]) -> Path | None:
    """Return where the log goes, found before the command line is known to be right."""
    flags = [at for at, argument in enumerate(arguments[:-1]) if argument.lower() == "-logfile"]
    return Path(arguments[flags[-1] + 1]) if flags else None


def _parser() -> PlayerParser:
    listing = "\n".join(f"  {name:<16} {kind.summary}" for name, kind in SIMULATIONS.items())
    parser = PlayerParser(
        prog="python -m trajtrainer.sim",
        description="A built-in simulation as a player that speaks to a trainer as a Unity build does.",
        epilog=f"simulations:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("names", metavar="NAME[+NAME...]", help="the simulations, first on the command line")
    add("--mlagents-port", dest="port", type=int, default=EDITOR_PORT, metavar="PORT", help="where the trainer listens")
    add("--seed", type=int, help="instead of the seed that the trainer sends")
    add("--teams", type=int, default=1, metavar="N", help="teams of each behavior, each with all its agents")
    add("-logFile", "-logfile", dest="log_file", type=Path, metavar="PATH", help="write the log there")
    add("-nographics", action="store_true", help="accepted, as by every Unity player")
    add("-batchmode", action="store_true", help="accepted, as by every Unity player")
    add("--package-version", default=PACKAGE_VERSION, help="pictures before 3.0 are height, width, channels")
    add("--api-version", default=API_VERSION, help="version of the wire to speak, 1.0.0 to 1.5.0")
    add("--png", action="store_true", help="send pictures as PNG")
    add("--step-ms", type=float, default=0.0, metavar="X", help="make every step take so long")
    add(
        "--connect-seconds", type=float, default=60.0, metavar="S", help="how long to wait for the trainer at the start"
    )
    add("--stat", type=_statistic, action="append", default=[], metavar="KEY=VALUE[:AGGREGATION]",
        help="report a statistic with every step: average, most_recent, sum or histogram")  # fmt: skip
    add("--render", action="store_true", help="send a picture of everything with every step, for a film")
    add_fault_options(parser)
    return parser


def add_fault_options(parser: argparse.ArgumentParser) -> None:
    """Declare what makes a player misbehave."""
    add = parser.add_argument
    add("--fault", type=_fault, action="append", default=[], metavar="KIND[@STEP][:ARGUMENT]",
        help="misbehave for a test, such as crash@120:3; the kinds stand in trajtrainer/sim/faults.py")  # fmt: skip
    add("--fault-port", type=int, metavar="PORT", help="misbehave only when connected to this port")
    add("--fault-once", type=Path, metavar="FILE", help="misbehave only if FILE does not exist, and make it then")


def add_simulation_options(parser: argparse.ArgumentParser, kinds: dict[str, Kind]) -> None:
    """Declare the options of all simulations."""
    group = parser.add_argument_group("options of the simulation")
    known = set()
    for name, kind in kinds.items():
        for entry in dataclasses.fields(kind.options):
            if entry.name in known:
                continue
            known.add(entry.name)
            flag = "--" + entry.name.replace("_", "-")
            text = f"{entry.metadata['help']} ({name}: {_shown(entry.default)})"
            if isinstance(entry.default, bool):
                group.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=text)
            else:
                convert = _integers if isinstance(entry.default, tuple) else type(entry.default)
                group.add_argument(flag, type=convert, default=argparse.SUPPRESS, metavar="X", help=text)


def simulation_options(kind: Kind, values: dict[str, Any]) -> SimulationOptions:
    """Return those of one simulation that were given.

    Raises:
        ValueError: an option does not fit.
    """
    names = [entry.name for entry in dataclasses.fields(kind.options)]
    return kind.options(**{name: values[name] for name in names if name in values})


def _shown(default: object) -> str:
    return ",".join(map(str, default)) or "none" if isinstance(default, tuple) else str(default)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


def _statistic(text: str) -> Statistic:
    key, _, rest = text.partition("=")
    value, _, aggregation = rest.partition(":")
    try:
        return Statistic(key, float(value), Aggregation[(aggregation or "average").upper()])
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE[:AGGREGATION]") from None


def _fault(text: str) -> Fault:
    try:
        return Fault.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
