"""What can go wrong between a trained policy and a game that acts with it, as changes that are tried one by one.

A change says what the network in the game was asked, or what became of its answer, other than was recorded.
"""

import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from trajtrainer.core.spec import ObservationSpec
from trajtrainer.core.steps import BoolArray, FloatArray
from trajtrainer.tools.verify.network import Answer, MemoryHandling, Network, Question

_MOST_ORDERED: Final = 5  # of which all orders are tried
_ORDER_ADVICE: Final = "Use the actions in the order in which the model gives them."
Ask = Callable[[Question], Question]
Alter = Callable[[Answer], Answer]


class Cause(enum.Enum):
    """The kinds of changes, in the user's words."""

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
    SPREAD = "spread of the sampled actions"
    ACTIONS = "order or scale of the actions"


@dataclass(frozen=True, slots=True)
class Change:
    """One way in which a game may differ from the recording and the model.

    Attributes:
        cause: the kind.
        text: what the game did, as a sentence.
        advice: what to do about it, as a sentence.
        ask: what the network was asked instead.
        memory: what became of its memory.
        network: that the game had instead.
        delay: decisions after an observation at which its answer was acted on.
        alter: what became of the answer.
        scaled, factor: the sensors whose unit differs, if it is that, and by what.
    """

    cause: Cause
    text: str
    advice: str = ""
    ask: Ask | None = None
    memory: MemoryHandling = MemoryHandling.KEPT
    network: Network | None = None
    delay: int = 0
    alter: Alter | None = None
    scaled: tuple[int, ...] = ()
    factor: float = 1.0


def label_of(number: int, spec: ObservationSpec) -> str:
    """How a sensor is called in messages."""
    return f"sensor {number} ({spec.name!r})" if spec.name else f"sensor {number}"


def on_sensors(sensors: Sequence[int], function: Callable[[FloatArray], FloatArray]) -> Ask:
    """The question in which the observations of these sensors are changed."""

    def ask(question: Question) -> Question:
        for sensor in sensors:
            values = np.ascontiguousarray(function(question.obs[sensor]), dtype=np.float32)
            question = question.with_sensor(sensor, values)
        return question

    return ask


def together_and_singly(sensors: Sequence[int]) -> list[list[int]]:
    """All sensors and, where there are several, each alone."""
    return [list(sensors)] * bool(sensors) + [[each] for each in sensors] * (len(sensors) > 1)


def permutations(group: Sequence[int]) -> Iterator[list[int]]:
    """Yield other orders: first those in which two are exchanged, then, of few, all others."""
    for first, second in itertools.combinations(range(len(group)), 2):
        order = list(group)
        order[first], order[second] = order[second], order[first]
        yield order
    if 2 < len(group) <= _MOST_ORDERED:
        for permutation in itertools.permutations(group):
            if sum(old != new for old, new in zip(group, permutation, strict=True)) > 2:
                yield list(permutation)


def changes_around_network(network: Network, question: Question, specs: Sequence[ObservationSpec]) -> Iterator[Change]:
    """Yield changes of timing, memory, mask, normalization and of what is made of the answers."""
    advice = "Act on the answer to the newest observation, in the frame in which it was observed."
    yield Change(Cause.TIMING, "The game acts one decision late: on the observation before.", advice, delay=1)
    yield Change(Cause.TIMING, "The game acts two decisions late.", advice, delay=2)
    yield Change(
        Cause.TIMING,
        "Each action is recorded with the observation after the one that it answers.",
        "Record with Unity's Demonstration Recorder or `trajtrainer record`.",
        delay=-1,
    )
    if network.memory_size:
        text = "The memory is not cleared when an episode begins."
        advice = "Set the memory to 0 at the beginning of each episode."
        yield Change(Cause.MEMORY, text, advice, memory=MemoryHandling.NEVER_CLEARED)
        text = "The memory is empty at every decision."
        advice = "Keep the memory that each decision returns, for each agent, and hand it to the next decision."
        yield Change(Cause.MEMORY, text, advice, memory=MemoryHandling.ALWAYS_CLEARED)
    if question.mask.any():
        yield from _of_mask()
    yield from _of_normalization(network, [label_of(number, spec) for number, spec in enumerate(specs)])
    if network.report.continuous_size:
        yield from _of_continuous(network.report.continuous_size)
    yield from _of_discrete(network.report.discrete_branches)


def _of_mask() -> Iterator[Change]:
    def with_mask(function: Callable[[Question], BoolArray]) -> Ask:
        return lambda question: replace(question, mask=function(question))

    def before(question: Question) -> BoolArray:
        mask = np.concatenate([np.zeros_like(question.mask[:1]), question.mask[:-1]])
        mask[question.starts] = False
        return mask

    advice = "Hand over the mask of this very decision: 1 allows an action, 0 forbids it."
    for text, function in (
        ("The mask is ignored: all actions are allowed.", lambda question: np.zeros_like(question.mask)),
        ("The mask is reversed: what is forbidden is allowed.", lambda question: ~question.mask),
        ("The mask is that of the decision before.", before),
    ):
        yield Change(Cause.MASK, text, advice, with_mask(function))


def _of_normalization(network: Network, labels: Sequence[str]) -> Iterator[Change]:
    normalizations = network.normalizations
    for sensors in together_and_singly(sorted(sensor for sensor in normalizations if sensor < len(labels))):
        observed = f"The observations of {' and '.join(labels[each] for each in sensors)}"
        plain = network.without_normalization(sensors)
        limit = normalizations[sensors[0]].limit

        def normalized(question: Question, sensors: Sequence[int] = sensors) -> Question:
            for sensor in sensors:
                question = question.with_sensor(sensor, normalizations[sensor](question.obs[sensor]))
            return question

        advice = "Use a model with its normalization, or subtract the mean and divide by the deviation of the training."
        yield Change(Cause.NORMALIZATION, f"{observed} are not normalized.", advice, network=plain)
        yield Change(
            Cause.NORMALIZATION,
            f"{observed} are normalized by a mean of 0 and a deviation of 1: they are only cut off.",
            "Use the mean and the deviation of the training.",
            on_sensors(sensors, partial(np.clip, a_min=-limit, a_max=limit)),
            network=plain,
        )
        advice = "Normalization is part of the model: hand it the observations as they are."
        yield Change(Cause.NORMALIZATION, f"{observed} are normalized twice.", advice, normalized)


def _of_continuous(size: int) -> Iterator[Change]:
    def ordered(answer: Answer, order: Sequence[int]) -> Answer:
        mean = None if answer.mean is None else answer.mean[:, order]
        spread = None if answer.spread is None else answer.spread[:, order]
        return replace(answer, mode=answer.mode[:, order], mean=mean, spread=spread)

    for order in permutations(range(size)):
        text = f"The continuous actions come in the order {', '.join(map(str, order))}."
        yield Change(Cause.ACTIONS, text, _ORDER_ADVICE, alter=partial(ordered, order=order))
    for column in range(size) if size > 1 else []:
        signs = np.where(np.arange(size) == column, -1.0, 1.0).astype(np.float32)
        yield times(signs, f"The continuous action {column} has the other sign.")
    yield times(np.full(size, -1.0, np.float32), "The continuous actions have the other sign.")

    def with_mode(answer: Answer, *, squashed: bool) -> Answer:
        if answer.mean is None or answer.limit:
            return answer
        return replace(answer, mode=np.tanh(answer.mean) if squashed else np.clip(answer.mean, -1.0, 1.0))

    text = "The means of the actions are cut off at -1 and 1, not squashed (tanh), as in ML-Agents' own exports of SAC."
    advice = "Export the model with trajtrainer, or untick Deterministic Inference."
    yield Change(Cause.ACTIONS, text, advice, alter=partial(with_mode, squashed=False))
    text = "The means of the actions are squashed (tanh), and the model cuts them off at -1 and 1."
    advice = "Compare with the model that the game has."
    yield Change(Cause.ACTIONS, text, advice, alter=partial(with_mode, squashed=True))


def times(factors: FloatArray, text: str) -> Change:
    """The change of continuous actions by these factors [C]."""

    def alter(answer: Answer) -> Answer:
        mean = None if answer.mean is None else answer.mean * factors
        spread = None if answer.spread is None else answer.spread * np.abs(factors)
        return replace(answer, mode=np.clip(answer.mode * factors, -1.0, 1.0), mean=mean, spread=spread)

    return Change(Cause.ACTIONS, text, "Use the actions in the range in which the model gives them.", alter=alter)


def _of_discrete(branches: Sequence[int]) -> Iterator[Change]:
    def moved(answer: Answer, branch: int, shift: int) -> Answer:
        found = list(answer.log_probs)
        found[branch] = np.roll(found[branch], shift, axis=1)
        return replace(answer, log_probs=tuple(found))

    def exchanged(answer: Answer, one: int, other: int) -> Answer:
        found = list(answer.log_probs)
        found[one], found[other] = found[other], found[one]
        return replace(answer, log_probs=tuple(found))

    for branch in range(len(branches)):
        for shift, how in ((1, "one too high"), (-1, "one too low")):
            alter = partial(moved, branch=branch, shift=shift)
            text = f"The discrete action of branch {branch} is {how}."
            yield Change(Cause.ACTIONS, text, "Discrete actions count from 0.", alter=alter)
    for one, other in itertools.combinations(range(len(branches)), 2):
        if branches[one] == branches[other]:
            alter = partial(exchanged, one=one, other=other)
            text = f"The branches {one} and {other} are in each other's place."
            yield Change(Cause.ACTIONS, text, _ORDER_ADVICE, alter=alter)
