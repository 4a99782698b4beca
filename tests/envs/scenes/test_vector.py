"""The agents of a scene as sub-environments, against the log of what every agent lived through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st
from mlagents_envs.exception import UnityActionException

from tests.envs.scenes.world import Episode, World
from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.gymnasium import UnityVectorEnv

STEPS = 60


class Watcher:
    """Plays with actions that are all different, and puts together what each sub-environment showed."""

    def __init__(self, envs: UnityVectorEnv) -> None:
        self.envs = envs
        self.mode = envs.metadata["autoreset_mode"]
        self.episodes: list[Episode] = []
        self._open: list[Episode | None] = [None] * envs.num_envs
        self._next_action = 1

    def play(self, steps: int) -> None:
        shown, infos = self.envs.reset()
        for _ in range(steps):
            actions = np.arange(self._next_action, self._next_action + self.envs.num_envs, dtype=np.float32)[:, None]
            self._next_action += self.envs.num_envs
            for seat in range(self.envs.num_envs):
                if infos["deciding"][seat]:
                    self._decide(seat, shown[seat], float(actions[seat, 0]))
            before, deciding = shown, infos["deciding"]
            shown, rewards, terminated, truncated, infos = self.envs.step(actions)
            assert self.envs.observation_space.contains(shown)
            ended = terminated | truncated
            assert not (terminated & truncated).any()
            final = infos["final_obs"] if self.mode is AutoresetMode.SAME_STEP and ended.any() else shown
            for seat in range(self.envs.num_envs):
                episode = self._open[seat]
                if episode is not None:
                    episode.reward[-1] += float(rewards[seat])
                elif not ended[seat]:
                    assert rewards[seat] == 0
                if ended[seat]:
                    self._end(seat, final[seat], bool(truncated[seat]), float(rewards[seat]))
                elif self.mode is not AutoresetMode.NEXT_STEP and not (infos["deciding"] | deciding)[seat]:
                    assert shown[seat].tolist() == before[seat].tolist()
            if self.mode is AutoresetMode.SAME_STEP and ended.any():
                assert [each is not None for each in infos["final_obs"]] == ended.tolist()
                assert infos["_final_obs"].tolist() == ended.tolist()
            if self.mode is AutoresetMode.DISABLED and ended.any():
                with pytest.raises(ResetNeeded):
                    self.envs.step(actions)
                shown, infos = self.envs.reset(options={"reset_mask": ended})

    def _decide(self, seat: int, seen: Any, action: float) -> None:
        episode = self._open[seat]
        if episode is None:
            episode = self._open[seat] = Episode(int(seen[0]))
        assert int(seen[0]) == episode.agent
        episode.seen.append(float(seen[1]))
        episode.done.append(action)
        episode.reward.append(0.0)

    def _end(self, seat: int, final: Any, interrupted: bool, reward: float) -> None:
        episode = self._open[seat] or Episode(int(final[0]), reward=[reward])
        assert int(final[0]) == episode.agent
        episode.final, episode.interrupted = float(final[1]), interrupted
        self.episodes.append(episode)
        self._open[seat] = None


def without_the_first(episode: Episode) -> Episode:
    """An episode whose first decision was to do nothing, which nobody has seen: what it earned does not count."""
    if episode.done[0] != 0.0:
        return episode
    rest = episode.reward[1:] or episode.reward
    return Episode(episode.agent, episode.seen[1:], episode.done[1:], rest, episode.final, episode.interrupted)


@pytest.mark.parametrize("mode", AutoresetMode)
@given(
    seed=st.integers(0, 1 << 30),
    teams=st.integers(1, 2),
    lockstep=st.booleans(),
    alive=st.booleans(),
)
@settings(max_examples=30)
def test_every_sub_environment_shows_its_agents_episodes(
    mode: AutoresetMode, seed: int, teams: int, lockstep: bool, alive: bool
) -> None:
    world = World(seed, teams=teams, lockstep=lockstep, alive=alive)
    watcher = Watcher(UnityVectorEnv(world, autoreset_mode=mode))
    watcher.play(STEPS)
    expected = world.episodes
    if mode is AutoresetMode.NEXT_STEP:
        expected = [without_the_first(episode) for episode in expected]
    assert sorted(watcher.episodes, key=_key) == sorted(expected, key=_key)


def _key(episode: Episode) -> float:
    return episode.final


def scene(seed: int = 0, **keywords: Any) -> UnityVectorEnv:
    return UnityVectorEnv(World(seed, **keywords))


def test_who_comes_and_goes_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    Watcher(scene()).play(STEPS)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "did not ask for a decision" in line
    assert "infos['deciding']" in line


def test_more_agents_than_sub_environments() -> None:
    envs = UnityVectorEnv(World(0, agents=4), num_envs=3)
    with pytest.raises(UnsupportedError, match=r"4 agents play at the same time.*Set num_envs to the maximum"):
        envs.reset()


def test_room_for_more_agents() -> None:
    envs = UnityVectorEnv(World(0, agents=2), num_envs=3)
    observations, infos = envs.reset()
    assert observations[2].tolist() == [0.0, 0.0]
    assert infos["deciding"].tolist() == [True, True, False]
    assert infos["agent_id"].tolist() == [0, 10, -1]
    assert envs.step(np.ones((3, 1), np.float32))[0].shape == (3, 2)


def test_wrong_numbers_of_actions() -> None:
    envs = scene()
    with pytest.raises(ResetNeeded):
        envs.step(np.ones((3, 1), np.float32))
    envs.reset()
    with pytest.raises(UnityActionException, match="2 actions for 3 sub-environments"):
        envs.step(np.ones((2, 1), np.float32))


def test_a_mask_of_others_is_refused() -> None:
    envs = UnityVectorEnv(World(0), autoreset_mode="Disabled")
    envs.reset()
    with pytest.raises(SettingsError, match="Unity resets all agents or none"):
        envs.reset(options={"reset_mask": np.array([True, False, False])})


def test_gymnasiums_own_wrappers_fit() -> None:
    envs = DictInfoToList(RecordEpisodeStatistics(scene(lockstep=True, alive=True)))
    envs.reset()
    for _ in range(STEPS):
        _, _, terminated, truncated, infos = envs.step(np.ones((3, 1), np.float32))
        told = ["final_obs" in info and "episode" in info for info in infos]
        assert told == (terminated | truncated).tolist()


def test_several_behaviors_need_a_choice(caplog: pytest.LogCaptureFixture) -> None:
    def strikers() -> World:
        return World(0, agents=4, teams=3, lockstep=True, alive=True, names=("Striker", "Goalie"))

    with pytest.raises(SettingsError, match=r"the behaviors Goalie, Striker\. Choose one: behavior='NAME'"):
        UnityVectorEnv(strikers())
    with pytest.raises(
        SettingsError, match=r"no behavior 'Keeper' in the scene\. The behaviors are: Striker\?team=0, Goalie"
    ):
        UnityVectorEnv(strikers(), behavior="Keeper")
    world = strikers()
    envs = UnityVectorEnv(world, behavior="Striker")
    assert "Only the behavior 'Striker' is controlled. Agents of Goalie?team=1 do nothing." in caplog.text
    envs.reset()
    for _ in range(STEPS):
        envs.step(np.ones((3, 1), np.float32))
    assert {agent: set(done) for agent, done in _done_by_agents(world).items()} == {0: {1}, 10: {0}, 20: {1}, 30: {1}}


def _done_by_agents(world: World) -> dict[int, list[float]]:
    done: dict[int, list[float]] = {}
    for episode in world.episodes:
        done.setdefault(episode.agent, []).extend(episode.done)
    return done


def test_an_environment_that_was_started_elsewhere_keeps_its_own_parameters() -> None:
    envs = scene()
    envs.reset(options={"parameters": {}})
    with pytest.raises(SettingsError, match=r"'mass' cannot be sent.*Use the EnvironmentParametersChannel"):
        envs.reset(options={"parameters": {"mass": 2.0}})
    envs.close()


def test_closing() -> None:
    world = World(0)
    envs = UnityVectorEnv(world)
    envs.close()
    envs.close()
    assert world.is_closed
    for wrong in ({"behavior": "Nobody"}, {"observations": "list"}, {"seed": 3}):
        with pytest.raises(SettingsError):
            UnityVectorEnv(World(0), **wrong)


@pytest.mark.parametrize(
    ("argument", "told"),
    [("flatten_branched", "MultiDiscrete"), ("allow_multiple_obs", "observations='tuple'"), ("sed", "'seed'")],
)
def test_an_argument_that_does_not_exist_is_named(argument: str, told: str) -> None:
    arguments: dict[str, Any] = {argument: True}
    with pytest.raises(SettingsError, match=f"A Unity scene does not accept the argument '{argument}'") as raised:
        UnityVectorEnv("sim:Basic", **arguments)
    assert told.strip("'") in str(raised.value)
    assert "PlayerSession" not in str(raised.value)
