"""The collector's view of a player: our own simulations, in their own processes, over real gRPC."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.envs.sim.faults import fault
from tests.envs.unity.client import LIMIT_S, connected, handshake, header, in_background, until
from tests.envs.unity.messages import BEHAVIOR, Agent, Space, message
from tests.ports import free_port
from trajtrainer.core.errors import EnvironmentFaultError, InvalidDataError, SettingsError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, Aggregation, EnvironmentEvent, Statistic
from trajtrainer.envs import supervised
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.unity.faults import PlayerDiedError, PlayerQuitError, PlayerTimeoutError
from trajtrainer.envs.unity.proto.communicator_pb2 import RESET, UnityMessageProto
from trajtrainer.envs.unity.side_channels import ANALYTICS_ID
from trajtrainer.envs.unity_worker import UnityWorker, make_unity_environment
from trajtrainer.settings.environment import ConstantSettings, EngineSettings, EnvironmentSettings, UniformSettings
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings

BALL = "3DBall?team=0"
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")


@contextmanager
def simulation(
    name: str, *arguments: str, seed: int = 3, worker: int = 0, log_folder: Path | None = None, timeout_wait: int = 30
) -> Iterator[UnityWorker]:
    settings = EnvironmentSettings(
        env_path=f"sim:{name}",
        env_args=[*arguments],
        base_port=free_port() - worker,
        timeout_wait=timeout_wait,
    )
    environment = UnityWorker(settings, EngineSettings(), seed=seed, worker=worker, log_folder=log_folder)
    try:
        yield environment
    finally:
        environment.close()


def nothing(spec: ActionSpec, count: int) -> ActionBatch:
    empty = spec.empty_action(count)
    return ActionBatch(
        continuous=empty.continuous,
        discrete=empty.discrete,
        env_continuous=empty.continuous,
        log_prob=np.zeros((count, spec.continuous_size + spec.discrete_size), np.float32),
        entropy=np.zeros(count, np.float32),
        memory=np.zeros((count, 0), np.float32),
        version=0,
    )


class Stepper:
    """Answers every event with actions that do nothing."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.specs: dict[str, BehaviorSpec] = {}

    def wait(self) -> EnvironmentEvent:
        (event,) = self.environment.wait()
        self.specs |= event.new_specs
        return event

    def step(self, event: EnvironmentEvent) -> EnvironmentEvent:
        self.answer(event)
        return self.wait()

    def answer(self, event: EnvironmentEvent) -> None:
        actions: Mapping[str, ActionBatch] = {
            name: nothing(self.specs[name].action_spec, batch.num_decisions)
            for name, batch in event.steps.items()
            if batch.num_decisions
        }
        self.environment.send(event.worker, actions)


def test_steps_of_a_simulation(tmp_path: Path) -> None:
    with simulation("3DBall", log_folder=tmp_path) as environment:
        assert environment.num_workers == 1
        stepper = Stepper(environment)
        environment.reset({})
        event = stepper.wait()
        assert event.is_reset
        assert event.new_specs[BALL].action_spec == ActionSpec(2, ())
        assert event.steps[BALL].obs[0].shape == (12, 8)
        num_ended = 0
        for _ in range(60):
            event = stepper.step(event)
            assert not event.is_reset
            assert event.steps[BALL].num_decisions == 12
            num_ended += event.steps[BALL].num_terminal
        assert num_ended > 0
    assert (tmp_path / "Player-0.log").is_file()


def test_several_behaviors() -> None:
    with simulation("3DBall+Basic") as environment:
        environment.reset({})
        (event,) = environment.wait()
        assert event.new_specs.keys() == event.steps.keys()
        assert {name.split("?")[0] for name in event.steps} == {"3DBall", "Basic"}


def test_a_seed_is_a_run() -> None:
    def observations(seed: int, worker: int) -> list[bytes]:
        with simulation("3DBall", seed=seed, worker=worker) as environment:
            stepper = Stepper(environment)
            environment.reset({})
            event = stepper.wait()
            found = []
            for _ in range(5):
                found.append(event.steps[BALL].obs[0].tobytes())
                event = stepper.step(event)
            return found

    first = observations(seed=3, worker=1)
    assert first == observations(seed=3, worker=1)
    assert first == observations(seed=4, worker=0)  # the player's seed is the run's plus the worker's number
    assert first != observations(seed=4, worker=1)


def test_ids_bear_the_worker() -> None:
    with simulation("3DBall", worker=2) as environment:
        environment.reset({})
        (event,) = environment.wait()
        assert event.worker == 2
        assert event.steps[BALL].agent.tolist() == [2 << 32 | agent for agent in range(12)]
        with pytest.raises(ValueError, match="no worker 0"):
            environment.send(0, {})


def test_statistics_of_the_game() -> None:
    with simulation("Basic", "--stat", "Score=1.5:sum", "--stat", "Level=2") as environment:
        stepper = Stepper(environment)
        environment.reset({})
        expected = [Statistic("Score", 1.5, Aggregation.SUM), Statistic("Level", 2.0, Aggregation.AVERAGE)]
        event = stepper.wait()
        assert event.statistics == expected
        assert stepper.step(event).statistics == expected


def test_wait_without_a_message() -> None:
    with simulation("Basic", "--step-ms", "200") as environment:
        environment.reset({})
        assert environment.wait(0.0) == []
        assert environment.wait(0.01) == []
        assert len(environment.wait(LIMIT_S)) == 1


@posix
@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("crash@3:7", PlayerDiedError, "return code 7"),
        ("crash@3:SIGSEGV", PlayerDiedError, "the signal SIGSEGV"),
        ("crash-in-reset@1:3", PlayerDiedError, "return code 3"),
        ("quit@3", PlayerQuitError, "has quit"),
        ("nan-observation@3:5", InvalidDataError, f"'{BALL.replace('?', '[?]')}', agent 5, sensor .*element 0"),
        ("infinite-reward@3:2", InvalidDataError, "inf as a reward.*agent 2"),
        ("wrong-size@3:4", InvalidDataError, "agent 4: .*7 numbers"),
        ("duplicate-id@3:4", InvalidDataError, "agent 5 asks for 2 decisions"),
        ("rubbish@3", InvalidDataError, "that are not a valid message"),
    ],
)
def test_faults_at_work(tmp_path: Path, kind: str, error: type[EnvironmentFaultError], text: str) -> None:
    with simulation("3DBall", *fault(kind), log_folder=tmp_path) as environment:
        stepper = Stepper(environment)
        environment.reset({})
        with pytest.raises(error, match=text) as caught:  # noqa: PT012
            event = stepper.wait()
            for _ in range(10):
                event = stepper.step(event)
        if error is PlayerDiedError:
            assert "fault on request" in str(caught.value)  # the end of its log


@posix
@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("never-connect", PlayerTimeoutError, "did not connect within 1 s.*Decision Requester"),
        ("wrong-version:2.1.0", EnvironmentFaultError, "'2.1.0'"),
        ("rubbish@0", PlayerDiedError, "return code"),
    ],
)
def test_faults_at_the_start(kind: str, error: type[EnvironmentFaultError], text: str) -> None:
    timeout_wait = 1 if kind == "never-connect" else 30
    with pytest.raises(error, match=f"(?s){text}"), simulation("3DBall", *fault(kind), timeout_wait=timeout_wait):
        pass


def test_a_slow_start_is_waited_for() -> None:
    with simulation("Basic", *fault("slow-start:0.3")) as environment:
        environment.reset({})
        assert len(environment.wait()) == 1


@posix
def test_a_player_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulation("Basic", *fault("hang@2")) as environment:
        stepper = Stepper(environment)
        environment.reset({})
        event = stepper.wait()
        environment._session.timeout_wait = 0.3
        with pytest.raises(PlayerTimeoutError, match="stopped answering"):
            stepper.step(event)
        process = environment._session._process
        environment.close()
        assert process is not None
        assert process.has_ended


@posix
def test_kill_ends_the_player_at_once() -> None:
    with simulation("Basic") as environment:
        process = environment._session._process
        assert process is not None
        environment.kill()
        until(lambda: process.has_ended)
        assert "SIGKILL" in process.describe_end()


def test_made_from_a_runs_settings(tmp_path: Path) -> None:
    class Logs:
        def player_log(self, worker: int) -> Path:
            return tmp_path / f"Player-{worker}.log"

    settings = RunSettings(
        env_settings=EnvironmentSettings(env_path="sim:Basic", base_port=free_port(), seed=5),
        engine_settings=EngineSettings(no_graphics=True),
    )
    environment: Environment = make_unity_environment(settings, Logs())
    environment.reset({})
    assert len(environment.wait()) == 1
    environment.close()
    assert (tmp_path / "Player-0.log").is_file()


class Editor:
    """A player under the test's command, connected as the Editor."""

    def __init__(self, port: int, *, analytics: bool = False) -> None:
        self.answers: list[UnityMessageProto] = []
        self._port = port
        self._messages: list[bytes] = [handshake(analytics=analytics), header()]

    def play(self, *messages: bytes) -> None:
        with connected(self._port) as exchange:
            sent = (*self._messages, *messages)
            self.answers.extend(UnityMessageProto.FromString(exchange(each)) for each in sent)

    def parameters(self, index: int) -> bytes:
        return self.answers[index].unity_input.rl_input.side_channel


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The Editor's port for this test."""
    chosen = free_port()
    monkeypatch.setattr("trajtrainer.envs.unity.session.EDITOR_PORT", chosen)
    return chosen


def test_parameters_go_out_with_the_next_message(port: int) -> None:
    editor = Editor(port)
    first, later = message(Space(), [Agent()]), message(Space(), [Agent()], announce=False)
    played = in_background(editor.play, first, later, later)
    environment = UnityWorker(EnvironmentSettings(timeout_wait=30, base_port=1), EngineSettings(), seed=0)
    environment.reset({"gravity": ConstantSettings(value=9.0), "mass": UniformSettings(seed=4)})
    stepper = Stepper(environment)
    event = stepper.step(stepper.wait())
    environment.set_parameters({"gravity": ConstantSettings(value=3.0)})
    stepper.step(event)
    environment.close()
    played.result(LIMIT_S)
    assert b"gravity" in editor.parameters(1)
    assert b"mass" in editor.parameters(1)
    assert len(editor.parameters(1)) > 200  # the engine's five messages, too
    assert editor.parameters(2) == b""
    assert b"gravity" in editor.parameters(3)
    assert b"mass" not in editor.parameters(3)


def test_a_reset_of_a_player_that_is_at_work(port: int) -> None:
    """Its next message is answered with the reset and seen by nobody, but what it announces is not lost."""
    editor = Editor(port)
    other = Space(name="Other?team=0")
    messages = (
        message(Space(), [Agent()]),
        message(other, [Agent(done=True)]),
        message(other, [Agent()], announce=False),
    )
    played = in_background(editor.play, *messages)
    environment = UnityWorker(EnvironmentSettings(timeout_wait=30), EngineSettings(), seed=0)
    environment.reset({})
    stepper = Stepper(environment)
    stepper.answer(stepper.wait())
    environment.reset({"level": ConstantSettings(value=2.0)})
    event = stepper.wait()
    assert event.is_reset
    assert list(event.new_specs) == ["Other?team=0"]
    assert event.steps["Other?team=0"].num_terminal == 0
    environment.close()
    played.result(LIMIT_S)
    commands = [answer.unity_input.rl_input.command for answer in editor.answers[1:4]]
    assert commands == [RESET, 0, RESET]
    assert b"level" in editor.parameters(3)
    assert list(event.steps) != [BEHAVIOR]


def test_parameters_that_cannot_be_sent(port: int) -> None:
    played = in_background(Editor(port).play)
    environment = UnityWorker(EnvironmentSettings(timeout_wait=30), EngineSettings(), seed=0)
    with pytest.raises(SettingsError, match=r"environment_parameters\.größe"):
        environment.set_parameters({"größe": ConstantSettings()})
    environment.close()
    played.result(LIMIT_S)


@pytest.mark.parametrize("wants_them", [True, False])
def test_a_player_that_wants_to_know_is_told_of_the_training(port: int, wants_them: bool) -> None:
    """Of the run with the first reset, of a behavior with the answer to the message that announces it."""

    class Logs:
        def player_log(self, worker: int) -> None: ...

    editor = Editor(port, analytics=wants_them)
    played = in_background(editor.play, message(Space(), [Agent()]), message(Space(), [Agent()], announce=False))
    run = RunSettings(env_settings=EnvironmentSettings(timeout_wait=30), behaviors={"Ball": TrainerSettings()})
    environment = make_unity_environment(run, Logs())
    environment.reset({})
    stepper = Stepper(environment)
    stepper.step(stepper.wait())
    environment.close()
    played.result(LIMIT_S)
    told = [ANALYTICS_ID.bytes_le in editor.parameters(index) for index in (1, 2, 3)]
    assert told == [wants_them, wants_them, False]
    assert (b"TrainingEnvironmentInitialized" in editor.parameters(1)) is wants_them
    assert (b"TrainingBehaviorInitialized" in editor.parameters(2)) is wants_them


@pytest.mark.parametrize(("num_envs", "threaded", "awake"), [(1, False, True), (1, True, False), (2, False, False)])
def test_one_player_alone_is_waited_for_awake(
    num_envs: int, threaded: bool, awake: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Logs:
        def player_log(self, worker: int) -> Path:
            return tmp_path / f"Player-{worker}.log"

    asked: list[bool] = []

    def ask(connect: Any, *_: object, waits: bool = True) -> None:
        asked.append(connect.keywords.get("busy_wait", False))

    monkeypatch.setattr(supervised, "SupervisedEnvironment", ask)
    monkeypatch.setattr(supervised, "Children", lambda _, connect: ask(connect))
    monkeypatch.setattr(supervised, "SupervisedChildren", lambda *_, waits: None)
    run = RunSettings(
        env_settings=EnvironmentSettings(env_path="sim:3DBall", num_envs=num_envs),
        behaviors={"3DBall": TrainerSettings(), "Other": TrainerSettings(threaded=threaded)},
    )
    make_unity_environment(run, Logs())
    assert asked == [awake]
