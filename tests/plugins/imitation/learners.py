"""The offline trainers, on data sets made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.learning.nn.specs import network
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.timers import Timers
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.acting import Policy
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.trainers.factory import create_algorithm
from trajtrainer.plugins.imitation.offline import Offline
from trajtrainer.plugins.imitation.settings import BCHyperparameters, IQLHyperparameters
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

HYPERPARAMETERS: dict[str, Any] = {"bc": BCHyperparameters, "iql": IQLHyperparameters}


def settings(kind: str, net: NetworkSettings | None = None, hyper: dict[str, Any] | None = None, **more: Any) -> Any:
    return TrainerSettings(
        trainer_type=kind,
        hyperparameters=HYPERPARAMETERS[kind](**(hyper or {})),
        dataset=["recorded.demo"],
        network_settings=network() if net is None else net,
        **more,
    )


def learner(kind: str, spec: BehaviorSpec, packed: PackedSteps, expert: Policy | None = None, **more: Any) -> Offline:
    """Return a trainer's algorithm; further arguments as ``settings``."""
    context = LearningContext(
        behavior="B",
        spec=spec,
        settings=settings(kind, **more),
        obs_dtypes=[column.dtype for column in packed.obs],
        seed=3,
        device=torch.device("cpu"),
        training=True,
        timers=Timers(),
        is_stopping=lambda: False,
        expert=expert,
    )
    made = create_algorithm(context)
    assert isinstance(made, Offline)
    rewards = [signal.evaluate(packed) * np.float32(signal.strength) for signal in made.signals]
    made.add(packed, np.stack(rewards))
    return made


def learn(learner: Offline, steps: int) -> dict[str, Any]:
    """Make at least so many gradient steps; return the statistics of the last update."""
    found: dict[str, Any] = {}
    while learner.gradient_steps < steps:
        found = learner.update(learner.gradient_steps, lambda _: None)
    return found
