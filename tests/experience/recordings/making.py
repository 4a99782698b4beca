"""Steps of many kinds to record, and the obvious way to read a recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, zeros
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.envs.unity.proto.communicator_pb2 import (
    AgentInfoActionPairProto,
    BrainParametersProto,
    DemonstrationMetaProto,
)
from trajtrainer.experience.recordings.pairing import Trajectory
from trajtrainer.experience.recordings.step_reader import entries_of_steps
from trajtrainer.experience.recordings.writer import DemoWriter
from trajtrainer.experience.trajectory import PackedSteps, offsets

NONE, TRANSLATED = DimensionProperty.NONE, DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
VECTOR = ObservationSpec((3,), (NONE,), ObservationType.DEFAULT, "vector")
GOAL = ObservationSpec((2,), (NONE,), ObservationType.GOAL_SIGNAL, "goal")
ENTITIES = ObservationSpec((4, 2), (DimensionProperty.VARIABLE_SIZE, NONE), ObservationType.DEFAULT, "entities")
PICTURE = ObservationSpec((3, 6, 5), (NONE, TRANSLATED, TRANSLATED), ObservationType.DEFAULT, "camera")

SPECS = {
    "continuous": BehaviorSpec([VECTOR], ActionSpec(2, ())),
    "discrete": BehaviorSpec([VECTOR, GOAL], ActionSpec(0, (3, 200))),
    "hybrid": BehaviorSpec([VECTOR, ENTITIES], ActionSpec(1, (3,))),
    "visual": BehaviorSpec([PICTURE, VECTOR], ActionSpec(0, (2,))),
    "pictures as floats": BehaviorSpec([PICTURE], ActionSpec(1, ())),
}


def dtypes_of(name: str) -> list[Any]:
    return [np.uint8 if name == "visual" and each is PICTURE else np.float32 for each in SPECS[name].observation_specs]


def write_demo(path: Path, packed: PackedSteps, spec: BehaviorSpec, name: str) -> None:
    """Write the trajectories of packed steps."""
    with DemoWriter(path, spec, name) as writer:
        for number in range(packed.num_trajectories):
            part = packed.trajectories(number, number + 1)
            writer.write(Trajectory(part.steps, part.bootstrap))


def packed_steps(
    name: str, lengths: Sequence[int], *, seed: int = 0, masked: bool = True, grouped: bool = False, cut: bool = False
) -> PackedSteps:
    """Trajectories with numbers that tell them apart. Every third is interrupted; the last one may be cut off."""
    random, spec = np.random.default_rng(seed), SPECS[name]
    count = sum(lengths)
    steps = dict(zeros(entries_of_steps(spec, dtypes_of(name)), count).items())
    after: dict[str, NDArray[Any]] = {}
    for each, column in steps.items():
        if each.startswith("obs."):
            both = random.integers(0, 256, (count + len(lengths), *column.shape[1:]))
            both = both.astype(np.uint8) if column.dtype == np.uint8 else (both / 7).astype(np.float32)
            steps[each], after[each] = both[:count], both[count:]
    after["memory"] = np.zeros((len(lengths), 0), np.float32)
    steps["continuous"] = random.normal(size=steps["continuous"].shape).astype(np.float32)
    begin = 0
    for branch, size in enumerate(spec.action_spec.discrete_branches):
        steps["discrete"][:, branch] = random.integers(0, size, count)
        if masked:
            steps["mask"][:, begin : begin + size] = random.random((count, size)) < 0.3
            steps["mask"][np.arange(count), begin + steps["discrete"][:, branch]] = False
        begin += size
    steps["reward"] = random.integers(-3, 4, count).astype(np.float32)
    if grouped:
        steps["group"] = np.repeat(np.arange(1, len(lengths) + 1), lengths).astype(np.int32)
        steps["group_reward"] = random.integers(-3, 4, count).astype(np.float32)
    offset = offsets(np.array(lengths, np.int64))
    ended = np.ones(len(lengths), np.bool_)
    ended[-1] = not cut
    terminated = ended & (np.arange(len(lengths)) % 3 != 2)
    steps["done"][offset[1:] - 1] = ended
    steps["interrupted"][offset[1:] - 1] = ended & ~terminated
    return PackedSteps(Columns(steps), Columns(after), offset, terminated, ended, np.zeros(len(lengths), np.int64))


def check_same(found: PackedSteps, expected: PackedSteps) -> None:
    for name in ("offset", "terminated", "ended"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    for columns, wanted in ((found.steps, expected.steps), (found.bootstrap, expected.bootstrap)):
        assert set(columns) == set(wanted)
        for name in wanted:
            np.testing.assert_array_equal(columns[name], wanted[name], name)
            assert columns[name].dtype == wanted[name].dtype


def read_plainly(path: Path) -> tuple[DemonstrationMetaProto, BrainParametersProto, list[AgentInfoActionPairProto]]:
    """Read a recording as ML-Agents does: every message by itself, as many as the header names."""
    data = path.read_bytes()
    meta = DemonstrationMetaProto.FromString(data[1 : 1 + data[0]])
    position, messages = 33, []
    for _ in range(1 + meta.number_steps):
        size = shift = 0
        while True:
            byte = data[position]
            position += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        messages.append(data[position : position + size])
        assert len(messages[-1]) == size
        position += size
    return (
        meta,
        BrainParametersProto.FromString(messages[0]),
        list(map(AgentInfoActionPairProto.FromString, messages[1:])),
    )


def write_plainly(
    path: Path, parameters: bytes, pairs: Sequence[bytes], *, number: int | None = None, by_unity: bool = False
) -> None:
    """Write a recording message by message."""
    number = len(pairs) if number is None else number
    meta = DemonstrationMetaProto(api_version=1, demonstration_name="Test", number_steps=number).SerializeToString()
    data = (bytes([len(meta)]) + meta).ljust(33, b"\x00")
    for message in (parameters, *pairs):
        size = len(message)
        while size >= 0x80:
            data += bytes([size & 0x7F | 0x80])
            size >>= 7
        data += bytes([size]) + message
    path.write_bytes(data + (meta if by_unity else b""))
