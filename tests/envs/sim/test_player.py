"""Real player processes against a tiny trainer, over gRPC."""

from __future__ import annotations

import queue
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.envs.sim.trainer import WAIT_SECONDS, session
from trajtrainer.envs.sim.conversation import ENVIRONMENT_PARAMETERS, STATISTICS, frame, frames
from trajtrainer.envs.sim.options import parse_player_options
from trajtrainer.envs.sim.simulation import EnvironmentParameters
from trajtrainer.envs.sim.wire import read_order
from trajtrainer.envs.sim.world import World, output_message
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

BALL, BASIC = "3DBall?team=0", "Basic?team=0"


def ball_actions(random: np.random.Generator, agents: int = 12) -> list[pb.AgentActionProto]:
    return [pb.AgentActionProto(continuous_actions=random.uniform(-1.0, 1.0, 2)) for _ in range(agents)]


def parameter(name: str, value: float) -> bytes:
    return frame(ENVIRONMENT_PARAMETERS, struct.pack("<i", len(name)) + name.encode() + struct.pack("<if", 0, value))


def test_a_session_from_handshake_to_end() -> None:
    with session("3DBall") as (trainer, process):
        hello = trainer.shake_hands()
        assert (hello.name, hello.communication_version, hello.package_version) == (
            "AcademySingleton",
            "1.5.0",
            "3.0.0",
        )
        assert hello.capabilities.multiAgentGroups
        assert not hello.brain_parameters
        first = trainer.reset()
        (announced,) = first.message.unity_output.rl_initialization_output.brain_parameters
        assert (announced.brain_name, announced.action_spec.num_continuous_actions) == (BALL, 2)
        assert [info.id for info in first.infos[BALL]] == list(range(12))
        random = np.random.default_rng(0)
        endings = 0
        for _ in range(60):
            call = trainer.step({BALL: ball_actions(random)})
            assert not call.message.unity_output.HasField("rl_initialization_output")
            ended = [info for info in call.infos[BALL] if info.done]
            decisions = [info for info in call.infos[BALL] if not info.done]
            assert call.infos[BALL] == ended + decisions
            assert [info.id for info in decisions] == list(range(12)), "the same ids, episode after episode"
            again = {info.id for info in decisions if info.reward == 0.0}
            assert again == {info.id for info in ended}, "a new episode begins with nothing earned"
            endings += len(ended)
        assert endings > 12
        trainer.end()
        assert process.wait(WAIT_SECONDS) == 0


def test_the_player_sends_what_its_simulations_say_for_the_seed_of_the_handshake() -> None:
    arguments = ["3DBall+Basic", "--agents", "3", "--teams", "2"]
    options = parse_player_options(arguments)
    world = World(options.simulations, options.teams, 11, options.style, EnvironmentParameters())
    random = np.random.default_rng(0)
    with session(*arguments) as (trainer, process):
        trainer.shake_hands(seed=11)
        first = trainer.reset()
        assert first.data == output_message(world.reset(), b"", world.announcement())
        ids = {behavior: [info.id for info in infos] for behavior, infos in first.infos.items()}
        assert ids == {BALL: [0, 1, 2], "3DBall?team=1": [3, 4, 5], BASIC: [6, 7, 8], "Basic?team=1": [9, 10, 11]}
        assert first.infos[BALL][0].observations != first.infos["3DBall?team=1"][0].observations
        for _ in range(20):
            actions = {BALL: ball_actions(random, 3), "3DBall?team=1": ball_actions(random, 3)}
            actions[BASIC] = [pb.AgentActionProto(discrete_actions=[2])] * 3
            call = trainer.step(actions)
            sent = pb.UnityMessageProto()
            for behavior, values in actions.items():
                sent.unity_input.rl_input.agent_actions[behavior].value.extend(values)
            assert call.data == output_message(world.step(read_order(sent.SerializeToString()).actions), b"")
        trainer.end()
        assert process.wait(WAIT_SECONDS) == 0


def test_agents_and_groups_of_all_behaviors_are_numbered_through() -> None:
    with session("Bench+Duel", "--agents", "2", "--group-size", "2", "--areas", "2", "--teams", "1") as (trainer, _):
        trainer.shake_hands()
        infos = trainer.reset().infos
        numbers = {behavior: [(info.id, info.group_id) for info in found] for behavior, found in infos.items()}
        assert numbers == {
            "Bench?team=0": [(0, 1), (1, 1)],
            "Duel?team=0": [(2, 2), (3, 2), (6, 3), (7, 3)],
            "Duel?team=1": [(4, 4), (5, 4), (8, 5), (9, 5)],
        }
    with session("Bench", "--agents", "2", "--group-size", "2", "--api-version", "1.4.0") as (trainer, _):
        trainer.shake_hands()
        assert [info.group_id for info in trainer.reset().infos["Bench?team=0"]] == [0, 0], "it knows no groups"


def test_an_own_seed_goes_before_that_of_the_handshake() -> None:
    def first_message(seed: int, *arguments: str) -> bytes:
        with session("3DBall", *arguments) as (trainer, _):
            trainer.shake_hands(seed)
            return trainer.reset().data

    assert first_message(1, "--seed", "5") == first_message(5)


def test_a_reset_ends_nothing_and_parameters_arrive_before_it() -> None:
    with session("3DBall", "--agents", "2") as (trainer, _):
        trainer.shake_hands()
        trainer.reset(parameter("gravity", 5.0))
        for gravity in (5.0, 20.0):
            call = trainer.step({BALL: [pb.AgentActionProto(continuous_actions=[0.0, 0.0])] * 2})
            falling = [info.observations[0].float_data.data[6] for info in call.infos[BALL]]
            assert falling == pytest.approx([-0.1 * gravity] * 2, rel=0.01)
            if gravity == 5.0:
                call = trainer.reset(parameter("gravity", 20.0))
                assert [(info.id, info.done, info.reward) for info in call.infos[BALL]] == [
                    (0, False, 0.0),
                    (1, False, 0.0),
                ]


def test_behaviors_that_get_no_actions_do_nothing() -> None:
    with session("Basic") as (trainer, _):
        trainer.shake_hands()
        trainer.reset()
        call = trainer.step()
        assert list(call.infos[BASIC][0].observations[0].float_data.data).index(1.0) == 10
        assert call.infos[BASIC][0].reward == pytest.approx(-0.01)


def test_quit_ends_the_player() -> None:
    with session("Basic") as (trainer, process):
        trainer.shake_hands()
        trainer.reset()
        trainer.command(pb.QUIT)
        assert process.wait(WAIT_SECONDS) == 0


@pytest.mark.parametrize("when", ["waiting for the reset", "waiting for actions"])
def test_a_trainer_that_goes_away_ends_the_player(when: str) -> None:
    with session("Basic") as (trainer, process):
        trainer.shake_hands()
        if when == "waiting for actions":
            trainer.reset()
        trainer.stop()
        assert process.wait(WAIT_SECONDS) == 1
        assert "connection to the trainer was lost" in process.said


def test_an_answer_that_cannot_be_followed_ends_the_player(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "Player-0.log"
    with session("Basic", "-logFile", str(log), "-nographics", "-batchmode") as (trainer, process):
        trainer.shake_hands()
        trainer.reset()
        with pytest.raises(queue.Empty):
            trainer.receive(timeout=0.0)
        message = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
        message.unity_input.rl_input.agent_actions[BASIC].value.add(discrete_actions=[1, 2])
        trainer.answer(message)
        assert process.wait(WAIT_SECONDS) == 1
    said = log.read_text()
    assert "connected to a trainer" in said
    assert "action 0 of 'Basic?team=0' has 2 discrete_actions; expected 1" in said


def test_without_a_trainer_the_player_gives_up() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "trajtrainer.envs.sim",
        "Basic",
        "--mlagents-port",
        str(port),
        "--connect-seconds",
        "0.2",
    ]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == 1
    assert b"connection to the trainer was lost: DEADLINE_EXCEEDED" in done.stderr


def test_statistics_go_out_with_every_step() -> None:
    with session("Basic", "--stat", "Food=2.5:sum", "--stat", "Mood=1") as (trainer, _):
        trainer.shake_hands()
        for call in (trainer.reset(), trainer.step()):
            sent = list(frames(call.message.unity_output.rl_output.side_channel))
            assert sent == [
                (STATISTICS, struct.pack("<i4sfi", 4, b"Food", 2.5, 2)),
                (STATISTICS, struct.pack("<i4sfi", 4, b"Mood", 1.0, 0)),
            ]


def test_an_old_package_announces_and_reads_the_deprecated_fields() -> None:
    versions = ["--api-version", "1.0.0", "--package-version", "1.3.0-preview"]
    with session("Basic", *versions) as (trainer, _):
        hello = trainer.shake_hands()
        assert (hello.communication_version, hello.package_version) == ("1.0.0", "1.3.0-preview")
        assert not hello.capabilities.hybridActions
        first = trainer.reset().message.unity_output.rl_initialization_output.brain_parameters[0]
        assert not first.HasField("action_spec")
        assert list(first.vector_action_size_deprecated) == [3]
        assert first.vector_action_space_type_deprecated == pb.discrete
        call = trainer.step({BASIC: [pb.AgentActionProto(vector_actions_deprecated=[2.0])]})
        assert list(call.infos[BASIC][0].observations[0].float_data.data).index(1.0) == 11


def test_an_interrupt_ends_the_player_quietly() -> None:
    with session("Basic") as (trainer, process):
        trainer.shake_hands()
        trainer.reset()
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 130
        assert process.said == ""


def test_a_slow_player_takes_its_time() -> None:
    with session("Basic", "--step-ms", "50") as (trainer, _):
        trainer.shake_hands()
        started = time.monotonic()
        trainer.reset()
        trainer.step()
        assert time.monotonic() - started >= 0.1
