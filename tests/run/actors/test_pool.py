"""How the learner deals with its actors, which are played by the test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.experience.streams import vector_spec
from trajtrainer.core.columns import Columns
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError, UnsupportedError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.queues import EpisodesAborted, LessonBegan, Marker, PolicyQueue, PolicyUpdate
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.timers import Timers
from trajtrainer.core.version import __version__
from trajtrainer.envs.unity.faults import LaunchError
from trajtrainer.experience.source import Counts, ExperienceSource, PackedLayout
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.run.actors.link import Learner
from trajtrainer.run.actors.messages import (
    UNLIMITED,
    Aborted,
    ActorDiedError,
    Allowance,
    Buffer,
    Experience,
    Failed,
    Hello,
    LoadWeights,
    NewBehavior,
    Order,
    Paused,
    Progress,
    Ready,
    Report,
    ReportHandler,
    Reset,
    SetParameters,
    StartActing,
    Synchronized,
)
from trajtrainer.run.actors.pacing import ByUpdates, InTurn
from trajtrainer.run.actors.pool import ActorPool
from trajtrainer.settings.actors import ActorOverride, ActorSettings
from trajtrainer.settings.environment import ConstantSettings, EnvironmentSettings
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

NAME = "Walker"
PATIENCE_S = 60.0
SETTINGS = TrainerSettings(
    hyperparameters=PPOHyperparameters(buffer_size=9),
    network_settings=NetworkSettings(hidden_units=4, num_layers=1),
    time_horizon=5,
)


class Played:
    """A transport that the test plays."""

    runs_meanwhile = True
    waited_s = 0.0
    shared = None

    def __init__(self, count: int, first: dict[int, Sequence[Report]] | None = None) -> None:
        self.orders: list[list[Order]] = [[] for _ in range(count)]
        self.starts = [0] * count
        self.dropped: list[int] = []
        self.freed: list[Any] = []
        self.published: list[tuple[int, int]] = []
        self.waiting: deque[tuple[int, Report]] = deque()
        self._first = first

    def __len__(self) -> int:
        return len(self.orders)

    def start(self, number: int) -> None:
        self.starts[number] += 1
        self.orders[number] = []
        reports = (self._first or {}).get(number, (Hello(__version__), Ready()))
        self.waiting.extend((number, report) for report in reports)

    def post(self, number: int, order: Order) -> None:
        self.orders[number].append(order)

    def add(self, *parts: object) -> None:
        pass

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:
        assert len(weights())
        self.published.append((number, version))
        self.post(number, LoadWeights(behavior, version, None))

    def poll(self, timeout_s: float | None, handle: ReportHandler) -> int:
        found = [*self.waiting]
        self.waiting.clear()
        for number, report in found:
            handle(number, report)
        return len(found)

    def wake(self) -> None:
        pass

    def drop(self, number: int) -> None:
        self.dropped.append(number)

    def close(self) -> None:
        pass

    def kill(self) -> None:
        pass

    @property
    def present(self) -> Sequence[int]:
        return range(len(self))

    def of(self, number: int, kind: type[Any]) -> list[Any]:
        """The orders of a kind that an actor has got since it started."""
        return [order for order in self.orders[number] if isinstance(order, kind)]

    def lessons(self, number: int) -> list[Any]:
        """The orders with environment parameters."""
        return [order for order in self.orders[number] if isinstance(order, Reset | SetParameters)]


class Rig:
    """A group with a learner that the test plays, too."""

    def __init__(
        self, count: int, max_lag: int = 1, turn: Callable[[], tuple[int, int]] | None = None, **settings: Any
    ) -> None:
        self.transport = Played(count)
        self.now_s = 0.0
        self.version = 0
        self.is_due = True
        self.turn = turn
        self.source = ExperienceSource(is_concurrent=turn is None, max_lag=max_lag, reports_lag=True)
        self.policies: PolicyQueue[Any] = PolicyQueue()
        self.max_lag = max_lag
        own = ActorOverride(actor=1, environment_parameters={"gravity": ConstantSettings(value=5.0)})
        self.group = ActorPool(
            self.transport,
            EnvironmentSettings(**settings),
            workers=2,
            timers=Timers(),
            actors=ActorSettings(count=3, overrides=[own]),
            patience_s=PATIENCE_S,
            clock=lambda: self.now_s,
        )
        self.group.make_learner = self.make
        self.group.collect(0.0)

    def make(self, found: NewBehavior) -> Learner:
        self.network = Actor(found.spec, SETTINGS.network_settings)
        rig = self

        class Publisher:
            @property
            def version(self) -> int:
                return rig.version

        trainer: Any = SimpleNamespace(
            context=SimpleNamespace(
                behavior=NAME, spec=found.spec, obs_dtypes=found.obs_dtypes, settings=SETTINGS, seed=3
            ),
            source=self.source,
            algorithm=SimpleNamespace(needs_groups=False),
            publisher=Publisher(),
            first_step=0,
            reporter=StatsReporter(NAME, []),
            is_due=lambda: self.is_due,
            left=self.turn,
            steps_to_evaluation=lambda: None,
        )
        pacing = ByUpdates(trainer, self.max_lag, lambda: UNLIMITED) if self.turn is None else InTurn(trainer, None)
        return Learner(
            trainer, ActorPolicy(self.network, seed=0), self.policies, None, pacing, lead=(1 + self.max_lag) * 10
        )

    def tell(self, number: int, *reports: Report) -> None:
        self.transport.waiting.extend((number, report) for report in reports)
        self.group.collect(0.0)

    def find(
        self, number: int, spec: BehaviorSpec | None = None, order: RawImageOrder = RawImageOrder.AUTO
    ) -> StartActing:
        dtypes = [np.dtype(np.float32)]
        self.tell(number, NewBehavior(BehaviorId.parse(NAME), spec or vector_spec(), dtypes, order))
        return self.transport.of(number, StartActing)[0]  # type: ignore[no-any-return]

    def ship(self, number: int, *lengths: int, version: int = 0) -> Buffer:
        """Let an actor ship trajectories of its agent 7, in its worker 1."""
        layout = PackedLayout(vector_spec(), [np.float32])
        counts = Counts(sum(lengths), len(lengths))
        buffer = np.zeros(layout.size(counts), np.uint8)
        packed = layout.over(buffer, counts)
        packed.offset[1:] = np.cumsum(lengths)
        packed.agent[:] = 1 << 32 | 7
        packed["version"][:] = version
        self.tell(number, Experience(NAME, sum(lengths), (counts, buffer, lambda: self.transport.freed.append(buffer))))
        return buffer

    def drain(self) -> list[PackedSteps | Marker]:
        return self.source.drain_into(_anywhere, hold=False)

    def learn(self) -> None:
        """An update that uses up all that was drained."""
        self.version += 1
        self.policies.put(NAME, PolicyUpdate(self.version, self.network.state_dict()))
        self.group.collect(0.0)

    def shipped(self, number: int) -> int:
        return self.group.histories[number].agent_steps

    def granted(self, number: int) -> int:
        orders = [start.allowance for start in self.transport.of(number, StartActing)] + self.transport.of(
            number, Allowance
        )
        return int(orders[-1].rows)

    def raised(self, number: int) -> int:
        """How often an actor was allowed more than at its start."""
        return len([order for order in self.transport.of(number, Allowance) if order.rows])

    def recalled(self, number: int) -> int:
        """How often it was told to pause at once."""
        return self.transport.of(number, Allowance).count(Allowance(NAME, rows=0, pauses=True))


def _anywhere(_num_steps: int) -> Columns[Any] | None:
    return None


def test_actors_get_the_parameters_of_the_lesson_and_their_own() -> None:
    rig = Rig(2)
    rig.group.reset({"mass": ConstantSettings(value=1.0), "gravity": ConstantSettings(value=9.0)})
    rig.group.set_parameters({"mass": ConstantSettings(value=2.0)})
    values = [
        [{name: one.value for name, one in order.parameters.items()} for order in rig.transport.lessons(n)]
        for n in (0, 1)
    ]
    assert values[0] == [{"mass": 1.0, "gravity": 9.0}, {"mass": 2.0}]
    assert values[1] == [{"mass": 1.0, "gravity": 5.0}, {"mass": 2.0, "gravity": 5.0}]
    assert [type(order) for order in rig.transport.orders[0]] == [Reset, SetParameters]
    rig.tell(0, Failed(ActorDiedError("It fell.")))
    rig.now_s = 10
    rig.group.collect(0.0)  # starts it
    rig.group.collect(0.0)
    (order,) = rig.transport.of(0, Reset)
    assert {name: one.value for name, one in order.parameters.items()} == {"mass": 2.0, "gravity": 9.0}


def test_experience_of_all_actors_comes_in_order_with_workers_of_its_own() -> None:
    rig = Rig(2)
    assert rig.find(0).allowance.rows + rig.find(1).allowance.rows <= 20
    first = rig.ship(0, 2, 3)
    rig.tell(1, Aborted(NAME, 1))
    second = rig.ship(1, 1)
    assert (rig.source.num_put, rig.source.is_needed, rig.source.num_rows) == (6, True, 6)
    found = rig.drain()
    assert [len(part) if isinstance(part, PackedSteps) else part for part in found] == [5, EpisodesAborted(3), 1]
    agents = [part.agent.tolist() for part in found if isinstance(part, PackedSteps)]
    assert agents == [[1 << 32 | 7] * 2, [3 << 32 | 7]]
    assert [freed is block for freed, block in zip(rig.transport.freed, (first, second), strict=True)] == [True, True]


def test_an_update_gets_no_more_than_it_is_made_of() -> None:
    rig = Rig(1)
    rig.find(0)
    for _ in range(4):
        rig.ship(0, 5)
    assert rig.source.num_put == 10, "buffer_size is 9"
    rig.drain()
    rig.learn()
    assert rig.source.num_put == 20
    rig.group.collect(0.0)
    assert rig.granted(0) == 30


def test_the_next_update_is_collected_whole_while_one_takes_more_than_it_needs() -> None:
    rig = Rig(1)
    rig.find(0)
    rig.ship(0, 5, 4)
    assert rig.granted(0) == 20
    rig.ship(0, 5, 2)
    assert rig.granted(0) == 26, "16 rows are learned from now, and 10 make the next update"


def test_a_synchronous_update_waits_until_all_actors_have_stopped() -> None:
    rig = Rig(3, max_lag=0)
    for number in range(3):
        rig.find(number)
    rig.ship(0, 5, 5)  # the first one had all the credit
    rig.drain()
    rig.learn()
    assert [rig.raised(number) for number in range(3)] == [1, 1, 1]
    rig.ship(0, 3)
    assert rig.source.num_put == 13, "this is no update yet"
    rig.tell(2, Failed(ActorDiedError("It fell.")))  # and is not waited for
    rig.ship(0, 4, 4)
    assert rig.source.num_put == 13
    rig.ship(1, 1)
    assert rig.source.num_put == 13, "it may be that there is more to come"
    assert rig.recalled(1) == 1
    rig.tell(1, Paused(NAME))
    assert rig.source.num_put == 22
    rig.drain()
    given = rig.raised(1)
    for number in range(2):
        rig.tell(number, Synchronized(NAME))
    rig.learn()
    assert rig.raised(1) == given + 1
    assert rig.granted(1) == 1 + 3, "what it had not used up was taken back"


def test_credit_comes_behind_the_policy_that_is_to_use_it_up() -> None:
    rig = Rig(1)
    rig.find(0)
    for lengths in ((5, 5), (5, 5)):
        rig.ship(0, *lengths)
        rig.drain()
        rig.learn()
    assert rig.transport.published == [(0, 1)], "it has not said that it acts by it"
    assert rig.granted(0) == 30
    rig.tell(0, Synchronized(NAME))
    assert rig.transport.published == [(0, 1), (0, 2)]
    assert [type(order) for order in rig.transport.orders[0][-2:]] == [LoadWeights, Allowance]
    assert rig.granted(0) == 40


def test_what_would_be_too_old_for_the_next_update_is_learned_from_now() -> None:
    rig = Rig(1, max_lag=0)
    rig.find(0)
    for _ in range(4):
        rig.ship(0, 5)
    assert rig.source.num_put == 20


@pytest.mark.parametrize("max_lag", [0, 1])
def test_the_trainer_goes_on_where_something_was_too_old_to_learn_from(max_lag: int) -> None:
    rig = Rig(1, max_lag=max_lag)
    rig.find(0)
    for _ in range(2 * (1 + max_lag)):
        rig.ship(0, 5)
    lead = rig.granted(0)
    assert lead == 10 * (1 + max_lag)
    for _ in range(2):  # no update comes of it
        rig.drain()
        rig.group.collect(0.0)
    rig.group.collect(0.0)
    assert rig.granted(0) > lead, "all wait for each other"


def test_the_trainer_gets_more_for_an_update_of_whose_parts_some_were_too_old() -> None:
    rig = Rig(1)
    rig.find(0)
    rig.ship(0, 5, 5)
    rig.drain()  # and too old
    rig.is_due = False
    rig.ship(0, 5)
    rig.ship(0, 5)
    assert rig.source.num_put == 20
    rig.is_due = True
    rig.ship(0, 5)
    assert rig.source.num_put == 20


def test_a_turn_is_taken_in_as_a_whole_and_the_next_begins_when_the_loop_has_gone_on() -> None:
    turns = iter([(9, 5), (7, 3)])
    rig = Rig(1, turn=lambda: next(turns))
    assert rig.find(0).allowance == Allowance(NAME, 9, 5, UNLIMITED, pauses=True)
    rig.ship(0, 3)
    rig.tell(0, Aborted(NAME, 1))
    assert not len(rig.source)
    rig.ship(0, 2)
    rig.tell(0, Paused(NAME))
    assert rig.source.num_put == 5
    assert not rig.transport.of(0, Allowance)
    found = rig.drain()
    assert [len(part) if isinstance(part, PackedSteps) else part for part in found] == [3, EpisodesAborted(1), 2]
    rig.learn()
    assert [type(order) for order in rig.transport.orders[0]] == [StartActing, LoadWeights, Allowance]
    assert rig.transport.of(0, Allowance) == [Allowance(NAME, 5 + 7, 5 + 3, UNLIMITED, pauses=True)]
    rig.ship(0, 2)
    rig.tell(0, Failed(ActorDiedError("It fell.")))
    assert rig.source.num_put == 7, "what it has handed over counts"


def test_weights_go_out_one_at_a_time_and_the_newest_wins() -> None:
    rig = Rig(2)
    rig.find(0)
    rig.find(1)
    for _ in range(3):
        rig.learn()
    assert rig.transport.published == [(0, 1), (1, 1)]
    rig.tell(1, Synchronized(NAME))
    assert rig.transport.published[2:] == [(1, 3)]


def test_in_turn_there_is_no_credit_before_the_policy() -> None:
    rig = Rig(1, max_lag=0)
    rig.find(0)
    rig.policies.put(NAME, PolicyUpdate(0, rig.network.state_dict()))  # normalizers, say
    rig.group.collect(0.0)
    rig.ship(0, 5, 5)
    rig.drain()
    rig.learn()
    assert rig.granted(0) == 10, "the last weights were not taken yet"
    rig.tell(0, Synchronized(NAME))
    kinds = [type(order) for order in rig.transport.orders[0]]
    assert kinds[-2:] == [LoadWeights, Allowance]
    assert rig.granted(0) == 20


def test_who_dies_is_started_again_and_left_out_after_its_quota(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(2, max_lifetime_restarts=1)
    rig.find(0)
    rig.find(1)
    rig.ship(0, 5)
    rig.tell(0, Failed(ActorDiedError("The process of actor 0 fell.")))
    assert "Restarting actor 0 in 0.25 s (restart 1 of 1) after: The process of actor 0 fell." in caplog.text
    found = rig.drain()
    assert len(found[0]) == 5  # type: ignore[arg-type]
    assert found[1:] == [EpisodesAborted(0), EpisodesAborted(1)], "its unfinished episodes, and no others"
    rig.now_s = 0.3
    rig.group.collect(0.0)
    assert rig.transport.starts == [2, 1]
    rig.find(0)
    rig.tell(0, Failed(ActorDiedError("It fell again.")))
    assert "Actor 0 failed and will not be restarted, because it has already been restarted 1 times" in caplog.text
    assert "; 1 remaining. It fell again." in caplog.text
    assert rig.granted(1) > 10, "the other one gets its credit"
    with pytest.raises(EnvironmentFaultError, match=r"Actor 1 failed and will not be restarted.*It fell, too\."):
        rig.tell(1, Failed(EnvironmentFaultError("It fell, too.")))


def test_an_actor_that_could_collect_and_is_silent_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(2)
    rig.find(0)
    rig.find(1)
    rig.group.reset({})
    rig.now_s = PATIENCE_S
    rig.tell(1, Progress(environment_steps=3))
    rig.now_s += 1
    rig.group.collect(0.0)
    assert rig.transport.dropped == [0]
    assert (
        "Restarting actor 0 in 0.25 s (restart 1 of 10) after: Actor 0 has not reported anything for 60 s."
        in caplog.text
    )
    assert rig.drain() == [EpisodesAborted(0), EpisodesAborted(1)]
    rig.now_s += 1
    rig.group.collect(0.0)
    assert rig.transport.starts == [2, 1]


def test_an_actor_that_has_nothing_to_do_may_be_silent() -> None:
    rig = Rig(2)
    rig.find(0)
    rig.find(1)
    rig.now_s = 10 * PATIENCE_S
    rig.group.collect(0.0)  # without a reset no episode begins
    rig.group.reset({})
    while rig.granted(0) > rig.shipped(0):
        rig.ship(0, 1)
    rig.tell(1, Progress())
    rig.now_s += PATIENCE_S - 1
    rig.tell(1, Progress())
    rig.now_s += 2
    rig.group.collect(0.0)
    assert rig.transport.dropped == [], "actor 0 has reached its limit, and actor 1 has reported"
    rig.learn()  # it is sent weights, and has to answer
    rig.now_s += PATIENCE_S + 1
    rig.group.collect(0.0)
    assert 0 in rig.transport.dropped


def test_what_no_restart_heals_ends_the_run() -> None:
    with pytest.raises(LaunchError, match="no such build"):
        ActorPool(
            Played(2, {0: [Hello(__version__), Failed(LaunchError("no such build"))]}),
            EnvironmentSettings(),
            workers=1,
            timers=Timers(),
        )
    rig = Rig(2)
    with pytest.raises(SettingsError, match="mistake"):
        rig.tell(0, Failed(SettingsError("mistake")))


def test_another_version_of_the_package_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(2)
    rig.tell(1, Hello("9.9"))
    assert (
        f"Actor 1 is excluded from the run: it runs trajtrainer 9.9, but this is version {__version__}." in caplog.text
    )
    assert rig.transport.dropped == [1]
    with pytest.raises(UnsupportedError, match=r"Actor 0 is excluded from the run: it runs trajtrainer 9\.8"):
        rig.tell(0, Hello("9.8"))


def test_another_scene_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(2)
    rig.find(0)
    with pytest.raises(IndexError):
        rig.find(1, vector_spec(4))
    assert "Actor 1 is excluded from the run: behavior 'Walker' has the observations [(4,) float32]" in caplog.text
    assert "but the observations [(1,) float32]" in caplog.text
    rig.ship(0, 5)
    assert rig.source.num_put == 5, "the other one goes on"


def test_all_actors_read_raw_images_as_the_first(caplog: pytest.LogCaptureFixture) -> None:
    """One that has found another order is started again, and gets the order of the run for that."""
    rig = Rig(3, max_lifetime_restarts=0)
    assert rig.group.image_order.value == "auto"
    rig.find(1, order=RawImageOrder.CHW)
    rig.find(2, order=RawImageOrder.CHW)
    assert rig.group.image_order.value == "chw"
    rig.tell(0, NewBehavior(BehaviorId.parse(NAME), vector_spec(), [np.dtype(np.float32)], RawImageOrder.HWC))
    assert rig.transport.of(0, StartActing) == []
    assert rig.transport.dropped == [0]
    assert "The raw images of actor 0 seem to be in a different order than those of the other actors" in caplog.text
    rig.group.collect(0.0)
    assert rig.transport.starts == [2, 1, 1]
    assert rig.find(0, order=RawImageOrder.CHW).behavior == NAME
    assert rig.group.image_order.value == "chw"


def test_what_has_come_during_the_last_update_counts_too() -> None:
    rig = Rig(1)
    rig.find(0)
    layout = PackedLayout(vector_spec(), [np.float32])
    counts = Counts(5, 1)
    buffer = np.zeros(layout.size(counts), np.uint8)
    layout.over(buffer, counts).offset[1:] = 5
    rig.transport.waiting.append((0, Experience(NAME, 5, (counts, buffer, lambda: None))))
    rig.group.finish()
    assert rig.shipped(0) == 5


def test_an_actor_knows_its_opponents_before_the_reset_that_begins_their_match() -> None:
    rig = Rig(1)
    rig.find(0)
    rig.version += 1
    rig.policies.put(NAME, PolicyUpdate(rig.version, rig.network.state_dict()))
    rig.group.reset({})
    assert [type(order) for order in rig.transport.orders[0]][-2:] == [LoadWeights, Reset]


@pytest.mark.parametrize("turn", [None, lambda: (9, 5)])
def test_what_actors_have_handed_over_counts_when_the_run_ends(turn: Callable[[], tuple[int, int]] | None) -> None:
    rig = Rig(1, turn=turn)
    rig.find(0)
    for _ in range(4):
        rig.ship(0, 5)
    assert rig.source.num_put == (10 if turn is None else 0), "the rest is for the next update, or for a whole turn"
    rig.group.finish()
    assert rig.source.num_put == 20
    assert [len(part) for part in rig.drain() if isinstance(part, PackedSteps)] == [20]
    assert len(rig.transport.freed) == 4


def test_experience_counts_for_lessons_when_it_arrives_and_messages_once() -> None:
    rig, seen = Rig(1, max_lag=0), list[tuple[int, int]]()
    rig.find(0)
    recorded = rig.group.links[NAME].learner.recorded
    rig.group.on_messages = lambda count: seen.append((count, recorded.num_steps))
    rig.ship(0, 5)
    rig.tell(0, Progress(environment_steps=7))
    recorded.begin_lesson(2)
    rig.ship(0, 3)
    rig.tell(0, Progress(environment_steps=7), Progress(environment_steps=11))
    assert seen == [(7, 5), (4, 8)]
    found = rig.drain()
    assert [len(part) if isinstance(part, PackedSteps) else part for part in found] == [5, LessonBegan(2), 3]
