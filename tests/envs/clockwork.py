"""An environment whose every number tells where it comes from, so that nothing can be lost, doubled or mixed up.

All agents of an incarnation (one life of one player) decide at every message. Message ``t`` (from 0) holds, for agent
``i`` with episodes of ``BASE_LENGTH + i`` steps, the decision ``(incarnation, i, episode, step)`` with
``t = episode * length + step``, and the reward ``t`` for the step before.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.core.steps import ActionBatch, FloatArray, StepBatch, agent_ids
from trajtrainer.experience.agent_processor import AgentProcessor
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.trajectory import TrajectoryBatch, release

BEHAVIOR = "Clockwork?team=0"
NUM_AGENTS = 3
BASE_LENGTH = 7
HORIZON = 4
_LARGEST_RUN = 1000  # incarnations of one worker

SPEC = BehaviorSpec(
    [ObservationSpec((4,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "VectorSensor_size4")], ActionSpec(1, ())
)
# What is known of a row: incarnation, agent, episode, step.
Identity = tuple[int, int, int, int]


def claim_incarnation(folder: Path, worker: int) -> int:
    """A number for the next life of this worker's player: ``worker * 1000 + how many there were``."""
    for count in range(_LARGEST_RUN):
        number = worker * _LARGEST_RUN + count
        try:
            os.close(os.open(folder / f"{number}.sent", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        return number
    raise AssertionError(f"worker {worker} has started too often")


class SentLog:
    """How many messages one incarnation has sent, in a file that outlives it."""

    def __init__(self, folder: Path, incarnation: int) -> None:
        self._file = os.open(folder / f"{incarnation}.sent", os.O_WRONLY | os.O_APPEND)

    def note(self) -> None:
        os.write(self._file, b".")

    def close(self) -> None:
        os.close(self._file)


def sent(folder: Path) -> dict[int, int]:
    """Incarnation -> messages that it has sent."""
    return {int(file.stem): file.stat().st_size for file in folder.glob("*.sent")}


def decisions(incarnation: int, time: int) -> FloatArray:
    """f32 [agents, 4]: the observations of message ``time``."""
    agents = np.arange(NUM_AGENTS)
    episode, step = np.divmod(time, BASE_LENGTH + agents)
    return np.stack([np.full(NUM_AGENTS, incarnation), agents, episode, step], 1).astype(np.float32)


def ended(time: int) -> list[int]:
    """Agents whose episode ends with message ``time``."""
    return [agent for agent in range(NUM_AGENTS) if time and time % (BASE_LENGTH + agent) == 0]


def last_observations(incarnation: int, time: int) -> FloatArray:
    """f32 [ended, 4]: with what the episodes end."""
    rows = [(incarnation, i, time // (BASE_LENGTH + i) - 1, BASE_LENGTH + i) for i in ended(time)]
    return np.array(rows, np.float32).reshape(-1, 4)


def batch(worker: int, incarnation: int, time: int) -> StepBatch:
    """Message ``time``."""
    over = ended(time)
    ids = np.array([*over, *range(NUM_AGENTS)], np.int64)
    count = len(ids)
    reward = np.full(count, time, np.float32)
    # The reward of a step that ended an episode stands in the terminal record; the next episode begins with none.
    reward[len(over) :][over] = 0.0
    return StepBatch(
        agent=agent_ids(worker, ids),
        obs=(np.concatenate([last_observations(incarnation, time), decisions(incarnation, time)]),),
        reward=reward,
        group=np.zeros(count, np.int32),
        group_reward=np.zeros(count, np.float32),
        mask=np.zeros((count, 0), np.bool_),
        interrupted=np.zeros(len(over), np.bool_),
        num_terminal=len(over),
    )


def actions_for(observations: FloatArray) -> ActionBatch:
    """Actions that tell for whom they are: (agent + step / 16) / 16."""
    continuous = ((observations[:, 1] + observations[:, 3] / 16) / 16)[:, None].astype(np.float32)
    count = len(continuous)
    return ActionBatch(
        continuous=continuous,
        discrete=np.zeros((count, 0), np.int32),
        env_continuous=continuous,
        log_prob=np.zeros((count, 1), np.float32),
        entropy=np.zeros(count, np.float32),
        memory=np.zeros((count, 0), np.float32),
        version=0,
    )


class Recorder:
    """Records events as a run does, and counts what comes out.

    Attributes:
        seen: incarnation -> messages.
        recorded: every step of a finished trajectory, in the order of recording.
    """

    def __init__(self) -> None:
        self.seen: dict[int, int] = defaultdict(int)
        self.recorded: list[Identity] = []
        self._pool = RowPool(SPEC, [np.dtype(np.float32)], poison=True)
        self._processor = AgentProcessor(self._pool, HORIZON)

    def record(self, worker: int, batch: StepBatch, *, is_reset: bool) -> ActionBatch:
        """Takes a message; returns the actions for it."""
        observations = np.array(batch.obs[0][batch.num_terminal :], np.float32)
        incarnation = int(observations[0, 0])
        assert incarnation // _LARGEST_RUN == worker
        assert is_reset == (self.seen[incarnation] == 0), "is_reset belongs to the first message of a life, alone"
        assert np.array_equal(observations, decisions(incarnation, self.seen[incarnation])), "a message was skipped"
        self.seen[incarnation] += 1
        if is_reset:
            self._processor.drop(worker)
        recorded = self._processor.record(batch)
        if recorded.trajectories is not None:
            self._take(recorded.trajectories)
        actions = actions_for(observations)
        self._processor.acted(recorded.rows[batch.num_terminal :], actions)
        return actions

    def _take(self, trajectories: TrajectoryBatch) -> None:
        pool = self._pool
        for index, (begin, end) in enumerate(zip(trajectories.offset, trajectories.offset[1:], strict=False)):
            rows = trajectories.rows[begin:end]
            observations = np.asarray(pool.obs[0][rows], np.float32)
            first = observations[0].astype(int).tolist()
            expected = np.array([[*first[:3], first[3] + step] for step in range(len(rows))])
            assert np.array_equal(observations, expected), "a trajectory is one piece of one episode"
            assert np.array_equal(pool["continuous"][rows], actions_for(observations).continuous)
            times = first[2] * (BASE_LENGTH + first[1]) + observations[:, 3]
            assert np.array_equal(pool["reward"][rows], times + 1), "each step has its own reward"
            following = pool.obs[0][trajectories.bootstrap[index]]
            assert following.tolist() == [*first[:3], first[3] + len(rows)]
            assert trajectories.terminated[index] == (following[3] == BASE_LENGTH + first[1])
            self.recorded += [(first[0], first[1], first[2], step) for step in observations[:, 3].astype(int).tolist()]
        release(pool, [trajectories])

    def check(self) -> None:
        """Fails unless exactly the steps that were seen are recorded, less the pieces that were cut off."""
        assert len(set(self.recorded)) == len(self.recorded), "a step was recorded twice"
        assert set(self.recorded) == set(recordable(self.seen.items()))


def recordable(seen: Iterable[tuple[int, int]]) -> Iterable[Identity]:
    """The steps of finished trajectories if so many messages of each incarnation were seen."""
    for incarnation, messages in seen:
        complete = max(0, messages - 1)
        for agent in range(NUM_AGENTS):
            length = BASE_LENGTH + agent
            whole, rest = divmod(complete, length)
            for episode in range(whole):
                yield from ((incarnation, agent, episode, step) for step in range(length))
            yield from ((incarnation, agent, whole, step) for step in range(rest // HORIZON * HORIZON))
