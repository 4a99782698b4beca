"""Any message decodes to the same columns the fast way, the general way and one agent at a time."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.envs.unity.messages import (
    BEHAVIOR,
    Agent,
    Space,
    assert_same,
    field_of,
    message,
    message_of,
    oracle,
    unpacked,
)
from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.protobuf import UnusualRecordError
from trajtrainer.core.steps import StepBatch
from trajtrainer.envs.unity import behaviors
from trajtrainer.envs.unity.behaviors import PictureOrder
from trajtrainer.envs.unity.decode import MessageDecoder
from trajtrainer.envs.unity.proto.communicator_pb2 import UnityMessageProto, UnityRLOutputProto
from trajtrainer.envs.unity.records import RecordReader, parse_records

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
# Zeros are left out of a message, -0.0 is not; both change a record's layout or must not.
REWARDS = st.sampled_from([0.0, -0.0, 1.0, -0.25]) | FLOATS
IDS = st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 2_097_152]) | st.integers(0, 2**31 - 1)
SHAPES = st.sampled_from([(1,), (2,), (8,), (40,), (3, 2), (20, 3), (2, 3, 4)])
SPACES = st.builds(
    Space,
    shapes=st.lists(SHAPES, min_size=1, max_size=3).map(tuple),
    continuous_size=st.integers(0, 3),
    branches=st.lists(st.integers(1, 5), max_size=3).map(tuple),
)


@st.composite
def agents_of(draw: st.DrawFn, space: Space) -> Agent:
    size = sum(space.branches)
    forbidden = st.lists(st.booleans(), min_size=size, max_size=size).map(tuple)
    return Agent(
        id=draw(IDS),
        observations=tuple(
            tuple(draw(st.lists(FLOATS, min_size=math.prod(shape), max_size=math.prod(shape))))
            for shape in space.shapes
        ),
        reward=draw(REWARDS),
        done=draw(st.booleans()),
        interrupted=draw(st.booleans()),
        mask=draw(st.just(()) | forbidden),
        group=draw(st.just(0) | IDS),
        group_reward=draw(REWARDS),
    )


@st.composite
def repeated(draw: st.DrawFn, space: Space) -> list[Agent]:
    """Few different agents, many times: long runs, and layouts that take turns."""
    few = draw(st.lists(agents_of(space), min_size=1, max_size=4))
    return draw(st.lists(st.sampled_from(few), min_size=1, max_size=60))


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_all_ways_of_decoding_agree(data: st.DataObject) -> None:
    space = data.draw(SPACES)
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    announced = False
    for likes in data.draw(st.lists(repeated(space), min_size=1, max_size=4)):
        ids = data.draw(st.lists(IDS, min_size=len(likes), max_size=len(likes), unique=True))
        agents = [replace(agent, id=own) for agent, own in zip(likes, ids, strict=True)]
        sent = message(space, agents, announce=not announced)
        infos = UnityMessageProto.FromString(sent).unity_output.rl_output.agentInfos[BEHAVIOR].value
        decoded = decoder.decode(sent)
        assert list(decoded.new_specs) == ([] if announced else [BEHAVIOR])
        announced = True
        assert_same(decoded.steps[BEHAVIOR], oracle(infos, space))


def fast_and_general(space: Space, records: bytes) -> tuple[StepBatch | None, StepBatch]:
    """A list of agents read both ways; None where the fast way leaves it to the other."""
    infos = UnityRLOutputProto.ListAgentInfoProto.FromString(records)
    behavior = behaviors.announced(space.parameters(), infos.value[0], PictureOrder.CHANNELS_FIRST)
    reader = RecordReader(behavior)
    try:
        fast = reader.read(records)
    except UnusualRecordError:
        fast = None
    return fast, parse_records(records, behavior)


@given(st.data())
@settings(deadline=None, max_examples=25)
def test_what_players_write_is_read_the_fast_way(data: st.DataObject) -> None:
    space = data.draw(SPACES)
    agents = [
        agent
        for agent in data.draw(repeated(space))
        # Left to protobuf: ids of more than 28 bits, and masks where there is nothing to forbid.
        if max(agent.id, agent.group) < 2**28 and (space.branches or not agent.mask)
    ]
    infos = [space.record(agent) for agent in agents]
    records = UnityRLOutputProto.ListAgentInfoProto(value=infos).SerializeToString()
    if records:
        fast, general = fast_and_general(space, records)
        assert fast is not None
        assert_same(fast, general)


@given(st.data())
@settings(deadline=None, max_examples=25)
def test_records_in_any_other_form_that_protobuf_allows(data: st.DataObject) -> None:
    space = data.draw(SPACES)
    agents = data.draw(st.lists(agents_of(space), min_size=1, max_size=6))
    usual = [space.record(agent) for agent in agents]
    odd = data.draw(st.lists(st.booleans(), min_size=len(agents), max_size=len(agents)))
    records = b"".join(
        field_of(1, unpacked(agent, space) if is_odd else info.SerializeToString())
        for agent, info, is_odd in zip(agents, usual, odd, strict=True)
    )
    fast, general = fast_and_general(space, records)
    expected = oracle(UnityRLOutputProto.ListAgentInfoProto.FromString(records).value, space)
    assert_same(general, expected)
    if fast is not None:
        assert_same(fast, expected)


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_damaged_messages_are_refused_or_still_mean_what_protobuf_says(data: st.DataObject) -> None:
    space = Space(shapes=((3,), (2, 2)), branches=(2, 3))
    agents = [Agent(id=index, observations=((1.0, 2.0, 3.0), (4.0,) * 4), reward=index / 2) for index in range(5)]
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    decoder.decode(message(space, agents))
    damaged = bytearray(message(space, agents, announce=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged)) | st.just(len(damaged))) :]
    try:
        decoded = decoder.decode(bytes(damaged))
        parsed = UnityMessageProto.FromString(bytes(damaged))
    except (InvalidDataError, DecodeError):  # the latter where only what nobody reads is damaged
        return
    assert decoded.status == parsed.header.status
    for name, batch in decoded.steps.items():
        assert_same(batch, oracle(parsed.unity_output.rl_output.agentInfos[name].value, space))


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=100)
def test_rubbish_is_refused(rubbish: bytes) -> None:
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_LAST)
    decoder.decode(message(Space(), [Agent()]))
    for sent in (rubbish, message_of({}) + rubbish, message(Space(), [Agent()], announce=False) + rubbish):
        with contextlib.suppress(InvalidDataError):
            decoder.decode(sent)


@given(records=st.binary(max_size=120), parameters=st.binary(max_size=60))
@settings(deadline=None, max_examples=100)
def test_rubbish_inside_of_a_message_is_refused(records: bytes, parameters: bytes) -> None:
    entry = field_of(1, BEHAVIOR.encode()) + field_of(2, records)
    output = field_of(1, field_of(2, entry)) + field_of(2, field_of(5, field_of(7, BEHAVIOR.encode()) + parameters))
    sent = field_of(1, b"\x08\xc8\x01") + field_of(2, output)
    with contextlib.suppress(InvalidDataError):
        MessageDecoder(0, PictureOrder.CHANNELS_LAST).decode(sent)


@pytest.mark.parametrize("worker", [0, 1, 7])
def test_agent_ids_bear_the_worker(worker: int) -> None:
    sent = message(Space(), [Agent(id=5), Agent(id=300)])
    decoded = MessageDecoder(worker, PictureOrder.CHANNELS_FIRST).decode(sent)
    assert decoded.steps[BEHAVIOR].agent.tolist() == [worker << 32 | 5, worker << 32 | 300]
    assert np.array_equal(decoded.steps[BEHAVIOR].agent & 0xFFFFFFFF, [5, 300])
