"""Connects a behavior's trainer to its actors: sends policies and allowances, and receives experience.

Everything here runs in the loop's thread; see ``pool`` for a diagram.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from trajtrainer.core.queues import EpisodesAborted, LessonBegan, Marker, PolicyQueue
from trajtrainer.core.seeds import derived_seeds
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.steps import Aggregation
from trajtrainer.envs.workers.supervisor import Supervisor
from trajtrainer.experience.source import Chunk, PackedLayout
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.nn.actor import copy_of
from trajtrainer.learning.trainers.episodes import ArrivedEpisodes
from trajtrainer.learning.trainers.self_play import SelfPlay
from trajtrainer.learning.trainers.trainer import BehaviorTrainer
from trajtrainer.run.actors import messages
from trajtrainer.run.actors.pacing import Pacing
from trajtrainer.run.actors.weights import WeightsLayout

# An actor hands over its share of the lead in this many chunks, so that the learner can start before it has all rows.
_CHUNKS = 8


@dataclass(frozen=True, slots=True)
class Learner:
    """The learner of one behavior, with the settings that its actors need.

    Acting may be ``lead`` rows ahead of learning, and actors hand over a fraction of these rows at a time. With a lead
    of 0, they hand over finished steps at once.
    """

    trainer: BehaviorTrainer
    policy: ActorPolicy  # an actor in the learner's loop uses this object; other actors use copies
    policies: PolicyQueue[Tensor]  # delivers the trainer's updates to ``policy``
    self_play: SelfPlay | None  # None if all teams learn
    pacing: Pacing
    lead: int
    recorded: ArrivedEpisodes = field(default_factory=ArrivedEpisodes)


@dataclass(slots=True)
class ActorHistory:
    """Totals of an actor's work in this session, including restarts."""

    before: messages.Progress = field(default_factory=messages.Progress)  # before its last start
    progress: messages.Progress = field(default_factory=messages.Progress)  # since its last start
    first_s: float | None = None  # time at which its environments were first ready
    agent_steps: int = 0  # in all trajectories that it has handed over
    episodes: int = 0  # episodes that ended in these trajectories
    lag_sum: int = 0  # sum over these steps of the policy's age in versions when they arrived

    @property
    def total(self) -> messages.Progress:
        return self.before.plus(self.progress)


class BehaviorLink:
    """The link between the learner of one behavior and its actors.

    ``histories`` has one entry per actor. ``stride`` is the largest number of workers that an actor has: the learner
    numbers worker w of actor n as ``n * stride + w``.

    Attributes:
        name: name of the behavior.
        policy: the newest policy, which is sent to the actors. An actor in the learner's loop uses this object itself.
        reporter: reporter of the behavior's statistics.
        source: passes experience to the trainer; None if the trainer does not use it.
        pacing: limits how far the actors may run ahead of the trainer.
        learns: True if there is a source.
    """

    def __init__(
        self,
        learner: Learner,
        transport: messages.Transport,
        supervisor: Supervisor,
        histories: Sequence[ActorHistory],
        stride: int,
    ) -> None:
        trainer, policy = learner.trainer, learner.policy
        self.learner = learner
        self.pacing = learner.pacing
        self.name = trainer.context.behavior
        self.policy = policy
        self.reporter = trainer.reporter
        self.source = trainer.source
        self.learns = self.source is not None
        self._trainer = trainer
        self._transport = transport
        self._supervisor = supervisor
        self._histories = histories
        self._stride = stride
        self._inbox: deque[Chunk | Marker] = deque()
        self._recorded = learner.recorded
        stop = trainer.context.settings.stop
        self._most_episodes = None if stop is None else stop.episodes
        if self.learns:
            self._recorded.on_lesson = lambda number: self._add(LessonBegan(number))
        self._turn: list[tuple[int, messages.BehaviorReport]] = []
        self._teams: set[str] = set()
        self._bytes: tuple[int, messages.Buffer] | None = None  # ``ActorPolicy.num_loads``, weights
        self._load_latest_policy()
        self._layout = PackedLayout(
            trainer.context.spec,
            trainer.context.obs_dtypes,
            memory_size=policy.memory_size,
            groups=trainer.algorithm.needs_groups,
        )
        self._weights = WeightsLayout({name: tensor.cpu() for name, tensor in policy.actor.state_dict().items()})

    # Orders to the actors.

    def _post(self, number: int, order: messages.Order) -> None:
        self._supervisor.working(number)
        self._transport.post(number, order)

    def add_actor(self, number: int, noise: float) -> None:
        """Start acting for the behavior in an actor that has encountered it. For ``noise``, see ``StartActing``."""
        context, policy = self._trainer.context, self.policy
        allowance, account = self.pacing.add_actor(number), self.pacing.accounts[number]
        account.loads, account.version = policy.num_loads, policy.version
        order = messages.StartActing(
            behavior=self.name,
            settings=context.settings,
            network=copy_of(policy.actor),
            version=policy.version,
            seed=self._seed_of(number, f"{self.name} acting"),
            noise=noise,
            evenly_first=policy.evenly_first,
            groups=self._trainer.algorithm.needs_groups,
            ship_steps=max(1, self.learner.lead // (_CHUNKS * len(self._supervisor.members))),
            learns=self.learns,
            self_play=self.learner.self_play is not None,
            allowance=allowance,
        )
        self._post(number, order)

    def add_team(self, number: int, behavior_id: BehaviorId) -> None:
        """Send the current assignment to an actor that has encountered a new team."""
        self_play = self.learner.self_play
        assert self_play is not None
        if behavior_id.full not in self._teams:
            self._teams.add(behavior_id.full)
            self_play.join(behavior_id)
        self._assign(self_play, number)

    def synchronize(self) -> None:
        """Send newer weights and opponents to the actors, and then the allowances to use with them."""
        self._load_latest_policy()
        policy, self_play, accounts = self.policy, self.learner.self_play, self.pacing.accounts
        opponents = None if self_play is None else self_play.number
        for number, account in accounts.items():
            if account.is_synchronized and account.loads != policy.num_loads:
                account.loads, account.version, account.is_synchronized = policy.num_loads, policy.version, False
                self._supervisor.working(number)
                self._transport.publish(number, self.name, policy.version, self._bytes_of_weights)
            if self_play is not None and account.assignment not in (None, opponents):
                self._assign(self_play, number)
        # Allowances are meant for the newest policy, so give them only to actors to which it has been sent.
        version = self._trainer.publisher.version
        self._allow(self.pacing.raised([n for n, account in accounts.items() if account.version == version]))

    def give_turns(self) -> None:
        """Give waiting actors their next turn, once the loop has handled everything from the previous one."""
        if self.pacing.takes_turns and not self._inbox:
            self._allow(self.pacing.turns())

    def lift_limits(self) -> None:
        """Remove the limits: this behavior has enough experience, but others need more."""
        # Keep the accounts, because actors have not answered all orders yet.
        accounts, self.pacing = self.pacing.accounts, Pacing(self.name)
        self.pacing.accounts = accounts
        for number, account in accounts.items():
            account.is_recalled, account.limit = False, messages.UNLIMITED
            self._post(number, messages.Allowance(self.name))

    def lend(self, number: int) -> None:
        """Let an actor collect the remaining shares of actors that wait for another behavior."""
        self._allow(self.pacing.lend(number))

    def remove_actor(self, number: int) -> None:
        """Abort the unfinished episodes of an actor that has died, and return its share of the limit to the others."""
        if number in self.pacing.accounts:
            self._handle_turn()  # Count its reports even though it did not pause.
            del self.pacing.accounts[number]
            first = number * self._stride
            for worker in range(first, first + self._stride):
                self._abort(worker)

    def is_at_limit(self, number: int) -> bool:
        """Return whether an actor has to wait for another allowance from this behavior before it can act."""
        return number in self.pacing.accounts and self.learns and not self.pacing.may_collect(number)

    def owes(self, number: int) -> bool:
        """Return whether an actor has not answered all orders yet."""
        account = self.pacing.accounts.get(number)
        return account is not None and (not account.is_synchronized or account.is_recalled)

    def _allow(self, allowances: Iterable[tuple[int, messages.Allowance]]) -> None:
        for number, allowance in allowances:
            self._post(number, allowance)

    def _assign(self, self_play: SelfPlay, number: int) -> None:
        assert self_play.learning is not None
        self.pacing.accounts[number].assignment = self_play.number
        opponents = {}
        for name, slot in self_play.slots.items():
            weights = {key: tensor.cpu().numpy() for key, tensor in slot.weights.items()}
            seed = self._seed_of(number, f"{name} opponent {slot.since}")
            opponents[name] = messages.Opponent(weights, slot.player.acts, seed)
        self._post(number, messages.Assignment(self.name, self_play.learning, self_play.number[0], opponents))

    def _load_latest_policy(self) -> None:
        update = self.learner.policies.latest(self.name)
        if update is not None:
            self.policy.load(update)

    def _bytes_of_weights(self) -> messages.Buffer:
        loads = self.policy.num_loads
        if self._bytes is None or self._bytes[0] != loads:
            self._bytes = loads, self._weights.written(self.policy.actor.state_dict())
        return self._bytes[1]

    def _seed_of(self, number: int, what: str) -> int:
        """Return the seed for the random choices of an actor's policy.

        The first actor, when it is first started, gets the seed that an actor in the learner's loop would get, so that
        both kinds of runs are bit-identical.
        """
        which = (number, self._supervisor.members[number].quota.used, self._trainer.first_step)
        text = "" if which == (0, 0, 0) else " {} {} {}".format(*which)
        return derived_seeds(self._trainer.context.seed, f"{what}{text}")[0]

    # Reports from the actors.

    def receive(self, number: int, report: messages.BehaviorReport) -> None:
        """Handle a report.

        If actors take turns, reports are queued until the actor pauses, because the loop must not react to part of a
        turn.
        """
        match report:
            case messages.Synchronized():
                self.pacing.accounts[number].is_synchronized = True
            case messages.Paused():
                self.pacing.paused(number)
                self._handle_turn()
            case _ if self.pacing.takes_turns:
                self._turn.append((number, report))
            case _:
                self._handle(number, report)

    def feed(self, *, everything: bool = False) -> int:
        """Give the trainer all items that the pacing admits, or all items if ``everything``. Returns their number."""
        num_fed = 0
        if everything:
            self._handle_turn()
        while self._inbox:
            is_marker = isinstance(self._inbox[0], Marker)
            if not (everything or is_marker or self.pacing.admits(self._inbox)):
                self._allow(self.pacing.recalls())
                break
            self._give(self._inbox.popleft())
            num_fed += 1
        return num_fed

    def add_experience(self, number: int, chunk: Chunk) -> None:
        self._recorded.add(chunk)
        self.pacing.count(number, chunk.rows, chunk.num_steps)
        history = self._histories[number]
        history.agent_steps += chunk.num_steps
        history.episodes += chunk.num_ended
        history.lag_sum += chunk.lag_sum(self._trainer.publisher.version)
        self._add(chunk)

    def _add(self, item: Chunk | Marker) -> None:
        """Give an item to the trainer, or queue it in the inbox if the pacing holds items back."""
        if self.pacing.holds_back or self._inbox:
            self._inbox.append(item)
        else:
            self._give(item)

    def _give(self, item: Chunk | Marker) -> None:
        if self.source is not None:
            self.source.add(item)
            has_enough = self._most_episodes is not None and self._recorded.num_total >= self._most_episodes
            if has_enough and self._trainer.should_still_train:
                self.source.request_drain()  # so that the trainer uses these episodes, after which training ends

    def relax(self) -> None:
        """Let actors collect more if all of them are waiting and the trainer cannot use what they have sent."""
        if not self._inbox:
            self.pacing.relax()

    def _abort(self, worker: int) -> None:
        self._recorded.reset_worker(worker)
        self._add(EpisodesAborted(worker))

    def _handle_turn(self) -> None:
        turn, self._turn = self._turn, []
        for number, report in turn:
            self._handle(number, report)

    def _handle(self, number: int, report: messages.BehaviorReport) -> None:
        first, self_play = number * self._stride, self.learner.self_play
        match report:
            case messages.StatsReport(_, statistics, matches, opponent_steps):
                for tag, summary in statistics.items():
                    if summary.aggregation is not Aggregation.MOST_RECENT or number == 0:
                        self._trainer.reporter.add_many(tag, np.asarray(summary.values), summary.aggregation)
                if self_play is not None:
                    self.pacing.count(number, opponent_steps=opponent_steps)
                    self_play.opponent_steps += opponent_steps
                    for assignment, num_episodes, num_steps, results in matches:
                        is_current = assignment == self_play.number[0]
                        self_play.count(num_episodes, num_steps, results if is_current else ())
            case messages.Experience():
                self.add_experience(number, report.chunk(self._layout, first))
            case messages.Aborted(_, worker):
                self._abort(first + worker)
