"""Trainers by the names of ``trainer_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from trajtrainer.data.rows import RowPool
from trajtrainer.data.trajectory import TrajectoryBatch
from trajtrainer.errors import UnsupportedError
from trajtrainer.queues import PolicyQueue, TrajectoryQueue
from trajtrainer.settings.convert import trainer_mapping
from trajtrainer.settings.support import unsupported
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.spec import BehaviorSpec
from trajtrainer.stats import StatsReporter
from trajtrainer.timers import Timers
from trajtrainer.trainers.off_policy import OffPolicyTrainer
from trajtrainer.trainers.on_policy import OnPolicyTrainer
from trajtrainer.trainers.rl_trainer import RLTrainer

TRAINERS: dict[str, type[RLTrainer]] = {"ppo": OnPolicyTrainer, "sac": OffPolicyTrainer}


def check_supported(behaviors: Mapping[str, TrainerSettings]) -> None:
    """Refuses what is valid in a YAML file but not built yet, before anything is started.

    Args:
        behaviors: name -> settings.

    Raises:
        UnsupportedError: names everything that is missing, of all behaviours.
    """
    faults = [
        f"Behavior {name!r}: {fault.message}."
        for name, one in behaviors.items()
        for fault in unsupported(trainer_mapping(one))
    ]
    if faults:
        raise UnsupportedError("\n".join(faults))


def max_lead(settings: TrainerSettings) -> int:
    """How many steps acting may be ahead of a trainer that has a thread of its own."""
    return TRAINERS[settings.trainer_type].max_lead(settings)


def create_trainer(
    behavior: str,
    spec: BehaviorSpec,
    settings: TrainerSettings,
    *,
    pool: RowPool,
    trajectories: TrajectoryQueue[TrajectoryBatch],
    policies: PolicyQueue[Tensor],
    reporter: StatsReporter,
    timers: Timers,
    seed: int,
    device: torch.device,
    training: bool,
    checkpoint: Callable[[RLTrainer], None],
    is_stopping: Callable[[], bool],
) -> RLTrainer:
    """The trainer that ``settings.trainer_type`` names; see ``RLTrainer`` for the arguments.

    Raises:
        UnsupportedError: something the settings ask for, or a sensor, is not built yet.
    """
    check_supported({behavior: settings})
    return TRAINERS[settings.trainer_type](
        behavior,
        spec,
        settings,
        pool=pool,
        trajectories=trajectories,
        policies=policies,
        reporter=reporter,
        timers=timers,
        seed=seed,
        device=device,
        training=training,
        checkpoint=checkpoint,
        is_stopping=is_stopping,
    )
