"""Which agent plays in which sub-environment. Agents come and go; sub-environments stay.

Shape legend: N sub-environments ("seats"), n agents of a message.
"""

from __future__ import annotations

import numpy as np

from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.steps import BoolArray, LongArray

_NOBODY = -1


class Seats:
    """N seats and who sits there.

    An agent keeps its seat from one of its episodes to the next. One with a new id, which Unity gives to agents that
    were disabled or made anew, takes the first seat whose own agent's episode has ended.

    Attributes:
        agents: i64 [N], who sits there, or sat there last; -1 for nobody yet.
        playing: bool [N], whose episode goes on.
    """

    def __init__(self, count: int) -> None:
        self.agents: LongArray = np.full(count, _NOBODY, np.int64)
        self.playing: BoolArray = np.zeros(count, np.bool_)

    def leave(self, agents: LongArray) -> tuple[LongArray, LongArray]:
        """End the episodes of agents; return their seats and their places in ``agents``.

        Those that were not playing are left out: their episode was over before it asked for a decision.
        """
        seats = self._seats_of(agents)
        places = np.flatnonzero((seats >= 0) & self.playing[seats])
        self.playing[seats[places]] = False
        return seats[places], places

    def take(self, agents: LongArray) -> LongArray:
        """Return the seats of agents that decide, i64 [n]; who did not play yet begins an episode.

        Raises:
            UnsupportedError: there are more agents than seats.
        """
        seats = self._seats_of(agents)
        self.playing[seats[seats >= 0]] = True
        newcomers = np.flatnonzero(seats < 0)
        if len(newcomers):
            free = np.flatnonzero(~self.playing)[: len(newcomers)]
            if len(free) < len(newcomers):
                most = len(self.agents)
                raise UnsupportedError(
                    f"{most + len(newcomers) - len(free)} agents play at the same time, but there are sub-environments "
                    f"for {most}, as many as asked for a decision first. Give num_envs=N for the most that there "
                    "will be; sub-environments without an agent are told by info['deciding']."
                )
            seats[newcomers] = free
            self.agents[free] = agents[newcomers]
            self.playing[free] = True
        return seats

    def _seats_of(self, agents: LongArray) -> LongArray:
        """Return i64 [n], -1 for agents without a seat."""
        order = np.argsort(self.agents)
        places = np.searchsorted(self.agents, agents, sorter=order)
        seats = order[np.minimum(places, len(order) - 1)]
        return np.where(self.agents[seats] == agents, seats, -1)
