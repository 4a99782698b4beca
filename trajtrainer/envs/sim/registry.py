"""Registry of the built-in simulations by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trajtrainer.core.plugins import Reference, resolve

if TYPE_CHECKING:
    from trajtrainer.envs.sim.simulation import EnvironmentParameters, Game, Simulation, SimulationOptions

_PLAIN_OPTIONS = "trajtrainer.envs.sim.simulation:SimulationOptions"


@dataclass(frozen=True, slots=True)
class SimulationKind:
    """A simulation in the registry: how to create it, its options and its help text.

    Attributes:
        maker: factory, called with an instance of ``options``, a random generator and the player's environment
            parameters.
        options_class: class of the simulation's options.
        summary: one line for the help text.
    """

    maker: Reference
    options_class: Reference
    summary: str

    @property
    def create(self) -> Callable[[Any, np.random.Generator, EnvironmentParameters], Simulation]:
        """The factory. Its module is imported only when a player needs it."""
        return resolve(self.maker)

    @property
    def options(self) -> type[SimulationOptions]:
        """The class of the simulation's options."""
        return cast("type[SimulationOptions]", resolve(self.options_class))


@dataclass(frozen=True, slots=True)
class GameKind:
    """A game in the registry. Unlike a simulation, a game defines its own behaviors and teams.

    Attributes:
        maker: factory, called with an instance of ``options``, a random generator and the player's environment
            parameters.
        options_class: class of the simulation's options.
        summary: one line for the help text.
        behaviors: names of the game's behaviors; empty if it has a single behavior named after the game.
    """

    maker: Reference
    options_class: Reference
    summary: str
    behaviors: tuple[str, ...] = ()

    @property
    def create(self) -> Callable[[Any, np.random.Generator, EnvironmentParameters], Game]:
        """The factory. Its module is imported only when a player needs it."""
        return resolve(self.maker)

    @property
    def options(self) -> type[SimulationOptions]:
        """The class of the simulation's options."""
        return cast("type[SimulationOptions]", resolve(self.options_class))


Kind = SimulationKind | GameKind

SIMULATIONS: dict[str, Kind] = {
    "3DBall": SimulationKind(
        "trajtrainer.envs.sim.balance_ball:BalanceBall",
        "trajtrainer.envs.sim.balance_ball:BallOptions",
        "keep a ball on a platform; 8 numbers, 2 continuous actions",
    ),
    "3DBallHard": SimulationKind(
        "trajtrainer.envs.sim.balance_ball:BalanceBallHard",
        "trajtrainer.envs.sim.balance_ball:HardOptions",
        "the same without velocities; 9 stacked observations of 5",
    ),
    "Basic": SimulationKind(
        "trajtrainer.envs.sim.walks:Basic",
        _PLAIN_OPTIONS,
        "walk to the large goal; one-hot of 20, a branch of 3",
    ),
    "Chase": SimulationKind(
        "trajtrainer.envs.sim.walks:Chase",
        "trajtrainer.envs.sim.walks:ChaseOptions",
        "walk to a target; 4 numbers, 2 continuous actions",
    ),
    "Hybrid": SimulationKind(
        "trajtrainer.envs.sim.masked:Hybrid",
        "trajtrainer.envs.sim.masked:HybridOptions",
        "drive and use tools; 2 sensors, 2 continuous actions, masked branches 3,2",
    ),
    "GridWorld": SimulationKind(
        "trajtrainer.envs.sim.masked:GridWorld",
        "trajtrainer.envs.sim.masked:GridOptions",
        "walk to the named goal; a picture and a goal signal, a masked branch of 5",
    ),
    "Memory": SimulationKind(
        "trajtrainer.envs.sim.walks:MemoryCorridor",
        "trajtrainer.envs.sim.walks:MemoryOptions",
        "remember a sign until the end of a corridor; a branch of 4",
    ),
    "Sorter": SimulationKind(
        "trajtrainer.envs.sim.puzzles:Sorter",
        "trajtrainer.envs.sim.puzzles:SorterOptions",
        "press tiles in order; up to 20 entities, branches 3,3,2",
    ),
    "Match3": SimulationKind(
        "trajtrainer.envs.sim.puzzles:Match3",
        "trajtrainer.envs.sim.puzzles:Match3Options",
        "three of a kind in a row; pictures of a board, masked moves",
    ),
    "VisualBall": SimulationKind(
        "trajtrainer.envs.sim.balance_ball:VisualBall",
        "trajtrainer.envs.sim.balance_ball:VisualBallOptions",
        "3DBall seen by one or two cameras",
    ),
    "Duel": GameKind(
        "trajtrainer.envs.sim.games:Duel",
        "trajtrainer.envs.sim.games:DuelOptions",
        "push the other team off a shrinking ring; 7 numbers, a branch of 5",
    ),
    "DungeonEscape": GameKind(
        "trajtrainer.envs.sim.games:DungeonEscape",
        "trajtrainer.envs.sim.games:DungeonOptions",
        "one member dies so that its group can escape; groups, 17 numbers, a branch of 5",
    ),
    "StrikerVsGoalie": GameKind(
        "trajtrainer.envs.sim.games:StrikerVsGoalie",
        "trajtrainer.envs.sim.games:StrikerOptions",
        "score a goal, or defend it; behaviors Striker and Goalie, 3 and 4 numbers, branches of 3",
        ("Striker", "Goalie"),
    ),
    "Toy": SimulationKind(
        "trajtrainer.envs.sim.synthetic:Toy",
        "trajtrainer.envs.sim.synthetic:ToyOptions",
        "a minimal task with any kind of observation and action",
    ),
    "Bench": SimulationKind(
        "trajtrainer.envs.sim.synthetic:Bench",
        "trajtrainer.envs.sim.synthetic:BenchOptions",
        "near-zero cost, any size; for benchmarks",
    ),
}


def simulation_kind(name: str) -> Kind:
    """Look up a simulation by name.

    Raises:
        ValueError: there is no such simulation; the message lists the existing ones and suggests a close match.
    """
    kind = SIMULATIONS.get(name)
    if kind is None:
        close = {known.lower(): known for known in SIMULATIONS}
        match = difflib.get_close_matches(name.lower(), close, n=1, cutoff=0.5)
        meant = f" Did you mean {close[match[0]]!r}?" if match else ""
        raise ValueError(f"There is no built-in simulation {name!r}.{meant} Available: {', '.join(SIMULATIONS)}.")
    return kind


def simulation_kinds(names: str) -> dict[str, Kind]:
    """Return the simulations in ``NAME+NAME2``, keyed by name.

    Raises:
        ValueError: see ``simulation_kind``.
    """
    return {name: simulation_kind(name) for name in names.split("+")}


def simulation_of(behavior: str) -> str | None:
    """Return the name of the simulation that has this behavior, or None."""
    for name, kind in SIMULATIONS.items():
        if behavior == name or (isinstance(kind, GameKind) and behavior in kind.behaviors):
            return name
    return None
