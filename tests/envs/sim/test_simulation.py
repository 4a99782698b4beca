"""What holds for every built-in simulation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.envs.sim.scripts import make, make_game, play, random_policy, steps_equal
from trajtrainer.core.spec import BehaviorId, ObservationKind, observation_kind
from trajtrainer.envs.sim.registry import SIMULATIONS, GameKind, SimulationKind, simulation_kind, simulation_of
from trajtrainer.envs.sim.simulation import Simulation, SimulationStep, picture_sensor, vector_sensor

NAMES = [name for name, kind in SIMULATIONS.items() if isinstance(kind, SimulationKind)]


def check_step(simulation: Simulation, step: SimulationStep) -> None:
    spec, agents, masked = simulation.spec, simulation.num_agents, simulation.masked
    ended = len(step.ended)
    assert step.reward.shape == (agents,)
    assert step.reward.dtype == step.ended_reward.dtype == np.float32
    assert step.ended_reward.shape == step.interrupted.shape == (ended,)
    assert (np.diff(step.ended) > 0).all()
    assert (step.reward[step.ended] == 0.0).all()
    for columns, count in ((step.observations, agents), (step.ended_observations, ended)):
        assert len(columns) == len(spec.observation_specs)
        for column, sensor in zip(columns, spec.observation_specs, strict=True):
            assert column.shape == (count, *sensor.shape)
            is_picture = observation_kind(sensor) is ObservationKind.VISUAL and not sensor.name.startswith("Picture")
            assert not ended or column.dtype == (np.uint8 if is_picture else np.float32)
            assert np.isfinite(column).all()
    assert (step.mask is not None) == masked
    if step.mask is not None:
        assert step.mask.shape == (agents, sum(spec.action_spec.discrete_branches))
        assert step.mask.dtype == np.bool_
        branches = np.split(step.mask, np.cumsum(spec.action_spec.discrete_branches)[:-1], axis=1)
        assert not any(branch.all(axis=1).any() for branch in branches), "a branch with nothing allowed"


@pytest.mark.parametrize("name", NAMES)
def test_steps_have_the_announced_shapes_and_episodes_end_and_begin_in_one_step(name: str) -> None:
    simulation = make(name, agents=3)
    policy = random_policy(simulation)
    step = simulation.reset()
    check_step(simulation, step)
    assert not len(step.ended)
    endings = 0
    for _ in range(1200):
        step = simulation.step(policy(step))
        check_step(simulation, step)
        endings += len(step.ended)
        if endings > 6:
            break
    assert endings


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_and_another_seed_something_else(name: str) -> None:
    a, b, c = make(name, 7, agents=4), make(name, 7, agents=4), make(name, 8, agents=4)
    act = random_policy(a)
    step = a.reset()
    assert steps_equal(step, b.reset())
    differs = not steps_equal(step, c.reset())
    for number in range(150):
        actions = act(step)
        if number == 100:
            step = a.reset()
            assert steps_equal(step, b.reset())
            c.reset()
        else:
            step = a.step(actions)
            assert steps_equal(step, b.step(actions))
            differs |= not steps_equal(step, c.step(actions))
    assert differs or name == "Basic"  # where nothing is drawn


@pytest.mark.parametrize("name", NAMES)
def test_a_step_stays_as_it_was_when_the_simulation_goes_on(name: str) -> None:
    simulation = make(name, agents=2)
    act = random_policy(simulation)
    step = simulation.reset()
    for _ in range(30):
        kept = [column.copy() for column in (*step.observations, step.reward)]
        following = simulation.step(act(step))
        assert all(np.array_equal(a, b) for a, b in zip(kept, (*step.observations, step.reward), strict=True))
        step = following


@pytest.mark.parametrize("name", [name for name, kind in SIMULATIONS.items() if isinstance(kind, GameKind)])
def test_games_are_found_by_their_behaviors(name: str) -> None:
    behaviors = {BehaviorId.parse(role).name for role in make_game(name).roles}
    assert {simulation_of(behavior) for behavior in behaviors} == {name}
    assert simulation_of("Nothing") is None


def test_an_unknown_name_is_an_error_that_says_what_was_meant() -> None:
    with pytest.raises(ValueError, match=r"no built-in simulation '3dbal'.*Did you mean '3DBall'.*Available: .*Basic"):
        simulation_kind("3dbal")
    with pytest.raises(ValueError, match="Available: "):
        simulation_kind("zzzzzz")


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="--agents must be at least 1, found 0"):
        make("Basic", agents=0)


def test_sensors_are_named_and_laid_out_as_in_unity() -> None:
    assert vector_sensor(8).name == "VectorSensor_size8"
    stacked = vector_sensor(5, stack=2)
    assert (stacked.name, tuple(stacked.shape)) == ("StackingSensor_size2_VectorSensor_size5", (10,))
    assert observation_kind(picture_sensor(3, 20, 20, "Camera")) is ObservationKind.VISUAL


def test_bench_ends_episodes_at_different_times_and_all_of_them_at_their_length() -> None:
    simulation = make("Bench", agents=4, episode_length=8, observation_size=3, continuous=1, branches=(2,))
    act = random_policy(simulation)
    step = simulation.reset()
    ended = []
    for _ in range(16):
        step = simulation.step(act(step))
        ended.append(step.ended.tolist())
    assert ended == [[], [3], [], [2], [], [1], [], [0]] * 2
    assert play(simulation, act, 40)[4:] == pytest.approx([0.8] * 16)


def test_bench_rewards_groups_and_ends_their_agents_together() -> None:
    simulation = make("Bench", agents=4, episode_length=4, group_size=2)
    act = random_policy(simulation)
    step = simulation.reset()
    assert simulation.groups is not None
    assert simulation.groups.tolist() == [0, 0, 1, 1]
    ended = []
    for _ in range(4):
        step = simulation.step(act(step))
        assert step.group_reward is not None
        assert step.ended_group_reward is not None
        assert step.group_reward.tolist() == pytest.approx([0.0 if i in step.ended else 0.1 for i in range(4)])
        assert step.ended_group_reward.tolist() == pytest.approx([0.1] * len(step.ended))
        ended.append(step.ended.tolist())
    assert ended == [[], [2, 3], [], [0, 1]]


def test_bench_sends_pictures_beside_vectors() -> None:
    simulation = make("Bench", agents=2, picture=(3, 6, 5))
    vector, picture = simulation.reset().observations
    assert vector.shape == (2, 8)
    assert picture.shape == (2, 3, 6, 5)
    assert picture.dtype == np.uint8
    with pytest.raises(ValueError, match="channels,height,width"):
        make("Bench", picture=(3, 6))
