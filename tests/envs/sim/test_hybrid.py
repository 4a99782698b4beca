"""Hybrid against a slow version of its rules, and the scores that its description names."""

from __future__ import annotations

import numpy as np
import pytest

from tests.envs.sim.scripts import make, play, random_policy
from trajtrainer.envs.sim.simulation import SimulatedActions, SimulationStep


def straight(step: SimulationStep) -> SimulatedActions:
    """Drives straight to the parcel and uses the needed tool there."""
    motion, task = step.observations
    drive = np.clip(motion[:, 2:] / 0.2, -1.0, 1.0).astype(np.float32)
    return SimulatedActions(drive, np.stack([task[:, :3].argmax(axis=1), task[:, 6] > 0], axis=1).astype(np.int32))


def test_scores_of_the_straight_way_and_of_random_actions() -> None:
    simulation = make("Hybrid", agents=50)
    assert np.mean(play(simulation, straight, 300)) == pytest.approx(0.953, abs=0.003)
    assert -0.25 < np.mean(play(simulation, random_policy(simulation), 300)) < 0.1


def test_masks_forbid_the_broken_tool_and_use_out_of_reach() -> None:
    simulation = make("Hybrid", agents=40)
    act = random_policy(simulation)
    step = simulation.reset()
    for _ in range(60):
        motion, task = step.observations
        assert step.mask is not None
        near = (np.abs(motion[:, 2:]) <= 0.3 + 1e-6).all(axis=1)
        np.testing.assert_array_equal(task[:, 6], near)
        np.testing.assert_array_equal(step.mask[:, :3], task[:, 3:6] == 1.0)
        np.testing.assert_array_equal(step.mask[:, 3:], np.stack([np.zeros_like(near), ~near], axis=1))
        assert not (task[:, :3] * task[:, 3:6]).any(), "the needed tool is never the broken one"
        step = simulation.step(act(step))
        assert (step.ended_reward > -1.0).all(), "who honors the masks is never punished"


@pytest.mark.parametrize("mistake", ["broken tool", "out of reach"])
def test_a_forbidden_choice_ends_the_episode_with_minus_one(mistake: str) -> None:
    simulation = make("Hybrid", agents=30)
    step = simulation.reset()
    _, task = step.observations
    discrete = np.zeros((30, 2), dtype=np.int32)
    discrete[:, 0] = (task[:, 3:6] if mistake == "broken tool" else task[:, :3]).argmax(axis=1)
    discrete[:, 1] = mistake == "out of reach"
    wrong = np.flatnonzero(task[:, 6] == 0) if mistake == "out of reach" else np.arange(30)
    step = simulation.step(SimulatedActions(np.zeros((30, 2), dtype=np.float32), discrete))
    rewards = dict(zip(step.ended.tolist(), step.ended_reward.tolist(), strict=True))
    assert [rewards[agent] for agent in wrong.tolist()] == [-1.0] * len(wrong)


def test_the_rules_of_rewards_moves_and_limit() -> None:
    simulation = make("Hybrid", agents=20)
    act = random_policy(simulation, 3)
    step = simulation.reset()
    age = np.zeros(20, dtype=int)
    interruptions = 0
    for _ in range(200):
        motion, task = step.observations
        actions = act(step)
        step = simulation.step(actions)
        age += 1
        ended = {agent: row for row, agent in enumerate(step.ended.tolist())}
        for agent in range(20):
            tool, use = actions.discrete[agent].tolist()
            needed = int(task[agent, :3].argmax())
            reward = -0.01 + (0.0 if not use else 1.0 if tool == needed else -0.1)
            opened = bool(use) and tool == needed
            assert (agent in ended) == (opened or age[agent] == 40)
            got = step.ended_reward[ended[agent]] if agent in ended else step.reward[agent]
            assert got == pytest.approx(reward, abs=1e-6)
            place = np.clip(motion[agent, :2] + 0.2 * actions.continuous[agent], -1.0, 1.0)
            after = step.ended_observations[0][ended[agent]] if agent in ended else step.observations[0][agent]
            assert after[:2] == pytest.approx(place, abs=1e-6)
            if agent in ended:
                assert step.interrupted[ended[agent]] == (not opened)
                interruptions += not opened
                age[agent] = 0
    assert interruptions
