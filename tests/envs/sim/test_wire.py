"""Protobuf's wire format by hand, against protobuf itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajtrainer.envs.sim.wire import DELIMITED, FIXED32, FIXED64, VARINT, delimited, fields, key
from trajtrainer.envs.unity.proto import communicator_pb2 as pb
from trajtrainer.envs.unity.records.wire import varint


@given(st.integers(0, 2**31 - 1))
def test_a_varint_is_what_protobuf_writes(value: int) -> None:
    expected = pb.AgentInfoProto(id=value).SerializeToString()
    assert (key(10, VARINT) + varint(value) if value else b"") == expected


@given(st.text(max_size=300), st.integers(1, 2**31 - 1), st.floats(width=32, allow_nan=False))
def test_fields_of_a_message_are_found(name: str, steps: int, reward: float) -> None:
    message = pb.DemonstrationMetaProto(demonstration_name=name, number_steps=steps, mean_reward=reward)
    data = b"before" + message.SerializeToString() + b"after"
    found = {n: (w, data[a:b], v) for n, w, a, b, v in fields(data, 6, len(data) - 5)}
    assert found.pop(2, (DELIMITED, b"", 0)) == (DELIMITED, name.encode(), 0)
    assert found.pop(3)[2] == steps
    if message.mean_reward:
        assert found.pop(5)[0] == FIXED32
    found.pop(5, None)
    assert not found


def test_a_delimited_field_and_one_of_eight_bytes() -> None:
    data = delimited(7, b"x" * 200) + key(8, FIXED64) + bytes(8)
    assert [(n, b - a) for n, _, a, b, _ in fields(data, 0, len(data))] == [(7, 200), (8, 8)]


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05ab", b"\x80", b"\x0b\x01", b"\x0d\x01", b"\xff" * 12])
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="of a message"):
        list(fields(data, 0, len(data)))
