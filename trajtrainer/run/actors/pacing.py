"""Limits how far acting may run ahead of learning, by giving allowances to the actors of a behavior.

``Pacing`` sets no limits. It is used if the actor runs in the learner's loop, where acting and learning alternate
anyway, and if nothing is learned. With ``InTurn``, one actor and the learner take turns. ``Shared`` raises the limits
whenever the learner has consumed rows, ``ByUpdates`` when an update has. ``ActorPool`` detects deadlocks, because they
may involve several behaviors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from trajtrainer.core.queues import Marker
from trajtrainer.experience.source import Chunk, ExperienceSource
from trajtrainer.learning.trainers.self_play import SelfPlay
from trajtrainer.learning.trainers.trainer import Trainer
from trajtrainer.run.actors.messages import UNLIMITED, Allowance


@dataclass(slots=True)
class Account:
    """The account of one actor of a behavior: the experience collected since its start, and the latest orders."""

    rows: int = 0  # in the learner's buffer
    steps: int = 0
    opponent_steps: int = 0
    limit: int = 0  # limit for ``rows``
    is_recalled: bool = False  # True if it was told to pause and has not confirmed yet
    is_paused: bool = False  # True while it is waiting for its next turn
    loads: int = 0  # ``Policy.num_loads`` of the weights last sent to it
    version: int = 0  # version of these weights
    is_synchronized: bool = True  # True once it has loaded these weights
    assignment: tuple[int, int] | None = None  # the last ``SelfPlay.number`` sent to it; None until it reports a team

    @property
    def left(self) -> int:
        return max(0, self.limit - self.rows)


class Pacing:
    """Keeps the accounts of a behavior's actors, and sets no limits. Yielded allowances are recorded as sent.

    Args:
        behavior: name of the behavior.
        most_steps: returns the number of agent steps after which collecting stops.

    Attributes:
        takes_turns: True if an actor's reports are queued until it pauses, and then handled all at once.
        holds_back: True if arriving chunks are queued until they are admitted.
        accounts: accounts by actor number.
        collected: rows collected by all actors, including those that have died.
        steps: agent steps collected by these actors.
    """

    takes_turns = False
    holds_back = False

    def __init__(self, behavior: str, most_steps: Callable[[], int] = lambda: UNLIMITED) -> None:
        self.behavior = behavior
        self.most_steps = most_steps
        self.accounts: dict[int, Account] = {}
        self.collected = self.steps = 0

    def add_actor(self, actor: int) -> Allowance:
        """Add an actor that has just started, and return its first allowance."""
        self.accounts[actor] = Account(limit=UNLIMITED)
        return Allowance(self.behavior)

    def count(self, actor: int, rows: int = 0, steps: int = 0, opponent_steps: int = 0) -> None:
        account = self.accounts[actor]
        account.rows += rows
        account.steps += steps
        account.opponent_steps += opponent_steps
        self.collected += rows
        self.steps += steps

    def paused(self, actor: int) -> None:
        """Record that an actor has paused. If it was recalled, cancel the rest of its allowance."""
        account = self.accounts[actor]
        if account.is_recalled:  # Otherwise, its limits were lifted after the recall.
            account.is_recalled, account.limit = False, account.rows

    def may_collect(self, actor: int) -> bool:
        """Return whether an actor is below its limits, according to the reports so far."""
        return self.accounts[actor].left > 0 and not self.is_full

    @property
    def all_wait(self) -> bool:
        """True if all actors have reached their limits."""
        return bool(self.accounts) and not any(account.left for account in self.accounts.values())

    @property
    def is_full(self) -> bool:
        """True if the actors have collected all the experience that the behavior will learn from."""
        return self.steps >= self.most_steps()

    # Methods that differ between the kinds of pacing.

    def raised(self, actors: Iterable[int]) -> Iterator[tuple[int, Allowance]]:  # noqa: ARG002
        """Yield higher allowances for the given actors, if they may collect more.

        All of the given actors use the newest policy.
        """
        return iter(())

    def turns(self) -> Iterator[tuple[int, Allowance]]:
        """Yield allowances for the next turn."""
        return iter(())

    def admits(self, inbox: Sequence[Chunk | Marker]) -> bool:  # noqa: ARG002
        """Return whether the first item, a chunk, may be given to the learner now."""
        return True

    def recalls(self) -> Iterator[tuple[int, Allowance]]:
        """Yield allowances that make actors pause. Called after a chunk was not admitted."""
        return iter(())

    def relax(self) -> None:
        """Resolve a deadlock: all actors may be waiting while the learner needs more rows before it can continue.

        Called when nothing has arrived.
        """

    def lend(self, actor: int) -> Iterator[tuple[int, Allowance]]:  # noqa: ARG002
        """Let an actor collect all remaining rows, including the shares of actors that wait for another behavior."""
        return iter(())


class InTurn(Pacing):
    """One actor and the learner take turns. In each turn, the actor collects exactly what the learner needs next."""

    takes_turns = True

    def __init__(self, trainer: Trainer, self_play: SelfPlay | None) -> None:
        super().__init__(trainer.context.behavior)
        self._trainer = trainer
        self._self_play = self_play

    def add_actor(self, actor: int) -> Allowance:
        super().add_actor(actor)
        return self._turn(self.accounts[actor])

    def paused(self, actor: int) -> None:
        account = self.accounts[actor]
        account.is_paused, account.limit = True, account.rows

    def turns(self) -> Iterator[tuple[int, Allowance]]:
        for actor, account in self.accounts.items():
            if account.is_paused:
                yield actor, self._turn(account)

    def _turn(self, account: Account) -> Allowance:
        rows, steps = self._trainer.left()
        if (to_evaluation := self._trainer.steps_to_evaluation()) is not None:
            steps = min(steps, to_evaluation)
        opponent_steps = UNLIMITED
        if self._self_play is not None:
            own_steps, of_others = self._self_play.left()
            steps, opponent_steps = min(steps, own_steps), account.opponent_steps + max(1, of_others)
        account.is_paused, account.limit = False, account.rows + max(1, rows)
        return Allowance(self.behavior, account.limit, account.steps + max(1, steps), opponent_steps, pauses=True)


class Shared(Pacing):
    """Actors share a limit: at most ``lead`` collected rows may be waiting to be consumed by the learner.

    The remaining rows are divided equally in advance, so that actors do not wait while the learner is busy. An actor
    that has used up its share gets more as soon as rows are consumed. A slow actor keeps its share.

    Args:
        behavior: name of the behavior.
        source: source of the experience.
        lead: maximum number of unconsumed rows of all actors together.
        most_steps: as for ``Pacing``.
    """

    def __init__(
        self, behavior: str, source: ExperienceSource, lead: int, most_steps: Callable[[], int] = lambda: UNLIMITED
    ) -> None:
        super().__init__(behavior, most_steps)
        self.source = source
        self.lead = lead
        self.consumed = 0  # in rows

    def add_actor(self, actor: int) -> Allowance:
        self.accounts[actor] = Account()
        return dict(self.raised([actor])).get(actor, Allowance(self.behavior, rows=0))

    def raised(self, actors: Iterable[int]) -> Iterator[tuple[int, Allowance]]:
        self.consumed = self.source.consumed
        return self._share(actors, len(self.accounts))

    def _share(self, actors: Iterable[int], parts: int, *, any_amount: bool = False) -> Iterator[tuple[int, Allowance]]:
        """Yield allowances that divide the remaining rows into ``parts``. ``any_amount`` allows even small raises."""
        left = max(0, self.consumed + self.lead - self.collected)
        free = left - sum(account.left for account in self.accounts.values())
        part = -(-left // max(1, parts))
        # Actors that have the fewest rows left are served first, so that they do not have to wait.
        ready = [(actor, self.accounts[actor]) for actor in actors if not self.accounts[actor].is_recalled]
        for actor, account in sorted(ready, key=lambda each: each[1].left):
            more = min(part - account.left, free)
            # Skip small increases, so that fewer messages are sent.
            if more > 0 and (any_amount or 2 * account.left <= part):
                free -= more
                account.limit = account.rows + account.left + more
                yield actor, self._allowance(account)

    def _allowance(self, account: Account) -> Allowance:
        return Allowance(self.behavior, account.limit, account.steps + max(0, self.most_steps() - self.steps))

    def relax(self) -> None:
        if self.all_wait and len(self.source):
            self.source.request_drain()

    def lend(self, actor: int) -> Iterator[tuple[int, Allowance]]:
        left, account = self.consumed + self.lead - self.collected, self.accounts.get(actor)
        if account is not None and not account.is_recalled and account.left < left:
            account.limit = account.rows + left
            yield actor, self._allowance(account)


class ByUpdates(Shared):
    """Lets acting run ahead by a number of policy versions, for trainers whose updates consume their experience.

    The learner is only given the rows that its next update needs. With a lag of 0, all actors pause before an update,
    because experience collected during the update would be too old for the next one.
    """

    holds_back = True

    def __init__(self, trainer: Trainer, max_lag: int, most_steps: Callable[[], int]) -> None:
        self._buffer_size = trainer.context.settings.buffer_size
        super().__init__(trainer.context.behavior, trainer.source, (1 + max_lag) * (self._buffer_size + 1), most_steps)
        self._trainer = trainer
        self._max_lag = max_lag
        self._seen_version = trainer.publisher.version
        self._learned = 0  # rows consumed by updates
        self._put_before = 0  # ``source.rows_put`` at the last update
        self._shared_at = -1  # ``consumed`` when rows were last divided between actors

    def raised(self, actors: Iterable[int]) -> Iterator[tuple[int, Allowance]]:
        version = self._trainer.publisher.version
        if version != self._seen_version:
            self._seen_version, self._learned, self._put_before = version, self.source.drained, self.source.rows_put
        # Rows beyond what the next update needs are counted as consumed early. So with a lag, the experience for the
        # following update is complete in time, even if the next update takes more rows than it needs.
        self.consumed = max(self.consumed, self._learned + max(0, self._fed - self._buffer_size - 1))
        # After an update, send even small raises: the next update may need exactly these rows.
        any_amount, self._shared_at = self.consumed != self._shared_at, self.consumed
        # With a lag of 0, there is time to send another raise. So keep half of the remaining rows for the actor that
        # finishes first.
        num_actors = len(self.accounts)
        parts = num_actors if self._max_lag or num_actors == 1 else 2 * num_actors
        return self._share(actors, parts, any_amount=any_amount)

    @property
    def _fed(self) -> int:
        """Number of rows given to the learner since the last update."""
        return self.source.rows_put - self._put_before

    def recalls(self) -> Iterator[tuple[int, Allowance]]:
        for actor, account in self.accounts.items():
            if self._max_lag == 0 and account.left and not account.is_recalled:
                account.is_recalled = True
                yield actor, Allowance(self.behavior, rows=0, pauses=True)

    def admits(self, inbox: Sequence[Chunk | Marker]) -> bool:
        if self._max_lag == 0:
            waiting = sum(each.rows for each in inbox if not isinstance(each, Marker))
            completes = self._fed + waiting > self._buffer_size
            return not completes or not any(each.left or each.is_recalled for each in self.accounts.values())
        # If part of the experience was too old, the learner cannot update yet and needs more.
        if self._fed <= self._buffer_size or not self.source or not self._trainer.is_due():
            return True
        # If the chunk would be too old after the update, let this update use it.
        chunk = inbox[0]
        assert not isinstance(chunk, Marker)
        return self._trainer.publisher.version + 1 - chunk.newest_of_last() > self._max_lag

    def relax(self) -> None:
        super().relax()
        if self.all_wait and not len(self.source):
            self.consumed = self.collected
