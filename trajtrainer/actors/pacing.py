"""How far acting may be ahead of learning: allowances of all actors of a behavior.

An allowance is raised with a policy version where updates use experience up, with rows learned from where learning
keeps pace with acting, and at each turn where a single actor and the learner wait for each other. Without a learner it
is unlimited, and so it is in one loop, which acts once and then looks whether the learner has something to do.

Shape legend: A actors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from trajtrainer.actors.messages import UNLIMITED, Allowance
from trajtrainer.core.queues import EpisodesAborted
from trajtrainer.data.source import Chunk, ExperienceSource


@dataclass(slots=True)
class Account:
    """What an actor has collected since its start, and what it may.

    Attributes:
        rows: of the learner's buffer.
        steps: agent steps.
        limit: rows that it may have collected.
        is_recalled: it was told to pause, and has not reported that it has.
        is_paused: it waits for its next turn.
    """

    rows: int = 0
    steps: int = 0
    limit: int = 0
    is_recalled: bool = False
    is_paused: bool = False

    @property
    def left(self) -> int:
        """Rows that it may still collect."""
        return max(0, self.limit - self.rows)


class Pacing:
    """The allowances of one behavior's actors. This one limits nothing.

    Attributes:
        limits: whether there are allowances to be raised.
        takes_turns: whether what an actor reports counts as a whole, when it pauses.
        accounts: by number of the actor.
    """

    limits = False
    takes_turns = False

    def __init__(self, behavior: str) -> None:
        self.behavior = behavior
        self.accounts: dict[int, Account] = {}

    def join(self, actor: int) -> Allowance:
        """Add an actor that has just started. Returns its first allowance."""
        self.accounts[actor] = Account()
        return Allowance(self.behavior)

    def leave(self, actor: int) -> None:
        """Take an actor out. The others may use what it leaves."""
        self.accounts.pop(actor, None)

    def count(self, actor: int, rows: int, steps: int) -> None:
        """Count what an actor has collected."""
        account = self.accounts[actor]
        account.rows += rows
        account.steps += steps

    def count_opponents(self, steps: int) -> None:
        """Count steps of teams that do not learn."""

    def paused(self, actor: int) -> None:
        """Note that an actor has paused, as it was told."""

    def raised(self, actors: Iterable[int]) -> Iterator[tuple[int, Allowance]]:  # noqa: ARG002
        """Yield new allowances for these actors, if there are any. They act by the newest policy."""
        return iter(())

    def turns(self) -> Iterator[tuple[int, Allowance]]:
        """Yield allowances for the next turn."""
        return iter(())

    def recalls(self) -> Iterator[tuple[int, Allowance]]:
        """Yield allowances that are lowered, so that actors pause."""
        return iter(())

    def admits(self, inbox: Sequence[Chunk | EpisodesAborted]) -> bool:  # noqa: ARG002
        """Return whether the learner may be given the first of these now, a chunk."""
        return True

    def admit(self, chunk: Chunk) -> None:
        """Note that the learner was given a chunk."""

    def may_collect(self, actor: int) -> bool:  # noqa: ARG002
        """Return whether an actor is below its limits, as far as the learner knows."""
        return True

    @property
    def is_full(self) -> bool:
        """Whether the actors have collected all that the behavior learns from."""
        return False

    def lifted(self) -> Pacing:
        """Return a pacing of the same actors without limits."""
        free = Pacing(self.behavior)
        free.accounts = {actor: Account(each.rows, each.steps) for actor, each in self.accounts.items()}
        return free

    def relax(self) -> None:
        """Help where all actors wait at their limits and the learner has no use for what they have sent."""


class InTurn(Pacing):
    """One actor and the learner take turns: it collects exactly until the learner has something to do."""

    takes_turns = True

    def __init__(
        self,
        behavior: str,
        left: Callable[[], tuple[int, int]],
        left_of_self_play: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """Begin without the actor.

        Args:
            behavior: its name.
            left: gives the rows and steps until the trainer has something to do.
            left_of_self_play: gives the steps of the team that learns and of the others until self-play may change
                something; None without.
        """
        super().__init__(behavior)
        self.opponent_steps = 0  # reported since the actor's start
        self._left = left
        self._left_of_self_play = left_of_self_play

    def join(self, actor: int) -> Allowance:
        """See ``Pacing``."""
        super().join(actor)
        self.opponent_steps = 0
        return self._turn(self.accounts[actor])

    def count_opponents(self, steps: int) -> None:
        """See ``Pacing``."""
        self.opponent_steps += steps

    def paused(self, actor: int) -> None:
        """See ``Pacing``."""
        self.accounts[actor].is_paused = True

    def turns(self) -> Iterator[tuple[int, Allowance]]:
        """See ``Pacing``."""
        for actor, account in self.accounts.items():
            if account.is_paused:
                account.is_paused = False
                yield actor, self._turn(account)

    def may_collect(self, actor: int) -> bool:
        """See ``Pacing``."""
        return not self.accounts[actor].is_paused

    def _turn(self, account: Account) -> Allowance:
        rows, steps = self._left()
        opponent_steps = UNLIMITED
        if self._left_of_self_play is not None:
            own_steps, of_others = self._left_of_self_play()
            steps, opponent_steps = min(steps, own_steps), self.opponent_steps + max(1, of_others)
        limits = account.rows + max(1, rows), account.steps + max(1, steps)
        return Allowance(self.behavior, *limits, opponent_steps, pauses=True)


class Shared(Pacing):
    """``lead`` rows that may have been collected and not consumed, shared out between the actors.

    What is left is shared out in equal parts, in advance, so that nobody waits while the learner is at work; an actor
    that has used its part gets more as soon as there is more. A slow one keeps no more than its part, and what a part
    is shrinks with what is left.
    """

    limits = True

    def __init__(
        self, behavior: str, source: ExperienceSource, lead: int, most_steps: Callable[[], int] = lambda: UNLIMITED
    ) -> None:
        """Begin without actors.

        Args:
            behavior: its name.
            source: of the experience.
            lead: see above.
            most_steps: gives the agent steps beyond which nobody shall collect.
        """
        super().__init__(behavior)
        self.source = source
        self.lead = lead
        self.most_steps = most_steps
        self.collected = self.steps = 0  # of all actors that there ever were
        self.consumed = 0  # rows that the learner has learned from

    def join(self, actor: int) -> Allowance:
        """See ``Pacing``."""
        self.accounts[actor] = Account()
        return dict(self.raised([actor])).get(actor, Allowance(self.behavior, rows=0))

    def count(self, actor: int, rows: int, steps: int) -> None:
        """See ``Pacing``."""
        super().count(actor, rows, steps)
        self.collected += rows
        self.steps += steps

    def raised(self, actors: Iterable[int]) -> Iterator[tuple[int, Allowance]]:
        """See ``Pacing``."""
        self._look_at_learner()
        left = max(0, self.consumed + self.lead - self.collected)
        free = left - sum(account.left for account in self.accounts.values())
        part = -(-left // max(1, self._num_shares()))
        gives_least = self._gives_least()
        ready = [(actor, self.accounts[actor]) for actor in actors if not self.accounts[actor].is_recalled]
        for actor, account in sorted(ready, key=lambda each: each[1].left):
            more = min(part - account.left, free)
            # A little is not worth a message.
            if more > 0 and (gives_least or 2 * account.left <= part):
                free -= more
                account.limit = account.rows + account.left + more
                steps = account.steps + max(0, self.most_steps() - self.steps)
                yield actor, Allowance(self.behavior, account.limit, steps)

    def may_collect(self, actor: int) -> bool:
        """See ``Pacing``."""
        return self.accounts[actor].left > 0

    @property
    def is_full(self) -> bool:
        """See ``Pacing``."""
        return self.steps >= self.most_steps()

    def relax(self) -> None:
        """See ``Pacing``."""
        if self.accounts and not any(account.left for account in self.accounts.values()):
            if len(self.source):
                self.source.request_drain()
            else:
                self.consumed = self.collected

    def _look_at_learner(self) -> None:
        """Find out what it has consumed."""
        self.consumed = self.source.consumed

    def _num_shares(self) -> int:
        """Return the number of parts that are made of what is left."""
        return len(self.accounts)

    def _gives_least(self) -> bool:
        """Return whether the smallest raise is worth a message."""
        return False


class ByUpdates(Shared):
    """Where each update uses experience up: acting may be as far ahead as some policy versions.

    The learner is given no more than one update is made of, until it has updated. With a lag of 0 all actors stop
    before an update: what they finish meanwhile would be too old for the next one.
    """

    def __init__(
        self,
        behavior: str,
        source: ExperienceSource,
        *,
        buffer_size: int,
        max_lag: int,
        most_steps: Callable[[], int],
        version: Callable[[], int],
        is_due: Callable[[], bool],
    ) -> None:
        """Begin without actors.

        Args:
            behavior: its name.
            source: of the experience.
            buffer_size: an update takes what fills it, and one row more.
            max_lag: policies by which experience may be older than the newest one.
            most_steps: see ``Shared``.
            version: gives that of the newest policy.
            is_due: whether the trainer does something with what it has been given.
        """
        super().__init__(behavior, source, (1 + max_lag) * (buffer_size + 1), most_steps)
        self._buffer_size = buffer_size
        self._max_lag = max_lag
        self._version = version
        self._is_due = is_due
        self._seen_version = version()
        self._learned = 0  # rows that all updates were made of
        self._fed = 0  # rows since the last one
        self._bound = 0  # rows that all of them could have collected when they were shared out last

    def _look_at_learner(self) -> None:
        version = self._version()
        if version != self._seen_version:
            self._seen_version, self._learned, self._fed = version, self.source.drained, 0
        # What the next update is made of leaves the lead as soon as it is known, so that with a lag the one after it is
        # collected meanwhile, whole, even if this one takes more than it needs.
        more = max(0, self._fed - self._buffer_size - 1)
        self.consumed = max(self.consumed, self._learned + more)

    def _num_shares(self) -> int:
        # With a lag of 0 the learner has time to answer, so half of what is left is kept for who is done first.
        return len(self.accounts) if self._max_lag or len(self.accounts) == 1 else 2 * len(self.accounts)

    def _gives_least(self) -> bool:
        # An update has used some up: the next one may lack the least of it.
        bound, self._bound = self._bound, self.consumed + self.lead
        return bound != self._bound

    def paused(self, actor: int) -> None:
        """See ``Pacing``."""
        account = self.accounts[actor]
        account.is_recalled, account.limit = False, account.rows

    def recalls(self) -> Iterator[tuple[int, Allowance]]:
        """See ``Pacing``."""
        for actor, account in self.accounts.items():
            if self._max_lag == 0 and account.left and not account.is_recalled:
                account.is_recalled = True
                yield actor, Allowance(self.behavior, rows=0, pauses=True)

    def admits(self, inbox: Sequence[Chunk | EpisodesAborted]) -> bool:
        """See ``Pacing``."""
        if self._max_lag == 0:
            waiting = sum(each.rows for each in inbox if not isinstance(each, EpisodesAborted))
            completes = self._fed + waiting > self._buffer_size
            return not completes or not any(each.left or each.is_recalled for each in self.accounts.values())
        # If something that makes an update was too old, more is needed, if the trainer is not due.
        if self._fed <= self._buffer_size or not self.source or not self._is_due():
            return True
        # What would be too old after the update is better learned from now.
        chunk = inbox[0]
        assert not isinstance(chunk, EpisodesAborted)
        return self._version() + 1 - chunk.newest_of_last() > self._max_lag

    def admit(self, chunk: Chunk) -> None:
        """See ``Pacing``."""
        self._fed += chunk.rows
