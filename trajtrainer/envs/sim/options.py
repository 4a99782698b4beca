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
    """Command line options of a player.

    Attributes:
        simulations: name, kind and options of each simulation.
        teams: number of teams per behavior.
        port: port that the trainer listens on.
        seed: None to use the seed from the handshake.
        style: format of the messages.
        log_file: None to log to stderr.
        step_seconds: delay added to each step.
        connect_seconds: timeout for the first connection to the trainer.
        statistics: values to send with every step.
        render: whether to send a picture for humans to watch with every step.
        hooks: file and text of each hook; see ``hooked``.
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
    """A parser that also writes usage errors to the log, because a trainer shows the end of its player's log."""

    log_file: Path | None = None

    def error(self, message: str) -> NoReturn:
        if self.log_file is not None:
            with contextlib.suppress(OSError):
                self.log_file.write_text(f"{self.prog}: error: {message}\n")
        self.exit(2, f"{self.format_usage()}{self.prog}: error: {message}\n")


def parse_player_options(arguments: list[str]) -> PlayerOptions:
    """Parse the command line. On a usage error, print the reason and exit with code 2."""
    listing = "\n".join(f"  {name:<16} {kind.summary}" for name, kind in SIMULATIONS.items())
    parser = PlayerParser(
        prog="python -m trajtrainer.envs.sim",
        description="Run a built-in simulation as a player that communicates with a trainer like a Unity build.",
        epilog=f"simulations:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("names", metavar="NAME[+NAME...]", help="the simulations to run; must be the first argument")
    add("--mlagents-port", dest="port", type=int, default=EDITOR_PORT, metavar="PORT", help="the trainer's port")
    add("--seed", type=int, help="use this seed instead of the trainer's")
    add("--teams", type=int, default=1, metavar="N", help="teams per behavior, each with all its agents")
    add("-logFile", "-logfile", dest="log_file", type=Path, metavar="PATH", help="write the log to this file")
    add("-nographics", action="store_true", help="accepted for compatibility with Unity players")
    add("-batchmode", action="store_true", help="accepted for compatibility with Unity players")
    add("--package-version", default=PACKAGE_VERSION, help="version of com.unity.ml-agents to imitate; before 3.0, "
        "pictures are height, width, channels")  # fmt: skip
    add("--api-version", default=API_VERSION, help="version of the wire protocol to use, 1.0.0 to 1.5.0")
    add("--png", action="store_true", help="send pictures as PNG")
    add("--step-ms", type=float, default=0.0, metavar="X", help="milliseconds to add to every step")
    add(
        "--connect-seconds", type=float, default=60.0, metavar="S", help="how long to wait for the trainer at the start"
    )
    add("--stat", type=_statistic, action="append", default=[], metavar="KEY=VALUE[:AGGREGATION]",
        help="report a statistic with every step: average, most_recent, sum or histogram")  # fmt: skip
    add("--render", action="store_true", help="send a picture of all agents with every step, for videos")
    add_hook_option(parser)

    # Find the log file before parsing, because parsing errors are also written to it.
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
        parser.error(f"{names!r} contains a simulation twice; use --teams for several teams")
    if parsed.teams < 1:
        parser.error(f"--teams must be at least 1, found {parsed.teams}")
    games = [name for name, kind in kinds.items() if isinstance(kind, GameKind)]
    if parsed.teams > 1 and games:
        parser.error(f"{games[0]} defines its own teams; omit --teams")
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
    """Add the option ``--hook``; see ``hooked``."""
    parser.add_argument(
        "--hook", nargs=2, action="append", default=[], metavar=("FILE", "TEXT"),
        help="for tests: let a Python file change the player's messages as TEXT specifies",
    )  # fmt: skip


def hooked(kind: str, wrapped: Any, port: int, hooks: Sequence[tuple[str, str]]) -> Any:
    """Wrap a player's messages in the hooks from its command line, the first hook innermost.

    Tests use hooks to simulate players that crash, hang or send garbage, so that the package does not contain such
    code.

    Args:
        kind: kind of player. The hook's file defines a function with this name, called as
            ``function(wrapped, port, text)``, which returns a replacement for ``wrapped``.
        wrapped: a ``Conversation`` for ``converse``; a function from a message to the bytes of its answer for
            ``answer_godot``.
        port: port that the trainer listens on.
        hooks: file and text of each hook.
    """
    for file, text in hooks:
        wrapped = runpy.run_path(file)[kind](wrapped, port, text)
    return wrapped


def add_simulation_options(parser: argparse.ArgumentParser, kinds: Mapping[str, Kind]) -> None:
    """Add the options of all simulations to a parser."""
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
    """Create the options of one simulation from the values of all options.

    Raises:
        ValueError: an option has an invalid value.
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
