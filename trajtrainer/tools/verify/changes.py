"""A table of what can go wrong between a trained policy and a game: changes that are tried one by one.

A change describes how the network's input in the game, or the game's use of its output, may differ from the recording.
Shape legend: N decisions, O an observation's own shape, C continuous actions.
"""

import enum
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.steps import BoolArray, FloatArray
from trajtrainer.policies.onnx import contract
from trajtrainer.tools.verify.network import Answer, Network
from trajtrainer.tools.verify.recording import Question, RecordedDecisions

_STACKING: Final = re.compile(r"StackingSensor_size(\d+)_")
_MOST_REORDERED: Final = 5  # maximum number of sensors or actions for which all orders are tried
_MOST_NUMBERS: Final = 48  # maximum size of a vector for which moved parts are tried
_MOST_SWAPPED: Final = 12  # maximum size of a vector for which swapping each pair of numbers is tried
_VECTOR, _LIST, _PICTURE = 2, 3, 4  # number of dimensions of a sensor's column, including the one for decisions
# Observations in other units, such as bytes, degrees or centimeters. The inverse factors are also tried.
_FACTORS: Final = (255.0, 180.0 / np.pi, 360.0, 180.0, 1000.0, 100.0, 30.0, 10.0, 5.0, 3.0, 2.0, 1.5)
Alter = Callable[[FloatArray], FloatArray]
_FIRST, _LAST = "channels, height, width", "height, width, channels"
_LAYOUTS: Final[Mapping[str, Alter]] = {
    f"come as {_LAST}, but are read as {_FIRST}": lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape),
    f"come as {_FIRST}, but are read as {_LAST}": lambda x: x.reshape(len(x), *x.shape[2:], x.shape[1]).transpose(
        0, 3, 1, 2
    ),
    "have rows and columns swapped": lambda x: x.swapaxes(2, 3).reshape(x.shape),
    "are upside down": lambda x: x[:, :, ::-1],
    "are mirrored": lambda x: x[:, :, :, ::-1],
    "are rotated by 180 degrees": lambda x: x[:, :, ::-1, ::-1],
    "have their channels in reverse order (blue, green, red)": lambda x: x[:, ::-1],
}
_PIXEL_RANGES: Final[Mapping[str, Alter]] = {
    "go from -1 to 1": lambda x: 2 * x - 1,
    "go from 0.5 to 1": lambda x: np.float32(0.5) * (x + 1),
    "are inverted: black is white": lambda x: 1 - x,
}


class Cause(enum.Enum):
    """The kinds of changes, as they are shown to the user."""

    SENSOR_ORDER = "sensor order"
    SENSOR_SHAPE = "other sensors"
    STACKING = "stacking"
    NORMALIZATION = "normalization"
    SCALE = "scale of the observations"
    MASK = "action mask"
    PICTURES = "layout of pictures (height, width, channels)"
    MEMORY = "memory"
    TIMING = "timing"
    MODEL = "an older or different model"
    MODE = "deterministic or sampled actions"
    ACTIONS = "order or scale of the actions"


ADVICE: Final = {
    Cause.SENSOR_ORDER: "Pass the sensors, and the numbers of each sensor, in the same order as in training (Unity "
    "sorts sensors by name).",
    Cause.STACKING: "Keep a stack for each agent, with the oldest frame first. Fill it with zeros when an episode "
    "starts, and append each new frame at the end.",
    Cause.NORMALIZATION: "Normalization is part of the model: pass it the raw observations.",
    Cause.SCALE: "Pass observations in the same units as in training; pixels are from 0 to 1.",
    Cause.MASK: "Pass the mask of the current decision: 1 allows an action, 0 forbids it.",
    Cause.PICTURES: "Pass pictures as channels, rows (from the top), columns: all of the first channel, then the next.",
    Cause.MEMORY: "Clear the memory when an episode starts. Otherwise pass back the memory that the agent's last "
    "decision returned.",
    Cause.TIMING: "Act on the latest observation, in the frame in which it was observed.",
    Cause.MODEL: "Export the model that you want, and put it into the game.",
    Cause.ACTIONS: "Use the actions in the order and range of the model. Discrete actions count from 0.",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One way in which a game may differ from the recording and the model.

    Attributes:
        cause: the kind of change.
        text: a sentence that says what the game does.
        ask: converts the recorded question to the network's input in the game.
        alter: converts the network's answer to the actions in the game.
        network: the network in the game, if it is not the given one.
        delay: number of decisions between an observation and the action based on it.
        scaled: the sensors whose values have a different unit, and the factor.
    """

    cause: Cause
    text: str
    ask: Callable[[Question], Question] = lambda question: question
    alter: Callable[[Answer], Answer] = lambda answer: answer
    network: Network | None = None
    delay: int = 0
    scaled: tuple[tuple[int, ...], float] = ((), 1.0)


UNCHANGED: Final = Change(Cause.MODE, "")


def changes_of(network: Network, recording: RecordedDecisions) -> Iterator[Change]:
    """Yield all single changes, simplest first."""
    question, labels = recording.question, recording.labels
    yield Change(Cause.TIMING, "The game acts one decision late, on the previous observation.", delay=1)
    yield Change(Cause.TIMING, "The game acts two decisions late.", delay=2)
    yield Change(Cause.TIMING, "Each action was recorded with the observation after the one it is based on.", delay=-1)
    if network.memory_size:
        never, always = np.arange(len(question)) == 0, np.ones_like(question.starts)
        yield Change(Cause.MEMORY, "The memory is not cleared when an episode starts.", partial(replace, starts=never))
        yield Change(Cause.MEMORY, "The memory is empty at every decision.", partial(replace, starts=always))
    for text, mask in _masks(question) if question.mask.any() else ():
        yield Change(Cause.MASK, f"The mask {text}.", partial(replace, mask=mask))
    yield from _normalizations(network, labels)
    yield from _actions(network)
    yield from _sensor_orders(question, labels)
    for sensor, spec in enumerate(recording.spec.observation_specs):
        for text, shown in _stacks(question, question.obs[sensor], spec.name):
            yield Change(Cause.STACKING, f"The frames of {labels[sensor]} {text}.", _showing(sensor, shown))
    pictures = [sensor for sensor, values in enumerate(question.obs) if values.ndim == _PICTURE]
    for cause, functions in ((Cause.PICTURES, _LAYOUTS), (Cause.SCALE, _PIXEL_RANGES)):
        for text, function in functions.items():
            for sensors, whose in _together_and_singly(pictures, labels):
                yield Change(cause, f"The pictures of {whose} {text}.", _seen_as(dict.fromkeys(sensors, function)))
    yield from _scales(labels)
    for sensor, values in enumerate(question.obs):
        for text, order in _number_orders(values):
            reordered = _seen_as({sensor: partial(np.take, indices=order, axis=1)})
            yield Change(Cause.SENSOR_ORDER, f"In {labels[sensor]} {text}.", reordered)


def _showing(sensor: int, values: FloatArray) -> Callable[[Question], Question]:
    return lambda question: question.with_sensors({sensor: values})


def _seen_as(functions: Mapping[int, Alter]) -> Callable[[Question], Question]:
    def ask(question: Question) -> Question:
        return question.with_sensors({sensor: alter(question.obs[sensor]) for sensor, alter in functions.items()})

    return ask


def _together_and_singly(sensors: Sequence[int], labels: Sequence[str]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield all sensors together, and each sensor alone if there are several."""
    for group in dict.fromkeys([tuple(sensors), *((each,) for each in sensors)]) if sensors else ():
        yield group, " and ".join(labels[each] for each in group)


def _swaps(size: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield all pairs of elements, and the order in which they are swapped."""
    for first, second in itertools.combinations(range(size), 2):
        order = list(range(size))
        order[first], order[second] = second, first
        yield first, second, order


def _orders(size: int) -> Iterator[list[int]]:
    """Yield other orders: first those with two elements swapped, then the rest if there are only a few elements."""
    for _, _, order in _swaps(size):
        yield order
    for permutation in itertools.permutations(range(size)) if size <= _MOST_REORDERED else ():
        if sum(old != new for old, new in enumerate(permutation)) > 2:
            yield list(permutation)


def _masks(question: Question) -> Iterator[tuple[str, BoolArray]]:
    before, _ = np.split(stack(question, question.mask, 2), 2, axis=1)
    yield "is ignored: all actions are allowed", np.zeros_like(question.mask)
    yield "is inverted: forbidden actions are allowed, and allowed ones forbidden", ~question.mask
    yield "is that of the previous decision", before


def _normalizations(network: Network, labels: Sequence[str]) -> Iterator[Change]:
    known = network.normalizations
    for sensors, whose in _together_and_singly(sorted(set(known) & set(range(len(labels)))), labels):
        limit = known[sensors[0]].limit
        plain = network.without_normalization(sensors)
        clipped = _seen_as(dict.fromkeys(sensors, partial(np.clip, a_min=-limit, a_max=limit)))
        normalized = _seen_as({sensor: known[sensor] for sensor in sensors})
        text = f"The observations of {whose} are"
        yield Change(Cause.NORMALIZATION, f"{text} not normalized.", network=plain)
        yield Change(Cause.NORMALIZATION, f"{text} clipped, but not normalized.", clipped, network=plain)
        yield Change(Cause.NORMALIZATION, f"{text} normalized twice.", normalized)


def _actions(network: Network) -> Iterator[Change]:
    size, branches = network.report.continuous_size, network.report.discrete_branches

    def ordered(answer: Answer, order: Sequence[int]) -> Answer:
        gaussian = None if answer.gaussian is None else answer.gaussian[..., order]
        return replace(answer, mode=answer.mode[:, order], gaussian=gaussian)

    def limited(answer: Answer, limit: Alter) -> Answer:
        if answer.gaussian is None or answer.limit:
            return answer
        return replace(answer, mode=limit(answer.gaussian[0]))

    def rolled(answer: Answer, branch: int, shift: int) -> Answer:
        found = (np.roll(each, shift * (k == branch), axis=1) for k, each in enumerate(answer.log_probs))
        return replace(answer, log_probs=tuple(found))

    def swapped(answer: Answer, order: Sequence[int]) -> Answer:
        return replace(answer, log_probs=tuple(answer.log_probs[each] for each in order))

    def action(text: str, alter: Callable[..., Answer], **how: Any) -> Change:
        return Change(Cause.ACTIONS, text, alter=partial(alter, **how))

    for order in _orders(size):
        yield action(f"The continuous actions come in the order {', '.join(map(str, order))}.", ordered, order=order)
    for column in range(size) if size > 1 else ():
        signs = np.where(np.arange(size) == column, -1.0, 1.0).astype(np.float32)
        yield times(signs, f"The continuous action {column} has the opposite sign.")
    if size:
        yield times(np.full(size, -1.0, np.float32), "The continuous actions have the opposite sign.")
        text = "The means of the actions are clipped at -1 and 1, not squashed (tanh), as in ML-Agents' exports of SAC."
        yield action(text, limited, limit=partial(np.clip, a_min=-1.0, a_max=1.0))
        text = "The means of the actions are squashed (tanh), and the model clips them at -1 and 1."
        yield action(text, limited, limit=np.tanh)
    for branch, (shift, how) in itertools.product(range(len(branches)), ((1, "high"), (-1, "low"))):
        yield action(f"The discrete action of branch {branch} is one too {how}.", rolled, branch=branch, shift=shift)
    for order in _orders(len(branches)):
        if [branches[each] for each in order] == list(branches):
            yield action(f"The branches come in the order {', '.join(map(str, order))}.", swapped, order=order)


def times(factors: FloatArray, text: str) -> Change:
    """Return a change that multiplies continuous actions by these factors [C]."""

    def alter(answer: Answer) -> Answer:
        both = np.stack([factors, np.abs(factors)])[:, None]  # standard deviations must be positive
        gaussian = None if answer.gaussian is None else answer.gaussian * both
        return replace(answer, mode=np.clip(answer.mode * factors, -1.0, 1.0), gaussian=gaussian)

    return Change(Cause.ACTIONS, text, alter=alter)


def _sensor_orders(question: Question, labels: Sequence[str]) -> Iterator[Change]:
    """Yield other orders of sensors. Vectors are permuted with all other vectors, other sensors with the same shape."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, values in enumerate(question.obs):
        groups.setdefault(values.shape[1:] if values.ndim > _VECTOR else (), []).append(number)

    def ordered(question: Question, group: Sequence[int], order: Sequence[int]) -> Question:
        values = [question.obs[group[each]] for each in order]
        if values[0].ndim == _VECTOR:  # concatenate all numbers, and split them by the sizes in the right order
            ends = np.cumsum([question.obs[each].shape[1] for each in group])[:-1]
            values = np.split(np.concatenate(values, axis=1), ends, axis=1)
        return question.with_sensors(dict(zip(group, values, strict=True)))

    for group in groups.values():
        for order in _orders(len(group)):
            text = f"The sensors come in a different order: {', '.join(labels[group[each]] for each in order)}."
            yield Change(Cause.SENSOR_ORDER, text, partial(ordered, group=group, order=order))
    for sensor, values in enumerate(question.obs):
        if values.ndim == _LIST:
            text = f"The list of {labels[sensor]} comes number by number instead of entity by entity."
            yield Change(Cause.SENSOR_ORDER, text, _showing(sensor, values.swapaxes(1, 2).reshape(values.shape)))


def _number_orders(values: FloatArray) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield other orders of a vector's numbers."""
    size = values.shape[1]
    if values.ndim != _VECTOR or not 1 < size <= _MOST_NUMBERS:
        return
    plain = np.arange(size)
    for cut in range(1, size):
        yield f"the last {size - cut} numbers come first", np.roll(plain, -cut).tolist()
    if size > 2:
        yield "the numbers come in reverse order", plain[::-1].tolist()
    if size % 3 == 0:
        yield "y and z are swapped", plain.reshape(-1, 3)[:, [0, 2, 1]].ravel().tolist()
    for one, other, order in _swaps(size) if size <= _MOST_SWAPPED else ():
        yield f"the numbers {one} and {other} are swapped", order


def _stacks(question: Question, values: FloatArray, name: str) -> Iterator[tuple[str, FloatArray]]:
    """Yield common mistakes in stacking the frames of a sensor."""
    frames = _frames_of(values, question, name)
    if frames == 1:
        return
    size = values.shape[1] // frames
    newest, zeros = values[:, -size:], np.zeros_like(values[:, :-size])
    late, _ = np.split(stack(question, values, 2), 2, axis=1)
    mixed = values.reshape(len(values), frames, size, *values.shape[2:]).swapaxes(1, 2).reshape(values.shape)
    yield "come in reverse order, the newest first", np.concatenate(np.split(values, frames, axis=1)[::-1], axis=1)
    yield "are not kept: those before the newest are zeros", np.concatenate([zeros, newest], axis=1)
    yield "are not kept: the newest comes first, and the others are zeros", np.concatenate([newest, zeros], axis=1)
    yield "are not kept: all are the newest", np.concatenate([newest] * frames, axis=1)
    yield "are mixed: number by number instead of frame by frame", mixed
    yield "are not cleared when an episode starts", stack(question, newest, frames, cleared=False)
    yield "start with copies of the first one instead of zeros", stack(question, newest, frames, padded=True)
    yield "lack the newest one: they are one decision late", late


def stack(
    question: Question, newest: NDArray[Any], frames: int, *, cleared: bool = True, padded: bool = False
) -> NDArray[Any]:
    """Stack observations [N, *O] with the previous ones along the first axis of O, oldest first as in Unity."""
    rows = np.arange(len(newest))
    begins = np.maximum.accumulate(np.where(question.starts, rows, 0)) if cleared else np.zeros_like(rows)
    parts = []
    for age in reversed(range(frames)):
        part = newest[np.maximum(rows - age, begins)]
        if not padded:
            part[rows - age < begins] = 0.0
        parts.append(part)
    return np.concatenate(parts, axis=1)


def _frames_of(values: FloatArray, question: Question, name: str) -> int:
    """Return the number of frames that a sensor stacks, judging by its name or its values; 1 if it does not stack."""
    size = values.shape[1]
    named = _STACKING.match(name)
    if named and int(named[1]) and size % int(named[1]) == 0:
        return int(named[1])
    inside = np.flatnonzero(~question.starts)
    for frames in range(size, 1, -1) if values.ndim != _LIST and len(inside) else ():
        part = size // frames
        if size % frames == 0 and np.array_equal(values[inside, : size - part], values[inside - 1, part:]):
            return frames if values[:, -part:].std(axis=0).any() else 1
    return 1


def _scales(labels: Sequence[str]) -> Iterator[Change]:
    for sensor, label in enumerate(labels):
        text = f"The network sees only zeros of {label}, or numbers that are much too small."
        yield Change(Cause.SCALE, text, _seen_as({sensor: np.zeros_like}))
    for factor in itertools.chain(_FACTORS, (1 / each for each in _FACTORS)):
        for sensors, _ in _together_and_singly(range(len(labels)), labels):
            yield scaled(sensors, labels, factor)
    yield scaled(range(len(labels)), labels, -1.0)


def scaled(sensors: Sequence[int], labels: Sequence[str], factor: float) -> Change:
    """Return a change that multiplies observations by a factor."""
    shown = f"{factor:.4g} times" if abs(factor) >= 1 or factor < 0 else f"1/{1 / factor:.4g} of"
    text = f"The network sees {shown} the observations of {' and '.join(labels[each] for each in sensors)}."
    ask = _seen_as(dict.fromkeys(sensors, lambda x: x * np.float32(factor)))
    return Change(Cause.SCALE, text, ask, scaled=(tuple(sensors), factor))


def refitted(network: Network, recording: RecordedDecisions) -> Iterator[Change]:
    """Yield changes that could explain why the model has other sensor shapes than the recording."""
    question, labels = recording.question, recording.labels
    shapes = question.shapes
    names = [contract.observation_name(number) for number in range(len(shapes))]
    names = list(network.shapes) if network.report.is_legacy else names
    if len(names) != len(shapes) or network.shapes.keys() != set(names):
        return
    wanted = [network.shapes[name] for name in names]
    for order in itertools.permutations(range(len(shapes))) if len(shapes) <= _MOST_REORDERED else ():
        if [shapes[each] for each in order] == wanted and list(order) != sorted(order):
            text = f"The model expects the sensors in a different order: {', '.join(labels[each] for each in order)}."
            obs = tuple(question.obs[each] for each in order)
            yield Change(Cause.SENSOR_ORDER, text, partial(replace, obs=obs))
    others = [number for number, (own, other) in enumerate(zip(shapes, wanted, strict=True)) if own != other]
    if len(others) != 1:
        return
    sensor, values, label = others[0], question.obs[others[0]], labels[others[0]]
    own, other = shapes[sensor], wanted[sensor]
    if own[1:] == other[1:] and other[0] % own[0] == 0:
        text = f"The model expects {other[0] // own[0]} stacked frames of {label}, but only one was recorded."
        yield Change(Cause.STACKING, text, _showing(sensor, stack(question, values, other[0] // own[0])))
    elif own[1:] == other[1:] and own[0] % other[0] == 0:
        text = f"{own[0] // other[0]} stacked frames of {label} were recorded, but the model expects only one."
        yield Change(Cause.STACKING, text, _showing(sensor, values[:, -other[0] :]))
    for axes in itertools.permutations(range(3)) if len(own) == 3 else ():
        if tuple(own[axis] for axis in axes) == other:
            text = f"The pictures of {label} were recorded as {own}, but the model expects {other}."
            shown = values.transpose(0, *(axis + 1 for axis in axes))
            yield Change(Cause.PICTURES, text, _showing(sensor, shown))
