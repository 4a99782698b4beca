"""Random experience for tests of plugins. It is also available from ``trajtrainer.testing``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import ColumnEntry, Columns, Store, entries_of
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, usual_sensor
from trajtrainer.core.steps import BoolArray, IntArray
from trajtrainer.experience.trajectory import PackedGroups, PackedSteps, offsets

_LENGTHS = (5, 8, 3)


def vector_spec(size: int = 3, continuous: int = 2, branches: tuple[int, ...] = (3,)) -> BehaviorSpec:
    """Return the spec of agents that observe a single vector."""
    return BehaviorSpec([usual_sensor((size,), "vector")], ActionSpec(continuous, branches))


def random_steps(
    spec: BehaviorSpec,
    *,
    lengths: tuple[int, ...] = _LENGTHS,
    seed: int = 0,
    groups: bool = False,
    memory_size: int = 0,
) -> PackedSteps:
    """Return trajectories with random values that are valid for a spec.

    Args:
        spec: spec of the agents.
        lengths: lengths of the trajectories.
        seed: seed for the values.
        groups: whether the agents have groupmates, as for an algorithm that ``needs_groups``.
        memory_size: size of the policy's recurrent memory; 0 without a memory.
    """
    generator = np.random.default_rng(seed)
    stores = Store.POOL | Store.GROUP if groups else Store.POOL
    entries = entries_of(stores, spec, [np.float32] * len(spec.observation_specs), memory_size=memory_size)
    columns = _random_rows(generator, spec, entries, sum(lengths))
    columns["log_prob"] = -np.abs(columns["log_prob"])
    columns["mask"][:] = False
    last = np.cumsum(lengths) - 1
    columns["done"][:] = columns["interrupted"][:] = False
    columns["done"][last[:1]] = True
    names = [name for name in entries if name.startswith("obs") or name == "memory"]
    ended = np.arange(len(lengths)) == 0
    return PackedSteps(
        steps=Columns(columns),
        bootstrap=Columns({name: _random(generator, entries[name], len(lengths)) for name in names}),
        offset=offsets(np.array(lengths, np.int32)),
        terminated=ended,
        ended=ended,
        agent=np.arange(len(lengths), dtype=np.int64),
        groups=_random_groups(generator, spec, entries, sum(lengths), ended) if groups else None,
    )


def _random_groups(
    generator: np.random.Generator,
    spec: BehaviorSpec,
    entries: Mapping[str, ColumnEntry],
    num_steps: int,
    ended: BoolArray,
) -> PackedGroups:
    """Return up to three groupmates for each step, chosen from the steps themselves and four other rows."""
    names = [name for name in entries if name.startswith("obs") or name in ("continuous", "discrete")]
    others = _random_rows(generator, spec, {name: entries[name] for name in names}, 4)
    return PackedGroups(
        mates=_random_mates(generator, num_steps, num_steps + 4),
        next_mates=_random_mates(generator, len(ended), num_steps + 4),
        others=Columns(others),
        all_done=ended,
    )


def _random_mates(generator: np.random.Generator, count: int, num_rows: int) -> IntArray:
    mates = np.array([generator.permutation(num_rows)[:3] for _ in range(count)], np.int32)
    mates[np.arange(3) >= generator.integers(4, size=(count, 1))] = -1
    return mates


def _random_rows(
    generator: np.random.Generator, spec: BehaviorSpec, entries: Mapping[str, ColumnEntry], count: int
) -> dict[str, NDArray[Any]]:
    columns = {name: _random(generator, entry, count) for name, entry in entries.items()}
    for branch, size in enumerate(spec.action_spec.discrete_branches):
        columns["discrete"][:, branch] = generator.integers(size, size=count)
    return columns


def _random(generator: np.random.Generator, entry: ColumnEntry, count: int) -> NDArray[Any]:
    return generator.standard_normal((count, *entry.shape)).astype(entry.dtype)
