"""Credit of actors: how far acting may be ahead of learning, all actors of a behaviour together.

Shape legend: A actors.
"""

from __future__ import annotations

from collections.abc import Iterable

from trajtrainer.actors.messages import UNLIMITED


class Credit:
    """The rows that the actors of one behaviour may collect, shared out between them.

    ``lead`` rows may have been collected and not consumed, whoever collects them. What is left is shared out in equal
    parts, ahead of time, so that nobody waits while the learner is at work; an actor that has used up its part gets
    more as soon as there is more. A slow one keeps no more than its part, and what a part is shrinks with what is left.

    Attributes:
        lead: see above.
        consumed: rows that the learner has learnt from.
        collected: rows that ever came.
        steps: agent steps that ever came.
        most_steps: of these, beyond which nobody shall collect.
    """

    def __init__(
        self, lead: int, most_steps: int = UNLIMITED, *, in_updates: bool = False, in_turn: bool = False
    ) -> None:
        """Begin without actors.

        Args:
            lead: see above.
            most_steps: see above.
            in_updates: ``consumed`` grows by what an update is made of, rather than by little and little.
            in_turn: acting waits for learning and learning for acting. So the learner has time to answer, and half of
                what is left is kept for who is done first.
        """
        self.lead = lead
        self.consumed = self.collected = self.steps = 0
        self.most_steps = most_steps
        self._in_updates, self._in_turn = in_updates, in_turn
        self._bound = 0  # rows that all of them could have collected when credit was shared out last
        self._rows: dict[int, int] = {}  # of each actor since its start
        self._steps: dict[int, int] = {}
        self._granted: dict[int, int] = {}

    def join(self, actor: int) -> None:
        """Add an actor that has just started."""
        self._rows[actor] = self._steps[actor] = self._granted[actor] = 0

    def leave(self, actor: int) -> None:
        """Take an actor out, whose credit others may use from now on."""
        for each in (self._rows, self._steps, self._granted):
            each.pop(actor, None)

    def count(self, actor: int, rows: int, steps: int) -> None:
        """Count what an actor has collected."""
        self.collected += rows
        self.steps += steps
        self._rows[actor] += rows
        self._steps[actor] += steps

    def counted(self, actor: int) -> tuple[int, int]:
        """Return the rows and steps that came from an actor since its start."""
        return self._rows[actor], self._steps[actor]

    @property
    def is_used_up(self) -> bool:
        """Return whether no actor can go on, if there is any."""
        return bool(self._rows) and not any(self.outstanding(actor) for actor in self._rows)

    def grants(self, actors: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Share out what is left between these actors.

        Returns:
            Actor -> rows and steps that it may have collected since its start; who gets nothing new is left out.
        """
        outstanding = {actor: self.outstanding(actor) for actor in self._rows}
        left = max(0, self.consumed + self.lead - self.collected)
        free = left - sum(outstanding.values())
        parts = len(outstanding) if len(outstanding) == 1 or not self._in_turn else 2 * len(outstanding)
        part = -(-left // max(1, parts))
        # An update has used some up: the next one may lack the least of it. Otherwise a little is not worth a message.
        bound, self._bound = self._bound, self.consumed + self.lead
        counts_all = self._in_updates and bound != self._bound
        given = {}
        for actor in sorted(actors, key=outstanding.__getitem__):
            more = min(part - outstanding[actor], free)
            if more > 0 and (counts_all or 2 * outstanding[actor] <= part):
                free -= more
                self._granted[actor] = self._rows[actor] + outstanding[actor] + more
                given[actor] = self._granted[actor], self._steps[actor] + max(0, self.most_steps - self.steps)
        return given

    def stop(self, actor: int) -> None:
        """Take back what an actor has not used, which has stopped."""
        self._granted[actor] = self._rows[actor]

    def outstanding(self, actor: int) -> int:
        """Return the rows that an actor may still collect."""
        return max(0, self._granted[actor] - self._rows[actor])
