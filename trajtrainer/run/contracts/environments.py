"""Base classes for tests of environments and environment schemes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trajtrainer.core.plugins import resolve
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import WORKER_SHIFT, EnvironmentEvent, StepBatch
from trajtrainer.envs.protocol import Environment, LogFolder, Parameters
from trajtrainer.envs.select import make_with
from trajtrainer.policies.play.loop import EpisodeCounter, exchanges
from trajtrainer.policies.play.scripted import random_policy
from trajtrainer.settings.environment import EnvironmentSettings
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.schemes import EnvironmentScheme

_PATIENCE_S = 60.0
_ENOUGH = 100_000  # larger than the number of episodes in any test


class EnvironmentContract:
    """Tests that every environment must pass. Override ``make``."""

    def make(self) -> Environment:
        """Make a new environment."""
        raise NotImplementedError

    def test_every_worker_begins_with_a_reset(self) -> None:
        with _playing(self.make()) as play:
            assert play.specs

    def test_it_can_be_played(self) -> None:
        with _playing(self.make()) as play:
            play.step(60)

    def test_it_can_be_reset_in_between(self) -> None:
        with _playing(self.make()) as play:
            play.step(5)
            play.reset()
            play.step()

    def test_closing_twice_and_killing_are_harmless(self) -> None:
        environment = self.make()
        environment.close()
        environment.close()
        environment.kill()


class EnvironmentSchemeContract:
    """Tests that every environment scheme must pass. Set ``row``, an existing ``name``, and ``env_args`` if needed."""

    row: ClassVar[EnvironmentScheme]
    name: ClassVar[str]
    env_args: ClassVar[Sequence[str]] = ()

    def make(self, num_envs: int = 1) -> Environment:
        """Create the environment in the same way as a run."""
        path, args = f"scheme:{self.name}", list(self.env_args)
        env = EnvironmentSettings(env_path=path, env_args=args, num_envs=num_envs, seed=1)
        return make_with(self.row, self.name, RunSettings(env_settings=env), LogFolder(None))

    def test_its_check_accepts_the_name(self) -> None:
        if self.row.check is not None:
            resolve(self.row.check)(self.name)

    def test_it_can_be_played(self) -> None:
        with _playing(self.make()) as play:
            play.step(60)

    def test_two_copies_can_be_played(self) -> None:
        with _playing(self.make(num_envs=2)) as play:
            play.step(60)


class _Play:
    """Plays an environment with random actions, and checks its messages."""

    def __init__(self, environment: Environment) -> None:
        self.environment = _Checked(environment)
        self._announced: dict[str, BehaviorSpec] = {}  # specs are sent only once, not after every reset
        self.reset()

    @property
    def specs(self) -> Mapping[tuple[int, str], BehaviorSpec]:
        return self.environment.specs

    def reset(self) -> None:
        """Reset all workers without answering their previous messages, and play until each one has sent a message."""
        workers = self.environment.num_workers
        game = EpisodeCounter(workers, lambda _, spec, seed: random_policy(spec, seed), _ENOUGH, seed=0)
        self._exchanges = exchanges(
            self.environment, game, specs=self._announced, stopped=lambda: time.monotonic() > self._end_s
        )
        self.step()
        while len(self.environment.began) < workers:
            self.step()

    def step(self, times: int = 1) -> None:
        """Answer the previous messages, and wait for new ones."""
        for _ in range(times):
            self._end_s = time.monotonic() + _PATIENCE_S
            assert next(self._exchanges, None), "no message arrived within a minute"


@contextmanager
def _playing(environment: Environment) -> Iterator[_Play]:
    """Start an environment and a player for it; close the environment at the end."""
    try:
        yield _Play(environment)
    finally:
        environment.close()


class _Checked:
    """Wraps an environment, and checks its messages.

    Attributes:
        specs: (worker, behavior id) -> announced spec.
        began: workers that have sent a message after the last reset.
    """

    def __init__(self, environment: Environment) -> None:
        self.specs: dict[tuple[int, str], BehaviorSpec] = {}
        self.began: set[int] = set()
        self._environment = environment
        self.num_workers = environment.num_workers
        self.send = environment.send
        self.set_parameters = environment.set_parameters
        self.close = environment.close
        self.kill = environment.kill

    def reset(self, parameters: Parameters) -> None:
        self.began.clear()
        self._environment.reset(parameters)

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        events = self._environment.wait(timeout_s)
        for event in events:
            assert 0 <= event.worker < self.num_workers
            assert event.is_reset == (event.worker not in self.began), "is_reset must mark the first event only"
            self.began.add(event.worker)
            self.specs |= {(event.worker, name): spec for name, spec in event.new_specs.items()}
            for name, batch in event.steps.items():
                assert (event.worker, name) in self.specs, f"{name} was not announced"
                self._check(event.worker, self.specs[event.worker, name], batch)
        return events

    def _check(self, worker: int, spec: BehaviorSpec, batch: StepBatch) -> None:
        count, ended = len(batch), batch.num_terminal
        _assert_column(batch.agent, np.int64, count)
        assert (batch.agent >> WORKER_SHIFT == worker).all()
        for part in (batch.agent[:ended], batch.agent[ended:]):
            assert len(set(part.tolist())) == len(part), "an agent occurs twice among the same records"
        assert len(batch.obs) == len(spec.observation_specs)
        for column, sensor in zip(batch.obs, spec.observation_specs, strict=True):
            assert column.dtype in (np.float32, np.uint8)
            assert column.shape == (count, *sensor.shape)
            assert np.isfinite(column).all()
        for column in (batch.reward, batch.group_reward):
            _assert_column(column, np.float32, count)
            assert np.isfinite(column).all()
        _assert_column(batch.group, np.int32, count)
        _assert_column(batch.mask, bool, count, sum(spec.action_spec.discrete_branches))
        _assert_column(batch.interrupted, bool, ended)


def _assert_column(column: NDArray[Any], dtype: DTypeLike, *shape: int) -> None:
    assert column.dtype == dtype
    assert column.shape == shape
