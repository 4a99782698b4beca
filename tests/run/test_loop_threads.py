"""The loop with a trainer in a thread of its own: what it collects, and how both end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.learning.trainers.rig import OffPolicyRig, Trajectory, checkpoint_of, restore
from tests.run.test_loop import loop, train
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.run import loop as loop_module
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

PATIENCE_S = 30.0
SETTINGS = TrainerSettings(
    trainer_type="sac",
    hyperparameters=SACHyperparameters(batch_size=8, buffer_size=1000, steps_per_update=1),
    network_settings=NetworkSettings(hidden_units=8, num_layers=1),
    max_steps=50,
    threaded=True,
)


@dataclass
class Messages:
    """A collector whose every message finishes a trajectory of 20 steps."""

    rig: OffPolicyRig
    then: Callable[[int], None] = lambda number: None
    number: int = 0
    has_met_behaviors = True

    def collect(self, timeout_s: float) -> int:
        self.number += 1
        self.rig.put(Trajectory(20, ended=True))
        self.then(self.number)
        return 1

    def finish(self) -> None: ...


def run(messages: Messages, stop: StopRequest) -> None:
    train(loop(messages.rig.trainer, messages, stop))


def before_updates(rig: OffPolicyRig, do: Callable[[], None]) -> None:
    gradient_step = rig.learner.gradient_step

    def replaced(*args: Any, **options: Any) -> Any:
        do()
        return gradient_step(*args, **options)

    vars(rig.learner)["gradient_step"] = replaced


def no_trainer_lives() -> bool:
    return not any(thread.name.startswith("trainer ") for thread in threading.enumerate())


def wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_acting_ends_at_max_steps_however_far_it_is_ahead() -> None:
    """The trainer is stuck in its first update until acting has ended, or has gone far beyond the limit."""
    rig, acted = OffPolicyRig(SETTINGS), threading.Event()
    before_updates(rig, lambda: wait_for(acted))

    def then(number: int) -> None:
        if number == 2:
            until(lambda: rig.trainer.step > 0)
        if number >= 3:
            acted.set()
        if number == 10:
            raise AssertionError("nobody needs so much")

    messages = Messages(rig, then)
    run(messages, StopRequest())
    assert messages.number == 3
    assert rig.trainer.step == 60, "as without threads: the message that passes max_steps is the last"
    assert rig.learner._pace.due(rig.trainer.step) == 0, "no gradient step is left out"
    assert no_trainer_lives()


def test_a_resumed_run_collects_what_is_left() -> None:
    rig = OffPolicyRig(SETTINGS)
    first = OffPolicyRig(SETTINGS)
    first.put(Trajectory(25))
    first.trainer.advance()
    restore(rig.trainer, checkpoint_of(first.trainer), reset_step=False)
    messages = Messages(rig)
    run(messages, StopRequest())
    assert (messages.number, rig.trainer.step) == (2, 65)


def test_a_request_ends_an_update_in_a_thread() -> None:
    rig, stop = OffPolicyRig(SETTINGS), StopRequest()
    rig.is_stopping = lambda: stop.requested
    made: list[int] = []

    def count() -> None:
        made.append(1)
        if len(made) == 5:
            stop.request()

    before_updates(rig, count)
    run(Messages(rig), stop)
    assert len(made) == 5
    assert no_trainer_lives()


def test_the_end_waits_for_a_trainer_and_tells_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_module, "_PATIENCE_S", 0.02)
    monkeypatch.setattr(loop_module, "_JOIN_S", 0.01)
    rig = OffPolicyRig(SETTINGS)
    before_updates(rig, lambda: until(lambda: "Waiting for the trainer B" in caplog.text))
    with caplog.at_level(logging.INFO, "trajtrainer"):
        run(Messages(rig), StopRequest())
    assert no_trainer_lives()
    assert rig.learner._pace.due(rig.trainer.step) == 0


def test_a_failure_in_the_last_advance_ends_the_run_as_any() -> None:
    rig, stop = OffPolicyRig(SETTINGS), StopRequest()
    begun, over = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        wait_for(over)
        raise ZeroDivisionError("in the last update")

    before_updates(rig, fail)

    def then(_: int) -> None:
        wait_for(begun)
        stop.request()
        threading.Timer(0.05, over.set).start()

    with pytest.raises(ZeroDivisionError, match="in the last update"):
        run(Messages(rig, lambda number: then(number) if number == 2 else None), stop)
    assert no_trainer_lives()


def test_a_failure_elsewhere_does_not_wait_for_all_updates() -> None:
    rig, stop = OffPolicyRig(SETTINGS), StopRequest()
    rig.is_stopping = lambda: stop.requested
    begun, made = threading.Event(), []

    def slow() -> None:
        made.append(1)
        begun.set()
        until(lambda: stop.requested)

    before_updates(rig, slow)

    def then(number: int) -> None:
        if number == 2:
            wait_for(begun)
            raise EnvironmentFaultError("gone")

    with pytest.raises(EnvironmentFaultError, match="gone"):
        run(Messages(rig, then), stop)
    assert len(made) == 1
    assert no_trainer_lives()
