"""The hyperparameters of behavioral cloning, and those that it shares with DAgger and IQL."""

from __future__ import annotations

import enum

from attrs import field, frozen

from trajtrainer.settings.checks import between, count, not_negative, positive
from trajtrainer.settings.components import AlgorithmRow, Hyperparameters, ScheduleType, of_set_course


class PolicyKind(enum.Enum):
    """The kind of a policy's continuous actions: whose training can go on with it."""

    PPO = "ppo"
    SAC = "sac"


@frozen
class CloningHyperparameters(Hyperparameters):
    """What all trainers have that imitate actions.

    Attributes:
        weight_decay: L2 penalty of Adam. Above 0 where the validation loss rises while the loss falls.
        policy: the kind of continuous actions. ``ppo``: a Gaussian whose standard deviation is one learned vector;
            ``sac``: squashed by tanh, the standard deviation depends on the state. That of the trainer that goes on
            with it.
        min_std: the least standard deviation of a policy of PPO's kind, where actions go from -1 to 1.
    """

    batch_size: int = field(default=256, validator=count)
    learning_rate_schedule: ScheduleType = field(default=ScheduleType.CONSTANT, validator=of_set_course)
    weight_decay: float = field(default=0.0, validator=not_negative)
    policy: PolicyKind = PolicyKind.PPO
    min_std: float = field(default=0.02, validator=positive)


@frozen
class OfflineHyperparameters(CloningHyperparameters):
    """What all trainers have that learn from a data set.

    Attributes:
        validation_fraction: part of the data set that is not learned from, but tells how well what was not seen is
            predicted.
    """

    validation_fraction: float = field(default=0.0, validator=between(0, 0.9))


@frozen
class BCHyperparameters(OfflineHyperparameters):
    """Behavioral cloning from a data set alone.

    Attributes:
        teacher: a run or a checkpoint. Its distribution over actions is learned on the recorded observations, and the
            recorded actions are ignored. Left out, these are learned.
        student_sensors: names of the sensors that the policy sees. Left out, it sees all of them.
    """

    teacher: str = ""
    student_sensors: list[str] = field(factory=list)


ROW = AlgorithmRow(BCHyperparameters, "trajtrainer.algos.bc.bc:BC", offline=True)
