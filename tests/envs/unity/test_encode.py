"""Answers read back with protobuf."""

from __future__ import annotations

import mlagents_envs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlagents_envs.exception import UnityActionException

from trajtrainer.core.spec import ActionSpec
from trajtrainer.envs.unity import encode
from trajtrainer.envs.unity.faults import ActionError
from trajtrainer.envs.unity.proto.communicator_pb2 import RESET, STEP, UnityMessageProto


@st.composite
def behaviors(draw: st.DrawFn) -> tuple[str, ActionSpec, int, int]:
    """Name, action space, number of agents, seed."""
    branches = st.lists(st.sampled_from([1, 2, 3, 128, 129, 200, 16_384, 16_385, 100_000]), max_size=3)
    name = draw(st.text(min_size=1, max_size=200)) + "?team=0"
    spec = ActionSpec(draw(st.integers(0, 40)), tuple(draw(branches)))
    return name, spec, draw(st.integers(1, 40)), draw(st.integers(0, 99))


@given(st.lists(behaviors(), max_size=4, unique_by=lambda behavior: behavior[0]), st.binary(max_size=300))
@settings(deadline=None, max_examples=150)
def test_steps(spaces: list[tuple[str, ActionSpec, int, int]], side_channel: bytes) -> None:
    parts = []
    sent = {}
    for name, spec, count, seed in spaces:
        rng = np.random.default_rng(seed)
        continuous = rng.uniform(-1, 1, (count, spec.continuous_size)).astype(np.float32)
        discrete = rng.integers(0, spec.discrete_branches, (count, spec.discrete_size)).astype(np.int32)
        sent[name] = continuous, discrete
        parts.append(encode.ActionEncoder(name, spec).encode(continuous, discrete))
    message = UnityMessageProto.FromString(encode.step(parts, side_channel))
    assert message.header.status == 200
    rl_input = message.unity_input.rl_input
    assert rl_input.command == STEP
    assert rl_input.side_channel == side_channel
    assert rl_input.agent_actions.keys() == sent.keys()
    for name, (continuous, discrete) in sent.items():
        actions = rl_input.agent_actions[name].value
        assert [list(action.continuous_actions) for action in actions] == continuous.tolist()
        assert [list(action.discrete_actions) for action in actions] == discrete.tolist()
        deprecated = np.concatenate([continuous, discrete.astype(np.float32)], axis=1)
        assert [list(action.vector_actions_deprecated) for action in actions] == deprecated.tolist()


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_memory_layout(order: str) -> None:
    continuous = np.array([[1, 2, 3], [4, 5, 6]], np.float32, order=order)  # type: ignore[call-overload]
    discrete = np.array([[1, 0], [2, 1]], np.int64, order=order)[:, :1]  # type: ignore[call-overload]
    part = encode.ActionEncoder("B", ActionSpec(3, (3,))).encode(continuous, discrete)
    actions = UnityMessageProto.FromString(encode.step([part], b"")).unity_input.rl_input.agent_actions["B"].value
    assert [list(action.continuous_actions) for action in actions] == [[1, 2, 3], [4, 5, 6]]
    assert [list(action.discrete_actions) for action in actions] == [[1], [2]]


@pytest.mark.parametrize("side_channel", [b"", b"frames"])
def test_reset(side_channel: bytes) -> None:
    message = UnityMessageProto.FromString(encode.reset(side_channel))
    assert message.header.status == 200
    assert message.unity_input.rl_input.command == RESET
    assert message.unity_input.rl_input.side_channel == side_channel


def test_initialization() -> None:
    message = UnityMessageProto.FromString(encode.initialization(seed=123_456, num_areas=4))
    answer = message.unity_input.rl_initialization_input
    assert (answer.seed, answer.num_areas) == (123_456, 4)
    assert answer.communication_version == "1.5.0"
    assert answer.package_version == mlagents_envs.__version__
    assert answer.capabilities.multiAgentGroups


def test_goodbye() -> None:
    assert UnityMessageProto.FromString(encode.goodbye()).header.status == 400


@pytest.mark.parametrize(
    ("continuous", "discrete", "text"),
    [
        ((2, 1), (2, 2), r"shape \(2, 1\)"),
        ((2, 2), (2, 1), r"shape \(2, 1\)"),
        ((2, 2), (3, 2), r"shape \(3, 2\)"),
    ],
)
def test_wrong_shapes_are_refused(continuous: tuple[int, int], discrete: tuple[int, int], text: str) -> None:
    encoder = encode.ActionEncoder("Walker", ActionSpec(2, (3, 2)))
    with pytest.raises(ActionError, match=text):
        encoder.encode(np.zeros(continuous, np.float32), np.zeros(discrete, np.int32))


@pytest.mark.parametrize("choice", [-1, 3, 1000])
def test_choices_outside_of_their_branch_are_refused(choice: int) -> None:
    encoder = encode.ActionEncoder("Walker", ActionSpec(0, (3, 2)))
    with pytest.raises(UnityActionException, match=r"'Walker'.*\[3, 2\] choices"):
        encoder.encode(np.zeros((1, 0), np.float32), np.array([[choice, 0]], np.int32))
