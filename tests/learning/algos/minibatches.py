"""Minibatches from columns by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from trajtrainer.core.columns import NEXT_OBSERVATIONS, Columns, sensor_name
from trajtrainer.learning.nn.minibatch import Minibatch

_SIGNAL_FIRST = {"returns": "returns", "old_values": "value", "rewards": "rewards", "discount": "discount"}
_PER_SEQUENCE = ("memory", "critic_memory")


def minibatch_of(
    *,
    obs: Sequence[Tensor],
    next_obs: Sequence[Tensor] = (),
    sequence_length: int = 1,
    **columns: Tensor | None,
) -> Minibatch:
    """Columns by name; those with a row per signal as [V, b]; None for what is not there."""
    rows = {sensor_name(number): sensor for number, sensor in enumerate(obs)}
    rows |= {sensor_name(number, NEXT_OBSERVATIONS): sensor for number, sensor in enumerate(next_obs)}
    sequences = {}
    for name, column in columns.items():
        if column is None:
            continue
        if name in _PER_SEQUENCE:
            sequences[name] = column
        elif name in _SIGNAL_FIRST:
            rows[_SIGNAL_FIRST[name]] = column.t()
        else:
            rows[name] = column
    return Minibatch(Columns(rows), Columns(sequences), sequence_length)


def with_rows(minibatch: Minibatch, **columns: Tensor) -> Minibatch:
    """The same with some columns of the rows replaced, those with a row per signal as [V, b]."""
    rows = {_SIGNAL_FIRST.get(k, k): one.t() if k in _SIGNAL_FIRST else one for k, one in columns.items()}
    return replace(minibatch, rows=minibatch.rows.with_columns(rows))
