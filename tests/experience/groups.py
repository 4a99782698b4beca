"""Groupmates from padded lists, as ML-Agents keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, sensor_name
from trajtrainer.experience.trajectory import PackedGroups


def padded_groups(
    obs: Sequence[NDArray[Any]],
    continuous: NDArray[Any],
    discrete: NDArray[Any],
    count: NDArray[Any],
    *,
    next_obs: Sequence[NDArray[Any]] | None = None,
    all_done: bool = False,
) -> PackedGroups:
    """The groupmates of the B steps of one trajectory, each of them a row of its own.

    ``obs`` per sensor [B, M, *O], ``continuous`` [B, M, C], ``discrete`` [B, M, K], of which the first ``count`` [B]
    count; ``next_obs`` per sensor of those that are left [M', *O].
    """
    steps, width = continuous.shape[:2]
    there = np.arange(width) < count[:, None]
    after = [one[0, :0] for one in obs] if next_obs is None else next_obs
    num_mates, num_next = int(there.sum()), len(after[0])
    mates = np.full((steps, max(width, num_next)), -1, np.int32)
    mates[:, :width][there] = steps + np.arange(num_mates)
    next_mates = np.full((1, max(width, num_next)), -1, np.int32)
    next_mates[0, :num_next] = steps + num_mates + np.arange(num_next)
    columns: dict[str, NDArray[Any]] = {
        sensor_name(i): np.concatenate([one[there], last]).astype(np.float32)
        for i, (one, last) in enumerate(zip(obs, after, strict=True))
    }
    for name, actions, dtype in (("continuous", continuous, np.float32), ("discrete", discrete, np.int32)):
        nothing = np.zeros((num_next, actions.shape[2]))
        columns[name] = np.concatenate([actions[there], nothing]).astype(dtype)
    return PackedGroups(mates, next_mates, Columns(columns), np.array([all_done]))
