"""Batches go through shared memory unchanged."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.experience.streams import vector_spec
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.core.steps import ActionBatch, StepBatch
from trajtrainer.envs import shared_batches
from trajtrainer.envs.shared_batches import SharedActions, SharedSteps

PICTURE = ObservationSpec((3, 5, 4), (DimensionProperty.UNSPECIFIED,) * 3, ObservationType.DEFAULT, "picture")
VECTOR = ObservationSpec((7,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "vector")
SPECS = {
    "Vector?team=0": BehaviorSpec([VECTOR], ActionSpec(2, ())),
    "Vector?team=1": BehaviorSpec([VECTOR], ActionSpec(2, ())),
    "Picture?team=0": BehaviorSpec([PICTURE, VECTOR], ActionSpec(0, (3, 2))),
    "Nothing?team=0": BehaviorSpec([], ActionSpec(1, (4,))),
}
TYPES = {name: tuple("|u1" if len(o.shape) == 3 else "<f4" for o in s.observation_specs) for name, s in SPECS.items()}


def random_batch(name: str, agents: int, terminal: int, seed: int) -> StepBatch:
    draw = np.random.default_rng(seed)
    spec = SPECS[name]
    columns = [draw.random((agents, *sensor.shape)) * 255 for sensor in spec.observation_specs]
    return StepBatch(
        agent=draw.integers(0, 2**60, agents),
        obs=tuple(column.astype(kind) for column, kind in zip(columns, TYPES[name], strict=True)),
        reward=draw.random(agents, np.float32),
        group=draw.integers(0, 9, agents, np.int32),
        group_reward=draw.random(agents, np.float32),
        mask=draw.random((agents, sum(spec.action_spec.discrete_branches))) < 0.5,
        interrupted=draw.random(terminal) < 0.5,
        num_terminal=terminal,
    )


def random_actions(name: str, agents: int, seed: int) -> ActionBatch:
    draw = np.random.default_rng(seed)
    spec = SPECS[name].action_spec
    continuous = draw.random((agents, spec.continuous_size), np.float32)
    nothing = np.zeros((agents, 0), np.float32)
    discrete = draw.integers(0, 2, (agents, spec.discrete_size), np.int32)
    return ActionBatch(continuous + 9, discrete, continuous, nothing, nothing[:, :0].sum(1), nothing, 4)


def check_same(found: StepBatch, expected: StepBatch) -> None:
    assert found.num_terminal == expected.num_terminal
    for name in ("agent", "reward", "group", "group_reward", "mask", "interrupted"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert mine.dtype == theirs.dtype, name
        assert np.array_equal(mine, theirs), name
    assert len(found.obs) == len(expected.obs)
    for one, other in zip(found.obs, expected.obs, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


sizes = st.lists(
    st.dictionaries(
        st.sampled_from(sorted(SPECS)), st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted), max_size=4
    ),
    min_size=1,
    max_size=8,
)


@given(messages=sizes, seed=st.integers(0, 1000))
@patch.object(shared_batches, "_FIRST_BYTES", 64)
def test_events_and_actions_are_read_as_they_were_written(messages: list[dict[str, list[int]]], seed: int) -> None:
    writer, reader, action_writer, action_reader = SharedSteps(), SharedSteps(), SharedActions(), SharedActions()
    for number, message in enumerate(messages):
        steps = {name: random_batch(name, n, t, seed + number) for name, (t, n) in message.items()}
        for name in steps:
            if name not in writer:
                for side in (writer, reader):
                    side.announce(name, SPECS[name], TYPES[name])
                for end in (action_writer, action_reader):
                    end.announce(name, SPECS[name].action_spec)
        address = writer.write(steps)
        assert number > 0 or address is not None
        if address is not None:
            reader.open(address)
            writer.unlink()
        found = reader.read()
        assert list(found) == list(steps)
        for name, batch in steps.items():
            check_same(found[name], batch)
        actions = {name: random_actions(name, n, seed + number) for name, (_, n) in message.items()}
        address = action_writer.write(actions)
        if address is not None:
            action_reader.open(address)
            action_writer.unlink()
        done = action_reader.read()
        assert list(done) == list(actions)
        for name, expected in actions.items():
            assert len(done[name]) == len(expected)
            assert np.array_equal(done[name].env_continuous, expected.env_continuous)
            assert np.array_equal(done[name].discrete, expected.discrete)
    for user in (writer, reader, action_writer, action_reader):
        user.clear()
        assert user.memory is None


def test_many_sizes_do_not_pile_up() -> None:
    spec = vector_spec(2)
    block = SharedSteps()
    block.announce("A", spec, ["<f4"])
    for agents in range(300):
        columns = random_batch("Vector?team=0", agents, 0, agents)
        block.write({"A": replace(columns, obs=(np.zeros((agents, 2), np.float32),), mask=np.zeros((agents, 0), bool))})
        assert len(block.read()["A"]) == agents
    assert len(block._kept) <= 64
    block.clear()
