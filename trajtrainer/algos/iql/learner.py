"""Implicit Q-learning from a data set."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from trajtrainer.algos.algorithm import LearningContext
from trajtrainer.algos.iql.optimizer import IQLNetworks
from trajtrainer.algos.iql.settings import IQLHyperparameters
from trajtrainer.algos.offline.closed_form import iql_step
from trajtrainer.algos.offline.learner import OfflineLearner, OfflineStep
from trajtrainer.algos.offline.policy import make_actor
from trajtrainer.nn.critic import ValueNetwork


class IQLLearner(OfflineLearner):
    """Implicit Q-learning (Kostrikov et al. 2021): better than the data set, without asking what was never tried."""

    needs_next: ClassVar[bool] = True
    timer: ClassVar[str] = "IQL.update"

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """See ``Algorithm``: an actor, two Q networks and their copies, and V."""
        hyper, settings, spec = context.settings.hyperparameters, context.settings.network_settings, context.spec
        assert isinstance(hyper, IQLHyperparameters)
        names = list(context.settings.reward_signals)
        continuous, discrete = int(spec.action_spec.continuous_size), sum(spec.action_spec.discrete_branches)
        q1, q2, target_q1, target_q2 = (
            ValueNetwork(spec, settings, names, action_size=continuous, outputs=max(1, discrete)) for _ in range(4)
        )
        target_q1.load_state_dict(q1.state_dict())
        target_q2.load_state_dict(q2.state_dict())
        return {
            "actor": make_actor(spec, settings, hyper),
            "q1": q1,
            "q2": q2,
            "value": ValueNetwork(spec, settings, names),
            "target_q1": target_q1,
            "target_q2": target_q2,
        }

    def make_step(self) -> OfflineStep:
        """See ``OfflineLearner``."""
        assert isinstance(self._hyper, IQLHyperparameters)
        return iql_step(IQLNetworks(**self.networks), self._hyper)  # type: ignore[arg-type]

    def learning_rates(self, step: int) -> list[float]:
        """See ``OfflineLearner``."""
        assert isinstance(self._hyper, IQLHyperparameters)
        return [self._decayed(self._hyper.learning_rate, step), self._decayed(self._hyper.critic_learning_rate, step)]
