"""An environment whose episodes are known beforehand, and policies that write down what they are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.learning.nn.specs import behavior, vector
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import (
    ActionBatch,
    BoolArray,
    EnvironmentEvent,
    FloatArray,
    ObservationArray,
    StepBatch,
    agent_ids,
)
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Parameters

SPEC = behavior([vector(2)], 1)


@dataclass
class Begun:
    """An episode as the environment knows it, complete from its beginning."""

    behavior: str
    slot: int
    length: int
    reward: float
    group_reward: float


@dataclass
class Slot:
    """The place of one agent; its episodes have these lengths, again and again.

    Attributes:
        group: of the agent, 0 for none.
        waits: messages between two episodes.
    """

    lengths: Sequence[int]
    behavior: str = "Dancer"
    group: int = 0
    waits: int = 0
    episode: int = -1
    step: int = 0
    id: int = 0
    rests: int = 0


class Scripted(InProcessEnvironment):
    """In step k (from 1) of its episode an agent gets k + 100 * slot + 10,000 * worker, its group a tenth of k.

    An agent sees its id and its step. Every episode has an id of its own, as in Unity.

    Attributes:
        begun: worker -> episodes in the order in which they began.
    """

    def __init__(self, *workers: Sequence[Slot]) -> None:
        super().__init__("Scripted", len(workers))
        self.slots = [list(slots) for slots in workers]
        self.begun: list[list[Begun]] = [[] for _ in workers]
        self.next_id = 1
        self.sent: list[int] = [0] * len(workers)
        self.parameters: Parameters = {}

    def set_parameters(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def _reset_worker(self, worker: int) -> EnvironmentEvent:
        event = EnvironmentEvent(worker, {}, is_reset=True)
        event.new_specs = dict.fromkeys([slot.behavior for slot in self.slots[worker]], SPEC)
        self.begun[worker].clear()
        for number, slot in enumerate(self.slots[worker]):
            slot.rests = 0
            self._start(worker, number, slot)
        return self._filled(event, [])

    def _start(self, worker: int, number: int, slot: Slot) -> None:
        slot.episode += 1
        slot.step, slot.id, self.next_id = 0, self.next_id, self.next_id + 1
        length = slot.lengths[slot.episode % len(slot.lengths)]
        steps = np.arange(1, length + 1)
        reward = float(np.sum(steps + 100 * number + 10_000 * worker))
        self.begun[worker].append(
            Begun(slot.behavior, number, length, reward, float(steps.sum()) / 10 if slot.group else 0.0)
        )

    def _step_worker(self, worker: int, actions: Mapping[str, ActionBatch]) -> EnvironmentEvent:
        self.sent[worker] += 1
        ended = []
        for number, slot in enumerate(self.slots[worker]):
            if slot.rests:
                slot.rests -= 1
                if not slot.rests:
                    self._start(worker, number, slot)
                continue
            slot.step += 1
            if slot.step == slot.lengths[slot.episode % len(slot.lengths)]:
                ended.append((number, slot.id, slot.step))
                slot.rests = slot.waits
                if not slot.waits:
                    self._start(worker, number, slot)
        return self._filled(EnvironmentEvent(worker, {}), ended)

    def _filled(self, event: EnvironmentEvent, ended: list[tuple[int, int, int]]) -> EnvironmentEvent:
        slots = self.slots[event.worker]
        going = [(number, slot.id, slot.step) for number, slot in enumerate(slots) if not slot.rests]
        for name in dict.fromkeys(slot.behavior for slot in slots):
            gone = [row for row in ended if slots[row[0]].behavior == name]
            rows = gone + [row for row in going if slots[row[0]].behavior == name]
            if rows:
                event.steps[name] = self._batch(event.worker, rows, len(gone))
        return event

    def _batch(self, worker: int, rows: list[tuple[int, int, int]], num_terminal: int) -> StepBatch:
        number, ids, step = np.array(rows, np.int64).T
        group = np.array([self.slots[worker][n].group for n in number], np.int32)
        # The first record of an episode brings a reward that nobody has earned.
        reward = np.where(step > 0, step + 100 * number + 10_000 * worker, 77.0).astype(np.float32)
        return StepBatch(
            agent=agent_ids(worker, ids),
            obs=(np.stack([ids, step], axis=1).astype(np.float32),),
            reward=reward,
            group=group,
            group_reward=(step * (group > 0) / 10).astype(np.float32),
            mask=np.zeros((len(rows), 0), np.bool_),
            interrupted=number[:num_terminal] % 2 == 1,
            num_terminal=num_terminal,
        )

    def _close(self) -> None: ...


@dataclass
class Counting:
    """Remembers how often it has decided in an episode, and refuses a memory that is of another one."""

    seed: int = 0
    memory_size: int = 2
    calls: list[FloatArray] = field(default_factory=list)

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        rows = len(mask)
        if self.memory_size:
            ids, steps = obs[0].T
            assert (memory[:, 0] == steps).all(), "as many decisions as steps so far"
            assert (memory[:, 1] == np.where(steps > 0, ids, 0)).all(), "of the same episode"
            memory = np.stack([steps + 1, ids], axis=1)
        self.calls.append(np.asarray(obs[0]))
        empty = np.zeros((rows, 1), np.float32)
        return ActionBatch(
            continuous=empty,
            discrete=np.zeros((rows, 0), np.int32),
            env_continuous=empty,
            log_prob=empty,
            entropy=np.zeros(rows, np.float32),
            memory=memory,
            version=0,
        )


@dataclass
class Policies:
    """Makes them, and keeps what was asked for."""

    memory_size: int = 2
    made: list[tuple[str, Counting]] = field(default_factory=list)

    def __call__(self, behavior_id: BehaviorId, spec: BehaviorSpec, seed: int) -> Counting:
        assert spec is SPEC
        self.made.append((behavior_id.full, Counting(seed, self.memory_size)))
        return self.made[-1][1]
