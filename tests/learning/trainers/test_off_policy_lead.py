"""Acting and learning in two threads: who waits for whom, and for how long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from tests.learning.trainers.acting import Acting
from tests.learning.trainers.rig import OffPolicyRig, Trajectory, checkpoint_of, restore
from trajtrainer.core.timers import Timers
from trajtrainer.envs.sim.simulation import EnvironmentParameters
from trajtrainer.envs.sim.synthetic import Toy, ToyOptions
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.trainers.factory import max_lead
from trajtrainer.run.coupling import TrainerThread
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

WAIT_S = 300.0
HYPER = SACHyperparameters(batch_size=8, buffer_size=100_000, steps_per_update=1)
SETTINGS = TrainerSettings(
    trainer_type="sac",
    hyperparameters=HYPER,
    network_settings=NetworkSettings(hidden_units=8, num_layers=1),
    max_steps=1_000_000,
    time_horizon=16,
    threaded=True,
)


def test_rows_come_back_block_by_block_and_so_does_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = OffPolicyRig(SETTINGS)
    held, versions = [], []
    update = rig.learner.gradient_step

    def spy(*args: Any, **options: Any) -> Any:
        held.append(rig.source.drained - rig.source.consumed)
        versions.append(rig.trainer.publisher.version)
        return update(*args, **options)

    monkeypatch.setattr(rig.learner, "gradient_step", spy)
    rig.put(Trajectory(49), Trajectory(51))
    rig.trainer.advance()
    assert len(held) == 99
    # 100 rows; blocks of 32 gradient steps.
    assert sorted(set(held), reverse=True) == [100, 100 - 32, 100 - 64, 100 - 96]
    assert sorted(set(versions)) == [0, 1, 2, 3]
    assert rig.pool.num_free == rig.pool.capacity
    update_ = rig.policies.latest("B")
    assert update_ is not None
    assert update_.version == 4


def test_a_stopped_run_ends_between_gradient_steps_and_leaves_the_rest_for_its_resumption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = OffPolicyRig(SETTINGS)
    update, made = rig.learner.gradient_step, []

    def count(*args: Any, **options: Any) -> Any:
        made.append(1)
        return update(*args, **options)

    monkeypatch.setattr(rig.learner, "gradient_step", count)
    rig.is_stopping = lambda: len(made) == 40
    rig.put(Trajectory(101))
    rig.trainer.advance()
    assert len(made) == 40
    adams = rig.learner.optimizer_states().values()
    assert {float(one["step"]) for adam in adams for one in adam["state"].values()} == {40.0}
    assert rig.pool.num_free == rig.pool.capacity
    resumed = OffPolicyRig(SETTINGS)
    restore(resumed.trainer, checkpoint_of(rig.trainer), reset_step=False)
    resumed.put(Trajectory(10))
    resumed.take_in()
    assert resumed.learner._pace.due(resumed.trainer.step) == 110 - 40


def test_a_drain_that_passes_max_steps_is_learned_from() -> None:
    rig = OffPolicyRig(evolve(SETTINGS, max_steps=100))
    rig.put(Trajectory(60), Trajectory(39), Trajectory(10))
    rig.trainer.advance()
    assert rig.learner._pace.count == 109, "of each step but the first, as one by one"
    assert rig.learner.replay.num_steps == 99
    rig.put(Trajectory(10))
    rig.trainer.advance()
    assert rig.learner._pace.count == 109


def test_without_an_update_the_rows_come_back_at_once() -> None:
    hyper = evolve(HYPER, buffer_init_steps=1000)
    rig = OffPolicyRig(evolve(SETTINGS, hyperparameters=hyper))
    rig.put(Trajectory(49))
    rig.trainer.advance()
    assert rig.pool.num_free == rig.pool.capacity


def test_a_failed_update_gives_the_rows_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = OffPolicyRig(SETTINGS)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(rig.learner, "gradient_step", fail)
    rig.put(Trajectory(49))
    with pytest.raises(RuntimeError, match="on purpose"):
        rig.trainer.advance()
    assert rig.pool.num_free == rig.pool.capacity


@pytest.mark.parametrize(
    ("steps_per_update", "time_horizon", "buffer_size", "lead"),
    [(1, 16, 200_000, 128), (1, 1000, 200_000, 4000), (20, 64, 200_000, 2560), (20, 64, 1000, 1000)],
    ids=["gradient steps", "trajectories", "steps of many agents", "all that the replay holds"],
)
def test_the_lead_is_few_gradient_steps(
    steps_per_update: float, time_horizon: int, buffer_size: int, lead: int
) -> None:
    hyper = evolve(HYPER, buffer_size=buffer_size, steps_per_update=steps_per_update)
    assert max_lead(evolve(SETTINGS, hyperparameters=hyper, time_horizon=time_horizon)) == lead


class _Gate:
    """Lets gradient steps through one by one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._allowed, self.made = 0, 0

    def allow(self, count: int) -> None:
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    def wrap(self, update: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: Any, **options: Any) -> Any:
            with self._changed:
                assert self._changed.wait_for(lambda: self._allowed > self.made, WAIT_S)
                self.made += 1
                self._changed.notify_all()
            return update(*args, **options)

        return gated

    def wait_for(self, made: int) -> None:
        """Until so many gradient steps have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.made >= made, WAIT_S)


class _Threads:
    """A collector as fast as it can, and a learner behind a gate."""

    def __init__(self) -> None:
        self.num_agents = 4
        toy = Toy(ToyOptions(agents=self.num_agents), np.random.default_rng(0), EnvironmentParameters())
        self.acting = Acting(toy, SETTINGS)
        self.gate = _Gate()
        trainer = self.acting.trainer
        learner = trainer.algorithm
        assert isinstance(learner, SAC)
        learner.gradient_step = self.gate.wrap(learner.gradient_step)  # type: ignore[method-assign]
        self._end = threading.Event()
        self._waits, self._news = threading.Semaphore(0), threading.Event()
        self.acting.source.on_consumed = self.acting.source.on_progress = self._news.set
        self._learner = TrainerThread(trainer, Timers())
        self._collector = threading.Thread(target=self._collect)

    def _collect(self) -> None:
        while not self._end.is_set():
            if self.acting.may_step:
                self.acting.step()
            else:
                self._waits.release()
                self.acting.source.request_drain()
                self._news.wait(WAIT_S)
                self._news.clear()

    def start(self) -> None:
        self._learner.start()
        self._collector.start()

    def until_acting_waits(self) -> int:
        """How many steps acting has made when it has to wait for room."""
        assert self._waits.acquire(timeout=WAIT_S)
        return self.acting.num_steps

    def stop(self) -> None:
        self._end.set()
        self._news.set()
        self.gate.allow(1_000_000)
        self._collector.join(WAIT_S)
        self.acting.is_stopping = True
        self.acting.source.close()
        self._learner.join(WAIT_S)
        assert not self._collector.is_alive()
        assert not self._learner.is_alive()
        assert self._learner.failure is None


@pytest.fixture
def threads() -> Iterator[_Threads]:
    both = _Threads()
    yield both
    both.stop()


def test_acting_is_ahead_by_the_limit_at_most_and_goes_on_with_a_part_of_the_updates(threads: _Threads) -> None:
    lead = max_lead(SETTINGS)
    threads.start()
    begun = threads.until_acting_waits()
    # Besides the lead there are unfinished trajectories, and those of the message that exceeded it.
    unfinished = threads.num_agents * SETTINGS.time_horizon
    assert 0.5 * lead < begun <= lead + 2 * unfinished
    threads.gate.allow(64)
    threads.gate.wait_for(64)
    later = begun
    while later == begun:
        later = threads.until_acting_waits()
    most = lead + 2 * unfinished + 64 + 32
    assert begun < later <= most, "as many more steps as gradient steps were made for, and no more"


def test_gradient_steps_keep_the_pace_in_threads(threads: _Threads) -> None:
    threads.gate.allow(1_000_000)
    threads.start()
    threads.gate.wait_for(500)
    threads._end.set()
    threads._collector.join(WAIT_S)
    threads.stop()
    trainer, learner = threads.acting.trainer, threads.acting.trainer.algorithm
    assert isinstance(learner, SAC)
    assert threads.gate.made == learner._pace.count - 1
    # One gradient step per step but for the first, made or (because the run was stopped) still to be made.
    assert threads.gate.made + learner._pace.due(trainer.step) == trainer.step - 1
    assert learner._pace.due(trainer.step) <= max_lead(SETTINGS)
