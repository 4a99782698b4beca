"""Who is started again, when, and what the collector sees of it. No processes: children under the test's command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.envs.clockwork import BEHAVIOR, SPEC, batch
from trajtrainer.core.errors import EnvironmentFaultError, InvalidDataError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, Aggregation, EnvironmentEvent, Statistic
from trajtrainer.envs.children import Child, Children, Connected, Report, Running
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.supervised import SupervisedChildren, SupervisedEnvironment
from trajtrainer.envs.unity.faults import (
    LaunchError,
    PlayerDiedError,
    PlayerQuitError,
    PlayerTimeoutError,
    PlayerVersionError,
    PortInUseError,
)
from trajtrainer.envs.workers.supervisor import FIRST_DELAY_S
from trajtrainer.settings.environment import ConstantSettings, EnvironmentSettings

A, B, C = (ConstantSettings(value=value) for value in (1.0, 2.0, 3.0))
NONE: dict[str, ActionBatch] = {}


class Clock:
    """Goes on when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FakeChild(Child):
    """Writes down what it is told. Parameters go out with the next reset or actions."""

    def __init__(self, number: int) -> None:
        super().__init__(number, lambda *_: pytest.fail("it has no process"))
        self.told: list[tuple[str, dict[str, float]]] = []
        self.parameters: dict[str, float] = {}

    def take(self) -> list[tuple[str, dict[str, float]]]:
        told, self.told = self.told, []
        return told

    def start(self, order: RawImageOrder = RawImageOrder.AUTO) -> None:
        self.parameters = {}
        self.told.append(("start" if order is RawImageOrder.AUTO else f"start {order.value}", {}))

    def set_parameters(self, parameters: Parameters) -> None:
        self.parameters |= values(parameters)

    def reset(self, _device: str | None = None) -> None:
        self._go_on("reset")

    def send(self, actions: Mapping[str, ActionBatch]) -> None:
        self._go_on("send")

    def _go_on(self, how: str) -> None:
        self.told.append((how, self.parameters))
        self.parameters = {}

    def bury(self, timeout_s: float) -> None:
        self.told.append(("bury", {}))


class FakeChildren(Children):
    """Reports what the test has put in, one list per wait; an empty one lets the time pass."""

    def __init__(self, count: int, clock: Clock) -> None:
        self.children = [FakeChild(number) for number in range(count)]
        self.coming: list[list[tuple[int, Report]]] = []
        self.waits: list[float | None] = []
        self.is_killed = self.is_closed = False
        self._clock = clock

    def __getitem__(self, number: int) -> FakeChild:
        return self.children[number]

    def __len__(self) -> int:
        return len(self.children)

    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        self.waits.append(timeout_s)
        if self.coming and (reports := self.coming.pop(0)):
            return reports
        assert timeout_s is not None, "it waits for ever"
        self._clock.now_s += timeout_s
        return []

    def kill(self) -> None:
        self.is_killed = True

    def close(self) -> None:
        self.is_closed = True


def values(parameters: Parameters) -> dict[str, float]:
    found = {}
    for name, sampler in parameters.items():
        assert isinstance(sampler, ConstantSettings)
        found[name] = sampler.value
    return found


def event(worker: int, *, is_reset: bool = False, specs: bool = False) -> EnvironmentEvent:
    return EnvironmentEvent(
        worker,
        {BEHAVIOR: batch(worker, 0, 0)},
        {BEHAVIOR: SPEC} if specs else {},
        [Statistic("worker", worker, Aggregation.SUM)],
        is_reset,
    )


def crash(text: str = "boom") -> EnvironmentFaultError:
    return PlayerDiedError(text)


def unlimited() -> EnvironmentSettings:
    return EnvironmentSettings(env_path="build", max_lifetime_restarts=-1, restarts_rate_limit_n=-1)


class Rig:
    def __init__(
        self,
        count: int = 2,
        settings: EnvironmentSettings | None = None,
        connect: bool = True,
        patience_s: float | None = None,
    ) -> None:
        self.clock = Clock()
        self.children = FakeChildren(count, self.clock)
        self.children.coming.append([(number, Connected()) for number in range(count if connect else 1)])
        self.workers = SupervisedChildren(self.children, settings or EnvironmentSettings(), patience_s, self.clock)

    def take(self) -> list[list[tuple[str, dict[str, float]]]]:
        return [child.take() for child in self.children.children]

    def come(self, *reports: Report) -> list[EnvironmentEvent]:
        """What the collector sees when these come, in the order of the workers, and nothing after them."""
        self.children.coming.append(list(enumerate(reports)))
        return self.workers.wait(0.0)

    def report(self, number: int, report: Report) -> list[EnvironmentEvent]:
        self.children.coming.append([(number, report)])
        return self.workers.wait(0.0)


def running(settings: EnvironmentSettings | None = None) -> Rig:
    """Two workers that are at work."""
    rig = Rig(settings=settings)
    rig.workers.reset({"a": A, "b": B})
    rig.come(event(0, is_reset=True), event(1, is_reset=True))
    for worker in (0, 1):
        rig.workers.send(worker, NONE)
    rig.take()
    return rig


def test_all_that_are_ready_come_at_once_and_nobody_waits_for_the_others() -> None:
    rig = Rig(3)
    rig.workers.reset({"a": A})
    assert rig.take() == [[("start", {}), ("reset", {"a": 1.0})]] * 3
    assert [e.worker for e in rig.come(event(0), event(1))] == [0, 1]
    rig.workers.send(1, NONE)
    rig.workers.send(0, NONE)
    assert rig.take() == [[("send", {})], [("send", {})], []]
    assert [e.worker for e in rig.report(1, event(1))] == [1]
    with pytest.raises(ValueError, match="Worker 2"):
        rig.workers.send(2, NONE)


def test_the_first_that_is_there_lets_the_run_begin_and_late_ones_are_reset_when_they_come() -> None:
    rig = Rig(2, connect=False)
    rig.workers.reset({"a": A})
    assert rig.take()[1] == [("start", {})]
    assert rig.report(1, Connected()) == []
    assert rig.take()[1] == [("reset", {"a": 1.0})]


def test_changed_parameters_go_out_once_with_the_next_message() -> None:
    rig = running()
    rig.come(event(0), event(1))
    rig.workers.set_parameters({"a": C})
    rig.workers.send(0, NONE)
    assert rig.take() == [[("send", {"a": 3.0})], []]
    rig.workers.set_parameters({"b": A})
    rig.workers.send(1, NONE)
    rig.report(0, event(0))
    rig.workers.send(0, NONE)
    rig.report(1, event(1))
    rig.workers.send(1, NONE)
    assert rig.take() == [[("send", {"b": 1.0})], [("send", {"a": 3.0, "b": 1.0}), ("send", {})]]


def test_a_reset_voids_what_is_on_its_way_but_not_what_it_announced() -> None:
    rig = running()
    rig.report(1, event(1))
    rig.workers.reset({"a": C})
    assert rig.take() == [[], [("reset", {"a": 3.0})]], "worker 0 is at work: it is reset when it answers"
    assert rig.report(0, event(0, specs=True)) == []
    assert rig.take()[0] == [("reset", {"a": 3.0})]
    (first,) = rig.report(0, event(0, is_reset=True))
    assert first.is_reset
    assert first.new_specs == {BEHAVIOR: SPEC}
    assert [statistic.key for statistic in first.statistics] == ["worker"] * 2


def test_a_failed_one_comes_back_reset_with_all_parameters_while_the_others_go_on() -> None:
    rig = running()
    rig.workers.set_parameters({"a": C})
    assert rig.report(0, crash()) == []
    assert rig.take() == [[], []]
    for _ in range(3):
        assert [e.worker for e in rig.report(1, event(1))] == [1]
        rig.workers.send(1, NONE)
    assert rig.take()[0] == []
    rig.clock.now_s += FIRST_DELAY_S
    assert [e.worker for e in rig.report(1, event(1))] == [1]
    assert rig.take()[0] == [("start", {})]
    assert rig.report(0, Connected()) == []
    assert rig.take()[0] == [("reset", {"a": 3.0, "b": 2.0})]
    (back,) = rig.report(0, event(0, is_reset=True, specs=True))
    assert back.worker == 0


def test_waiting_ends_in_time_for_a_restart() -> None:
    rig = running()
    rig.report(0, crash())
    rig.children.waits.clear()
    rig.clock.now_s += 0.1
    rig.children.coming.clear()
    begin_s = rig.clock.now_s
    rig.workers.wait(10.0)
    assert rig.children.waits[0] == pytest.approx(FIRST_DELAY_S - 0.1)
    assert rig.take()[0] == [("start", {})]
    assert rig.clock.now_s == pytest.approx(begin_s + 10.0)


def test_beyond_the_quota_the_reason_is_told() -> None:
    rig = running()
    rig.report(0, crash("the first"))
    rig.clock.now_s += FIRST_DELAY_S
    rig.report(1, event(1))
    rig.report(0, Connected())
    with pytest.raises(EnvironmentFaultError, match=r"Environment 0 .*within the last 60 seconds.*the second"):
        rig.report(0, crash("the second"))


def test_each_worker_has_its_own_quota() -> None:
    rig = running()
    rig.come(crash(), crash())
    rig.clock.now_s += FIRST_DELAY_S
    rig.workers.wait(0.0)
    assert rig.take() == [[("start", {})]] * 2


@pytest.mark.parametrize("fault", [crash(), PlayerTimeoutError("hangs"), InvalidDataError("rubbish"), LaunchError("?")])
def test_faults_at_work_are_healed(fault: EnvironmentFaultError) -> None:
    rig = running()
    assert rig.report(0, fault) == []


@pytest.mark.parametrize(
    ("fault", "heals"),
    [
        (LaunchError("no such build"), False),
        (PlayerVersionError("9.0.0"), False),
        (PortInUseError("taken"), False),
        (PlayerTimeoutError("never connected"), False),
        (crash(), True),
    ],
)
def test_faults_of_the_first_start(fault: EnvironmentFaultError, heals: bool) -> None:
    clock = Clock()
    children = FakeChildren(1, clock)
    children.coming = [[(0, fault)], [], [(0, Connected())]]
    if heals:
        SupervisedChildren(children, EnvironmentSettings(), clock=clock)
        assert [told for told, _ in children[0].take()] == ["start", "start"]
        return
    with pytest.raises(type(fault)):
        SupervisedChildren(children, EnvironmentSettings(), clock=clock)
    assert children.is_closed


def test_a_late_player_that_never_connects_is_tried_again_but_not_the_editor() -> None:
    fault = PlayerTimeoutError("never connected")
    assert Rig(2, unlimited(), connect=False).report(1, fault) == []
    editor = Rig(1)
    editor.report(0, PlayerQuitError("play mode was left"))
    editor.clock.now_s += FIRST_DELAY_S
    editor.workers.wait(0.0)
    with pytest.raises(PlayerTimeoutError):
        editor.report(0, fault)


def test_a_child_that_is_silent_when_it_is_its_turn_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(2, unlimited(), patience_s=9.0)
    rig.workers.reset({})
    rig.report(0, event(0, is_reset=True))
    rig.take()
    rig.clock.now_s += 8.9
    rig.workers.wait(0.0)
    assert rig.take() == [[], []]
    rig.clock.now_s += 0.2
    rig.workers.wait(0.0)
    assert rig.take() == [[], [("bury", {})]], "worker 0 waits for an answer itself"
    assert "The worker process of environment 1 stopped responding." in caplog.text
    rig.clock.now_s += FIRST_DELAY_S
    rig.workers.wait(0.0)
    assert rig.take() == [[], [("start", {})]]


def test_the_start_of_a_process_is_no_silence() -> None:
    """On a slow machine it takes as long as it takes. An environment that is replaced in its process has a limit."""
    rig = Rig(2, unlimited(), connect=False, patience_s=9.0)
    rig.take()
    rig.clock.now_s += 1000.0
    rig.workers.wait(0.0)
    assert rig.take() == [[], []]
    rig.report(1, Running())
    rig.clock.now_s += 9.1
    rig.workers.wait(0.0)
    assert rig.take() == [[], [("bury", {})]]

    rig = Rig(2, unlimited(), patience_s=9.0)
    rig.children[1].process = cast(Any, SimpleNamespace(has_unread=lambda: False))
    rig.report(1, crash())
    rig.clock.now_s += FIRST_DELAY_S
    rig.workers.wait(0.0)
    rig.take()
    rig.clock.now_s += 9.1
    rig.workers.wait(0.0)
    assert rig.take() == [[], [("bury", {})]]


def test_environments_must_be_alike() -> None:
    rig = running()
    rig.report(0, event(0, specs=True))
    other = event(1)
    other.new_specs = {BEHAVIOR: BehaviorSpec([], SPEC.action_spec)}
    with pytest.raises(EnvironmentFaultError, match="Environment 1 announces the behavior 'Clockwork"):
        rig.report(1, other)


def test_an_interrupted_start_leaves_nothing_behind() -> None:
    class Interrupted(FakeChildren):
        def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
            raise KeyboardInterrupt

    children = Interrupted(2, Clock())
    with pytest.raises(KeyboardInterrupt):
        SupervisedChildren(children, EnvironmentSettings())
    assert children.is_killed
    assert children.is_closed


def test_a_worker_that_fails_again_and_again_waits_longer_each_time() -> None:
    rig = running(unlimited())
    delays = []
    for _ in range(5):
        rig.report(0, crash())
        rig.take()
        rig.children.coming.clear()
        begin_s = rig.clock.now_s
        until(lambda: rig.workers.wait(0.05), lambda: bool(rig.children[0].take()))
        delays.append(rig.clock.now_s - begin_s)
    assert np.allclose(np.diff(np.log2(delays)), 1, atol=0.4)


def until(do: Callable[[], object], condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        do()
        if condition():
            return
    raise AssertionError("never")


def test_all_read_raw_images_in_the_order_of_the_first(caplog: pytest.LogCaptureFixture) -> None:
    """One that has found another order is started again with this one before anything of it is seen."""
    rig = Rig(3, unlimited())
    rig.workers.reset({"a": A})
    rig.take()

    def shown(number: int, order: RawImageOrder) -> EnvironmentEvent:
        found = event(number, is_reset=True, specs=True)
        found.raw_images = {BEHAVIOR: order}
        return found

    assert len(rig.report(1, shown(1, RawImageOrder.CHW))) == 1
    assert len(rig.report(2, shown(2, RawImageOrder.CHW))) == 1
    assert rig.report(0, shown(0, RawImageOrder.HWC)) == []
    assert rig.take() == [[("start chw", {})], [], []]
    assert "The raw images of environment 0 seem to be in a different order than those of the other" in caplog.text
    assert rig.report(0, Connected()) == []
    assert rig.take()[0] == [("reset", {"a": 1.0})]
    assert len(rig.report(0, shown(0, RawImageOrder.CHW))) == 1
    rig.report(1, crash())
    rig.clock.now_s += 60.0
    rig.come()
    assert rig.take() == [[], [("start chw", {})], []]


def test_a_player_that_is_killed_while_it_connects_is_not_started_again() -> None:
    launched: list[Launched] = []

    class Launched:
        """A player that dies when it is killed, and otherwise never connects."""

        def __init__(self) -> None:
            launched.append(self)
            self.is_dead = threading.Event()

        def connect(self) -> None:
            assert self.is_dead.wait(60)
            raise EnvironmentFaultError("The player was killed.")

        def report_device(self, device: str) -> None: ...

        def kill(self) -> None:
            self.is_dead.set()

        def close(self) -> None: ...

    environment = SupervisedEnvironment(cast(Any, lambda _: Launched()), EnvironmentSettings(), waits=False)
    killer = threading.Timer(0.05, environment.kill)
    killer.start()
    with pytest.raises(EnvironmentFaultError, match="killed"):
        environment.connect()
    killer.join()
    with pytest.raises(EnvironmentFaultError, match="killed"):
        environment.wait(0.0)
    assert len(launched) == 1
