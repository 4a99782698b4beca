"""Changes of what the sensors show: their order, stacking, layout and scale.

Shape legend: N decisions, O an observation's own shape.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from trajtrainer.core.spec import ObservationSpec
from trajtrainer.core.steps import FloatArray, LongArray
from trajtrainer.tools.verify import changes
from trajtrainer.tools.verify.changes import Ask, Cause, Change, label_of, on_sensors
from trajtrainer.tools.verify.network import Network, Question

_STACKING: Final = re.compile(r"StackingSensor_size(\d+)_")
_MOST_NUMBERS: Final = 48  # of a vector whose parts are moved about
_MOST_SWAPPED: Final = 12  # of a vector whose numbers are exchanged
_MOST_ORDERED: Final = 5
_VECTOR, _LIST, _PICTURE = 2, 3, 4  # dimensions, that of the decisions counted
# Observations in other units: bytes, degrees, centimeters and so on. Their inverses are tried, too.
_FACTORS: Final = (255.0, 180.0 / np.pi, 360.0, 180.0, 1000.0, 100.0, 30.0, 10.0, 5.0, 3.0, 2.0, 1.5)
_ORDER_ADVICE: Final = "Hand over the sensors in the order of the training (Unity sorts them by name)."
_Function = Callable[[FloatArray], FloatArray]


def changes_of_sensors(question: Question, specs: Sequence[ObservationSpec]) -> Iterator[Change]:
    """Yield changes of what the sensors show, the plainest first."""
    labels = [label_of(number, spec) for number, spec in enumerate(specs)]
    yield from _orders(question, labels)
    yield from _stacks(question, specs, labels)
    yield from _layouts(question, labels)
    yield from _scales(question, labels)
    yield from _orders_of_numbers(question, labels)


def _orders(question: Question, labels: Sequence[str]) -> Iterator[Change]:
    """Yield other orders of sensors: of vectors side by side, and of others among those of one shape."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, values in enumerate(question.obs):
        groups.setdefault(values.shape[1:] if values.ndim > _VECTOR else (), []).append(number)
    for group in groups.values():
        for order in changes.permutations(group):
            moved = [labels[new] for old, new in zip(group, order, strict=True) if old != new]
            text = f"The sensors come in another order: {', '.join(labels[each] for each in order)}."
            if len(moved) == 2:
                text = f"In each other's place are {moved[1]} and {moved[0]}."
            yield Change(Cause.SENSOR_ORDER, text, _ORDER_ADVICE, partial(_ordered, group=group, order=order))


def _ordered(question: Question, group: Sequence[int], order: Sequence[int]) -> Question:
    values = [question.obs[each] for each in order]
    if values[0].ndim == _VECTOR:  # all numbers side by side, cut where the sizes of the right order say
        ends = np.cumsum([question.obs[each].shape[1] for each in group])[:-1]
        values = np.split(np.concatenate(values, axis=1), ends, axis=1)
    obs = dict(enumerate(question.obs)) | dict(zip(group, values, strict=True))
    return replace(question, obs=tuple(obs.values()))


def _orders_of_numbers(question: Question, labels: Sequence[str]) -> Iterator[Change]:
    """Yield vectors whose numbers were added in another order."""
    for sensor, values in enumerate(question.obs):
        if values.ndim == _VECTOR and 1 < values.shape[1] <= _MOST_NUMBERS:
            for text, order in _number_orders(values.shape[1]):
                ask = on_sensors([sensor], partial(np.take, indices=order, axis=1))
                advice = "Add the observations in the order of the training."
                yield Change(Cause.SENSOR_ORDER, f"In {labels[sensor]} {text}.", advice, ask)


def _number_orders(size: int) -> Iterator[tuple[str, LongArray]]:
    plain = np.arange(size)
    for cut in range(1, size):
        yield f"the last {size - cut} numbers come first", np.roll(plain, -cut)
    if size > 2:
        yield "the numbers come in reverse order", plain[::-1]
    if size % 3 == 0:
        yield "y and z are exchanged", plain.reshape(-1, 3)[:, [0, 2, 1]].ravel()
    for one, other in itertools.combinations(range(size), 2) if size <= _MOST_SWAPPED else []:
        swapped = plain.copy()
        swapped[[one, other]] = other, one
        yield f"the numbers {one} and {other} are in each other's place", swapped


def _stacks(question: Question, specs: Sequence[ObservationSpec], labels: Sequence[str]) -> Iterator[Change]:
    advice = (
        "Keep a stack for each agent, oldest frame first: zeros when an episode begins, then each new frame behind."
    )
    for sensor, values in enumerate(question.obs):
        frames = _frames_of(values, question, specs[sensor])
        if frames == 1:
            continue
        size = values.shape[1] // frames
        newest, zeros = values[:, -size:], np.zeros_like(values[:, :-size])
        parts = np.split(values, frames, axis=1)
        late = np.concatenate([np.zeros_like(values[:1]), values[:-1]])
        late[question.starts] = 0.0
        mixed = values.reshape(len(values), frames, size, *values.shape[2:]).swapaxes(1, 2).reshape(values.shape)
        for text, shown in (
            ("come in reverse order, the newest first", np.concatenate(parts[::-1], axis=1)),
            ("are not kept: those before the newest are zeros", np.concatenate([zeros, newest], axis=1)),
            ("are not kept: the newest comes first, and the others are zeros", np.concatenate([newest, zeros], axis=1)),
            ("are not kept: all are the newest", np.concatenate([newest] * frames, axis=1)),
            ("are mixed: number by number instead of frame by frame", mixed),
            ("are not emptied when an episode begins", stack(question, newest, frames, cleared=False)),
            ("begin with copies of the first one instead of zeros", stack(question, newest, frames, padded=True)),
            ("lack the newest: they are one decision late", late),
        ):
            text = f"The {frames} frames of {labels[sensor]} {text}."
            yield Change(Cause.STACKING, text, advice, _showing(sensor, shown))


def _showing(sensor: int, values: FloatArray) -> Ask:
    return lambda question: question.with_sensor(sensor, values)


def stack(
    question: Question, newest: FloatArray, frames: int, *, cleared: bool = True, padded: bool = False
) -> FloatArray:
    """The observations [N, *O] with those before them, along the first axis of O, oldest first as Unity has them."""
    rows = np.arange(len(newest))
    begins = np.maximum.accumulate(np.where(question.starts, rows, 0)) if cleared else np.zeros_like(rows)
    parts = []
    for age in reversed(range(frames)):
        part = newest[np.maximum(rows - age, begins)]
        if not padded:
            part[rows - age < begins] = 0.0
        parts.append(part)
    return np.concatenate(parts, axis=1)


def _frames_of(values: FloatArray, question: Question, spec: ObservationSpec) -> int:
    """How many frames a sensor stacks: by its name, or by what it shows; 1 if it does not stack."""
    size = values.shape[1]
    named = _STACKING.match(spec.name)
    if named and int(named[1]) and size % int(named[1]) == 0:
        return int(named[1])
    inside = np.flatnonzero(~question.starts)
    if values.ndim == _LIST or not len(inside):
        return 1
    for frames in range(size, 1, -1):
        part = size // frames
        if size % frames == 0 and np.array_equal(values[inside, : size - part], values[inside - 1, part:]):
            return frames if values[:, -part:].std(axis=0).any() else 1
    return 1


def _layouts(question: Question, labels: Sequence[str]) -> Iterator[Change]:

    def from_channels_last(x: FloatArray) -> FloatArray:
        count, channels, height, width = x.shape
        return x.reshape(count, height, width, channels).transpose(0, 3, 1, 2)

    advice = "Hand over pictures as channels, rows (from the top), columns: all of the first channel, then the next."
    layouts: list[tuple[str, _Function]] = [
        (
            "come as height, width, channels, but are read as channels, height, width",
            lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape),
        ),
        ("come as channels, height, width, but are read as height, width, channels", from_channels_last),
        ("have rows and columns exchanged", lambda x: x.swapaxes(2, 3).reshape(x.shape)),
        ("are upside down", lambda x: x[:, :, ::-1]),
        ("are mirrored", lambda x: x[:, :, :, ::-1]),
        ("are turned by 180 degrees", lambda x: x[:, :, ::-1, ::-1]),
        ("have their channels in reverse order (blue, green, red)", lambda x: x[:, ::-1]),
    ]
    for text, layout in layouts:
        for sensors, whose in _pictures(question, labels):
            yield Change(Cause.PICTURES, f"The pictures of {whose} {text}.", advice, on_sensors(sensors, layout))
    for sensor, values in enumerate(question.obs):
        if values.ndim == _LIST:
            text = f"The list of {labels[sensor]} comes number by number instead of entity by entity."
            advice = "Hand over all numbers of the first entity, then those of the next."
            ask = on_sensors([sensor], lambda x: x.swapaxes(1, 2).reshape(x.shape))
            yield Change(Cause.SENSOR_ORDER, text, advice, ask)


def _pictures(question: Question, labels: Sequence[str]) -> Iterator[tuple[list[int], str]]:
    numbers = [number for number, values in enumerate(question.obs) if values.ndim == _PICTURE]
    for sensors in changes.together_and_singly(numbers):
        yield sensors, " and ".join(labels[each] for each in sensors)


def _scales(question: Question, labels: Sequence[str]) -> Iterator[Change]:
    advice = "Fill the array of this sensor before each decision, in the units of the training."
    for sensor, label in enumerate(labels):
        text = f"The network sees only zeros of {label}, or numbers that are much too small."
        yield Change(Cause.SCALE, text, advice, on_sensors([sensor], np.zeros_like))
    ranges: list[tuple[str, _Function]] = [
        ("go from -1 to 1", lambda x: 2 * x - 1),
        ("go from 0.5 to 1", lambda x: np.float32(0.5) * (x + 1)),
        ("are inverted: black is white", lambda x: 1 - x),
    ]
    for text, function in ranges:
        for sensors, whose in _pictures(question, labels):
            text = f"The pictures of {whose} {text}."
            yield Change(Cause.SCALE, text, "Hand over pixels from 0 to 1.", on_sensors(sensors, function))
    everything = range(len(labels))
    for factor in _FACTORS:
        for each in (factor, 1 / factor):
            for sensors in changes.together_and_singly(everything):
                yield scaled(sensors, labels, each)
    yield scaled(everything, labels, -1.0)


def scaled(sensors: Sequence[int], labels: Sequence[str], factor: float) -> Change:
    """The change of observations by a factor."""
    shown = f"{factor:.4g} times" if abs(factor) >= 1 or factor < 0 else f"1/{1 / factor:.4g} of"
    return Change(
        Cause.SCALE,
        f"The network sees {shown} the observations of {' and '.join(labels[each] for each in sensors)}.",
        "Hand over observations in the units of the training; pixels are from 0 to 1.",
        on_sensors(sensors, lambda x: x * np.float32(factor)),
        scaled=tuple(sensors),
        factor=factor,
    )


def refitted(network: Network, question: Question, specs: Sequence[ObservationSpec]) -> Iterator[Change]:
    """Yield changes that make recorded sensors fit a model that takes others, if there are any."""
    wanted = [shape for shape in network.sensor_shapes if shape is not None]
    shapes = [values.shape[1:] for values in question.obs]
    if len(wanted) != len(shapes) or len(wanted) != len(network.sensor_shapes):
        return
    labels = [label_of(number, spec) for number, spec in enumerate(specs)]
    if sorted(wanted) == sorted(shapes) and len(shapes) <= _MOST_ORDERED:
        for order in itertools.permutations(range(len(shapes))):
            if [shapes[each] for each in order] == wanted:
                text = f"The model takes the sensors in another order: {', '.join(labels[each] for each in order)}."
                yield Change(Cause.SENSOR_ORDER, text, _ORDER_ADVICE, partial(_reordered, order=order))
    others = [number for number, (own, other) in enumerate(zip(shapes, wanted, strict=True)) if own != other]
    if len(others) == 1:
        yield from _refitted_sensor(question, others[0], labels[others[0]], wanted[others[0]])


def _reordered(question: Question, order: Sequence[int]) -> Question:
    return replace(question, obs=tuple(question.obs[each] for each in order))


def _refitted_sensor(question: Question, sensor: int, label: str, wanted: tuple[int, ...]) -> Iterator[Change]:
    values = question.obs[sensor]
    own = values.shape[1:]
    advice = "Set Stacked Vectors (or Observation Stacks) of the sensor to {}, as in training."
    if own[1:] == wanted[1:] and wanted[0] % own[0] == 0:
        frames = wanted[0] // own[0]
        text = f"The model takes {frames} stacked frames of {label}, and one was recorded."
        shown = stack(question, values, frames)
        yield Change(Cause.STACKING, text, advice.format(frames), _showing(sensor, shown))
    elif own[1:] == wanted[1:] and own[0] % wanted[0] == 0:
        text = f"{own[0] // wanted[0]} stacked frames of {label} were recorded, and the model takes one."
        yield Change(Cause.STACKING, text, advice.format(1), _showing(sensor, values[:, -wanted[0] :]))
    if len(own) == 3:
        for axes in itertools.permutations(range(3)):
            if tuple(own[axis] for axis in axes) == wanted:
                text = f"The pictures of {label} were recorded as {own}, and the model takes {wanted}."
                advice = "Train and play with the same generation of ML-Agents: since 3.0 channels come first."
                shown = np.ascontiguousarray(values.transpose(0, *(axis + 1 for axis in axes)))
                yield Change(Cause.PICTURES, text, advice, _showing(sensor, shown))
