"""A simulation in the trainer's process says and does what the program does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.sim.balance_ball import BalanceBall
from trajtrainer.envs.sim.conversation import InProcessPlayer, in_process_player
from trajtrainer.envs.unity import launcher
from trajtrainer.envs.unity.faults import PlayerDiedError, PlayerQuitError
from trajtrainer.envs.unity_worker import UnityWorker, connect_player
from trajtrainer.settings.environment import ConstantSettings, EngineSettings, EnvironmentSettings, UniformSettings

SEVERAL = ["--agents", "3", "--teams", "2", "--stat", "lamp=2.5", "--package-version", "2.3.0"]


def connect(path: str, arguments: list[str], *, here: bool, seed: int = 4) -> UnityWorker:
    settings = EnvironmentSettings(env_path=path, env_args=arguments, base_port=5005, seed=seed)
    return connect_player(0, settings=settings, engine=EngineSettings(), log_folder=None, here=here)


def played(environment: UnityWorker) -> list[EnvironmentEvent]:
    """What comes in of a game with a reset and other parameters in its course, by actions that are always the same."""
    random = np.random.default_rng(0)
    specs: dict[str, BehaviorSpec] = {}
    events: list[EnvironmentEvent] = []
    environment.reset({"mass": UniformSettings(3, 1.0, 5.0), "scale": ConstantSettings(value=2.0)})
    for step in range(60):
        (event,) = environment.wait()
        events.append(event)
        specs |= event.new_specs
        if step == 20:
            environment.reset({"gravity": ConstantSettings(value=4.0)})
            continue
        actions = {}
        for name, batch in event.steps.items():
            n, spec = batch.num_decisions, specs[name].action_spec
            continuous = random.uniform(-1, 1, (n, spec.continuous_size)).astype(np.float32)
            branches = spec.discrete_branches
            discrete = (
                np.stack([random.integers(size, size=n) for size in branches], 1) if branches else np.zeros((n, 0))
            )
            nothing = np.zeros((n, 0), np.float32)
            actions[name] = ActionBatch(continuous, discrete.astype(np.int32), continuous, nothing, nothing, nothing, 0)
        environment.send(0, actions)
    environment.close()
    return events


def test_the_same_comes_out_as_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "sim:3DBall+Basic+GridWorld"
    program = played(connect(path, SEVERAL, here=False))
    monkeypatch.setattr(launcher.PlayerProcess, "__init__", lambda *_: pytest.fail("a program was started"))
    here = played(connect(path, SEVERAL, here=True))
    assert sum(batch.num_terminal for event in here for batch in event.steps.values()) > 10
    for one, other in zip(program, here, strict=True):
        assert (one.is_reset, one.new_specs, one.statistics) == (other.is_reset, other.new_specs, other.statistics)
        assert list(one.steps) == list(other.steps)
        for batch, again in zip(one.steps.values(), other.steps.values(), strict=True):
            assert batch.num_terminal == again.num_terminal
            for name in ("agent", "group", "reward", "group_reward", "interrupted", "mask"):
                assert getattr(batch, name).tobytes() == getattr(again, name).tobytes()
            assert [column.tobytes() for column in batch.obs] == [column.tobytes() for column in again.obs]
    other_seed = played(connect(path, SEVERAL, here=True, seed=5))
    assert other_seed[0].steps["3DBall?team=0"].obs[0].tobytes() != here[0].steps["3DBall?team=0"].obs[0].tobytes()


@pytest.mark.parametrize("arguments", [["--hook", "a", ""], ["-logFile", "own.log"], ["--agents", "none"], ["-h"]])
def test_what_has_to_be_a_program(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert in_process_player(["3DBall", *arguments]) is None
    assert capfd.readouterr() == ("", "")


def test_wrong_arguments_are_told_as_ever(tmp_path: Path) -> None:
    settings = EnvironmentSettings(env_path="sim:3DBall", env_args=["--agents", "none"])
    with pytest.raises(PlayerDiedError, match="invalid int value: 'none'"):
        connect_player(0, settings=settings, engine=EngineSettings(), log_folder=tmp_path, here=True)


def test_a_simulation_that_fails_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = connect("sim:3DBall", [], here=True)
    monkeypatch.setattr(BalanceBall, "_begin", lambda *_: 1 / 0)
    environment.reset({})
    with pytest.raises(PlayerDiedError, match="The simulation failed: ZeroDivisionError"):
        environment.wait()
    environment.close()


def test_a_player_that_has_ended_is_told() -> None:
    player = in_process_player(["Basic"])
    assert isinstance(player, InProcessPlayer)
    player.receive()
    player.answer(b"")  # no status
    with pytest.raises(PlayerQuitError, match="has quit"):
        player.receive()
    player.close()
    with pytest.raises(PlayerQuitError, match="has quit"):
        player.receive()
