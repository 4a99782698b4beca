"""3DBall, 3DBallHard and VisualBall: keep a ball on a platform that tilts about two axes.

See docs/explanation/mlagents-behavior.md#built-in-tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import ActionSpec, BehaviorSpec, ObservationSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.envs.sim.canvas import GRAY, RED, Canvas
from trajtrainer.envs.sim.simulation import (
    ALL,
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    option,
    picture_sensor,
    vector_sensor,
)

PHYSICS_STEPS = 5  # physics steps per decision
TIME_STEP = 0.02  # duration of a physics step in seconds
TILT_PER_STEP = np.radians(2.0)  # change of the tilt per physics step for an action of 1
MAX_TILT = 2.0 * np.arcsin(0.25)  # the tilt at which the script of Unity's example stops turning the platform
HALF_SIZE = 2.5  # half the platform's edge length; the platform is a cube
START_HEIGHT = 4.0  # initial height of the ball's center above the platform's center
ROLLING = 5.0 / 7.0  # share of a sideways push that moves a rolling solid sphere; the rest becomes spin
AIR_DRAG = 0.02  # in N per m/s; without drag, the mass would have no effect
MAX_DECISIONS = 1000
NO_SURFACE = -1e6
VIEW = 3.5  # half the width of a camera's view, in the platform's units
SHADE = 220.0  # brightness difference between the platform's edge and center per unit of sin(tilt)
_Pixels = NDArray[np.floating[Any]]
_Array = NDArray[np.float64]

_REWARD = np.array([0.1, -1.0], dtype=np.float32)  # rewards for keeping and for dropping the ball
_PUSH = np.array([ROLLING, 1.0, ROLLING]).reshape(3, 1)


@dataclass(frozen=True, slots=True)
class BallOptions(SimulationOptions):
    """Options of ``BalanceBall``."""

    agents: int = option(12, "number of agents")


class BalanceBall(EpisodicSimulation):
    """3DBall: keep a ball on a platform.

    The agent observes the tilt of the platform, and the position and velocity of the ball. Every decision gives 0.1;
    dropping the ball gives -1 and ends the episode.

    The physics are those of a solid sphere that rolls without slipping, under gravity, on a platform that it can
    neither enter nor bounce off. The platform turns instantly, like a Unity collider without a rigid body, so the ball
    is briefly in the air after a quick turn. The platform supports the ball only while the ball's center is within the
    edges.

    The environment parameters ``mass`` (default 1), ``scale`` of the ball (1) and ``gravity`` (9.81) are drawn when an
    episode starts. Random actions score about 1; the maximum is 100.
    """

    def __init__(
        self,
        options: BallOptions,
        random: np.random.Generator,
        parameters: EnvironmentParameters,
        *,
        sensors: Sequence[ObservationSpec] | None = None,
    ) -> None:
        spec = BehaviorSpec(list(sensors or [vector_sensor(8)]), ActionSpec(2, ()))
        n = options.agents
        super().__init__(spec, n, random, parameters, max_decisions=MAX_DECISIONS)
        self._tilt: _Array = np.zeros((2, n))  # angles about the z and x axes, in radians
        self._ball: _Array = np.zeros((2, 3, n))  # position and velocity, relative to the platform's center
        self._gravity: _Array = np.zeros(n)
        self._damping: _Array = np.zeros(n)
        self._lying: _Array = np.zeros(n)  # distance from the platform's center to the center of a ball on top
        self._surface: _Array = np.zeros(n)  # like ``_lying``, or far below the platform if the ball is beyond the edge
        self._ramp = np.arange(1, PHYSICS_STEPS + 1).reshape(-1, 1, 1) * TILT_PER_STEP
        self._scratch = _scratch(n)

    def _begin(self, agents: LongArray) -> None:
        drawn = self._random.random((len(agents), 4)).T * 2.0 - 1.0
        self._tilt[:, agents] = np.radians(10.0) * drawn[:2]
        self._ball[:, :, agents] = 0.0
        self._ball[0, 0, agents] = 1.5 * drawn[2]
        self._ball[0, 1, agents] = START_HEIGHT
        self._ball[0, 2, agents] = 1.5 * drawn[3]
        mass = self._parameters.draw("mass", 1.0, len(agents))
        self._damping[agents] = np.exp(-AIR_DRAG * TIME_STEP * PHYSICS_STEPS / mass)
        self._lying[agents] = HALF_SIZE + 0.5 * self._parameters.draw("scale", 1.0, len(agents))
        self._surface[agents] = self._lying[agents]
        self._gravity[agents] = self._parameters.draw("gravity", 9.81, len(agents))

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        normal = self._turn(actions.continuous)
        self._roll(normal)
        place = self._ball[0]
        off_center = np.maximum.reduce(np.abs(place[::2]))
        self._surface = np.where(off_center <= HALF_SIZE, self._lying, NO_SURFACE)
        dropped = (off_center > 3.0) | (place[1] < -2.0)
        return _REWARD[dropped.view(np.int8)], dropped

    def _turn(self, continuous: FloatArray) -> _Array:
        """Turn the platform, and return its normal after each physics step, [PHYSICS_STEPS, 3, N]."""
        tilts = self._ramp * _clipped(continuous.T, 1.0)
        tilts += self._tilt
        tilts = _clipped(tilts, MAX_TILT)
        self._tilt = tilts[-1]
        sine = np.sin(tilts)
        cosine = np.cos(tilts)
        normal = self._scratch.normal
        np.multiply(sine[:, 0], cosine[:, 1], out=normal[:, 0])
        np.negative(normal[:, 0], out=normal[:, 0])
        np.multiply(cosine[:, 0], cosine[:, 1], out=normal[:, 1])
        normal[:, 2] = sine[:, 1]
        return normal

    def _roll(self, normal: _Array) -> None:
        """Move the balls through the physics steps.

        Results are written to reused buffers (``out=``), because with a dozen agents, allocating an array takes as long
        as computing it.
        """
        _, moved, along, push, change = self._scratch
        ball = self._ball
        place, velocity = ball
        height, approach = along
        velocity *= self._damping
        fall = self._gravity * TIME_STEP
        push[:, 0] = normal
        np.multiply(normal, _PUSH, out=push[:, 1])
        for n, correction in zip(normal, push, strict=True):
            velocity[1] -= fall
            np.multiply(velocity, TIME_STEP, out=moved)
            place += moved
            np.einsum("cn,kcn->kn", n, ball, out=along)  # components of position and velocity along the normal
            height -= self._surface
            np.minimum(along, 0.0, out=along)
            np.copyto(approach, 0.0, where=height == 0.0)
            np.multiply(along[:, None], correction, out=change)
            ball -= change

    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint the front view at the top, and the view from the right at the bottom."""
        canvas.reach = 7.0
        right, up, forward = self._ball[0][:, number].tolist()
        radius = float(self._lying[number]) - HALF_SIZE
        about_z, about_x = self._tilt[:, number].tolist()
        for tilt, place, height in ((about_z, right, 3.5), (-about_x, forward, -3.5)):
            x, y = HALF_SIZE * np.cos(tilt), HALF_SIZE * np.sin(tilt)
            top = height - 2.5
            canvas.line(-x, top - y, x, top + y, GRAY, 6)
            canvas.disc(place, top + up - HALF_SIZE, radius, RED)

    def _observe(self, agents: Agents) -> Observations:
        return (self._vector(agents, 8),)

    def _vector(self, agents: Agents, size: int) -> FloatArray:
        """Return the platform's quaternion z and x, the ball's position and (if size is 8) velocity, f32 [n, size]."""
        tilt = self._tilt[:, agents]
        half = 0.5 * tilt
        sine = np.sin(half)
        cosine = np.cos(half)
        vector = np.empty((tilt.shape[1], size), dtype=np.float32)
        vector[:, :2] = (sine * cosine[::-1]).T
        vector[:, 2:5] = self._ball[0][:, agents].T
        if size == 8:
            vector[:, 5:] = self._ball[1][:, agents].T
        return vector


def _clipped(values: NDArray[Any], limit: float) -> NDArray[Any]:
    # For small arrays, this is twice as fast as np.clip.
    clipped: NDArray[Any] = np.minimum(np.maximum(values, -limit), limit)
    return clipped


class _Scratch(NamedTuple):
    """Buffers that are reused for every decision."""

    normal: _Array  # the platform's normal after each physics step, [PHYSICS_STEPS, 3, N]
    moved: _Array  # change of position, [3, N]
    along: _Array  # components of position and velocity along the normal, [2, N]
    push: _Array  # corrections of position (per depth) and velocity (per approach speed), [PHYSICS_STEPS, 2, 3, N]
    change: _Array  # correction of position and velocity, [2, 3, N]


def _scratch(n: int) -> _Scratch:
    steps = PHYSICS_STEPS
    return _Scratch(
        np.zeros((steps, 3, n)), np.zeros((3, n)), np.zeros((2, n)), np.zeros((steps, 2, 3, n)), np.zeros((2, 3, n))
    )


@dataclass(frozen=True, slots=True)
class HardOptions(BallOptions):
    """Options of ``BalanceBallHard``."""

    stack: int = option(9, "number of stacked observations, newest last")
    velocity: bool = option(False, "add a second sensor, Velocity, with the ball's velocity")


class BalanceBallHard(BalanceBall):
    """3DBallHard: 3DBall without the velocity. The last 9 observations of 5 numbers are stacked (``--stack``).

    With ``--velocity``, a second sensor contains the velocity, for example for a critic that observes more than the
    policy.
    """

    def __init__(self, options: HardOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        sensors = [vector_sensor(5, stack=options.stack)]
        if options.velocity:
            sensors.append(vector_sensor(3, "Velocity"))
        super().__init__(options, random, parameters, sensors=sensors)
        self._shows_velocity = options.velocity
        self._history = np.zeros((self.num_agents, options.stack, 5), dtype=np.float32)

    def _begin(self, agents: LongArray) -> None:
        super()._begin(agents)
        self._history[agents] = 0.0
        self._history[agents, -1] = self._vector(agents, 5)

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        result = super()._advance(actions)
        self._history[:, :-1] = self._history[:, 1:]
        self._history[:, -1] = self._vector(ALL, 5)
        return result

    def _observe(self, agents: Agents) -> Observations:
        chosen = self._history[agents]
        stacked = chosen.reshape(len(chosen), -1).copy()
        return (stacked, self._vector(agents, 8)[:, 5:].copy()) if self._shows_velocity else (stacked,)


@dataclass(frozen=True, slots=True)
class VisualBallOptions(BallOptions):
    """Options of ``VisualBall``."""

    camera: tuple[int, ...] = option((36, 36), "height,width of the pictures")
    cameras: int = option(1, "1: from above; 2: from the front and from the side")
    stack: int = option(3, "number of stacked gray pictures, newest last, so that motion is visible")

    def __post_init__(self) -> None:
        BallOptions.__post_init__(self)
        if len(self.camera) != 2 or self.cameras not in (1, 2) or self.stack < 1:
            raise ValueError(
                "--camera must be height,width, --cameras 1 or 2, and --stack at least 1; found --camera "
                f"{self.camera}, --cameras {self.cameras} and --stack {self.stack}"
            )


class VisualBall(BalanceBall):
    """3DBall observed through gray pictures, with the last three of each camera stacked as channels.

    Physics, actions and rewards are those of 3DBall. From above, the platform is brighter where it is lower, and the
    ball is a white disc that is larger when it is higher. From the front and the side, the platform's edge is a tilted
    bar with the ball above it.
    """

    def __init__(
        self, options: VisualBallOptions, random: np.random.Generator, parameters: EnvironmentParameters
    ) -> None:
        height, width = options.camera
        names = ["TopCamera"] if options.cameras == 1 else ["FrontCamera", "SideCamera"]
        sensors = [
            picture_sensor(
                options.stack,
                height,
                width,
                f"StackingSensor_size{options.stack}_{name}" if options.stack > 1 else name,
            )
            for name in names
        ]
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

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        result = super()._advance(actions)
        for history, picture in zip(self._history, self._pictures(ALL), strict=True):
            history[:, :-1] = history[:, 1:]
            history[:, -1] = picture
        return result

    def _observe(self, agents: Agents) -> Observations:
        return tuple(history[agents].copy() for history in self._history)

    def _pictures(self, agents: Agents) -> list[NDArray[np.uint8]]:
        """Return the picture of each camera, u8 [n, height, width]."""
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
        """Draw a white disc with an antialiased edge, so that its position can be between pixels."""
        ball = np.clip((radius - distance) / self._pixel + 0.5, 0.0, 1.0)
        picture: NDArray[np.uint8] = (ground + (255.0 - ground) * ball).astype(np.uint8)
        return picture
