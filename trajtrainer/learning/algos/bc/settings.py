"""The hyperparameters of behavioral cloning, and those that it shares with DAgger and IQL."""

from __future__ import annotations

import enum

from attrs import field, frozen

from trajtrainer.settings.checks import between, count, not_negative, positive
from trajtrainer.settings.components import AlgorithmRow, Hyperparameters, ScheduleType, of_set_course


class PolicyKind(enum.Enum):
    """The kind of a policy's continuous actions, by the trainer that can continue with it."""

    PPO = "ppo"
    SAC = "sac"


@frozen
class CloningHyperparameters(Hyperparameters):
    """Hyperparameters of all trainers that imitate actions.

    Attributes:
        weight_decay: L2 penalty of Adam. Above 0 if the validation loss rises while the loss falls.
        policy: the kind of continuous actions; choose that of the trainer that will continue with the policy. ``ppo``:
            a Gaussian with one learned vector of standard deviations; ``sac``: squashed by tanh, with state-dependent
            standard deviations.
        min_std: the least standard deviation of a policy of PPO's kind, for actions between -1 and 1.
    """

    batch_size: int = field(default=256, validator=count)
    learning_rate_schedule: ScheduleType = field(default=ScheduleType.CONSTANT, validator=of_set_course)
    weight_decay: float = field(default=0.0, validator=not_negative)
    policy: PolicyKind = PolicyKind.PPO
    min_std: float = field(default=0.02, validator=positive)


@frozen
class OfflineHyperparameters(CloningHyperparameters):
    """Hyperparameters of all trainers that learn from a data set.

    Attributes:
        validation_fraction: fraction of the data set that is held out. It shows how well the policy predicts steps that
            it has not seen.
    """

    validation_fraction: float = field(default=0.0, validator=between(0, 0.9))


@frozen
class BCHyperparameters(OfflineHyperparameters):
    """Hyperparameters of behavioral cloning from a data set.

    Attributes:
        teacher: a run or a checkpoint whose distribution over actions is imitated on the recorded observations. Left
            out: the recorded actions are imitated.
        student_sensors: names of the sensors that the policy sees. Left out: all of them.
    """

    teacher: str = ""
    student_sensors: list[str] = field(factory=list)


ROW = AlgorithmRow(BCHyperparameters, "trajtrainer.learning.algos.bc.bc:BC", offline=True)
