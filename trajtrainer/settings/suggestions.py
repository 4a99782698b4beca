"""Suggests initial settings for an environment, based on the observations and actions of its agents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trajtrainer.core.plugins import resolve
from trajtrainer.core.printable import counted
from trajtrainer.core.spec import BehaviorSpec, ObservationKind, ObservationSpec, ObservationType, observation_kind
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.network import ENCODERS

WHICH_ALGORITHM = "docs/explanation/which-algorithm.md"
BREAK_EVEN_MS = 10.0
"""If an exchange takes longer than this, in milliseconds, SAC finds a good policy sooner than PPO."""

_SMALL_NUMBERS = 2.0
_MANY_NUMBERS = 100
_FEW_NUMBERS = 50
_SAC = "sac"
# for algorithms with a replay buffer
_FEWEST_STEPS = 100_000
_FEWEST_EXCHANGES = 5_000
_LARGEST_BUFFER_BYTES = 1_000_000_000
_STEPS_OF_EACH_AGENT = 128
_MOST_BATCHES = 64
# Ordered by minimum image size, largest first.
_ENCODERS = ("simple", "match3", "fully_connected")

Section = dict[str, Any]
"""Key -> a ``Choice``, or a nested section."""


@dataclass(slots=True)
class Seen:
    """Data collected about one behavior, across all of its teams.

    Attributes:
        name: name of the behavior, without team.
        spec: observations and actions.
        teams: numbers of the behavior's teams.
        agents: largest number of agents at the same time.
        group: largest number of agents in a group at the same time; 1 without groups.
        largest: largest absolute value in the vector observations.
    """

    name: str
    spec: BehaviorSpec
    teams: set[int] = field(default_factory=set)
    agents: int = 0
    group: int = 1
    largest: float = 0.0

    @property
    def kinds(self) -> list[ObservationKind]:
        """Kind of each sensor."""
        return [observation_kind(sensor) for sensor in self.spec.observation_specs]

    @property
    def pictures(self) -> list[ObservationSpec]:
        """Sensors that observe images."""
        sensors = zip(self.spec.observation_specs, self.kinds, strict=True)
        return [sensor for sensor, kind in sensors if kind is ObservationKind.VISUAL]

    @property
    def numbers(self) -> int:
        """Number of values that an agent observes, not counting images."""
        return _num_values(self.spec.observation_specs) - _num_values(self.pictures)

    @property
    def continuous(self) -> int:
        """Number of continuous actions."""
        return self.spec.action_spec.continuous_size

    @property
    def size(self) -> str:
        """Text about the sizes of an agent's observations and actions, to use as the reason of a ``Choice``."""
        return f"{counted(self.numbers, 'number')}, {counted(self.continuous, 'continuous action')}"


def _num_values(sensors: Sequence[ObservationSpec]) -> int:
    return sum(math.prod(sensor.shape) for sensor in sensors)


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange with the environment, from sending actions to receiving the next steps.

    Attributes:
        ms: duration of an exchange in milliseconds, with all players running; 0 if it was not measured.
        players: number of players that run in parallel; 0 for an environment in the trainer's process.
    """

    ms: float = 0.0
    players: int = 1

    @property
    def every_ms(self) -> float:
        """Mean time between exchanges in milliseconds, over all players."""
        return self.ms / max(1, self.players)

    @property
    def is_slow(self) -> bool:
        """True if the environment is slow enough for off-policy algorithms to find a good policy sooner than PPO."""
        return self.every_ms > BREAK_EVEN_MS

    def __str__(self) -> str:
        together = f", with {self.players} players one every {_milliseconds(self.every_ms)}" if self.players > 1 else ""
        return f"one exchange takes {_milliseconds(self.ms)}{together}"


def _milliseconds(ms: float) -> str:
    if ms < 0.1:
        return "less than 0.1 ms"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


class Choice(NamedTuple):
    """A value and the reason for it. The reason is empty if the value does not depend on the environment."""

    value: Any
    reason: str = ""


NO_MEMORY = Choice(
    None, "try it if agents must remember what they no longer see: {sequence_length: 64, memory_size: 128}"
)
"""The suggestion for ``memory`` in ``network_settings``."""


def suggest(behaviors: Sequence[Seen], exchange: Exchange) -> dict[str, Section]:
    """Suggest the section ``behaviors``: name -> settings.

    Raises:
        UnsupportedError: no encoder supports one of the sensors.
    """
    teams = set().union(*(seen.teams for seen in behaviors)) if behaviors else set()
    playing_teams = len(teams) if len(teams) > 1 else 0
    return {seen.name: _behavior(seen, exchange, playing_teams=playing_teams) for seen in behaviors}


def _behavior(seen: Seen, exchange: Exchange, *, playing_teams: int) -> Section:
    algorithm, learner = _learner(seen, exchange, playing_teams=playing_teams)
    section: Section = {
        "trainer_type": algorithm,
        **learner,
        "reward_signals": {"extrinsic": {"gamma": Choice(0.99), "strength": Choice(1.0)}},
    }
    max_steps, why = 500_000, "enough for small tasks"
    horizon = Choice(64, "discrete actions")
    if seen.continuous:
        horizon = Choice(1000, "continuous actions with delayed effects")
    if ALGORITHMS[algorithm.value].replays:
        max_steps = max(_FEWEST_STEPS, _FEWEST_EXCHANGES * seen.agents)
        horizon = Choice(64, f"determines how soon {algorithm.value} can learn from new steps")
        if not exchange.players:
            section["threaded"] = Choice(True, "the environment runs in the trainer's process")
    elif seen.pictures:
        max_steps, why = 1_000_000, "learning from pictures takes longer"
    if playing_teams:
        max_steps, why = 2_000_000, "the opponents improve, too"
        section["self_play"] = {
            "save_steps": Choice(20_000, f"{playing_teams} teams play against each other"),
            "team_change": Choice(100_000),
            "swap_steps": Choice(2_000),
            "window": Choice(10),
            "play_against_latest_model_ratio": Choice(0.5),
            "initial_elo": Choice(1200.0),
        }
    section |= {
        "max_steps": Choice(max_steps, f"{why}; raise it if the reward is still rising at the end"),
        "time_horizon": horizon,
        "summary_freq": Choice(max_steps // 50, "50 summaries in total"),
        "checkpoint_interval": Choice(max_steps // 10, "10 checkpoints in total"),
        "keep_checkpoints": Choice(5),
    }
    return section


def _learner(seen: Seen, exchange: Exchange, *, playing_teams: int) -> tuple[Choice, Section]:
    """Choose the trainer type, and its hyperparameters and network settings."""
    on_policy = {
        "hyperparameters": _hyperparameters(seen, self_play=bool(playing_teams)),
        "network_settings": _network(seen),
    }
    if seen.group > 1:
        return Choice("poca", f"groups of {seen.group} agents share a reward"), on_policy
    alone = "agents are rewarded individually"
    if not exchange.is_slow or playing_teams:
        return Choice("ppo", f"{alone}, and {exchange}" if exchange.ms else alone), on_policy
    if not seen.continuous or ObservationKind.VARIABLE_LENGTH in seen.kinds:
        why = f"{alone}. As {exchange}, {_SAC} may be worth a try ({WHICH_ALGORITHM})"
        return Choice("ppo", why), on_policy
    name, off_policy = _off_policy(seen)
    return Choice(name, f"{exchange}, so it pays to learn more from fewer steps ({WHICH_ALGORITHM})"), off_policy


def _off_policy(seen: Seen) -> tuple[str, Section]:
    """Choose the first algorithm whose ``first_settings`` support this behavior, otherwise SAC."""
    for name in ALGORITHMS:
        row = ALGORITHMS.get(name)
        suggested = None if row is None or row.first_settings is None else resolve(row.first_settings)(seen)
        if suggested is not None:
            return name, suggested
    return _SAC, _of_sac(seen)


def replay(seen: Seen, batch_size: int) -> Section:
    """Suggest the hyperparameters that algorithms with a replay buffer have in common."""
    # Each image is stored as bytes twice: as the observation of its step, and as the next observation of the step
    # before.
    buffer = min(_FEWEST_STEPS, _LARGEST_BUFFER_BYTES // max(1, 2 * _num_values(seen.pictures)))
    return {
        "batch_size": Choice(batch_size, seen.size),
        "buffer_size": Choice(buffer, "about 1 GB of pictures") if buffer < _FEWEST_STEPS else Choice(buffer),
        "learning_starts": Choice(1000),
        "steps_per_update": Choice("auto"),
    }


def _of_sac(seen: Seen) -> Section:
    """Suggest settings for SAC like those in config/quick/3DBallHard-slow.yaml and VisualBall-slow.yaml."""
    rate = Choice(6e-4, "pictures") if seen.pictures else Choice(1e-3)
    hyperparameters = replay(seen, 64) | {"learning_rate": rate, "init_entcoef": Choice(0.1), "tau": Choice(0.01)}
    network = _network(seen)
    if seen.numbers <= _FEW_NUMBERS:
        network["hidden_units"] = Choice(64, seen.size)
    return {"hyperparameters": hyperparameters, "network_settings": network}


def _hyperparameters(seen: Seen, *, self_play: bool) -> Section:
    batch, buffer, kind = (256, 10240, "continuous actions") if seen.continuous else (128, 2048, "discrete actions")
    if seen.pictures:
        batch, kind = max(batch, 256), f"{kind}, pictures"
    wanted = seen.agents * _STEPS_OF_EACH_AGENT
    batch_reason = buffer_reason = kind
    if wanted > buffer:
        buffer = wanted
        buffer_reason = f"{_STEPS_OF_EACH_AGENT} steps of each of {seen.agents} agents"
        while buffer > _MOST_BATCHES * batch:
            batch *= 2
            batch_reason = f"at least 1/{_MOST_BATCHES} of buffer_size"
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


def _network(seen: Seen) -> Section:
    numbers, pictures = seen.numbers, seen.pictures
    large = seen.largest > _SMALL_NUMBERS
    many = numbers > _MANY_NUMBERS
    section: Section = {
        "normalize": Choice(
            large, f"values up to {seen.largest:.3g} were observed" if numbers else "no vector observations"
        ),
        "hidden_units": Choice(256, f"{numbers} observed numbers") if many else Choice(128),
        "num_layers": Choice(2),
    }
    if pictures:
        side = min(min(sensor.shape[1:]) for sensor in pictures)
        name = next(name for name in _ENCODERS if side >= ENCODERS[name].smallest_side)
        section["vis_encode_type"] = Choice(name, f"the smallest side is {side} pixels")
    if any(sensor.observation_type is ObservationType.GOAL_SIGNAL for sensor in seen.spec.observation_specs):
        section["goal_conditioning_type"] = Choice("hyper", "there is a goal signal")
    section["memory"] = NO_MEMORY
    return section
