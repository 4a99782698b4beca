"""Slots of the agents of one worker and team."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trajtrainer.core.steps import LongArray
from trajtrainer.data.moments import Arrangement

NO_SLOT = -1


class Roster:
    """The living agents of one worker and team, and the ids of its last message.

    Most messages name the same agents as the one before; then ``same`` spares looking up each of them.

    Attributes:
        last_slots: those of the last ``remember``.
        most_named: how many ids one message has had at most.
        arrangement: of the agents that the last message named, by their groups, where groups are needed.
        arrangements: of agents with certain groups, by these as bytes.
    """

    def __init__(self) -> None:
        self.last_slots = np.zeros(0, np.int64)
        self.most_named = 0
        self.arrangement: Arrangement | None = None
        self.arrangements: dict[bytes, Arrangement] = {}
        self._slots: dict[int, int] = {}
        self._last_ids = b""  # as bytes, which compare several times faster than arrays

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> list[int]:
        """Those of all agents."""
        return list(self._slots.values())

    def items(self) -> list[tuple[int, int]]:
        """Return each agent with its slot."""
        return list(self._slots.items())

    def same(self, ids: LongArray) -> LongArray | None:
        """Return the slots of these ids if they are those of the last ``remember``, in the same order.

        Otherwise None.
        """
        return self.last_slots if ids.tobytes() == self._last_ids else None

    def remember(self, ids: LongArray, slots: LongArray) -> None:
        """Keep the ids of a message and their slots for ``same``. All must be in the roster."""
        self._last_ids, self.last_slots = ids.tobytes(), slots
        self.most_named = max(self.most_named, len(ids))

    def find(self, agents: list[int]) -> list[int]:
        """Return the slots of these agents, ``NO_SLOT`` for unknown ones."""
        get = self._slots.get
        return [get(agent, NO_SLOT) for agent in agents]

    def add(self, agent: int, slot: int) -> None:
        """Enter an agent."""
        self._slots[agent] = slot

    def remove(self, agent: int) -> None:
        """Strike out an agent that is in the roster and not among the ids of the last message."""
        del self._slots[agent]

    def remove_slots(self, slots: Iterable[int]) -> None:
        """Strike out the agents that have these slots."""
        gone = set(slots)
        self._slots = {agent: slot for agent, slot in self._slots.items() if slot not in gone}
