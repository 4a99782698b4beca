"""VisualBall: 3DBall seen by cameras only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.sim.balance_ball import HALF_SIZE, BalanceBall, BallOptions
from trajtrainer.sim.parameters import EnvironmentParameters
from trajtrainer.sim.simulation import ALL, Actions, Agents, Observations, option, picture_sensor

VIEW = 3.5  # half the side of what a camera sees, in the platform's units
SHADE = 220.0  # how much brighter a fully tilted platform is at one end than in the middle
_Pixels = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class VisualBallOptions(BallOptions):
    """Options of ``VisualBall``."""

    camera: tuple[int, ...] = option((36, 36), "height,width of the pictures")
    cameras: int = option(1, "1: from above; 2: from the front and from the side")
    stack: int = option(3, "grey pictures that are stacked, newest last, so that motion is seen")

    def __post_init__(self) -> None:
        BallOptions.__post_init__(self)
        if len(self.camera) != 2 or self.cameras not in (1, 2) or self.stack < 1:
            raise ValueError(
                "expected --camera height,width, 1 or 2 --cameras and a --stack of at least 1, found "
                f"{self.camera}, {self.cameras}, {self.stack}"
            )


class VisualBall(BalanceBall):
    """3DBall (same physics, actions and rewards) observed as grey pictures, the last three of each camera as channels.

    From above, the platform is brighter where it is lower; the ball is a white disc that is larger when it is higher.
    From the front and the side, the platform's edge is a tilted bar with the ball above it.
    """

    def __init__(
        self, options: VisualBallOptions, random: np.random.Generator, parameters: EnvironmentParameters
    ) -> None:
        height, width = options.camera
        names = ["TopCamera"] if options.cameras == 1 else ["FrontCamera", "SideCamera"]
        sensors = [picture_sensor(options.stack, height, width, _stacked(name, options.stack)) for name in names]
        super().__init__(options, random, parameters, sensors=sensors)
        across = np.linspace(-VIEW, VIEW, width, dtype=np.float32)
        down = np.linspace(VIEW, -VIEW, height, dtype=np.float32)
        self._across, self._down = across[None, None, :], down[None, :, None]
        self._pixel = max(2.0 * VIEW / width, 2.0 * VIEW / height)
        self._history = [np.zeros((options.agents, *sensor.shape), dtype=np.uint8) for sensor in sensors]

    def _begin(self, agents: LongArray) -> None:
        super()._begin(agents)
        for history, picture in zip(self._history, self._pictures(agents), strict=True):
            history[agents] = 0
            history[agents, -1] = picture

    def _advance(self, actions: Actions) -> tuple[FloatArray, BoolArray]:
        result = super()._advance(actions)
        for history, picture in zip(self._history, self._pictures(ALL), strict=True):
            history[:, :-1] = history[:, 1:]
            history[:, -1] = picture
        return result

    def _observe(self, agents: Agents) -> Observations:
        return tuple(history[agents].copy() for history in self._history)

    def _pictures(self, agents: Agents) -> list[NDArray[np.uint8]]:
        """Return what each camera sees, u8 [n, height, width]."""
        about_z, about_x = self._tilt[:, agents].astype(np.float32)[:, :, None, None]
        right, up, forward = self._ball[0][:, agents].astype(np.float32)[:, :, None, None]
        radius = (self._lying[agents] - HALF_SIZE).astype(np.float32)[:, None, None]
        if len(self._history) == 1:
            return [self._from_above(about_z, about_x, right, up, forward, radius)]
        return [
            self._from_the_side(about_z, right, up, radius),
            self._from_the_side(-about_x, forward, up, radius),
        ]

    def _from_above(
        self, about_z: _Pixels, about_x: _Pixels, right: _Pixels, up: _Pixels, forward: _Pixels, radius: _Pixels
    ) -> NDArray[np.uint8]:
        across, down = self._across, self._down
        slope = np.sin(about_x) * down - np.sin(about_z) * across
        ground = np.clip(110.0 + SHADE / HALF_SIZE * slope, 20.0, 200.0)
        ground *= (np.abs(across) <= HALF_SIZE) & (np.abs(down) <= HALF_SIZE)
        seen_radius = radius * (1.0 + 0.2 * (up - HALF_SIZE))
        return self._with_ball(ground, np.hypot(across - right, down - forward), seen_radius)

    def _from_the_side(self, tilt: _Pixels, place: _Pixels, up: _Pixels, radius: _Pixels) -> NDArray[np.uint8]:
        across, height = self._across, self._down + HALF_SIZE
        surface = HALF_SIZE + np.tan(tilt) * across
        bar = np.clip((surface - height) / self._pixel + 0.5, 0.0, 1.0) * (np.abs(across) <= HALF_SIZE)
        return self._with_ball(110.0 * bar, np.hypot(across - place, height - up), radius)

    def _with_ball(self, ground: _Pixels, distance: _Pixels, radius: _Pixels) -> NDArray[np.uint8]:
        """Draw a white disc whose edge is soft, so that it can be placed between pixels."""
        ball = np.clip((radius - distance) / self._pixel + 0.5, 0.0, 1.0)
        picture: NDArray[np.uint8] = (ground + (255.0 - ground) * ball).astype(np.uint8)
        return picture


def _stacked(name: str, stack: int) -> str:
    return f"StackingSensor_size{stack}_{name}" if stack > 1 else name
