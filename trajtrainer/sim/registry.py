"""The built-in simulations by the name under which players announce them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajtrainer.sim.balance_ball import BalanceBall, BalanceBallHard, BallOptions, HardOptions
from trajtrainer.sim.basic import Basic
from trajtrainer.sim.bench import Bench, BenchOptions
from trajtrainer.sim.hybrid import Hybrid, HybridOptions
from trajtrainer.sim.parameters import EnvironmentParameters
from trajtrainer.sim.simulation import Simulation, SimulationOptions


@dataclass(frozen=True, slots=True)
class SimulationKind:
    """How a simulation is made.

    Attributes:
        create: called with an instance of ``options``, a random generator and the player's environment parameters.
        options: the class of its options.
        summary: one line for the help text.
    """

    create: Callable[[Any, np.random.Generator, EnvironmentParameters], Simulation]
    options: type[SimulationOptions]
    summary: str


SIMULATIONS: dict[str, SimulationKind] = {
    "3DBall": SimulationKind(BalanceBall, BallOptions, "keep a ball on a platform; 8 numbers, 2 continuous actions"),
    "3DBallHard": SimulationKind(
        BalanceBallHard, HardOptions, "the same without velocities; 9 stacked observations of 5"
    ),
    "Basic": SimulationKind(Basic, SimulationOptions, "walk to the large goal; one-hot of 20, a branch of 3"),
    "Hybrid": SimulationKind(
        Hybrid, HybridOptions, "drive and use tools; 2 sensors, 2 continuous actions, masked branches 3,2"
    ),
    "Bench": SimulationKind(Bench, BenchOptions, "costs almost nothing, any size; for measuring"),
}


def simulation_kind(name: str) -> SimulationKind:
    """The simulation called ``name``.

    Raises:
        ValueError: there is none; the message names the ones that exist and the one that was probably meant.
    """
    kind = SIMULATIONS.get(name)
    if kind is None:
        close = {known.lower(): known for known in SIMULATIONS}
        match = difflib.get_close_matches(name.lower(), close, n=1, cutoff=0.5)
        meant = f" Did you mean {close[match[0]]!r}?" if match else ""
        raise ValueError(f"There is no built-in simulation {name!r}.{meant} Known are: {', '.join(SIMULATIONS)}.")
    return kind
