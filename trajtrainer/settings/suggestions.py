"""First settings for an environment, by what its agents see and do (docs/guides/first-settings.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trajtrainer.core.spec import BehaviorSpec, ObservationKind, ObservationType, observation_kind
from trajtrainer.settings.network import ENCODERS

_SMALL_NUMBERS = 2.0
_MANY_NUMBERS = 100
_STEPS_OF_EACH_AGENT = 128
_MOST_BATCHES = 64
# In descending order of the pictures' size.
_ENCODERS = ("simple", "match3", "fully_connected")


@dataclass(slots=True)
class Seen:
    """What was observed of one behavior, all teams together.

    Attributes:
        name: without team.
        spec: observations and actions.
        teams: numbers of its teams.
        agents: largest number of agents at the same time.
        group: largest number of agents in a group at the same time; 1 without groups.
        largest: largest absolute value in its vector observations.
    """

    name: str
    spec: BehaviorSpec
    teams: set[int] = field(default_factory=set)
    agents: int = 0
    group: int = 1
    largest: float = 0.0


class Choice(NamedTuple):
    """A value and the reason for it, which is empty for values that suit every environment."""

    value: Any
    reason: str = ""


Section = dict[str, Any]
"""Key -> a ``Choice``, or a nested section."""


def suggest(behaviors: Sequence[Seen]) -> dict[str, Section]:
    """Suggest the section ``behaviors``: name -> settings.

    Raises:
        UnsupportedError: no encoder takes one of the sensors.
    """
    teams = set().union(*(seen.teams for seen in behaviors)) if behaviors else set()
    return {seen.name: _behavior(seen, playing_teams=len(teams) if len(teams) > 1 else 0) for seen in behaviors}


def _behavior(seen: Seen, *, playing_teams: int) -> Section:
    kinds = [observation_kind(sensor) for sensor in seen.spec.observation_specs]
    pictures = ObservationKind.VISUAL in kinds
    section: Section = {
        "trainer_type": Choice("poca", f"groups of {seen.group} agents share a reward")
        if seen.group > 1
        else Choice("ppo", "agents earn their rewards alone"),
        "hyperparameters": _hyperparameters(seen, pictures=pictures, self_play=bool(playing_teams)),
        "network_settings": _network(seen, kinds),
        "reward_signals": {"extrinsic": {"gamma": Choice(0.99), "strength": Choice(1.0)}},
    }
    max_steps, why = 500_000, "enough for small tasks"
    if pictures:
        max_steps, why = 1_000_000, "pictures take longer"
    if playing_teams:
        max_steps, why = 2_000_000, "opponents get better, too"
        section["self_play"] = {
            "save_steps": Choice(20_000, f"{playing_teams} teams play against each other"),
            "team_change": Choice(100_000),
            "swap_steps": Choice(2_000),
            "window": Choice(10),
            "play_against_latest_model_ratio": Choice(0.5),
            "initial_elo": Choice(1200.0),
        }
    section |= {
        "max_steps": Choice(max_steps, f"{why}; raise it if the reward still rises in the end"),
        "time_horizon": Choice(1000, "continuous actions, whose effects show late")
        if seen.spec.action_spec.continuous_size
        else Choice(64, "discrete actions"),
        "summary_freq": Choice(max_steps // 50, "50 points in all"),
        "checkpoint_interval": Choice(max_steps // 10, "10 in all"),
        "keep_checkpoints": Choice(5),
    }
    return section


def _hyperparameters(seen: Seen, *, pictures: bool, self_play: bool) -> Section:
    continuous = bool(seen.spec.action_spec.continuous_size)
    batch, buffer, kind = (256, 10240, "continuous actions") if continuous else (128, 2048, "discrete actions")
    if pictures:
        batch, kind = max(batch, 256), f"{kind}, pictures"
    wanted = seen.agents * _STEPS_OF_EACH_AGENT
    batch_reason = buffer_reason = kind
    if wanted > buffer:
        buffer = wanted
        buffer_reason = f"{_STEPS_OF_EACH_AGENT} steps of each of {seen.agents} agents"
        while buffer > _MOST_BATCHES * batch:
            batch *= 2
            batch_reason = f"a {_MOST_BATCHES}th of buffer_size or more"
    buffer = math.ceil(buffer / batch) * batch
    return {
        "batch_size": Choice(batch, batch_reason),
        "buffer_size": Choice(buffer, buffer_reason),
        "learning_rate": Choice(3e-4),
        "beta": Choice(5e-3),
        "epsilon": Choice(0.2),
        "lambd": Choice(0.95),
        "num_epoch": Choice(3),
        "learning_rate_schedule": Choice("constant", "the opponents never stop learning")
        if self_play
        else Choice("linear"),
    }


def _network(seen: Seen, kinds: Iterable[ObservationKind]) -> Section:
    sensors = list(zip(seen.spec.observation_specs, kinds, strict=True))
    numbers = sum(math.prod(sensor.shape) for sensor, kind in sensors if kind is not ObservationKind.VISUAL)
    pictures = [sensor for sensor, kind in sensors if kind is ObservationKind.VISUAL]
    large = seen.largest > _SMALL_NUMBERS
    many = numbers > _MANY_NUMBERS
    section: Section = {
        "normalize": Choice(
            large, f"numbers up to {seen.largest:.3g} were seen" if numbers else "there are no vectors"
        ),
        "hidden_units": Choice(256, f"{numbers} numbers are seen") if many else Choice(128),
        "num_layers": Choice(2),
    }
    if pictures:
        side = min(min(sensor.shape[1:]) for sensor in pictures)
        name = next(name for name in _ENCODERS if side >= ENCODERS[name].smallest_side)
        section["vis_encode_type"] = Choice(name, f"the smallest side is {side} pixels")
    if any(sensor.observation_type is ObservationType.GOAL_SIGNAL for sensor, _ in sensors):
        section["goal_conditioning_type"] = Choice("hyper", "there is a goal signal")
    section["memory"] = Choice(None, "try it where agents must remember what they no longer see: {sequence_length: 64, "
                               "memory_size: 128}")  # fmt: skip
    return section
