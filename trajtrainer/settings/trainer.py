"""A behaviour's settings: trainer, hyperparameters, schedules."""

from __future__ import annotations

import enum

from attrs import field, frozen

from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.rewards import RewardSignalSettings, RewardSignalType


class ScheduleType(enum.Enum):
    CONSTANT = "constant"
    LINEAR = "linear"


@frozen
class PPOHyperparameters:
    batch_size: int = 1024
    buffer_size: int = 10240
    learning_rate: float = 3e-4
    beta: float = 5e-3
    epsilon: float = 0.2
    lambd: float = 0.95
    num_epoch: int = 3
    shared_critic: bool = False
    learning_rate_schedule: ScheduleType = ScheduleType.LINEAR
    beta_schedule: ScheduleType = ScheduleType.LINEAR
    epsilon_schedule: ScheduleType = ScheduleType.LINEAR
    # Not in ML-Agents, where value clipping is inert (reference 11, quirk 1). Not dumped while it is off.
    value_clipping: bool = False


@frozen
class POCAHyperparameters:
    batch_size: int = 1024
    buffer_size: int = 10240
    learning_rate: float = 3e-4
    beta: float = 5e-3
    epsilon: float = 0.2
    lambd: float = 0.95
    num_epoch: int = 3
    learning_rate_schedule: ScheduleType = ScheduleType.LINEAR
    beta_schedule: ScheduleType = ScheduleType.LINEAR
    epsilon_schedule: ScheduleType = ScheduleType.LINEAR


@frozen
class SACHyperparameters:
    batch_size: int = 128
    buffer_size: int = 50000
    learning_rate: float = 3e-4
    learning_rate_schedule: ScheduleType = ScheduleType.CONSTANT
    buffer_init_steps: int = 0
    tau: float = 0.005
    steps_per_update: float = 1.0
    save_replay_buffer: bool = False
    init_entcoef: float = 1.0
    reward_signal_steps_per_update: float = 1.0


Hyperparameters = PPOHyperparameters | SACHyperparameters | POCAHyperparameters


@frozen(kw_only=True)
class BehavioralCloningSettings:
    demo_path: str
    steps: int = 0
    strength: float = 1.0
    samples_per_update: int = 0
    num_epoch: int | None = None
    batch_size: int | None = None


@frozen
class SelfPlaySettings:
    save_steps: int = 20000
    team_change: int = 100000
    swap_steps: int = 2000
    window: int = 10
    play_against_latest_model_ratio: float = 0.5
    initial_elo: float = 1200.0


def _extrinsic() -> dict[RewardSignalType, RewardSignalSettings]:
    return {RewardSignalType.EXTRINSIC: RewardSignalSettings()}


@frozen
class TrainerSettings:
    trainer_type: str = "ppo"
    hyperparameters: Hyperparameters = field(factory=PPOHyperparameters)
    checkpoint_interval: int = 500000
    network_settings: NetworkSettings = field(factory=NetworkSettings)
    reward_signals: dict[RewardSignalType, RewardSignalSettings] = field(factory=_extrinsic)
    init_path: str | None = None
    keep_checkpoints: int = 5
    even_checkpoints: bool = False
    max_steps: int = 500000
    time_horizon: int = 64
    summary_freq: int = 50000
    threaded: bool = False
    self_play: SelfPlaySettings | None = None
    behavioral_cloning: BehavioralCloningSettings | None = None
