"""A scene as PettingZoo has it, against the log of what every agent lived through."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st
from mlagents_envs.exception import UnityActionException

from tests.envs.scenes.world import Episode, World
from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.pettingzoo import UnityAECEnv, UnityParallelEnv

SCENES = [
    ("DungeonEscape", ["--areas", "1"]),  # groups, of whom some die before the others
    ("StrikerVsGoalie", ["--areas", "1"]),  # two behaviors
]


@pytest.mark.parametrize(("simulation", "arguments"), SCENES)
def test_pettingzoo_approves(simulation: str, arguments: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names, of spaces without bounds, and that there is no render()
        from pettingzoo.test import api_test, parallel_api_test

        parallel = UnityParallelEnv(f"sim:{simulation}", additional_args=arguments)
        parallel_api_test(parallel, num_cycles=30)
        parallel.close()
        aec = UnityAECEnv(f"sim:{simulation}", additional_args=arguments)
        api_test(aec, num_cycles=30)
        aec.close()


class Watcher:
    """Puts together what agents saw, did and earned."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self._open: dict[str, Episode] = {}
        self._next_action = 0.0

    def act(self, agent: str, seen: Any) -> Any:
        self._next_action += 1.0
        episode = self._open.setdefault(agent, Episode(int(seen[0])))
        assert agent.endswith(f"?agent_id={episode.agent}")
        episode.seen.append(float(seen[1]))
        episode.done.append(self._next_action)
        episode.reward.append(0.0)
        return np.array([self._next_action])

    def earn(self, agent: str, reward: float) -> None:
        if agent in self._open:
            self._open[agent].reward[-1] += reward

    def end(self, agent: str, seen: Any, *, interrupted: bool) -> None:
        episode = self._open.pop(agent)
        episode.final, episode.interrupted = float(seen[1]), interrupted
        self.episodes.append(episode)


def play_parallel(world: World, watcher: Watcher, resets: int) -> None:
    env = UnityParallelEnv(world)
    for _ in range(resets):
        observations, infos = env.reset()
        for _ in range(200):
            actions = {
                agent: watcher.act(agent, observations[agent]) if infos[agent]["deciding"] else np.array([-1.0])
                for agent in env.agents
            }
            observations, rewards, terminated, truncated, infos = env.step(actions)
            for agent in observations:
                watcher.earn(agent, rewards[agent])
                if terminated[agent] or truncated[agent]:
                    watcher.end(agent, observations[agent], interrupted=truncated[agent])
            if not env.agents:
                break
        watcher._open.clear()


def play_aec(world: World, watcher: Watcher, resets: int) -> None:
    env = UnityAECEnv(world)
    for _ in range(resets):
        env.reset()
        for agent in env.agent_iter(200):
            observation, reward, terminated, truncated, info = env.last()
            watcher.earn(agent, reward)
            if terminated or truncated:
                watcher.end(agent, observation, interrupted=truncated)
                env.step(None)
            else:
                assert info["deciding"]
                env.step(watcher.act(agent, observation))
        watcher._open.clear()


@pytest.mark.parametrize("play", [play_parallel, play_aec])
@given(seed=st.integers(0, 1 << 30), teams=st.integers(1, 2), lockstep=st.booleans(), alive=st.booleans())
@settings(max_examples=25)
def test_every_agent_shows_its_episode(
    play: Callable[[World, Watcher, int], None], seed: int, teams: int, lockstep: bool, alive: bool
) -> None:
    """Of an agent's episodes between two resets only the first; those of new ids are agents of their own."""
    world, watcher = World(seed, teams=teams, lockstep=lockstep, alive=alive), Watcher()
    play(world, watcher, 3)
    told = {episode.final: episode for episode in world.episodes}
    for episode in watcher.episodes:
        assert episode == told[episode.final]
    acted = {episode.final for episode in world.episodes if any(episode.done)}
    shown = {episode.final for episode in watcher.episodes}
    assert acted - shown <= {episode.final for episode in world.episodes if not all(episode.done)}


def test_who_has_ended_is_out_until_the_next_reset() -> None:
    world = World(3, alive=True)
    env = UnityParallelEnv(world)
    assert env.agents == []
    with pytest.raises(ResetNeeded):
        env.step({})
    everybody = [f"Walker?team=0?agent_id={10 * number}" for number in range(3)]
    assert env.possible_agents == everybody
    env.reset()
    assert env.agents == everybody
    while len(env.agents) == 3:
        env.step(dict.fromkeys(env.agents, np.zeros(1)))
    (gone, *_) = set(everybody) - set(env.agents)
    with pytest.raises(UnityActionException, match=r"array\(\[1., 2.\]\) is not in Box"):
        env.step({env.agents[0]: np.array([1.0, 2.0])})
    with pytest.raises(SettingsError, match=r"'Nobody', but the agents are"):
        env.step({"Nobody": np.zeros(1)})
    with pytest.raises(SettingsError, match="no agent 'Nobody'"):
        env.action_space("Nobody")
    while env.agents:
        assert gone not in env.agents
        env.step({})
    env.reset()
    assert env.agents == everybody
    env.close()
    assert world.is_closed


def play_to_the_end(env: UnityParallelEnv) -> None:
    while env.agents:
        env.step({})


def test_acting_in_turn_needs_a_reset_before_the_first_episode_and_after_the_last() -> None:
    env = UnityAECEnv(World(3, alive=True))
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(np.zeros(1))
    env.reset()
    while env.agents:
        ended = env.terminations[env.agent_selection] or env.truncations[env.agent_selection]
        env.step(None if ended else np.zeros(1))
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(None)
    env.close()


def test_agents_with_ever_new_ids_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajtrainer.envs.scenes.pettingzoo._MOST_KNOWN", 10)
    env = UnityParallelEnv(World(1, agents=5))
    known = []
    for _ in range(12):
        env.reset()
        for _ in range(3):
            if env.agents:
                env.step({})
        known.append(len(env.possible_agents))
    assert 10 < max(known) < 30
    assert known != sorted(known)  # forgotten now and then
    monkeypatch.setattr("trajtrainer.envs.scenes.pettingzoo._MOST_GONE", 0)
    env.reset()
    with pytest.raises(UnsupportedError, match="More than 0 agents have come and gone"):
        play_to_the_end(env)


def test_only_one_behavior() -> None:
    env = UnityParallelEnv(World(0, teams=2, names=("Striker", "Goalie")), behavior="Goalie")
    env.reset()
    assert {agent.partition("?")[0] for agent in env.agents} == {"Goalie"}


def test_spaces_and_masks_of_every_kind() -> None:
    env = UnityParallelEnv("sim:Hybrid", additional_args=["--agents", "2"])
    observations, infos = env.reset()
    for _ in range(20):
        actions = {agent: env.action_space(agent).sample(mask=infos[agent]["action_mask"]) for agent in env.agents}
        observations, _, _, _, infos = env.step(actions)
        assert all(env.observation_space(agent).contains(seen) for agent, seen in observations.items())
        if not env.agents:
            observations, infos = env.reset()
    env.close()


def test_what_is_not_installed() -> None:
    program = "import sys; sys.modules['pettingzoo'] = None\nimport trajtrainer.pettingzoo"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert "Install it with: pip install 'trajtrainer[gym]'" in done.stderr.replace("\n", " ")
