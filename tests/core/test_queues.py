"""The two queues, alone and between threads."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Event, Thread

from hypothesis import given
from hypothesis import strategies as st

from trajtrainer.core.queues import EpisodesAborted, PolicyQueue, PolicyUpdate, TrajectoryQueue

PATIENCE_S = 30.0


def test_drain_takes_everything_in_order_once() -> None:
    queue: TrajectoryQueue[int] = TrajectoryQueue()
    for number in (3, 1, 2):
        queue.put(number)
    assert len(queue) == 3
    assert queue.drain() == [3, 1, 2]
    assert queue.drain() == []
    assert len(queue) == 0


def test_it_knows_how_many_steps_wait() -> None:
    queue: TrajectoryQueue[str] = TrajectoryQueue()
    queue.put("a", 3)
    queue.put("b", 4)
    assert queue.num_steps == 7
    assert queue.drain() == ["a", "b"]
    assert queue.drain() == []
    assert queue.num_steps == 0


def test_aborted_episodes_stand_in_order_and_are_needed_at_once() -> None:
    queue: TrajectoryQueue[str] = TrajectoryQueue()
    queue.put("old", 3)
    queue.abort_episodes(1)
    queue.put("new", 4)
    assert queue.is_needed
    assert queue.wait(0.001, lambda: False)
    assert (queue.num_steps, queue.num_put) == (7, 7)
    assert queue.drain() == ["old", EpisodesAborted(1), "new"]
    assert (queue.num_steps, queue.num_put, queue.is_needed) == (0, 7, False)


def test_wait_returns_at_once_when_something_is_there_and_after_the_timeout_when_not() -> None:
    queue: TrajectoryQueue[str] = TrajectoryQueue()
    assert not queue.wait(0.001)
    queue.put("a")
    assert queue.wait(None)


def test_what_is_not_enough_is_waited_for_unless_somebody_needs_it() -> None:
    queue: TrajectoryQueue[str] = TrajectoryQueue()

    def enough() -> bool:
        return queue.num_steps >= 5

    queue.put("a", 3)
    assert queue.wait(0.001, enough), "there is something"
    started, ended = Event(), Event()

    def wait() -> None:
        started.set()
        queue.wait(PATIENCE_S, enough)
        ended.set()

    ends: list[Callable[[], None]] = [lambda: queue.put("b", 2), queue.request_drain, queue.close]
    for end_it in ends:
        started.clear()
        ended.clear()
        waiter = Thread(target=wait, daemon=True)
        waiter.start()
        assert started.wait(PATIENCE_S)
        assert not ended.wait(0.02)
        end_it()
        assert ended.wait(PATIENCE_S)
        waiter.join(PATIENCE_S)
        queue.drain()
        queue.put("c", 1)


def test_close_ends_waiting_but_keeps_what_is_there() -> None:
    queue: TrajectoryQueue[str] = TrajectoryQueue()
    waits = []
    waiter = Thread(target=lambda: waits.append(queue.wait(PATIENCE_S)), daemon=True)
    waiter.start()
    queue.close()
    waiter.join(PATIENCE_S)
    assert waits == [False]
    assert not queue.wait(None)
    queue.put("late")
    assert queue.wait(None)
    assert queue.drain() == ["late"]


def test_nothing_is_lost_between_threads() -> None:
    queue: TrajectoryQueue[tuple[int, int]] = TrajectoryQueue()
    start = Barrier(4)
    received: list[tuple[int, int]] = []

    def produce(producer: int) -> None:
        start.wait(PATIENCE_S)
        for number in range(500):
            queue.put((producer, number))

    def consume() -> None:
        start.wait(PATIENCE_S)
        while len(received) < 1500 and queue.wait(PATIENCE_S):
            received.extend(item for item in queue.drain() if isinstance(item, tuple))

    threads = [Thread(target=produce, args=(i,), daemon=True) for i in range(3)] + [Thread(target=consume, daemon=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(received) == [(i, number) for i in range(3) for number in range(500)]
    for producer in range(3):
        assert [number for p, number in received if p == producer] == list(range(500))


def test_only_the_newest_policy_is_kept() -> None:
    queue: PolicyQueue[float] = PolicyQueue()
    assert queue.latest("Ball") is None
    queue.put("Ball", PolicyUpdate(1, {"a": 1.0}))
    queue.put("Ball", PolicyUpdate(2, {"a": 2.0}))
    assert queue.latest("Ball") == PolicyUpdate(2, {"a": 2.0})
    assert queue.latest("Ball") is None


def test_partial_update_is_merged_into_the_full_one_before_it() -> None:
    queue: PolicyQueue[float] = PolicyQueue()
    queue.put("Ball", PolicyUpdate(1, {"a": 1.0, "mean": 0.0}))
    queue.put("Ball", PolicyUpdate(2, {"mean": 5.0}, partial=True))
    assert queue.latest("Ball") == PolicyUpdate(2, {"a": 1.0, "mean": 5.0})


def test_each_policy_has_its_own_newest_weights() -> None:
    queue: PolicyQueue[float] = PolicyQueue()
    queue.put("Ball?team=0", PolicyUpdate(3, {"a": 1.0}))
    queue.put("Ball?team=1", PolicyUpdate(2, {"a": 2.0}))
    queue.put("Ball?team=1", PolicyUpdate(2, {"b": 5.0}, partial=True))
    assert queue.latest("Ball?team=0") == PolicyUpdate(3, {"a": 1.0})
    assert queue.latest("Ball?team=0") is None
    assert queue.latest("Ball?team=1") == PolicyUpdate(2, {"a": 2.0, "b": 5.0})


UPDATES = st.builds(
    PolicyUpdate[int], st.just(0), st.dictionaries(st.sampled_from("abc"), st.integers(), min_size=1), st.booleans()
)


@given(st.lists(st.tuples(UPDATES, st.booleans())))
def test_policy_after_any_updates_is_that_of_one_who_saw_them_all(steps: list[tuple[PolicyUpdate[int], bool]]) -> None:
    """A reader that looks now and then has the same weights as one that applied every update."""
    queue: PolicyQueue[int] = PolicyQueue()
    every: dict[str, int] = {}
    seldom: dict[str, int] = {}

    def apply(weights: dict[str, int], update: PolicyUpdate[int]) -> dict[str, int]:
        return {**weights, **update.weights} if update.partial else dict(update.weights)

    for update, look in [*steps, (PolicyUpdate(0, {}, partial=True), True)]:
        queue.put("Ball", update)
        every = apply(every, update)
        if look and (latest := queue.latest("Ball")) is not None:
            seldom = apply(seldom, latest)
    assert seldom == every
