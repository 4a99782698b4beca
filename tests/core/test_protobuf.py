"""Protobuf's wire format by hand, against protobuf itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajtrainer.core.protobuf import (
    BOOLS,
    DELIMITED,
    FIXED32,
    FIXED64,
    FLOAT,
    NUMBER,
    VARINT,
    Layout,
    LayoutSorter,
    RecordList,
    UnusualRecordError,
    delimited,
    fields,
    key,
    numbers,
    read_varint,
    varint,
)
from trajtrainer.envs.unity.proto import communicator_pb2 as pb


@given(st.integers(0, 2**31 - 1))
def test_a_varint_is_what_protobuf_writes(value: int) -> None:
    expected = pb.AgentInfoProto(id=value).SerializeToString()
    assert (key(10, VARINT) + varint(value) if value else b"") == expected


@given(st.text(max_size=300), st.integers(1, 2**31 - 1), st.floats(width=32, allow_nan=False))
def test_fields_of_a_message_are_found(name: str, steps: int, reward: float) -> None:
    message = pb.DemonstrationMetaProto(demonstration_name=name, number_steps=steps, mean_reward=reward)
    data = b"before" + message.SerializeToString() + b"after"
    found = {number: (kind, data[start:stop]) for number, start, stop, kind in fields(data, 6, len(data) - 5)}
    assert found.pop(2, (DELIMITED, b"")) == (DELIMITED, name.encode())
    assert read_varint(found.pop(3)[1], 0)[0] == steps
    if message.mean_reward:
        assert found.pop(5)[0] == FIXED32
    found.pop(5, None)
    assert not found


def test_a_delimited_field_and_one_of_eight_bytes() -> None:
    data = delimited(7, b"x" * 200) + key(8, FIXED64) + bytes(8)
    assert [(number, stop - start) for number, start, stop, _ in fields(data)] == [(7, 200), (8, 8)]


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05ab", b"\x80", b"\x0b\x01", b"\x0d\x01", b"\xff" * 12])
def test_nothing_is_found_in_what_is_no_message(data: bytes) -> None:
    assert list(fields(data)) == []


SCHEMA = {1: {7: FLOAT, 10: NUMBER, 11: BOOLS}}


class Learned:
    def __init__(self, record: bytes) -> None:
        self.layout = Layout.of(record, SCHEMA)


def entry(agent: int, reward: float = 1.0, **values: object) -> bytes:
    return delimited(1, pb.AgentInfoProto(id=agent, reward=reward, **values).SerializeToString())  # type: ignore[arg-type]


def test_records_are_sorted_by_what_is_no_value() -> None:
    records = [entry(1), entry(300), entry(2), b"\x0f", entry(5, done=True), entry(7), entry(9, done=True), entry(400)]
    sizes = np.array(list(map(len, records)))
    groups, others = LayoutSorter(Learned).sort(b"".join(records), np.cumsum(sizes) - sizes, sizes)
    found = {
        tuple(np.arange(len(records))[group.rows].tolist()): numbers(
            rows, group.learned.layout.places[1, 10][0]
        ).tolist()
        for group, rows in groups
    }
    assert found == {(0, 2, 5): [1, 2, 7], (1, 7): [300, 400], (4, 6): [5, 9]}
    assert others.tolist() == [3]
    groups, others = LayoutSorter(Learned).sort(b"".join(records), np.cumsum(sizes) - sizes, sizes, fewest=3)
    assert [len(rows) for _, rows in groups] == [3]
    assert others.tolist() == [1, 3, 4, 6, 7]


def test_a_list_of_records_gives_each_its_row() -> None:
    reader = RecordList(Learned, is_first=lambda learned: (1, 11) in learned.layout.places)
    for ids in ([1, 2, 3, 4], [9, 8, 7, 6], [3, 300, 1, 2]):
        data = b"".join(entry(each, action_mask=[True, False] * (each % 3 == 0)) for each in ids)
        rows = np.zeros(len(ids), np.int64)
        for group, records in reader.read(data):
            rows[group.rows] = numbers(records, group.learned.layout.places[1, 10][0])
        assert rows.tolist() == sorted(ids, key=lambda each: each % 3 != 0)
    for damaged in (b"", entry(1)[:-1], entry(1) + b"\x12\x00", delimited(1, b"\x3a\x00")):
        with pytest.raises(UnusualRecordError):
            reader.read(damaged)


@pytest.mark.parametrize(
    "record",
    [
        delimited(1, b"\x50\x80\x80\x80\x80\x01"),  # a number of five bytes
        delimited(1, b"\x50\x80"),  # one that does not end
        delimited(1, b"\x5a\x02\x01\x02"),  # a bool of 2
        delimited(1, b"\x58\x01"),  # one that is not packed
        b"\x08\x01",  # a number instead of a message
    ],
)
def test_records_that_have_no_layout(record: bytes) -> None:
    with pytest.raises(UnusualRecordError):
        Layout.of(record, SCHEMA)


def test_a_value_that_comes_twice_has_no_place() -> None:
    layout = Layout.of(delimited(1, b"\x50\x01\x50\x02"), SCHEMA)
    assert layout.place(1, 7) is None
    with pytest.raises(UnusualRecordError):
        layout.place(1, 10)
