"""Behavioural cloning from a data set alone."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from trajtrainer.algos.algorithm import LearningContext
from trajtrainer.algos.bc.settings import OfflineHyperparameters
from trajtrainer.algos.offline.closed_form import cloning_step
from trajtrainer.algos.offline.learner import OfflineLearner, OfflineStep
from trajtrainer.algos.offline.policy import make_actor


class BCLearner(OfflineLearner):
    """Behavioural cloning: a policy that does what was recorded, its standard deviation included."""

    timer: ClassVar[str] = "BC.update"

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """See ``Algorithm``: an actor."""
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, OfflineHyperparameters)
        return {"actor": make_actor(context.spec, context.settings.network_settings, hyper)}

    def make_step(self) -> OfflineStep:
        """See ``OfflineLearner``."""
        return cloning_step(self.actor, self._hyper)
