"""The trainer's answers become action arrays, whatever the trainer's style of writing them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.envs.sim.messages import recorded
from trajtrainer.core.spec import ActionSpec
from trajtrainer.envs.sim.wire import ActionReader, OrderError, read_order
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

ActionList = pb.UnityRLInputProto.ListAgentActionProto


def written(continuous: NDArray[np.float32], discrete: NDArray[np.int32], style: str) -> bytes:
    """Actions as ML-Agents writes them (``both``), or with only the new or only the deprecated fields."""
    actions = ActionList()
    for c, d in zip(continuous.tolist(), discrete.tolist(), strict=True):
        action = actions.value.add()
        if style != "old":
            action.continuous_actions.extend(c)
            action.discrete_actions.extend(d)
        if style != "new":
            action.vector_actions_deprecated.extend([*c, *d])
    return actions.SerializeToString()


@pytest.mark.parametrize("style", ["both", "new"])
@pytest.mark.parametrize(("size", "branches"), [(2, ()), (0, (3,)), (2, (3, 2)), (1, (300,)), (0, (200, 4))])
@given(seed=st.integers(0, 2**32 - 1), agents=st.integers(1, 6))
def test_actions_arrive_as_they_were_sent(
    size: int, branches: tuple[int, ...], style: str, seed: int, agents: int
) -> None:
    random = np.random.default_rng(seed)
    reader = ActionReader("A", ActionSpec(size, branches), agents, api_minor=5)
    for _ in range(5):
        continuous = random.standard_normal((agents, size), dtype=np.float32)
        discrete = random.integers(0, branches or [1], (agents, len(branches)), dtype=np.int32)
        actions = reader.read(written(continuous, discrete, style))
        np.testing.assert_array_equal(actions.continuous, continuous)
        np.testing.assert_array_equal(actions.discrete, discrete)
        assert actions.continuous.dtype == np.float32
        assert actions.discrete.dtype == np.int32


def test_old_players_read_the_deprecated_field() -> None:
    discrete = np.array([[2, 1], [0, 1]], dtype=np.int32)
    data = written(np.zeros((2, 0), dtype=np.float32), discrete, "old")
    actions = ActionReader("A", ActionSpec(0, (3, 2)), 2, api_minor=0).read(data)
    np.testing.assert_array_equal(actions.discrete, discrete)


def test_a_trainer_that_changes_its_style_is_still_understood() -> None:
    reader = ActionReader("A", ActionSpec(2, ()), 3, api_minor=5)
    none = np.zeros((3, 0), dtype=np.int32)
    for style in ("both", "new", "both"):
        continuous = np.arange(6, dtype=np.float32).reshape(3, 2)
        np.testing.assert_array_equal(reader.read(written(continuous, none, style)).continuous, continuous)


def test_more_actions_than_agents_are_passed_over_and_fewer_are_an_error() -> None:
    reader = ActionReader("Ball", ActionSpec(1, ()), 2, api_minor=5)
    three = written(np.array([[1.0], [2.0], [3.0]], dtype=np.float32), np.zeros((3, 0), dtype=np.int32), "new")
    assert reader.read(three).continuous.tolist() == [[1.0], [2.0]]
    with pytest.raises(OrderError, match="2 agents of 'Ball' need actions, but the trainer sent 1"):
        reader.read(written(np.array([[1.0]], dtype=np.float32), np.zeros((1, 0), dtype=np.int32), "new"))


def test_actions_of_the_wrong_size_are_an_error() -> None:
    reader = ActionReader("Ball", ActionSpec(2, ()), 1, api_minor=5)
    with pytest.raises(OrderError, match="action 0 of 'Ball' has 3 continuous_actions; expected 2"):
        reader.read(written(np.zeros((1, 3), dtype=np.float32), np.zeros((1, 0), dtype=np.int32), "both"))


def test_an_answer_is_taken_apart() -> None:
    message = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
    message.unity_input.rl_input.command = pb.RESET
    message.unity_input.rl_input.side_channel = b"frames"
    message.unity_input.rl_input.agent_actions["A?team=0"].value.add(continuous_actions=[1.0])
    message.unity_input.rl_input.agent_actions["B?team=0"].value.add(discrete_actions=[2])
    order = read_order(message.SerializeToString())
    assert (order.status, order.command, order.side_channel) == (200, pb.RESET, b"frames")
    assert {name: ActionList.FromString(data) for name, data in order.actions.items()} == dict(
        message.unity_input.rl_input.agent_actions
    )


def test_an_empty_answer_has_status_zero_and_rubbish_is_an_error() -> None:
    assert read_order(b"").status == 0
    with pytest.raises(OrderError, match="not a valid message"):
        read_order(b"\xff\xfe rubbish")
    with pytest.raises(OrderError, match="actions of 'A' are not a valid message"):
        ActionReader("A", ActionSpec(1, ()), 1, 5).read(b"\x0a\x7f")


@pytest.mark.parametrize("name", ["pkg2.3_3dball", "pkg2.3_basic", "pkg2.3_hybrid", "pkg2.3_two_behaviors"])
def test_recorded_answers_of_mlagents_are_read_as_protobuf_reads_them(name: str, shared_data: Path) -> None:
    compared = 0
    for direction, message in recorded(shared_data / "wire" / f"{name}.wire"):
        parsed = pb.UnityMessageProto.FromString(message)
        if direction == b"<" or not parsed.HasField("unity_input"):
            continue
        order = read_order(message)
        rl_input = parsed.unity_input.rl_input
        assert (order.status, order.command) == (parsed.header.status, rl_input.command)
        assert order.side_channel == rl_input.side_channel
        for behavior, actions in rl_input.agent_actions.items():
            first = actions.value[0]
            spec = ActionSpec(len(first.continuous_actions), (9,) * len(first.discrete_actions))
            read = ActionReader(behavior, spec, len(actions.value), 5).read(order.actions[behavior])
            assert read.continuous.tolist() == [list(a.continuous_actions) for a in actions.value]
            assert read.discrete.tolist() == [list(a.discrete_actions) for a in actions.value]
            compared += 1
    assert compared > 20
