"""The hyperparameters of IQL."""

from __future__ import annotations

from attrs import Factory, field, frozen

from trajtrainer.learning.algos.bc.settings import OfflineHyperparameters
from trajtrainer.settings.checks import between, fraction, not_negative, positive
from trajtrainer.settings.components import AlgorithmRow


@frozen
class IQLHyperparameters(OfflineHyperparameters):
    """Implicit Q-learning (Kostrikov et al. 2021).

    Attributes:
        critic_learning_rate: learning rate of the value networks. Left out: ``learning_rate``.
        expectile: expectile of the actions' values that is the value of a state. 0.5 is the mean over the data; 0.7 to
            0.9 trusts the best of it.
        temperature: weight of better actions. 0 is plain cloning; 3 to 10.
        max_weight: largest weight of a single step.
    """

    critic_learning_rate: float = field(
        default=Factory(lambda self: self.learning_rate, takes_self=True), validator=not_negative
    )
    expectile: float = field(default=0.7, validator=between(0.5, 0.999))
    temperature: float = field(default=3.0, validator=not_negative)
    max_weight: float = field(default=100.0, validator=positive)
    tau: float = field(default=0.005, validator=fraction)


ROW = AlgorithmRow(IQLHyperparameters, "trajtrainer.learning.algos.iql.iql:IQL", offline=True)
