"""Packed steps from columns by name, and several of them as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, sensor_name
from trajtrainer.core.columns import concatenate as concatenate_columns
from trajtrainer.experience.trajectory import PackedSteps, offsets

_PER_TRAJECTORY = ("offset", "terminated", "ended", "agent")
_BOOTSTRAP = "bootstrap_"


def packed_steps(**columns: Any) -> PackedSteps:
    """Columns of steps by name, those after the trajectories as ``bootstrap_<name>``; sensors as a tuple."""
    given = {name: columns.pop(name) for name in _PER_TRAJECTORY}
    bootstrap = {name.removeprefix(_BOOTSTRAP): one for name, one in columns.items() if name.startswith(_BOOTSTRAP)}
    steps = {name: one for name, one in columns.items() if not name.startswith(_BOOTSTRAP)}
    return PackedSteps(steps=_columns(steps), bootstrap=_columns(bootstrap), **given)


def concatenate(parts: Sequence[PackedSteps]) -> PackedSteps:
    """The trajectories of all parts, in order."""
    return PackedSteps(
        steps=concatenate_columns([part.steps for part in parts]),
        bootstrap=concatenate_columns([part.bootstrap for part in parts]),
        offset=offsets(np.concatenate([part.lengths for part in parts])),
        terminated=np.concatenate([part.terminated for part in parts]),
        ended=np.concatenate([part.ended for part in parts]),
        agent=np.concatenate([part.agent for part in parts]),
    )


def everything(packed: PackedSteps) -> dict[str, NDArray[Any]]:
    """All arrays, by a name each."""
    named = {f"bootstrap_{name}": column for name, column in packed.bootstrap.items()}
    return {**dict(packed.steps.items()), **named, **{name: getattr(packed, name) for name in _PER_TRAJECTORY}}


def with_columns(packed: PackedSteps, **columns: Any) -> PackedSteps:
    """The same with some columns of the steps replaced."""
    return PackedSteps(
        packed.steps.with_columns(columns),
        packed.bootstrap,
        packed.offset,
        packed.terminated,
        packed.ended,
        packed.agent,
    )


def _columns(given: Mapping[str, Any]) -> Columns[NDArray[Any]]:
    sensors = {sensor_name(number): sensor for number, sensor in enumerate(given.get("obs", ()))}
    return Columns(sensors | {name: column for name, column in given.items() if name != "obs"})
