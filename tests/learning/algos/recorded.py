"""Data sets made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trajtrainer.core.columns import Columns, Store, entries_of, sensor_name, zeros
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.experience.trajectory import PackedSteps, offsets


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
