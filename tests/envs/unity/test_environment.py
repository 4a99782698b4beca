"""The player as an environment of ``mlagents_envs``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from mlagents_envs.base_env import ActionTuple, BaseEnv
from mlagents_envs.exception import (
    UnityActionException,
    UnityEnvironmentException,
    UnityTimeOutException,
    UnityWorkerInUseException,
)

import trajtrainer
from tests.envs.unity.client import LIMIT_S, connected, handshake, header, in_background
from tests.envs.unity.messages import BEHAVIOR, Agent, Space, message, message_of
from tests.envs.unity.test_pictures import ALL, FIRST, agent, png
from tests.ports import free_port
from trajtrainer import side_channels
from trajtrainer.envs.unity.environment import UnityEnvironment
from trajtrainer.envs.unity.proto.communicator_pb2 import RESET, UnityMessageProto

SPACE = Space(continuous_size=2, branches=(3, 2))
FORBIDDEN = (False, True, False, False, True)
FIRST_MESSAGE = message(SPACE, [Agent(id=4, mask=FORBIDDEN), Agent(id=9, group=2, group_reward=0.5)])
SECOND_MESSAGE = message(
    SPACE,
    [
        Agent(id=4, reward=1.5, done=True, interrupted=True, observations=((3.0, 4.0),)),
        Agent(id=4),
        Agent(id=9, reward=-1.0, done=True, group=2, group_reward=2.5),
    ],
    announce=False,
)


@contextmanager
def environment(*messages: bytes) -> Iterator[tuple[UnityEnvironment, list[UnityMessageProto]]]:
    """A player that sends ``messages`` one after the other, and the answers to all that it has sent so far."""
    port = free_port()
    answers: list[UnityMessageProto] = []

    def play() -> None:
        with connected(port) as exchange:
            sent = (handshake(), header(), *messages)
            answers.extend(UnityMessageProto.FromString(exchange(each)) for each in sent)

    playing = in_background(play)
    with UnityEnvironment(base_port=port, timeout_wait=LIMIT_S) as env:
        yield env, answers
    playing.result(LIMIT_S)


def test_it_is_a_base_env() -> None:
    assert issubclass(UnityEnvironment, BaseEnv)
    assert trajtrainer.UnityEnvironment is UnityEnvironment


def test_errors_name_its_arguments() -> None:
    with pytest.raises(UnityEnvironmentException, match=r"^Couldn't launch.*Set file_name to the path of a build"):
        UnityEnvironment("no/such/build")
    with pytest.raises(UnityTimeOutException, match=r"needs no_graphics=True or xvfb.*a larger timeout_wait\."):
        UnityEnvironment(base_port=free_port(), timeout_wait=0.05)


def test_a_hanging_player_is_told_with_arguments() -> None:
    port = free_port()
    with connected(port) as exchange:
        playing = in_background(lambda: [exchange(each) for each in (handshake(), header())])
        env = UnityEnvironment(base_port=port, timeout_wait=LIMIT_S)
        env.timeout_wait = 0.05
        with pytest.raises(UnityTimeOutException, match=r"whose steps take longer needs a larger timeout_wait\."):
            env.reset()
        playing.result(LIMIT_S)
        env.close()


def test_its_arguments_are_those_of_ml_agents() -> None:
    """Of ``mlagents_envs`` 1.1, in their order; what is ours comes behind them by name only."""
    parameters = list(inspect.signature(UnityEnvironment).parameters.values())
    expected = {
        "file_name": None,
        "worker_id": 0,
        "base_port": None,
        "seed": 0,
        "no_graphics": False,
        "no_graphics_monitor": False,
        "timeout_wait": 60,
        "additional_args": None,
        "side_channels": None,
        "log_folder": None,
        "num_areas": 1,
    }
    assert [(each.name, each.default) for each in parameters[:11]] == list(expected.items())
    assert all(each.kind is each.KEYWORD_ONLY for each in parameters[11:])
    constants = UnityEnvironment.API_VERSION, UnityEnvironment.DEFAULT_EDITOR_PORT
    assert (*constants, UnityEnvironment.BASE_ENVIRONMENT_PORT) == ("1.5.0", 5004, 5005)


def test_a_closed_environment() -> None:
    with environment(FIRST_MESSAGE) as (env, _):
        env.reset()
        assert env.academy_capabilities.baseRLCapabilities
        env.close()
        env.close()
        with pytest.raises(UnityEnvironmentException, match="No Unity environment is loaded"):
            env.step()


def test_nan_is_a_runtime_error() -> None:
    broken = message(SPACE, [Agent(id=4, reward=math.nan)])
    with environment(broken) as (env, _), pytest.raises(RuntimeError, match="nan as a reward"):
        env.reset()


def test_the_editor_is_one() -> None:
    with pytest.raises(UnityEnvironmentException, match="only one: worker 0"):
        UnityEnvironment(worker_id=1)


def test_a_build_that_is_not_there() -> None:
    with pytest.raises(UnityEnvironmentException, match="Builds/Nowhere"):
        UnityEnvironment("Builds/Nowhere")


def test_a_simulation_is_stepped_through_an_episode() -> None:
    """A whole program as ML-Agents' users write it, side channels included."""
    parameters = side_channels.EnvironmentParametersChannel()
    parameters.set_float_parameter("mass", 2.0)
    arguments: list[str] = ["--agents", "3"]
    with UnityEnvironment("sim:3DBall", 1, 16800, 7, additional_args=arguments, side_channels=[parameters]) as env:
        env.step()
        (name,) = env.behavior_specs
        assert name == "3DBall?team=0"
        ended: set[int] = set()
        for _ in range(200):
            decisions, terminals = env.get_steps(name)
            ended |= set(terminals)
            env.set_actions(name, ActionTuple(np.ones((len(decisions), 2), np.float32)))
            env.step()
        assert ended == {0, 1, 2}
        with pytest.raises(UnityWorkerInUseException, match="16801"):
            UnityEnvironment("sim:3DBall", 1, 16800)


def test_steps_of_an_episode() -> None:
    with environment(FIRST_MESSAGE, SECOND_MESSAGE) as (env, answers):
        assert len(env.behavior_specs) == 0
        env.reset()
        assert list(env.behavior_specs) == [BEHAVIOR]
        decisions, terminals = env.get_steps(BEHAVIOR)
        assert list(decisions) == [4, 9]
        assert decisions[4].action_mask is not None
        assert [mask.tolist() for mask in decisions[4].action_mask] == [[False, True, False], [False, True]]
        assert decisions[9].group_id == 2
        assert decisions[9].group_reward == 0.5
        assert decisions.obs[0].tolist() == [[0.5, -1.0], [0.5, -1.0]]
        assert len(terminals) == 0
        env.step()
        decisions, terminals = env.get_steps(BEHAVIOR)
        assert list(decisions) == [4]
        assert list(terminals) == [4, 9]
        assert terminals[4].interrupted
        assert not terminals[9].interrupted
        assert terminals[4].reward == 1.5
        assert terminals[4].obs[0].tolist() == [3.0, 4.0]
        assert terminals[9].group_reward == 2.5
        assert terminals.agent_id.dtype == np.int32
    assert answers[1].unity_input.rl_input.command == RESET
    assert answers[-1].header.status == 400


def test_the_first_step_is_a_reset() -> None:
    with environment(FIRST_MESSAGE) as (env, _):
        env.step()
        assert list(env.get_steps(BEHAVIOR)[0]) == [4, 9]


def test_actions_for_all() -> None:
    with environment(FIRST_MESSAGE, SECOND_MESSAGE) as (env, answers):
        env.reset()
        continuous = np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)
        discrete = np.array([[1, 0], [2, 1]], np.int32)
        env.set_actions(BEHAVIOR, ActionTuple(continuous, discrete))
        env.step()
    sent = answers[2].unity_input.rl_input.agent_actions[BEHAVIOR].value
    assert [list(action.continuous_actions) for action in sent] == continuous.tolist()
    assert [list(action.discrete_actions) for action in sent] == discrete.tolist()


def test_an_action_for_one() -> None:
    with environment(FIRST_MESSAGE, SECOND_MESSAGE, SECOND_MESSAGE) as (env, answers):
        env.reset()
        action = ActionTuple(np.array([[0.5, 0.25]], np.float32), np.array([[2, 1]], np.int32))
        env.set_action_for_agent(BEHAVIOR, 9, action)
        with pytest.raises(IndexError, match="agent 5"):
            env.set_action_for_agent(BEHAVIOR, 5, action)
        env.step()
        env.step()
    sent = answers[2].unity_input.rl_input.agent_actions[BEHAVIOR].value
    assert [list(each.continuous_actions) for each in sent] == [[0.0, 0.0], [0.5, 0.25]]
    assert [list(each.discrete_actions) for each in sent] == [[0, 0], [2, 1]]
    later = answers[3].unity_input.rl_input.agent_actions[BEHAVIOR].value
    assert [list(each.continuous_actions) for each in later] == [[0.0, 0.0]]  # actions are for one step


def test_wrong_actions() -> None:
    with environment(FIRST_MESSAGE) as (env, _):
        env.reset()
        with pytest.raises(UnityActionException):
            env.set_actions(BEHAVIOR, zeros(3))
        with pytest.raises(UnityActionException, match="'Nobody'"):
            env.set_actions("Nobody", zeros(2))
        with pytest.raises(UnityActionException, match="The behaviors are: 'Walker"):
            env.get_steps("Nobody")


def zeros(count: int) -> ActionTuple:
    return ActionTuple(np.zeros((count, 2), np.float32), np.zeros((count, 2), np.int32))


def test_a_behavior_that_is_silent_has_empty_steps() -> None:
    other = Space(name="Other?team=0")
    with environment(FIRST_MESSAGE, message(other, [Agent()])) as (env, _):
        env.reset()
        env.step()
        decisions, terminals = env.get_steps(BEHAVIOR)
        assert len(decisions) == len(terminals) == 0
        assert decisions.obs[0].shape == (0, 2)
        env.set_actions(BEHAVIOR, zeros(0))
        assert list(env.behavior_specs) == [BEHAVIOR, "Other?team=0"]


def test_pictures_are_floats() -> None:
    """As ML-Agents', so in 0..1; channels first."""
    hello = handshake(package="2.3.0")
    port = free_port()

    def play() -> None:
        with connected(port) as exchange:
            for sent in (hello, header(), message_of({BEHAVIOR: [agent(png(FIRST), [])]}, [Space()])):
                exchange(sent)

    playing = in_background(play)
    with UnityEnvironment(base_port=port, timeout_wait=LIMIT_S) as env:
        env.reset()
        obs = env.get_steps(BEHAVIOR)[0].obs[0]
        assert obs.dtype == np.float32
        assert np.array_equal(obs[0], ALL[:3] / np.float32(255.0))
    playing.result(LIMIT_S)


def test_all_ends_of_an_agent_are_shown_but_only_the_first_is_learned(caplog: pytest.LogCaptureFixture) -> None:
    first_end = Agent(id=4, reward=1.0, done=True, observations=((5.0, 5.0),))
    later_end = Agent(id=4, reward=0.0, done=True, interrupted=True, observations=((0.0, 0.0),))
    ends = message(SPACE, [first_end, Agent(id=9, reward=2.0, done=True), later_end, Agent(id=4)], announce=False)
    with environment(FIRST_MESSAGE, ends, ends) as (env, _):
        env.reset()
        for _ in range(2):
            env.send({})
            batch = env.receive().steps[BEHAVIOR]
            assert batch.agent.tolist() == [4, 9, 4]
            assert batch.reward.tolist() == [1.0, 2.0, 0.0]
            assert batch.obs[0][0].tolist() == [5.0, 5.0]
            assert batch.interrupted.tolist() == [False, False]
            _, terminal_steps = env.get_steps(BEHAVIOR)
            assert terminal_steps.agent_id.tolist() == [4, 9, 4]
            assert terminal_steps.reward.tolist() == [1.0, 2.0, 0.0]
    assert [record.levelname for record in caplog.records if "more than once" in record.message] == ["WARNING"]
