"""A behaviour's sensors and actions as Gymnasium spaces, and its columns as batches of them.

Shape legend: N agents of a batch, C continuous actions, K discrete branches, D sum of branch sizes, O an observation's
own shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, ObservationSpec
from trajtrainer.core.steps import BoolArray, FloatArray, IntArray, ObservationArray

Form = Literal["auto", "box", "dict", "tuple"]
"""How sensors become one space: ``auto`` is a Box for one sensor and a Dict for several; ``box`` joins vectors."""

_PICTURE_RANK = 3
_LARGEST_BYTE = np.float32(255.0)
Decisions = tuple[FloatArray, IntArray]
"""Continuous f32 [N, C] and discrete i32 [N, K] actions."""


class BehaviorSpaces:
    """The spaces of one behaviour.

    - A vector is a Box without bounds, a list of entities likewise; a picture is a Box of [0, 1], or of bytes, of the
      shape (channels, height, width).
    - Continuous actions are a Box of [-1, 1], one branch is a Discrete, several are a MultiDiscrete; both kinds are a
      Tuple of the two.

    Args:
        spec: of the behaviour.
        name: of the behaviour, for messages.
        form: see ``Form``.
        uint8_visual: pictures are bytes from 0 to 255.

    Attributes:
        observation_space: of one agent.
        action_space: of one agent.

    Raises:
        SettingsError: there is no such form.
        UnsupportedError: there is nothing to observe or to do, or sensors cannot be joined to a Box.
    """

    def __init__(self, spec: BehaviorSpec, name: str, form: Form = "auto", *, uint8_visual: bool = False) -> None:
        if form not in get_args(Form):
            raise SettingsError(f"observations={form!r}: expected one of {', '.join(get_args(Form))}.")
        sensors, self._actions = spec.observation_specs, spec.action_spec
        if not sensors:
            raise UnsupportedError(f"The agents of {name!r} observe nothing, which no observation space can be.")
        if not spec.action_spec.continuous_size and not spec.action_spec.discrete_size:
            raise UnsupportedError(f"The agents of {name!r} have no actions, which no action space can be.")
        self._bytes = uint8_visual
        self._is_picture = [len(sensor.shape) == _PICTURE_RANK for sensor in sensors]
        boxes = [self._box(sensor) for sensor in sensors]
        self._names = _distinct_names(sensors)
        self._form: Form = ("box" if len(sensors) == 1 else "dict") if form == "auto" else form
        self.observation_space = self._space(boxes, name)
        self.action_space = _action_space(spec.action_spec)

    def _box(self, sensor: ObservationSpec) -> spaces.Box:
        if len(sensor.shape) != _PICTURE_RANK:
            return spaces.Box(-np.inf, np.inf, tuple(sensor.shape), np.float32)
        return (
            spaces.Box(0, 255, tuple(sensor.shape), np.uint8)
            if self._bytes
            else spaces.Box(0.0, 1.0, tuple(sensor.shape), np.float32)
        )

    def _space(self, boxes: Sequence[spaces.Box], name: str) -> spaces.Space[Any]:
        if self._form == "dict":
            return spaces.Dict(dict(zip(self._names, boxes, strict=True)))
        if self._form == "tuple":
            return spaces.Tuple(boxes)
        if len(boxes) == 1:
            return boxes[0]
        if any(len(box.shape) != 1 for box in boxes):
            shapes = ", ".join(str(box.shape) for box in boxes)
            raise UnsupportedError(
                f"observations='box' joins vectors only, but the sensors of {name!r} have the shapes {shapes}. Use "
                "'dict' or 'tuple'."
            )
        return spaces.Box(-np.inf, np.inf, (sum(box.shape[0] for box in boxes),), np.float32)

    def observations(self, columns: Sequence[ObservationArray]) -> Any:
        """Return a batch of the observation space: an array [N, *O], or a dict or a tuple of them."""
        found = [
            self._picture(column) if is_picture else column
            for column, is_picture in zip(columns, self._is_picture, strict=True)
        ]
        if self._form == "dict":
            return dict(zip(self._names, found, strict=True))
        if self._form == "tuple":
            return tuple(found)
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

    def _picture(self, column: ObservationArray) -> ObservationArray:
        if self._bytes:
            return column if column.dtype == np.uint8 else np.rint(column * _LARGEST_BYTE).astype(np.uint8)
        return column if column.dtype == np.float32 else column.astype(np.float32) / _LARGEST_BYTE

    def decisions(self, actions: Any) -> Decisions:
        """Return what N actions of the (batched) action space mean."""
        size, branches = self._actions.continuous_size, self._actions.discrete_size
        if size and branches:
            actions, chosen = actions
        else:
            chosen = actions
        continuous: FloatArray = np.asarray(actions, np.float32) if size else np.zeros((len(chosen), 0), np.float32)
        if not branches:
            return continuous, np.zeros((len(continuous), 0), np.int32)
        discrete: IntArray = np.asarray(chosen, np.int32)
        return continuous, discrete[:, None] if branches == 1 and discrete.ndim == 1 else discrete

    def batch_of_one(self, action: Any) -> Any:
        """Return an action of ``action_space`` as a batch, which ``decisions`` takes."""
        is_pair = isinstance(self.action_space, spaces.Tuple)
        return tuple(np.asarray(part)[None] for part in action) if is_pair else np.asarray(action)[None]

    def nothing(self, mask: BoolArray) -> Decisions:
        """Return the actions of agents that do nothing: zeros, or the first choices that ``mask`` does not forbid."""
        count = len(mask)
        edges = np.cumsum([0, *self._actions.discrete_branches])
        discrete = np.zeros((count, self._actions.discrete_size), np.int32)
        for branch, (begin, end) in enumerate(pairwise(edges)):
            discrete[:, branch] = mask[:, begin:end].argmin(axis=1)
        return np.zeros((count, self._actions.continuous_size), np.float32), discrete

    def sample_mask(self, allowed: NDArray[np.int8]) -> Any:
        """Return what ``action_space.sample(mask=...)`` takes, of one agent's mask, i8 [D]."""
        parts = np.split(allowed, np.cumsum(self._actions.discrete_branches)[:-1])
        chosen: Any = parts[0] if len(parts) == 1 else tuple(parts)
        return (None, chosen) if self._actions.continuous_size else chosen


def pick(batch: Any, index: int) -> Any:
    """Return one of a batch of observations."""
    return mapped(batch, lambda column: column[index])


def mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a batch of observations whose arrays have been changed."""
    if isinstance(batch, Mapping):
        return {name: change(column) for name, column in batch.items()}
    return tuple(map(change, batch)) if isinstance(batch, tuple) else change(batch)


def _distinct_names(sensors: Sequence[ObservationSpec]) -> list[str]:
    """Return the sensors' names as keys: without dots, which torch's modules do not take, and each but once."""
    names: list[str] = []
    for index, sensor in enumerate(sensors):
        name = sensor.name.replace(".", "_") or f"observation_{index}"
        names.append(name if name not in names else f"{name}_{index}")
    return names


def _action_space(actions: ActionSpec) -> spaces.Space[Any]:
    box = spaces.Box(-1.0, 1.0, (actions.continuous_size,), np.float32)
    if not actions.discrete_size:
        return box
    branches: spaces.Space[Any] = (
        spaces.Discrete(actions.discrete_branches[0])
        if actions.discrete_size == 1
        else spaces.MultiDiscrete(np.array(actions.discrete_branches))
    )
    return spaces.Tuple((box, branches)) if actions.continuous_size else branches
