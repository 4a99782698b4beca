"""3DBall against a slow version of its physics, one ball at a time in plain Python, and against its rewards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.envs.sim.scripts import make, play, random_policy
from trajtrainer.envs.sim.simulation import (
    Constant,
    EnvironmentParameters,
    SimulatedActions,
    SimulationStep,
    Uniform,
    seeded_generator,
)

AGENTS = 5


class OneBall:
    """The physics of one ball as written in words: five steps of 0.02 s between two decisions."""

    def __init__(self, drawn: list[float], mass: float, scale: float, gravity: float) -> None:
        z, x, right, forward = (2.0 * value - 1.0 for value in drawn)
        self.tilt = [math.radians(10.0) * z, math.radians(10.0) * x]
        self.place = [1.5 * right, 4.0, 1.5 * forward]
        self.velocity = [0.0, 0.0, 0.0]
        self.mass, self.radius, self.gravity = mass, 0.5 * scale, gravity
        self.decisions = 0

    def decide(self, action: list[float]) -> None:
        drag = math.exp(-0.02 * 0.1 / self.mass)
        self.velocity = [v * drag for v in self.velocity]
        supported = max(abs(self.place[0]), abs(self.place[2])) <= 2.5
        start = list(self.tilt)
        limit = 2.0 * math.asin(0.25)
        for number in range(1, 6):
            for axis in (0, 1):
                turned = start[axis] + number * math.radians(2.0) * max(-1.0, min(1.0, action[axis]))
                self.tilt[axis] = max(-limit, min(limit, turned))
            self._move(supported)
        self.decisions += 1

    def _move(self, supported: bool) -> None:
        about_z, about_x = self.tilt
        normal = (-math.sin(about_z) * math.cos(about_x), math.cos(about_z) * math.cos(about_x), math.sin(about_x))
        self.velocity[1] -= self.gravity * 0.02
        self.place = [p + 0.02 * v for p, v in zip(self.place, self.velocity, strict=True)]
        depth = sum(n * p for n, p in zip(normal, self.place, strict=True)) - 2.5 - self.radius
        if not supported or depth >= 0.0:
            return
        approach = min(0.0, sum(n * v for n, v in zip(normal, self.velocity, strict=True)))
        for axis, rolling in enumerate((5.0 / 7.0, 1.0, 5.0 / 7.0)):
            self.place[axis] -= depth * normal[axis]
            self.velocity[axis] -= approach * normal[axis] * rolling

    @property
    def dropped(self) -> bool:
        return abs(self.place[0]) > 3.0 or abs(self.place[2]) > 3.0 or self.place[1] < -2.0

    def observe(self) -> list[float]:
        half_z, half_x = self.tilt[0] / 2, self.tilt[1] / 2
        quaternion = [math.sin(half_z) * math.cos(half_x), math.sin(half_x) * math.cos(half_z)]
        return [*quaternion, *self.place, *self.velocity]


def parameters(seed: int) -> EnvironmentParameters:
    made = EnvironmentParameters()
    made.set("mass", Uniform(seeded_generator(seed), 0.5, 10.0))
    made.set("scale", Uniform(seeded_generator(seed + 1), 0.75, 3.0))
    made.set("gravity", Constant(8.0))
    return made


def test_all_balls_at_once_do_what_single_balls_do() -> None:
    simulation = make("3DBall", 3, parameters(1), agents=AGENTS)
    generator, drawn = seeded_generator(3), parameters(1)

    def new_ball() -> OneBall:
        row = generator.random(4).tolist()
        mass, scale, gravity = (drawn.draw(name, math.nan, 1)[0] for name in ("mass", "scale", "gravity"))
        return OneBall(row, mass, scale, gravity)

    balls = [new_ball() for _ in range(AGENTS)]
    step = simulation.reset()
    act = random_policy(simulation, 5)
    endings = 0
    for _ in range(300):
        np.testing.assert_allclose(step.observations[0], [ball.observe() for ball in balls], rtol=1e-5, atol=1e-6)
        actions = act(step)
        step = simulation.step(actions)
        for ball, action in zip(balls, actions.continuous.tolist(), strict=True):
            ball.decide(action)
        ended = [number for number, ball in enumerate(balls) if ball.dropped]
        assert step.ended.tolist() == ended
        last = [balls[number].observe() for number in ended]
        np.testing.assert_allclose(step.ended_observations[0], np.reshape(last, (-1, 8)), rtol=1e-5, atol=1e-6)
        for number in ended:
            balls[number] = new_ball()
        endings += len(ended)
    assert endings > 20


def balancing(step: SimulationStep) -> SimulatedActions:
    """Tilts against place and velocity of the ball."""
    seen = step.observations[0]
    wanted = np.clip(0.06 * seen[:, [2, 4]] + 0.12 * seen[:, [5, 7]], -0.2, 0.2) * [1.0, -1.0]
    turn = np.clip(10.0 * (wanted - seen[:, :2]), -1.0, 1.0)
    return SimulatedActions(turn.astype(np.float32), np.zeros((len(seen), 0), dtype=np.int32))


def test_a_ball_that_is_kept_scores_100_in_1000_decisions_and_is_interrupted() -> None:
    simulation = make("3DBall", agents=AGENTS)
    step = simulation.reset()
    for _ in range(999):
        step = simulation.step(balancing(step))
        assert not len(step.ended)
        assert (step.reward == np.float32(0.1)).all()
    step = simulation.step(balancing(step))
    assert step.ended.tolist() == list(range(AGENTS))
    assert step.interrupted.all()
    assert (step.ended_reward == np.float32(0.1)).all()
    assert (step.observations[0][:, 3] == 4.0).all(), "the next episodes have begun"
    assert play(simulation, balancing, 1000) == pytest.approx([100.0] * AGENTS, abs=1e-3)


def test_a_dropped_ball_costs_one_and_is_no_interruption() -> None:
    simulation = make("3DBall", agents=1)
    step = simulation.reset()
    tilt = SimulatedActions(np.ones((1, 2), dtype=np.float32), np.zeros((1, 0), dtype=np.int32))
    while not len(step.ended):
        step = simulation.step(tilt)
    assert step.ended_reward.tolist() == [-1.0]
    assert step.interrupted.tolist() == [False]
    assert np.abs(step.ended_observations[0][0, [2, 4]]).max() > 3.0


def test_random_actions_score_little() -> None:
    simulation = make("3DBall")
    scores = play(simulation, random_policy(simulation), 600)
    assert 0.5 < np.mean(scores) < 3.0


@pytest.mark.parametrize(("name", "value"), [("scale", 2.0), ("gravity", 4.0), ("mass", 0.1)])
def test_environment_parameters_change_what_happens(name: str, value: float) -> None:
    def last(value: float | None) -> float:
        made = EnvironmentParameters()
        if value is not None:
            made.set(name, Constant(value))
        simulation = make("3DBall", 0, made, agents=1)
        step = simulation.reset()
        still = SimulatedActions(np.zeros((1, 2), dtype=np.float32), np.zeros((1, 0), dtype=np.int32))
        for _ in range(6):
            step = simulation.step(still)
        return float(step.observations[0][0, 3])

    assert last(None) == last({"scale": 1.0, "gravity": 9.81, "mass": 1.0}[name])
    assert last(value) != last(None)


def test_hard_stacks_nine_observations_without_velocity_newest_last() -> None:
    hard, easy = make("3DBallHard", 2, agents=AGENTS), make("3DBall", 2, agents=AGENTS)
    assert [tuple(sensor.shape) for sensor in hard.spec.observation_specs] == [(45,)]
    history: list[NDArray[Any]] = [np.zeros((AGENTS, 5), dtype=np.float32) for _ in range(9)]
    act = random_policy(easy, 1)
    step, seen = hard.reset(), easy.reset()
    for _ in range(60):
        for agent in seen.ended:
            for past in history:
                past[agent] = 0.0
        history = [*history[1:], seen.observations[0][:, :5].copy()]
        np.testing.assert_array_equal(step.observations[0], np.concatenate(history, axis=1))
        actions = act(seen)
        step, seen = hard.step(actions), easy.step(actions)
        assert step.ended.tolist() == seen.ended.tolist()
        np.testing.assert_array_equal(step.ended_observations[0][:, 40:], seen.ended_observations[0][:, :5])
    assert [tuple(sensor.shape) for sensor in make("3DBallHard", stack=1).spec.observation_specs] == [(5,)]


def test_hard_may_tell_the_velocity_by_a_sensor_of_its_own() -> None:
    hard, easy = make("3DBallHard", 2, agents=AGENTS, velocity=True), make("3DBall", 2, agents=AGENTS)
    sensors = [(sensor.name, tuple(sensor.shape)) for sensor in hard.spec.observation_specs]
    assert sensors[1] == ("Velocity", (3,))
    act = random_policy(easy, 1)
    step, seen = hard.reset(), easy.reset()
    for _ in range(60):
        np.testing.assert_array_equal(step.observations[1], seen.observations[0][:, 5:])
        actions = act(seen)
        step, seen = hard.step(actions), easy.step(actions)
        np.testing.assert_array_equal(step.ended_observations[1], seen.ended_observations[0][:, 5:])
