"""Finds the behaviors of an environment and measures its speed, by letting its agents act at random for a while."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.policies.play.agents import Turn
from trajtrainer.policies.play.loop import EpisodeCounter, exchanges
from trajtrainer.policies.play.scripted import random_policy
from trajtrainer.settings.suggestions import Exchange, Seen

_MESSAGES = 300
_WARMUP = 5
_LONGEST_S = 15.0
_ENOUGH = 100_000  # more episodes than a survey ever plays


def survey(
    environment: Environment, seed: int, stopped: Callable[[], bool] = lambda: False
) -> tuple[list[Seen], Exchange]:
    """Let all agents act at random for a while.

    Args:
        environment: the environment, which stays open.
        seed: seed of the random actions.
        stopped: called after each step; returns whether to end early.

    Returns:
        The observations of each behavior, in order of appearance, and the duration of an exchange, with the number of
        workers as ``players``.

    Raises:
        EnvironmentFaultError: the environment fails, or has no agents.
    """
    found: dict[str, Seen] = {}
    looks: dict[str, _Look] = {}
    num_messages, end_s, stopwatch = 0, time.monotonic() + _LONGEST_S, Stopwatch(environment)
    game = EpisodeCounter(environment.num_workers, lambda _, spec, own: random_policy(spec, own), _ENOUGH, seed=seed)

    def is_enough() -> bool:
        return stopped() or num_messages >= _MESSAGES or (bool(looks) and time.monotonic() > end_s)

    for event, turns, _ in exchanges(stopwatch, game, stopped=is_enough):
        num_messages += 1
        for behavior_id, spec in event.new_specs.items():
            behavior = BehaviorId.parse(behavior_id)
            seen = found.setdefault(behavior.name, Seen(behavior.name, spec))
            seen.teams.add(behavior.team)
            looks.setdefault(behavior_id, _Look(seen))
        for look in looks.values() if event.is_reset else ():
            look.active.pop(event.worker, None)
        for turn in turns:
            looks[turn.behavior.full].add(event.worker, turn)
    if not looks and not stopped():
        raise EnvironmentFaultError("No agent asked for a decision, so there is nothing to train.")
    for look in looks.values():
        look.seen.agents += look.agents
    return list(found.values()), stopwatch.exchange


class Stopwatch:
    """Wraps an environment and measures its exchanges: the time from sending actions to receiving the next steps.

    The time for choosing actions is not included, and resets are ignored. An environment in this process has
    one exchange for all of its copies, which are stepped one after another, as in training.
    """

    def __init__(self, environment: Environment, clock: Callable[[], float] = time.perf_counter) -> None:
        self.num_workers = environment.num_workers
        self.set_parameters = environment.set_parameters
        self.close = environment.close
        self.kill = environment.kill
        self._environment = environment
        self._clock = clock
        # Both dicts are keyed by worker number.
        self._sent_s: dict[int, float] = {}
        self._durations_s: dict[int, list[float]] = {}

    @property
    def exchange(self) -> Exchange:
        """The median exchange, ignoring the first exchanges of each worker because they may be slower."""
        durations_s = [each for found in self._durations_s.values() for each in found[min(_WARMUP, len(found) // 2) :]]
        return Exchange(1000 * median(durations_s), len(self._durations_s)) if durations_s else Exchange()

    def reset(self, parameters: Parameters) -> None:
        self._sent_s.clear()
        self._environment.reset(parameters)

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        events = self._environment.wait(timeout_s)
        now_s = self._clock()
        for event in events:
            sent_s = self._sent_s.pop(event.worker, None)
            if sent_s is not None and not event.is_reset:
                self._durations_s.setdefault(event.worker, []).append(now_s - sent_s)
        return events

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        self._sent_s[worker] = self._clock()
        self._environment.send(worker, actions)


@dataclass(slots=True)
class _Look:
    """Observations about one behavior id.

    Attributes:
        active: worker -> number of agents that are currently in an episode.
        agents: largest number of agents that were in an episode at the same time.
    """

    seen: Seen
    active: dict[int, int] = field(default_factory=dict)
    agents: int = 0

    def add(self, worker: int, turn: Turn) -> None:
        self.active[worker] = turn.num_active
        self.agents = max(self.agents, sum(self.active.values()))
        groups = turn.batch.group[turn.batch.num_terminal :]
        if groups.any():
            self.seen.group = max(self.seen.group, int(np.unique(groups[groups != 0], return_counts=True)[1].max()))
        for column in turn.batch.obs:
            if column.ndim == 2 and column.size:
                self.seen.largest = max(self.seen.largest, float(np.abs(column).max()))
