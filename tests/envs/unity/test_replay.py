"""A player that says what a real one has said, over real gRPC, to the real server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.envs.unity import recordings
from tests.envs.unity.client import LIMIT_S, connected, in_background
from tests.ports import free_port
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, StepBatch
from trajtrainer.envs.unity.proto.communicator_pb2 import RESET, STEP, UnityMessageProto
from trajtrainer.envs.unity.session import PlayerSession


def replay(port: int, messages: list[bytes]) -> list[bytes]:
    with connected(port) as exchange:
        return [exchange(message) for message in messages]


def actions_by_agent(batch: StepBatch, spec: ActionSpec) -> ActionBatch:
    """Actions that tell which agent they are for."""
    ids = batch.agent[batch.num_terminal :]
    count = len(ids)
    continuous = np.repeat(ids[:, np.newaxis] / 1000, spec.continuous_size, axis=1).astype(np.float32)
    discrete = np.array(
        [[agent % branch for branch in spec.discrete_branches] for agent in ids.tolist()], np.int32
    ).reshape(count, spec.discrete_size)
    return ActionBatch(
        continuous=continuous * 5,
        discrete=discrete,
        env_continuous=continuous,
        log_prob=np.zeros((count, spec.continuous_size + spec.discrete_size), np.float32),
        entropy=np.zeros(count, np.float32),
        memory=np.zeros((count, 0), np.float32),
        version=0,
    )


@pytest.mark.parametrize("name", recordings.NAMES)
def test_replayed_session(shared_data: Path, name: str) -> None:
    recording = recordings.load(shared_data, name)
    port = free_port()
    replayed = in_background(replay, port, recording.from_player)
    session = PlayerSession(base_port=port, timeout_wait=LIMIT_S)
    specs: dict[str, BehaviorSpec] = {}
    try:
        session.start_reset()
        for index in range(len(recording.steps)):
            event = session.receive()
            assert event.is_reset is (index == 0)
            specs |= event.new_specs
            expected = sorted({key.split("/")[1] for key in recording.arrays if key.startswith(f"{index}/")})
            assert sorted(event.steps) == expected
            if index < len(recording.steps) - 1:
                session.send_actions(
                    {
                        behavior: actions_by_agent(batch, specs[behavior].action_spec)
                        for behavior, batch in event.steps.items()
                        if batch.num_decisions
                    }
                )
    finally:
        session.close()
    _check_answers(recording, replayed.result(LIMIT_S))


def _check_answers(recording: recordings.Recording, answers: list[bytes]) -> None:
    """As many answers as recorded, each with as many actions, in the order of the agents that asked."""
    assert len(answers) == len(recording.to_player)
    messages = [UnityMessageProto.FromString(answer) for answer in answers]
    recorded = [UnityMessageProto.FromString(answer) for answer in recording.to_player]
    assert messages[0].unity_input.HasField("rl_initialization_input")
    assert messages[1].unity_input.rl_input.command == RESET
    assert [message.header.status for message in messages] == [200] * (len(messages) - 1) + [400]
    for sent, answer, expected in zip(recording.steps, messages[2:-1], recorded[2:-1], strict=False):
        agents = UnityMessageProto.FromString(sent).unity_output.rl_output.agentInfos
        actions = answer.unity_input.rl_input.agent_actions
        assert answer.unity_input.rl_input.command == STEP
        expected_actions = expected.unity_input.rl_input.agent_actions
        assert {behavior: len(actions[behavior].value) for behavior in actions} == {
            behavior: len(expected_actions[behavior].value) for behavior in expected_actions
        }
        for behavior in actions:
            asking = [agent.id for agent in agents[behavior].value if not agent.done]
            for agent_id, action in zip(asking, actions[behavior].value, strict=True):
                assert all(number == np.float32(agent_id / 1000) for number in action.continuous_actions)
                description = recording.description["behaviors"][behavior]
                assert list(action.discrete_actions) == [agent_id % size for size in description["discrete_branches"]]
