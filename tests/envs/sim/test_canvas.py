"""Every built-in simulation can be looked at."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from trajtrainer.envs.sim.registry import SIMULATIONS
from trajtrainer.envs.sim.simulation import EnvironmentParameters
from trajtrainer.envs.sim.wire import API_VERSION, PACKAGE_VERSION, WireStyle
from trajtrainer.envs.sim.world import World


@pytest.mark.parametrize("name", SIMULATIONS)
def test_a_picture_of_each_simulation(name: str) -> None:
    """It shows where the simulation is, and looking at it changes nothing."""
    kind = SIMULATIONS[name]

    def world() -> World:
        style = WireStyle(API_VERSION, PACKAGE_VERSION, png=False)
        made = World([(name, kind, kind.options())], 1, 5, style, EnvironmentParameters())
        made.reset()
        return made

    looked, alone = world(), world()
    before = looked.picture()
    assert before == looked.picture()
    with Image.open(io.BytesIO(before)) as picture:
        assert len(picture.convert("RGB").getcolors(10_000)) > 3  # type: ignore[arg-type]
        assert 400 < picture.width < 600
    steps = [looked.step({}) for _ in range(12)]
    assert steps == [alone.step({}) for _ in range(12)]
    if name not in (
        "Basic",
        "Memory",
        "GridWorld",
        "Match3",
        "Toy",
        "Chase",
    ):  # where doing nothing leaves everything as it is
        assert looked.picture() != before
