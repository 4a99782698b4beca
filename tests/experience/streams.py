"""Streams of messages with agents that come, go, skip and end, and the numbers in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from tests.experience.packing import everything
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.core.steps import ActionBatch, LongArray, StepBatch, agent_ids
from trajtrainer.experience.trajectory import PackedSteps

OBS_DTYPES = (np.dtype(np.float32), np.dtype(np.uint8))


def mixed_spec() -> BehaviorSpec:
    """A vector of 3, a picture (1, 2, 2) that came as PNG, 2 continuous actions, branches of 3 and 2."""
    vector = ObservationSpec((3,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "vector")
    translational = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
    properties = (DimensionProperty.NONE, translational, translational)
    picture = ObservationSpec((1, 2, 2), properties, ObservationType.DEFAULT, "picture")
    return BehaviorSpec([vector, picture], ActionSpec(2, (3, 2)))


def vector_spec(size: int = 1) -> BehaviorSpec:
    """A vector, 1 continuous action."""
    sensor = ObservationSpec((size,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "vector")
    return BehaviorSpec([sensor], ActionSpec.create_continuous(1))


@dataclass(frozen=True)
class Message:
    """One message: which agents ended (and whether by the step limit), then which ask for a decision."""

    worker: int
    ended: tuple[tuple[int, bool], ...] = ()
    deciding: tuple[int, ...] = ()
    team: int = 0


@dataclass(frozen=True)
class Reset:
    """A worker (None: all) was reset."""

    worker: int | None


class Numbers:
    """Fills messages and answers with numbers that never repeat by accident.

    Agents are in a random group in each record, or always in that of their id: ``groups[id % len(groups)]``.
    """

    def __init__(self, spec: BehaviorSpec, memory_size: int, seed: int = 0, groups: Sequence[int] = ()) -> None:
        self._spec = spec
        self._memory_size = memory_size
        self._rng = np.random.default_rng(seed)
        self._version = 0
        self._groups = groups

    def steps(self, message: Message) -> StepBatch:
        ids = [agent for agent, _ in message.ended] + list(message.deciding)
        n, num_terminal = len(ids), len(message.ended)
        mask = self._rng.random((n, sum(self._spec.action_spec.discrete_branches))) < 0.3
        mask[:num_terminal] = False
        group = self._rng.integers(0, 3, n, dtype=np.int32)
        if self._groups:
            group = np.array([self._groups[agent % len(self._groups)] for agent in ids], np.int32)
        return StepBatch(
            agent=agent_ids(message.worker, np.array(ids, np.int64)),
            obs=tuple(
                self._rng.standard_normal((n, *sensor.shape), dtype=np.float32)
                if len(sensor.shape) == 1
                else self._rng.integers(0, 256, (n, *sensor.shape), dtype=np.uint8)
                for sensor in self._spec.observation_specs
            ),
            reward=self._rng.standard_normal(n, dtype=np.float32),
            group=group,
            group_reward=self._rng.standard_normal(n, dtype=np.float32),
            mask=mask,
            interrupted=np.array([interrupted for _, interrupted in message.ended], np.bool_),
            num_terminal=num_terminal,
        )

    def actions(self, n: int) -> ActionBatch:
        self._version += 1
        num_continuous, num_branches = self._spec.action_spec.continuous_size, self._spec.action_spec.discrete_size
        continuous = self._rng.standard_normal((n, num_continuous), dtype=np.float32)
        return ActionBatch(
            continuous=continuous,
            discrete=self._rng.integers(0, 2, (n, num_branches), dtype=np.int32),
            env_continuous=np.clip(continuous, -1, 1),
            log_prob=self._rng.standard_normal((n, num_continuous + num_branches), dtype=np.float32),
            entropy=self._rng.random(n, dtype=np.float32),
            memory=self._rng.standard_normal((n, self._memory_size), dtype=np.float32),
            version=self._version,
        )


def part_of(actions: ActionBatch, start: int, stop: int) -> ActionBatch:
    part = slice(start, stop)
    return ActionBatch(
        actions.continuous[part],
        actions.discrete[part],
        actions.env_continuous[part],
        actions.log_prob[part],
        actions.entropy[part],
        actions.memory[part],
        actions.version,
    )


AGENTS = st.integers(0, 4)
WORKERS = st.integers(0, 2)
# Ended agents may be unknown or named twice; deciding ones are distinct, in any order.
MESSAGES = st.builds(
    Message,
    WORKERS,
    st.lists(st.tuples(AGENTS, st.booleans()), max_size=3).map(tuple),
    st.lists(AGENTS, unique=True, max_size=5).map(tuple),
)
RESETS = st.builds(Reset, st.none() | WORKERS)
# What the collector finds at once: one message each of some workers, answered together.
ROUNDS = st.lists(MESSAGES, min_size=1, max_size=3, unique_by=lambda message: message.worker)


@st.composite
def busy_rounds(draw: st.DrawFn) -> list[Message]:
    """Several messages in which the same agents decide again and again, as in most games."""
    workers = draw(st.lists(WORKERS, min_size=1, max_size=3, unique=True))
    deciding = tuple(draw(st.lists(AGENTS, unique=True, min_size=1, max_size=5)))
    ended = draw(st.lists(st.tuples(st.sampled_from(deciding), st.booleans()), max_size=1).map(tuple))
    return [Message(worker, ended, deciding) for worker in workers]


STREAMS = st.lists(
    st.one_of(ROUNDS, busy_rounds(), busy_rounds().map(lambda round_: round_[:1]), RESETS), min_size=1, max_size=40
)


def _of_team(round_: list[Message], team: int) -> list[Message]:
    """The same with agents of a team, whose ids are its own."""
    return [
        replace(
            message,
            ended=tuple((agent + 10 * team, interrupted) for agent, interrupted in message.ended),
            deciding=tuple(agent + 10 * team for agent in message.deciding),
            team=team,
        )
        for message in round_
    ]


TEAM_STREAMS = st.lists(
    st.one_of(
        st.builds(_of_team, ROUNDS, st.integers(0, 1)), st.builds(_of_team, busy_rounds(), st.integers(0, 1)), RESETS
    ),
    min_size=1,
    max_size=40,
)


def random_stream(num_rounds: int, seed: int) -> list[list[Message]]:
    """A long stream of one worker: 6 agents, of which one in five skips a message and one in twelve ends."""
    rng = np.random.default_rng(seed)
    stream = []
    for _ in range(num_rounds):
        ended = tuple((int(agent), bool(rng.random() < 0.5)) for agent in range(6) if rng.random() < 1 / 12)
        deciding: LongArray = rng.permutation(6)[rng.random(6) < 0.8]
        stream.append([Message(0, ended, tuple(int(agent) for agent in deciding))])
    return stream


def assert_same(actual: PackedSteps, expected: PackedSteps) -> None:
    """Every column equal, value for value and type for type."""
    left, right = everything(actual), everything(expected)
    assert left.keys() == right.keys()
    for name, column in left.items():
        np.testing.assert_array_equal(column, right[name], err_msg=name, strict=True)
