"""The built-in simulations by the name under which players announce them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajtrainer.envs.sim.balance_ball import (
    BalanceBall,
    BalanceBallHard,
    BallOptions,
    HardOptions,
    VisualBall,
    VisualBallOptions,
)
from trajtrainer.envs.sim.games import Duel, DuelOptions, DungeonEscape, DungeonOptions, StrikerOptions, StrikerVsGoalie
from trajtrainer.envs.sim.masked import GridOptions, GridWorld, Hybrid, HybridOptions
from trajtrainer.envs.sim.puzzles import Match3, Match3Options, Sorter, SorterOptions
from trajtrainer.envs.sim.simulation import EnvironmentParameters, Game, Simulation, SimulationOptions
from trajtrainer.envs.sim.synthetic import Bench, BenchOptions, Toy, ToyOptions
from trajtrainer.envs.sim.walks import Basic, Chase, ChaseOptions, MemoryCorridor, MemoryOptions


@dataclass(frozen=True, slots=True)
class SimulationKind:
    """The recipe of a simulation.

    Attributes:
        create: called with an instance of ``options``, a random generator and the player's environment parameters.
        options: the class of its options.
        summary: one line for the help text.
    """

    create: Callable[[Any, np.random.Generator, EnvironmentParameters], Simulation]
    options: type[SimulationOptions]
    summary: str


@dataclass(frozen=True, slots=True)
class GameKind:
    """The recipe of a game, which has behaviors and teams of its own.

    Attributes:
        create: called with an instance of ``options``, a random generator and the player's environment parameters.
        options: the class of its options.
        summary: one line for the help text.
        behaviors: names of its behaviors; empty if it has only one, with the name of the game.
    """

    create: Callable[[Any, np.random.Generator, EnvironmentParameters], Game]
    options: type[SimulationOptions]
    summary: str
    behaviors: tuple[str, ...] = ()


Kind = SimulationKind | GameKind

SIMULATIONS: dict[str, Kind] = {
    "3DBall": SimulationKind(BalanceBall, BallOptions, "keep a ball on a platform; 8 numbers, 2 continuous actions"),
    "3DBallHard": SimulationKind(
        BalanceBallHard, HardOptions, "the same without velocities; 9 stacked observations of 5"
    ),
    "Basic": SimulationKind(Basic, SimulationOptions, "walk to the large goal; one-hot of 20, a branch of 3"),
    "Chase": SimulationKind(Chase, ChaseOptions, "walk to a target; 4 numbers, 2 continuous actions"),
    "Hybrid": SimulationKind(
        Hybrid, HybridOptions, "drive and use tools; 2 sensors, 2 continuous actions, masked branches 3,2"
    ),
    "GridWorld": SimulationKind(
        GridWorld, GridOptions, "walk to the named goal; a picture and a goal signal, a masked branch of 5"
    ),
    "Memory": SimulationKind(MemoryCorridor, MemoryOptions, "remember a sign to the end of a corridor; a branch of 4"),
    "Sorter": SimulationKind(Sorter, SorterOptions, "press tiles in order; up to 20 entities, branches 3,3,2"),
    "Match3": SimulationKind(Match3, Match3Options, "three of a kind in a row; pictures of a board, masked moves"),
    "VisualBall": SimulationKind(VisualBall, VisualBallOptions, "3DBall seen by one or two cameras"),
    "Duel": GameKind(Duel, DuelOptions, "push the other team off a shrinking ring; 7 numbers, a branch of 5"),
    "DungeonEscape": GameKind(
        DungeonEscape, DungeonOptions, "one dies for the group that escapes; groups, 17 numbers, a branch of 5"
    ),
    "StrikerVsGoalie": GameKind(
        StrikerVsGoalie,
        StrikerOptions,
        "score, or keep the goal; behaviors Striker and Goalie, 3 and 4 numbers, branches of 3",
        ("Striker", "Goalie"),
    ),
    "Toy": SimulationKind(Toy, ToyOptions, "the smallest task, with any kind of observation and action"),
    "Bench": SimulationKind(Bench, BenchOptions, "costs almost nothing, any size; for measuring"),
}


def simulation_kind(name: str) -> Kind:
    """Look up a simulation.

    Raises:
        ValueError: it does not exist; the message lists those that do, and the one that was probably meant.
    """
    kind = SIMULATIONS.get(name)
    if kind is None:
        close = {known.lower(): known for known in SIMULATIONS}
        match = difflib.get_close_matches(name.lower(), close, n=1, cutoff=0.5)
        meant = f" Did you mean {close[match[0]]!r}?" if match else ""
        raise ValueError(f"There is no built-in simulation {name!r}.{meant} There are: {', '.join(SIMULATIONS)}.")
    return kind


def simulation_kinds(names: str) -> dict[str, Kind]:
    """The simulations of ``NAME+NAME2``, by name.

    Raises:
        ValueError: see ``simulation_kind``.
    """
    return {name: simulation_kind(name) for name in names.split("+")}


def simulation_of(behavior: str) -> str | None:
    """The simulation that has this behavior, if any."""
    for name, kind in SIMULATIONS.items():
        if behavior == name or (isinstance(kind, GameKind) and behavior in kind.behaviors):
            return name
    return None
