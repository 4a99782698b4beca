"""What there is in an environment: its behaviors, teams, groups and numbers, as seen in some hundred random steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, StepBatch
from trajtrainer.envs.protocol import Environment
from trajtrainer.play.scripted import random_policy
from trajtrainer.settings.suggestions import Seen

_MESSAGES = 300
_LONGEST_S = 15.0
_WAIT_S = 0.25


def survey(environment: Environment, seed: int, stopped: Callable[[], bool] = lambda: False) -> list[Seen]:
    """Let all agents act at random for a while; return what was seen of each behavior, in order of appearance.

    Args:
        environment: not closed.
        seed: of the actions.
        stopped: asked after each message whether to end early.

    Raises:
        EnvironmentFaultError: it fails, or has no agents.
    """
    environment.reset({})
    looks: dict[str, _Look] = {}
    messages, end_s = 0, time.monotonic() + _LONGEST_S
    while messages < _MESSAGES and not (looks and time.monotonic() > end_s) and not stopped():
        for event in environment.wait(_WAIT_S):
            messages += 1
            for behavior_id, spec in event.new_specs.items():
                looks.setdefault(behavior_id, _Look(spec, seed))
            environment.send(event.worker, _answers(event, looks))
    if not looks and not stopped():
        raise EnvironmentFaultError("No agent asked for a decision, so there is nothing to train.")
    return _by_name(looks)


@dataclass(slots=True)
class _Look:
    """One behaviour id: who is there, and what they see."""

    spec: BehaviorSpec
    seed: int
    present: set[int] = field(default_factory=set)
    agents: int = 0
    group: int = 1
    largest: float = 0.0

    def take(self, batch: StepBatch) -> ActionBatch:
        """Look at a message's agents; return random actions for those that ask."""
        decisions = slice(batch.num_terminal, None)
        self.present.difference_update(batch.agent[: batch.num_terminal].tolist())
        self.present.update(batch.agent[decisions].tolist())
        self.agents = max(self.agents, len(self.present))
        groups = batch.group[decisions]
        if groups.any():
            self.group = max(self.group, int(np.unique(groups[groups != 0], return_counts=True)[1].max()))
        for column in batch.obs:
            if column.ndim == 2 and column.size:
                self.largest = max(self.largest, float(np.abs(column).max()))
        policy = random_policy(self.spec, self.seed)
        self.seed += 1
        memory = np.zeros((batch.num_decisions, 0), np.float32)
        return policy.act([column[decisions] for column in batch.obs], batch.mask[decisions], memory)


def _answers(event: EnvironmentEvent, looks: dict[str, _Look]) -> dict[str, ActionBatch]:
    return {behavior_id: looks[behavior_id].take(batch) for behavior_id, batch in event.steps.items()}


def _by_name(looks: dict[str, _Look]) -> list[Seen]:
    """Return all teams of a behavior as one."""
    found: dict[str, Seen] = {}
    for behavior_id, look in looks.items():
        behavior = BehaviorId.parse(behavior_id)
        seen = found.setdefault(behavior.name, Seen(behavior.name, look.spec))
        seen.teams.add(behavior.team)
        seen.agents += look.agents
        seen.group = max(seen.group, look.group)
        seen.largest = max(seen.largest, look.largest)
    return list(found.values())
