"""A behaviour's settings: trainer, hyperparameters, schedules."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from attrs import Factory, field, frozen
from attrs.validators import optional

from trajtrainer.plugins import Reference, Registry
from trajtrainer.settings.checks import (
    Fault,
    check_settings_class,
    count,
    fraction,
    misfit,
    not_negative,
    positive,
    refuse,
    registered,
    row_of,
    satisfies,
    unlimited_count,
)
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.rewards import REWARD_SIGNALS, RewardSignalSettings

_ATTENTION_HEADS = 4


class ScheduleType(enum.Enum):
    """The course of a number up to ``max_steps``."""

    CONSTANT = "constant"
    LINEAR = "linear"


@frozen
class Hyperparameters:
    """The ``hyperparameters`` that every algorithm has."""

    batch_size: int = field(default=1024, validator=count)
    buffer_size: int = field(default=10240, validator=count)
    learning_rate: float = field(default=3e-4, validator=not_negative)

    def misfits(self, network: NetworkSettings) -> Iterator[Fault]:  # noqa: ARG002
        """Find what these networks cannot be for the algorithm; paths are those of the behaviour."""
        yield from ()


@frozen
class POCAHyperparameters(Hyperparameters):
    """Left out, the schedules of beta and epsilon are that of the learning rate."""

    beta: float = field(default=5e-3, validator=not_negative)
    epsilon: float = field(default=0.2, validator=positive)
    lambd: float = field(default=0.95, validator=fraction)
    num_epoch: int = field(default=3, validator=count)
    learning_rate_schedule: ScheduleType = ScheduleType.LINEAR
    beta_schedule: ScheduleType = field(default=Factory(lambda self: self.learning_rate_schedule, takes_self=True))
    epsilon_schedule: ScheduleType = field(default=Factory(lambda self: self.learning_rate_schedule, takes_self=True))
    # Not in ML-Agents, where that of values is inert (docs/mlagents-behavior.md#update). Not dumped while it is off.
    value_clipping: bool = False

    def misfits(self, network: NetworkSettings) -> Iterator[Fault]:
        """See ``Hyperparameters``: the attention between groupmates has several heads."""
        if network.hidden_units % _ATTENTION_HEADS:
            expected = f"a multiple of {_ATTENTION_HEADS} with trainer_type poca"
            yield misfit(("network_settings", "hidden_units"), network.hidden_units, expected, ("trainer_type",))


@frozen
class PPOHyperparameters(Hyperparameters):
    """Left out, the schedules of beta and epsilon are that of the learning rate."""

    beta: float = field(default=5e-3, validator=not_negative)
    epsilon: float = field(default=0.2, validator=positive)
    lambd: float = field(default=0.95, validator=fraction)
    num_epoch: int = field(default=3, validator=count)
    shared_critic: bool = False
    learning_rate_schedule: ScheduleType = ScheduleType.LINEAR
    beta_schedule: ScheduleType = field(default=Factory(lambda self: self.learning_rate_schedule, takes_self=True))
    epsilon_schedule: ScheduleType = field(default=Factory(lambda self: self.learning_rate_schedule, takes_self=True))
    # Not in ML-Agents, where value clipping is inert (docs/mlagents-behavior.md#update). Not dumped while it is off.
    value_clipping: bool = False


@frozen
class SACHyperparameters(Hyperparameters):
    """Left out, ``reward_signal_steps_per_update`` is ``steps_per_update``."""

    # The order of the fields is that of ML-Agents' configuration.yaml.
    learning_rate: float = field(default=3e-4, validator=not_negative)
    learning_rate_schedule: ScheduleType = ScheduleType.CONSTANT
    batch_size: int = field(default=128, validator=count)
    buffer_size: int = field(default=50000, validator=count)
    buffer_init_steps: int = field(default=0, validator=not_negative)
    tau: float = field(default=0.005, validator=fraction)
    steps_per_update: float = field(default=1, validator=positive)
    save_replay_buffer: bool = False
    init_entcoef: float = field(default=1.0, validator=positive)
    reward_signal_steps_per_update: float = field(
        default=Factory(lambda self: self.steps_per_update, takes_self=True), validator=positive
    )


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """A way to learn.

    Attributes:
        settings: the class of the ``hyperparameters``, made by ``attrs``.
        algorithm: the subclass of ``Algorithm``. None if it is not built yet.
        in_mlagents: its networks and optimizers are those of PPO or SAC by their names, and stand in checkpoints where
            ML-Agents has them. Otherwise all but the policy stand beside what ML-Agents knows.
    """

    settings: type[Hyperparameters]
    algorithm: Reference | None
    in_mlagents: bool = False

    def __post_init__(self) -> None:
        check_settings_class(self.settings, Hyperparameters)


ALGORITHMS = Registry(
    "algorithm",
    "trajtrainer.algorithms",
    AlgorithmRow,
    {
        "ppo": AlgorithmRow(PPOHyperparameters, "trajtrainer.algos.ppo.learner:PPOLearner", in_mlagents=True),
        "sac": AlgorithmRow(SACHyperparameters, "trajtrainer.algos.sac.learner:SACLearner", in_mlagents=True),
        "poca": AlgorithmRow(POCAHyperparameters, "trajtrainer.algos.poca.learner:POCALearner", in_mlagents=True),
    },
)
"""``trainer_type`` -> its hyperparameters and how it learns."""


@frozen(kw_only=True)
class BehavioralCloningSettings:
    """Imitation beside the training. Left out, the trainer chooses ``num_epoch`` and ``batch_size``."""

    demo_path: str
    steps: int = field(default=0, validator=not_negative)
    strength: float = field(default=1.0, validator=not_negative)
    samples_per_update: int = field(default=0, validator=not_negative)
    num_epoch: int | None = field(default=None, validator=optional(count))
    batch_size: int | None = field(default=None, validator=optional(count))


@frozen
class SelfPlaySettings:
    """Left out, ``team_change`` is five times ``save_steps``.

    ``prioritized`` prefers opponents that are not beaten yet, ``opponents`` are checkpoints and runs that play beside
    the snapshots, ``elo_per_match`` rates a group once instead of each of its agents. ML-Agents has none of them; they
    are dumped only where they are not at their defaults.
    """

    save_steps: int = field(default=20000, validator=count)
    team_change: int = field(default=Factory(lambda self: 5 * self.save_steps, takes_self=True), validator=count)
    swap_steps: int = field(default=2000, validator=count)
    window: int = field(default=10, validator=count)
    play_against_latest_model_ratio: float = 0.5
    initial_elo: float = 1200.0
    prioritized: bool = False
    opponents: list[str] = field(factory=list)
    elo_per_match: bool = False


OWN_SELF_PLAY = ("prioritized", "opponents", "elo_per_match")
"""Those of ``SelfPlaySettings`` that ML-Agents does not know."""


def _extrinsic() -> dict[str, RewardSignalSettings]:
    return {"extrinsic": RewardSignalSettings()}


def _hyperparameters(trainer: TrainerSettings) -> Hyperparameters:
    row = ALGORITHMS.get(trainer.trainer_type)
    return row.settings() if row else PPOHyperparameters()


@frozen
class TrainerSettings:
    """Settings of one behaviour.

    With ``even_checkpoints`` the interval is always ``max_steps / keep_checkpoints``, whatever was asked for.
    """

    trainer_type: str = field(default="ppo", validator=registered(ALGORITHMS))
    hyperparameters: Hyperparameters = field(default=Factory(_hyperparameters, takes_self=True))
    checkpoint_interval: int = field(default=500000, validator=count)
    network_settings: NetworkSettings = field(factory=NetworkSettings)
    reward_signals: dict[str, RewardSignalSettings] = field(
        factory=_extrinsic, validator=satisfies(bool, "at least one reward signal")
    )
    init_path: str | None = None
    # 0 and -1 keep all of them.
    keep_checkpoints: int = field(default=5, validator=unlimited_count)
    even_checkpoints: bool = False
    max_steps: int = field(default=500000, validator=count)
    time_horizon: int = field(default=64, validator=count)
    summary_freq: int = field(default=50000, validator=count)
    threaded: bool = False
    self_play: SelfPlaySettings | None = None
    behavioral_cloning: BehavioralCloningSettings | None = None

    def __attrs_post_init__(self) -> None:
        refuse(self._faults())
        if self.even_checkpoints:
            interval = max(1, self.max_steps // self.keep_checkpoints)
            object.__setattr__(self, "checkpoint_interval", interval)  # frozen, but still under construction

    def _faults(self) -> Iterator[Fault]:
        if not isinstance(self.hyperparameters, ALGORITHMS[self.trainer_type].settings):
            yield misfit(("hyperparameters",), self.hyperparameters, f"those of trainer_type {self.trainer_type}")
        yield from self.hyperparameters.misfits(self.network_settings)
        memory = self.network_settings.memory
        if memory is not None and memory.sequence_length > self.hyperparameters.batch_size:
            expected = f"at most hyperparameters.batch_size ({self.hyperparameters.batch_size})"
            batch_size = ("hyperparameters", "batch_size")
            yield misfit(
                ("network_settings", "memory", "sequence_length"), memory.sequence_length, expected, batch_size
            )
        if self.even_checkpoints and self.keep_checkpoints < 1:
            expected = "at least 1, as even_checkpoints spreads that many over the run"
            yield misfit(("keep_checkpoints",), self.keep_checkpoints, expected, ("even_checkpoints",))
        for name, settings in self.reward_signals.items():
            cls = row_of(REWARD_SIGNALS, name, "reward_signals", name).settings
            if not isinstance(settings, cls):
                yield misfit(("reward_signals", name), settings, f"a {cls.__name__}")
            bonus = getattr(settings, "episodic_bonus", None)
            if bonus is not None and isinstance(self.hyperparameters, SACHyperparameters):
                expected = "nothing (null) with trainer_type sac, whose replay does not keep the course of episodes"
                yield misfit(("reward_signals", name, "episodic_bonus"), bonus, expected, ("trainer_type",))
