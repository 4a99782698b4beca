"""Reads the trainer's answer (UnityRLInputProto) into action arrays, without touching the agents one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import ActionSpec
from trajtrainer.sim.simulation import SimulatedActions
from trajtrainer.sim.wire import DELIMITED, fields
from trajtrainer.unity.proto import communicator_pb2 as pb

STATUS_OK = 200
HYBRID_API = 3  # minor version from which continuous and discrete actions have fields of their own
DEPRECATED, CONTINUOUS, DISCRETE = 1, 6, 7  # field numbers of AgentActionProto


class OrderError(Exception):
    """The trainer's answer cannot be followed."""


@dataclass(slots=True)
class Order:
    """One answer of the trainer.

    Attributes:
        status: 200 to continue.
        command: pb.STEP, pb.RESET or pb.QUIT.
        actions: behavior -> the bytes of its ListAgentActionProto.
        side_channel: frames of side channels.
    """

    status: int = 0
    command: int = pb.STEP
    actions: dict[str, bytes] = field(default_factory=dict)
    side_channel: bytes = b""


def read_order(data: bytes) -> Order:
    """Take an answer apart.

    Raises:
        OrderError: the bytes are not a UnityMessageProto.
    """
    order = Order()
    try:
        for number, _, start, end, _ in fields(data, 0, len(data)):
            if number == 1:
                order.status = next((value for n, _, _, _, value in fields(data, start, end) if n == 1), 0)
            elif number == 3:
                for inner, _, inner_start, inner_end, _ in fields(data, start, end):
                    if inner == 1:
                        _read_input(order, data, inner_start, inner_end)
    except ValueError as error:
        raise OrderError(f"the trainer's answer is not a message: {error}") from error
    return order


def _read_input(order: Order, data: bytes, start: int, end: int) -> None:
    for number, _, begin, stop, value in fields(data, start, end):
        if number == 1:
            behavior, actions = "", b""
            for part, _, part_start, part_end, _ in fields(data, begin, stop):
                if part == 1:
                    behavior = data[part_start:part_end].decode()
                elif part == 2:
                    actions = data[part_start:part_end]
            order.actions[behavior] = actions
        elif number == 4:
            order.command = value
        elif number == 5:
            order.side_channel = data[begin:stop]


class _Layout(NamedTuple):
    """The layout of one agent's action in the bytes.

    Trainers write all agents the same way, so it usually fits all of them, and later answers; ``same`` marks the bytes
    that show whether it does.
    """

    size: int
    same: NDArray[np.bool_]
    pattern: NDArray[np.uint8]
    continuous: int
    discrete: int


class ActionReader:
    """Reads one behavior's actions.

    Args:
        behavior: for messages.
        spec: sizes of the actions.
        num_agents: N.
        api_minor: a player before 1.3 reads the deprecated field, which holds either kind as floats.
    """

    def __init__(self, behavior: str, spec: ActionSpec, num_agents: int, api_minor: int) -> None:
        self._behavior = behavior
        self._num_agents = num_agents
        self._continuous = spec.continuous_size
        self._discrete = spec.discrete_size
        self._deprecated = api_minor < HYBRID_API
        self._layout: _Layout | None = None

    def read(self, data: bytes, waiting: int | None = None) -> SimulatedActions:
        """Actions f32 [N, C] and i32 [N, K] from the bytes of a ListAgentActionProto.

        Args:
            data: of the message.
            waiting: N of this message, if not all agents wait for an action.

        Raises:
            OrderError: an agent that waits gets no action or one of the wrong size. Unity would end there too.
        """
        n = self._num_agents if waiting is None else waiting
        layout = self._layout
        if layout is not None and len(data) == layout.size * n:
            rows = np.frombuffer(data, dtype=np.uint8).reshape(n, layout.size)
            if (rows[:, layout.same] == layout.pattern).all():
                columns = rows[:, layout.continuous : layout.continuous + 4 * self._continuous]
                floats = np.ascontiguousarray(columns).view("<f4").reshape(n, self._continuous)
                choices = rows[:, layout.discrete : layout.discrete + self._discrete].astype(np.int32)
                return SimulatedActions(floats, choices)
        try:
            received = pb.UnityRLInputProto.ListAgentActionProto.FromString(data).value
        except Exception as error:  # Not every version of protobuf has a public DecodeError.
            raise OrderError(f"the actions of {self._behavior!r} are not a message: {error}") from error
        if len(received) < n:
            raise OrderError(f"{n} agents of {self._behavior!r} wait, but the trainer sent {len(received)} actions")
        continuous = np.zeros((n, self._continuous), dtype=np.float32)
        discrete = np.zeros((n, self._discrete), dtype=np.int32)
        for row, action in enumerate(received[:n]):
            if self._continuous:
                continuous[row] = self._values(row, action, "continuous_actions", self._continuous)
            if self._discrete:
                discrete[row] = self._values(row, action, "discrete_actions", self._discrete)
        self._layout = None if self._deprecated or not n else self._learn(data)
        return SimulatedActions(continuous, discrete)

    def _values(self, row: int, action: pb.AgentActionProto, name: str, size: int) -> Sequence[float]:
        values: Sequence[float] = getattr(action, "vector_actions_deprecated" if self._deprecated else name)
        if len(values) != size:
            raise OrderError(f"action {row} of {self._behavior!r} has {len(values)} {name}; expected {size}")
        return values

    def _learn(self, data: bytes) -> _Layout | None:
        """The layout of the first action, which is known to have all values."""
        _, _, start, end, _ = next(fields(data, 0, len(data)))
        same = np.ones(end, dtype=np.bool_)
        places = {DEPRECATED: 0, CONTINUOUS: 0, DISCRETE: 0}
        for number, wire_type, begin, stop, _ in fields(data, start, end):
            if wire_type != DELIMITED:
                return None
            if number == DISCRETE and stop - begin != self._discrete:
                return None  # a choice above 127 takes two bytes
            same[begin:stop] = False
            places[number] = begin
        pattern = np.frombuffer(data[:end], dtype=np.uint8)[same]
        return _Layout(end, same, pattern, places[CONTINUOUS], places[DISCRETE])
