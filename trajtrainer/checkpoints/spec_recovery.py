"""Recovery of observations and actions for checkpoints that do not tell them: those of ML-Agents.

A checkpoint tells the actions and the network, but not where one vector ends and the next begins, nor how large
pictures and lists are. The ``.onnx`` that was exported from the same run has the shapes; if there is none, the weights
may leave only one possibility; otherwise the user has to say it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from trajtrainer.checkpoints.mlagents.description import Description
from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.core.spec import (
    USUAL_PROPERTIES,
    BehaviorSpec,
    ObservationKind,
    ObservationSpec,
    ObservationType,
    observation_kind,
)
from trajtrainer.export import contract
from trajtrainer.export.evaluate import graph_inputs

_MAX_SENSORS = 12  # up to which all choices of goals are tried

Shapes = Sequence[tuple[int, ...]]


def sensor(index: int, shape: tuple[int, ...], *, goal: bool = False) -> ObservationSpec:
    """Return a sensor of 1 (vector), 2 (entities, size) or 3 dimensions (channels, height, width)."""
    kind = ObservationType.GOAL_SIGNAL if goal else ObservationType.DEFAULT
    return ObservationSpec(shape, USUAL_PROPERTIES[len(shape)], kind, contract.observation_name(index))


def parse_sensors(texts: Sequence[str]) -> list[ObservationSpec]:
    """Return sensors as a user writes them.

    ``8``, ``20x6``, ``3x84x84``, each with ``:goal`` behind it if it is a goal.

    Raises:
        SettingsError: one of them is written otherwise.
    """
    sensors = []
    for index, text in enumerate(texts):
        sizes, _, kind = text.partition(":")
        parts = sizes.split("x")
        if kind not in ("", "goal") or not 1 <= len(parts) <= 3 or not all(p.isdecimal() and int(p) for p in parts):
            raise SettingsError(
                f"{text!r} is no observation; expected a vector such as 8, a list such as 20x6 (entities, size) or a "
                "picture such as 3x84x84 (channels, height, width), followed by :goal for a goal signal."
            )
        sensors.append(sensor(index, tuple(int(part) for part in parts), goal=kind == "goal"))
    return sensors


def shapes_of_model(path: Path, found: Description) -> list[tuple[int, ...]] | None:
    """Return the shapes of the observations that an exported model takes.

    Args:
        path: of the ``.onnx``.
        found: what the checkpoint tells.

    Returns:
        None if there is no such file, or it is no model with actions and memory like those of the checkpoint.
    """
    try:
        model = onnx.load(str(path), load_external_data=False)
        sizes = {value.name: _sizes(value) for value in graph_inputs(model)}
    except (OSError, DecodeError, ValueError):
        return None
    shapes: list[tuple[int, ...]] = []
    while (shape := sizes.pop(contract.observation_name(len(shapes)), None)) is not None:
        shapes.append(shape)
    branches = sum(found.action_spec.discrete_branches)
    memory = found.settings.memory
    expected: dict[str, tuple[int, ...]] = {contract.ACTION_MASKS: (branches,)} if branches else {}
    if memory is not None:
        expected[contract.RECURRENT_IN] = (1, memory.memory_size)
    if sizes != expected or not shapes or not all(1 <= len(shape) <= 3 and all(shape) for shape in shapes):
        return None
    return shapes


def _sizes(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Return the shape of an input without the batch; 0 where the file leaves it open."""
    return tuple(int(dim.dim_value) for dim in value.type.tensor_type.shape.dim[1:])


def shapes_of_weights(found: Description) -> list[tuple[int, ...]]:
    """Return the only shapes that the weights leave possible, vectors without a normaliser taken for one vector.

    Raises:
        CheckpointError: names what the weights do not tell.
    """
    shapes: dict[int, tuple[int, ...]] = {}
    missing = []
    for trace in found.sensors:
        if trace.kind is ObservationKind.VECTOR:
            shapes[trace.index] = (trace.size,)
        elif trace.kind is ObservationKind.VARIABLE_LENGTH:
            missing.append(f"the largest number of entities (of {trace.size} numbers) that sensor {trace.index} sends")
        else:
            missing.append(f"the height and width of the pictures of sensor {trace.index}")
    known = {trace.index for trace in found.sensors}
    gaps = [index for index in range(max(known, default=-1) + 1) if index not in known]
    rest = found.plain_vector_size
    if len(gaps) > 1:
        missing.append(f"the sizes of the vectors {', '.join(map(str, gaps))}, {rest} numbers together")
    elif rest:
        shapes[gaps[0] if gaps else len(known)] = (rest,)
    if missing:
        raise CheckpointError(f"its weights do not tell {'; nor '.join(missing)}")
    return [shapes[index] for index in sorted(shapes)]


def possible_specs(found: Description, shapes: Shapes) -> Iterator[BehaviorSpec]:
    """Yield every way to read ``shapes``: which sensors are goals is told only by the size of the goal."""
    if not found.goal_size:
        choices: Iterator[tuple[int, ...]] = iter([()])
    else:
        numbers = range(min(len(shapes), _MAX_SENSORS))
        choices = itertools.chain.from_iterable(itertools.combinations(numbers, n) for n in range(1, len(shapes) + 1))
    for goals in choices:
        sensors = [sensor(index, shape, goal=index in goals) for index, shape in enumerate(shapes)]
        if sum(_encoded(sensors[index], found) for index in goals) == found.goal_size:
            yield BehaviorSpec(sensors, found.action_spec)


def _encoded(spec: ObservationSpec, found: Description) -> int:
    """Return numbers that a goal adds to the goal's encoding; more than any for one that cannot."""
    kind = observation_kind(spec)
    if kind is ObservationKind.VARIABLE_LENGTH:
        return found.goal_size + 1
    return found.settings.hidden_units if kind is ObservationKind.VISUAL else spec.shape[0]
