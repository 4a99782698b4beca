"""What ``--env`` may say, and what is said when it cannot be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import trajtrainer
from tests.envs.python.gymnasium_samples import CountingEnv, SpacesEnv
from tests.envs.python.pettingzoo_samples import Arena
from tests.envs.python.test_base_env_environment import RUNNER, Scripted, script
from tests.run.runs import ppo
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError, UnsupportedError
from trajtrainer.envs import players, select
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.python.base_env import BaseEnvEnvironment
from trajtrainer.envs.python.factories import from_factory
from trajtrainer.envs.python.gymnasium_environment import GymnasiumEnvironment
from trajtrainer.envs.python.pettingzoo_environment import PettingZooEnvironment
from trajtrainer.envs.unity.faults import LaunchError
from trajtrainer.envs.user_code import keyword_arguments, to_keywords
from trajtrainer.settings.environment import EnvironmentSettings
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings


class NoLogs:
    def player_log(self, worker: int) -> Path | None:
        return None


def settings(env_path: str | None, *env_args: str, num_envs: int = 1, seed: int = 50) -> RunSettings:
    return RunSettings(
        env_settings=EnvironmentSettings(env_path=env_path, env_args=list(env_args), num_envs=num_envs, seed=seed)
    )


def make(env_path: str, *env_args: str, num_envs: int = 1) -> Environment:
    return select.make_environment(settings(env_path, *env_args, num_envs=num_envs), NoLogs())


def counting(length: int = 3, *, seed: int = 0, worker_id: int = 0) -> CountingEnv:
    env = CountingEnv(length)
    env.seed = 1000 * worker_id + seed
    return env


def base_env(side_channels: list[Any], worker_id: int) -> Scripted:
    env = Scripted({"Runner?team=1": RUNNER, "Eye": RUNNER}, script())
    env.log.append((worker_id, len(side_channels)))
    return env


def nothing() -> object:
    return object()


def failing() -> object:
    raise OSError("no such level")


def test_env_args_are_keyword_arguments() -> None:
    given = ["a=1", "--b=2.5", "c=true", "d=[1, 2]", "e=some text", "f=", "g=1e-3", "h=null", "i={x: y}", 'j="2"']
    assert keyword_arguments(given) == {
        "a": 1,
        "b": 2.5,
        "c": True,
        "d": [1, 2],
        "e": "some text",
        "f": "",
        "g": 0.001,
        "h": None,
        "i": {"x": "y"},
        "j": "2",
    }
    assert keyword_arguments(None) == {}


@pytest.mark.parametrize("wrong", ["fast", "=3", "two words=3"])
def test_env_args_that_are_none(wrong: str) -> None:
    with pytest.raises(SettingsError, match="key=value"):
        keyword_arguments([wrong])
    with pytest.raises(SettingsError, match="YAML"):
        keyword_arguments(["a=[1"])


def test_env_args_from_python_and_back() -> None:
    arguments = {"a": 1e-5, "b": "1", "c": None, "d": [True, {"e": "f"}], "g": "true"}
    assert keyword_arguments(to_keywords(arguments)) == arguments
    with pytest.raises(SettingsError, match=r"functools\.partial"):
        to_keywords({"a": object()})


def test_gymnasium_ids() -> None:
    environment = make("gym:CartPole-v1", "max_episode_steps=2", num_envs=3)
    assert isinstance(environment, GymnasiumEnvironment)
    environment.reset({})
    (event,) = environment.wait()
    assert event.steps["CartPole-v1"].agent.tolist() == [0, 1, 2]
    assert len(np.unique(event.steps["CartPole-v1"].obs[0], axis=0)) == 3, "copies have their own seeds"
    environment.close()


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("gym:ALE/Pong-v5", r"--env=gym:ale_py:ALE/Pong-v5 \(pip install 'trajtrainer\[atari\]'\)"),
        ("gym:ale_py:ALE/Pong-v5", r"ale_py.*\(pip install 'trajtrainer\[atari\]'\)"),
        ("gym:mine/Maze-v0", "name the module that registers them: --env=gym:MODULE:mine/Maze-v0"),
        ("gym:Maze-v0", "name the module that registers them: --env=gym:MODULE:Maze-v0"),
    ],
)
def test_gymnasium_ids_that_nobody_registered(path: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(SettingsError, match=hint):
        make(path)


def test_gymnasium_ids_with_a_slip_of_the_pen() -> None:
    with pytest.raises(SettingsError, match="Did you mean: `CartPole`") as error:
        make("gym:Cartpole-v1")
    assert "MODULE" not in str(error.value)


@pytest.mark.parametrize(
    ("behaviors", "hint"),
    [
        ({}, "--env=sim:3DBall"),
        ({"Mine": {}, "Basic": {}}, "--env=sim:Basic"),
        ({"Striker": {}, "Goalie": {}}, "--env=sim:StrikerVsGoalie"),
        ({"Mine": {}}, None),
    ],
)
def test_who_has_no_editor_is_told_of_the_simulations(
    behaviors: dict[str, Any],
    hint: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(players, "make_unity_environment", lambda settings, logs, **_: None)
    caplog.set_level("INFO")
    select.make_environment(RunSettings(behaviors=dict.fromkeys(behaviors, TrainerSettings())), NoLogs())
    assert hint in caplog.text if hint else caplog.text == ""


def test_gymnasium_modules_that_register_ids() -> None:
    environment = make("gym:tests.envs.python.registering:Counting-v3", "length=1")
    environment.reset({})
    assert list(environment.wait()[0].steps) == ["Counting-v3"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gym:", "does not name the environment"),
        ("gym:CartPoll-v1", "CartPoll"),
        ("gym:CartPole-v99", "v99"),
        ("gym:no_such_module:Env-v0", "no_such_module"),
        ("pettingzoo:", "does not name the environment"),
        ("pettingzoo:classic.no_such_game_v1", "no Python module pettingzoo.classic.no_such_game_v1"),
        ("pettingzoo:tests.envs.python.gymnasium_samples", "no function or class 'parallel_env'"),
        ("python:", "does not name the environment"),
        ("python:tests.envs.test_select", "PACKAGE.MODULE:FACTORY"),
        ("python:no.such.module:make", "no Python module no.such.module"),
        ("python:tests.envs.test_select:no_such_function", "no function or class 'no_such_function'"),
        ("python:tests.envs.test_select:RUNNER", "no function or class 'RUNNER'"),
        ("python:tests.envs.test_select:nothing", "created a builtins.object. Expected a gymnasium.Env"),
    ],
)
def test_what_cannot_be(path: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        make(path)
    assert message in str(error.value)


def test_arguments_that_the_environment_does_not_take() -> None:
    with pytest.raises(EnvironmentFaultError, match="color"):
        make("gym:CartPole-v1", "color=red")
    with pytest.raises(SettingsError, match="color"):
        make("python:tests.envs.test_select:counting", "color=red")


def test_factories_that_fail() -> None:
    with pytest.raises(EnvironmentFaultError, match="OSError: no such level"):
        make("python:tests.envs.test_select:failing")


@pytest.mark.parametrize(
    ("scheme", "package", "extra"),
    [
        ("gym:CartPole-v1", "gymnasium", "gym"),
        ("pettingzoo:butterfly.pistonball_v6", "pettingzoo", "gym"),
    ],
)
def test_missing_packages_are_named_in_one_sentence(
    scheme: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingsError, match=rf"needs the package {package}.*pip install 'trajtrainer\[{extra}\]'"):
        make(scheme)


def test_python_factories_get_what_they_have_parameters_for() -> None:
    environment = make("python:tests.envs.test_select:counting", "length=7", num_envs=2)
    assert isinstance(environment, GymnasiumEnvironment)
    assert environment.name == "CountingEnv"
    # The factory's own seed shows until the first reset, which seeds the copies.
    made: list[Any] = list(environment._envs)
    assert [env.seed for env in made] == [50, 1051]
    assert [env.length for env in made] == [7, 7]


def test_python_factories_of_base_envs() -> None:
    environment = make("python:tests.envs.test_select:base_env", num_envs=2)
    assert isinstance(environment, BaseEnvEnvironment)
    assert environment.num_workers == 2
    envs: list[Any] = [worker.env for worker in environment._workers]
    assert [env.log for env in envs] == [[(0, 3)], [(1, 3)]]
    assert all(worker.channels is not None for worker in environment._workers)


@pytest.mark.parametrize("name", ["Arena", "parallel_env"])
def test_python_factories_of_pettingzoo(name: str) -> None:
    environment = make(f"python:tests.envs.python.pettingzoo_samples:{name}", "lives={a_0: 1}")
    assert isinstance(environment, PettingZooEnvironment)


def test_pettingzoo_modules() -> None:
    environment = make("pettingzoo:tests.envs.python.pettingzoo_samples", "lives={cat_0: 1, mouse_0: 2}", num_envs=2)
    assert isinstance(environment, PettingZooEnvironment)
    environment.reset({})
    assert set(environment.wait()[0].steps) == {"cat", "mouse"}


def test_agents_of_pettingzoo_are_sorted_by_env_args() -> None:
    for path in (
        "pettingzoo:tests.envs.python.pettingzoo_samples",
        "python:tests.envs.python.pettingzoo_samples:Arena",
    ):
        environment = make(path, "lives={cat_0: 1, cat_1: 2}", "behaviors=animal", "--teams=each", "groups={cat: 3}")
        environment.reset({})
        (event,) = environment.wait()
        assert {name: batch.group.tolist() for name, batch in event.steps.items()} == {
            "animal?team=0": [1],
            "animal?team=1": [2],
        }
    with pytest.raises(SettingsError, match="--env-args teams='all': expected none, each, type"):
        make("pettingzoo:tests.envs.python.pettingzoo_samples", "lives={cat_0: 1}", "teams=all")


def arena_of_teams(teams: int) -> Arena:
    return Arena({f"player_{team}": 1 for team in range(teams)})


def test_an_argument_of_the_environment_goes_before_a_rule_of_its_name() -> None:
    environment = make("python:tests.envs.test_select:arena_of_teams", "teams=3")
    environment.reset({})
    (event,) = environment.wait()
    assert {name: len(batch) for name, batch in event.steps.items()} == {"player": 3}


def test_only_agents_of_pettingzoo_are_sorted() -> None:
    with pytest.raises(
        SettingsError, match="does not accept the argument 'teams' and did not create a PettingZoo environment"
    ):
        make("python:tests.envs.python.gymnasium_samples:CountingEnv", "teams=each")


BOARD = spaces.Box(0, 1, (6, 7, 2), np.int8)


def board() -> SpacesEnv:
    return SpacesEnv(BOARD, spaces.Discrete(7))


class Boards(Arena):
    """Two agents that see boards, as a module (``pettingzoo:``) has its ``parallel_env``."""

    def __init__(self) -> None:
        super().__init__({"player_0": 2, "player_1": 2})

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return BOARD

    def _observations(self, agents: list[str]) -> dict[str, Any]:
        return {agent: np.zeros(BOARD.shape, np.int8) for agent in agents}


parallel_env = Boards


@pytest.mark.parametrize(
    "path",
    [
        "gym:tests.envs.python.registering:Board-v0",
        "python:tests.envs.test_select:board",
        "python:tests.envs.test_select:Boards",
        "pettingzoo:tests.envs.test_select",
    ],
)
def test_what_is_large_enough_for_a_picture_is_given_by_env_args(path: str) -> None:
    for given, shape in (("smallest_picture=6", (2, 6, 7)), ("smallest_picture=7", (84,))):
        environment = make(path, given)
        environment.reset({})
        (event,) = environment.wait()
        assert [batch.obs[0].shape[1:] for batch in event.steps.values()] == [shape]
        environment.close()
    with pytest.raises(SettingsError, match="smallest_picture='large': expected a whole number"):
        make(path, "smallest_picture=large")


class Tiles(SpacesEnv):
    """A list of 1 to 3 numbers, which says what to do: 1 if there are more than two."""

    def __init__(self) -> None:
        super().__init__(spaces.Dict({"tiles": spaces.Sequence(spaces.Box(1, 9, (2,)))}), spaces.Discrete(2))

    def _observe(self) -> Any:
        number = int(self.np_random.integers(1, 4))
        self.observations.append({"tiles": tuple(np.full(2, number + 1, np.float32) for _ in range(number))})
        return self.observations[-1]

    def step(self, action: Any) -> Any:
        reward = float(action == (len(self.observations[-1]["tiles"]) > 2))
        observation, _, *_ = super().step(action)
        return observation, reward, len(self.observations) % 8 == 0, False, {}


def tile_vector() -> Any:
    return SyncVectorEnv([Tiles, Tiles])


@pytest.mark.parametrize("factory", ["Tiles", "tile_vector"])
def test_the_most_items_of_a_list_are_given_by_env_args(factory: str) -> None:
    path = f"python:tests.envs.test_select:{factory}"
    for given, shape in (("max_items=4", (4, 2)), ("max_items={tiles: 5}", (5, 2))):
        environment = make(path, given)
        environment.reset({})
        (event,) = environment.wait()
        assert [batch.obs[0].shape[1:] for batch in event.steps.values()] == [shape]
        environment.close()
    for wrong in ("0", "many", "{tiles: 0}", "{}", "true"):
        with pytest.raises(SettingsError, match=r"--env-args max_items=.*: expected a whole number"):
            make(path, f"max_items={wrong}")
    with pytest.raises(UnsupportedError, match="is a list without a maximum length"):
        make(path)


def test_lists_are_learned_from_and_acted_on(tmp_path: Path) -> None:
    given = {"behaviors": {"Tiles": ppo(2000, network_settings={"hidden_units": 16})}, "env_settings": {"seed": 3}}
    result = trajtrainer.learn(
        given, Tiles, env_args={"max_items": 3}, run_id="t", results_dir=tmp_path, torch_device="cpu", verbose=False
    )
    assert result.behaviors["Tiles"].mean_reward is not None
    policy = trajtrainer.load_policy(result.run_folder, env=Tiles())
    items: Any = tuple(np.full(2, 3, np.float32) for _ in range(2))
    single = policy.act({"tiles": items}, deterministic=True).action
    several = policy.act({"tiles": (items, items[:1], ())}, deterministic=True).action
    assert len(several) == 3
    assert several[0] == single


def test_a_base_env_tells_itself_what_is_a_picture() -> None:
    with pytest.raises(SettingsError, match="does not accept the argument 'smallest_picture', and a BaseEnv"):
        make("python:tests.envs.test_select:base_env", "smallest_picture=6")


def test_modules_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_only_game.py").write_text("from tests.envs.python.gymnasium_samples import CountingEnv as make\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    assert isinstance(make("python:my_only_game:make"), GymnasiumEnvironment)


def test_modules_that_need_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_needy_game.py").write_text("import surely_not_installed\n")
    (tmp_path / "my_broken_game.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SettingsError, match="needs the Python package 'surely_not_installed'"):
        make("python:my_needy_game:make")
    with pytest.raises(EnvironmentFaultError, match="my_broken_game cannot be imported: ZeroDivisionError"):
        make("python:my_broken_game:make")


def test_copies_are_closed_when_a_later_one_fails() -> None:
    made: list[CountingEnv] = []

    def second_fails(worker_id: int) -> CountingEnv:
        if worker_id:
            raise OSError("only one")
        made.append(CountingEnv())
        return made[0]

    with pytest.raises(EnvironmentFaultError, match="only one"):
        from_factory(second_fails, settings("python:x:y", num_envs=2))
    assert made[0].closed


def test_each_call_must_make_a_new_environment() -> None:
    env = CountingEnv()
    with pytest.raises(SettingsError, match="the same environment twice"):
        from_factory(lambda: env, settings("python:x:y", num_envs=2))
    assert env.closed


@pytest.mark.parametrize("path", [None, "sim:Basic", "Builds/3DBall", r"C:\Builds\Game.exe"])
def test_all_else_is_unity(path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunSettings] = []
    monkeypatch.setattr(players, "make_unity_environment", lambda given, logs, **_: asked.append(given))
    monkeypatch.setattr(players, "command", lambda path: [path])
    given = settings(path)
    select.make_environment(given, NoLogs())
    assert asked == [given]


def test_paths_that_mean_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("sim:3DBall", "gym:CartPole-v1"):
        assert select.absolute(path) == path
    assert select.absolute("build/game") == str(tmp_path / "build/game")


def test_a_simulation_imports_no_other_kind_of_environment() -> None:
    program = (
        "import sys; from trajtrainer.envs import select; "
        "from trajtrainer.envs.protocol import LogFolder; "
        "from trajtrainer.settings.environment import EnvironmentSettings; "
        "from trajtrainer.settings.run import RunSettings; "
        "settings = RunSettings(env_settings=EnvironmentSettings(env_path='sim:Basic')); "
        "select.make_environment(settings, LogFolder(None), here=True).close(); "
        "others = ('.plugins.', '.envs.python', '.sim.games', '.sim.puzzles', '.sim.masked', '.sim.balance_ball'); "
        "print([name for name in sys.modules if any(other in name for other in others)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "[]\n"


def test_optional_packages_are_imported_only_when_used() -> None:
    program = (
        "import sys, trajtrainer.envs.select; "
        "print(sorted({'gymnasium', 'pettingzoo', 'envpool', 'torch'} & {m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("path", "arguments", "limit"),
    [
        ("gym:CartPole-v1", None, 500),
        ("gym:CartPole-v1", ["max_episode_steps=40"], 40),
        ("gym:tests.envs.python.registering:NoSuch-v0", None, None),
        ("gym:NoSuch-v0", None, None),
        ("sim:3DBall", None, None),
        (None, None, None),
    ],
)
def test_gymnasium_says_when_episodes_end(path: str | None, arguments: list[str] | None, limit: int | None) -> None:
    assert select.episode_limit(EnvironmentSettings(env_path=path, env_args=arguments)) == limit


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("CartPole-v1", "--env=gym:CartPole-v1"),
        ("phys2d/CartPole-v0", "--env=gym:phys2d/CartPole-v0"),
        ("ALE/Pong-v5", "--env=gym:ale_py:ALE/Pong-v5 (pip install 'trajtrainer[atari]')"),
        ("Builds/Ball", "--env=sim:3DBall"),
        ("Goalie", "If you mean the built-in simulation, use --env=sim:StrikerVsGoalie."),
        ("gyym:CartPole-v1", "There is no environment scheme 'gyym' (known: "),
        ("gyym:CartPole-v1", "packages can add others); did you mean gym?"),
    ],
)
def test_a_build_that_there_is_not(given: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for refuse in (select.check, make):
        with pytest.raises(LaunchError) as caught:
            refuse(given)
        assert f"Couldn't launch the {given} environment." in str(caught.value)
        assert str(tmp_path / given) in str(caught.value)
        assert hint in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_folder_gets_no_other_hint(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"is an empty folder\.$"):
        select.check(str(tmp_path))


@pytest.mark.parametrize("name", ["3DBal", "Basic+3DBal", "3dball"])
def test_a_simulation_that_there_is_not(name: str) -> None:
    with pytest.raises(LaunchError, match=f"--env sim:{re.escape(name)}: .*Did you mean '3DBall'.*Sorter"):
        make(f"sim:{name}")


def test_a_simulation_needs_a_name() -> None:
    with pytest.raises(LaunchError, match="sim:3DBall"):
        make("sim:")
