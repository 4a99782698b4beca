"""Data sets made by hand, and the offline trainers that learn from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tests.learning.nn.specs import network
from trajtrainer.core.columns import Columns, Store, entries_of, sensor_name, zeros
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.timers import Timers
from trajtrainer.experience.trajectory import PackedSteps, offsets
from trajtrainer.learning.algos.acting import Policy
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.bc.settings import BCHyperparameters
from trajtrainer.learning.algos.iql.settings import IQLHyperparameters
from trajtrainer.learning.algos.offline import Offline
from trajtrainer.learning.trainers.factory import create_algorithm
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

HYPERPARAMETERS: dict[str, Any] = {"bc": BCHyperparameters, "iql": IQLHyperparameters}


def recording(spec: BehaviorSpec, lengths: Sequence[int], seed: int = 0) -> PackedSteps:
    """Return episodes of noise that end for good, but for every third, which is interrupted."""
    rng, size = np.random.default_rng(seed), sum(lengths)
    steps = zeros(entries_of(Store.POOL, spec, [np.float32] * len(spec.observation_specs)), size)
    bootstrap = {}
    for i, sensor in enumerate(spec.observation_specs):
        steps[sensor_name(i)][:] = rng.standard_normal((size, *sensor.shape))
        bootstrap[sensor_name(i)] = rng.standard_normal((len(lengths), *sensor.shape)).astype(np.float32)
    steps["continuous"][:] = rng.uniform(-1, 1, steps["continuous"].shape)
    steps["mask"][:] = rng.random(steps["mask"].shape) < 0.3
    for branch, actions in enumerate(spec.action_spec.discrete_branches):
        steps["discrete"][:, branch] = rng.integers(0, actions, size)
        start = sum(spec.action_spec.discrete_branches[:branch])
        # What was done is never forbidden, as in any recording.
        steps["mask"][np.arange(size), start + steps["discrete"][:, branch]] = False
    steps["reward"][:] = rng.standard_normal(size)
    offset = offsets(np.array(lengths, np.int32))
    interrupted = np.arange(len(lengths)) % 3 == 2
    steps["done"][offset[1:] - 1] = True
    steps["interrupted"][offset[1:] - 1] = interrupted
    return PackedSteps(
        steps, Columns(bootstrap), offset, ~interrupted, np.ones(len(lengths), bool), np.arange(len(lengths))
    )


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
