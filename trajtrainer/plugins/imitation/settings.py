"""The hyperparameters of behavioral cloning, IQL and DAgger, and their entries in the registry of algorithms."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator

from attrs import Factory, field, frozen

from trajtrainer.settings.checks import (
    AutoOrNumber,
    Fault,
    between,
    count,
    fraction,
    mismatch,
    not_negative,
    positive,
    positive_or_auto,
)
from trajtrainer.settings.components import AlgorithmRow, Hyperparameters, ScheduleType, of_set_course
from trajtrainer.settings.network import NetworkSettings

_EXPERT = "trajtrainer.plugins.imitation.experts:expert"


class PolicyKind(enum.Enum):
    """The kind of a policy's continuous actions, named after the trainer that can continue training the policy."""

    PPO = "ppo"
    SAC = "sac"


@frozen
class CloningHyperparameters(Hyperparameters):
    """Hyperparameters of all trainers that imitate actions.

    Attributes:
        weight_decay: L2 penalty of Adam. Use a value above 0 if the validation loss rises while the loss falls.
        policy: the kind of continuous actions; choose the trainer that will continue training the policy. ``ppo``: a
            Gaussian with one learned vector of standard deviations; ``sac``: a Gaussian squashed by tanh, with
            state-dependent standard deviations.
        min_std: smallest standard deviation with ``policy: ppo``, for actions between -1 and 1.
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
        validation_fraction: fraction of the data set that is held out, to show how well the policy predicts steps that
            it has not learned from.
    """

    validation_fraction: float = field(default=0.0, validator=between(0, 0.9))


@frozen
class BCHyperparameters(OfflineHyperparameters):
    """Hyperparameters of behavioral cloning from a data set.

    Attributes:
        teacher: a run or a checkpoint whose distribution over actions is imitated on the recorded observations. If
            omitted, the recorded actions are imitated.
        student_sensors: names of the sensors that the policy sees. Defaults to all sensors.
    """

    teacher: str = ""
    student_sensors: list[str] = field(factory=list)


@frozen
class IQLHyperparameters(OfflineHyperparameters):
    """Hyperparameters of implicit Q-learning (Kostrikov et al. 2021).

    Attributes:
        critic_learning_rate: learning rate of the value networks. Defaults to ``learning_rate``.
        expectile: which expectile of the actions' values to use as the value of a state. 0.5 is the mean over the data;
            0.7 to 0.9 relies on the best actions.
        temperature: how strongly to prefer better actions. 0 is plain cloning; typical values are 3 to 10.
        max_weight: largest weight of a single step.
    """

    critic_learning_rate: float = field(
        default=Factory(lambda self: self.learning_rate, takes_self=True), validator=not_negative
    )
    expectile: float = field(default=0.7, validator=between(0.5, 0.999))
    temperature: float = field(default=3.0, validator=not_negative)
    max_weight: float = field(default=100.0, validator=positive)
    tau: float = field(default=0.005, validator=fraction)


@frozen
class DAggerHyperparameters(CloningHyperparameters):
    """Hyperparameters of DAgger (Ross et al. 2011): imitation of an expert in the states that the learner visits.

    Attributes:
        expert: a run or a checkpoint, whose distribution over actions is imitated; or an ``.onnx`` file, ``heuristic``
            (the hand-written policy of some simulations) or ``python:MODULE:FUNCTION``, whose actions are imitated.
        student_sensors: names of the sensors that the policy sees. Defaults to all sensors.
    """

    buffer_size: int = field(default=50000, validator=count)
    expert: str = ""
    steps_per_update: AutoOrNumber = field(default=4, validator=positive_or_auto)
    save_replay_buffer: bool = False
    student_sensors: list[str] = field(factory=list)

    def faults(self, network: NetworkSettings) -> Iterator[Fault]:  # noqa: ARG002
        if not self.expert:
            expected = "a run, a checkpoint, an .onnx file, heuristic or python:MODULE:FUNCTION to imitate"
            yield mismatch(("hyperparameters", "expert"), None, expected)

    def faults_of_rewards(self, names: Collection[str]) -> Iterator[Fault]:
        for name in names if self.student_sensors else ():
            if name != "extrinsic":
                expected = "no reward signal but extrinsic with student_sensors, as the others see all sensors"
                yield mismatch(("reward_signals", name), {name: ...}, expected)


BC = AlgorithmRow(BCHyperparameters, "trajtrainer.plugins.imitation.bc:BC", offline=True, expert=_EXPERT)
IQL = AlgorithmRow(IQLHyperparameters, "trajtrainer.plugins.imitation.iql:IQL", offline=True)
DAGGER = AlgorithmRow(DAggerHyperparameters, "trajtrainer.plugins.imitation.dagger:DAgger", expert=_EXPERT)
