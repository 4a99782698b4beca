"""A policy as a small program for one agent, with loops over arrays of numbers. It is the same for all languages.

Expressions are text in a syntax that C, C#, JavaScript and GDScript almost share: ``@3[i0 * 4 + 1]`` is an element of
array 3, functions have the names of C's ``math.h``, and numbers with a decimal point are floats. A language only has to
print the four kinds of statements and replace these names.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ELEMENT = re.compile(r"@(\d+)\[")


def with_point(number: str) -> str:
    """Return a number in decimal form with a decimal point, which marks it as a float: "1.0e-05" for "1e-05"."""
    mantissa, exponent, power = number.partition("e")
    return (mantissa if "." in mantissa else mantissa + ".0") + exponent + power


class ArrayRole(enum.Enum):
    """The role of an array. Arrays of the caller hold ``size`` numbers for each agent, agent by agent."""

    WEIGHTS = "weights"
    SCRATCH = "scratch"  # in the workspace, at ``Program.offsets``
    OBSERVATION = "observation"
    MASK = "mask"
    MEMORY = "memory"
    RANDOM = "random"
    CONTINUOUS = "continuous"
    DISCRETE = "discrete"


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """An array, which statements refer to by its number in ``Program.arrays``. ``values`` are weights, flattened."""

    role: ArrayRole
    size: int
    name: str = ""
    values: NDArray[np.float32] | None = None


class Let(NamedTuple):
    """A declaration of a local number."""

    name: str
    value: str


class Set(NamedTuple):
    """An assignment to an element or a local number."""

    target: str
    value: str


class For(NamedTuple):
    """A loop over 0, step, 2 step, ... below ``stop``."""

    variable: str
    stop: int
    body: Sequence[Statement]
    step: int = 1


class If(NamedTuple):
    """A conditional; ``otherwise`` may be empty."""

    condition: str
    then: Sequence[Statement]
    otherwise: Sequence[Statement] = ()


Statement = Let | Set | For | If


class Step(NamedTuple):
    """The statements of one operator."""

    comment: str
    body: Sequence[Statement]


class SensorInput(NamedTuple):
    """The input for one sensor: ``size`` numbers per agent."""

    name: str
    shape: tuple[int, ...]
    size: int


@dataclass(slots=True)
class Program:
    """The steps of one decision: ``common``, then either ``deterministic`` or ``sampled``.

    Attributes:
        branches: sizes of the discrete branches; a mask has one number for each action of each branch.
        random_size: number of uniform random numbers that one agent's sampled decision needs.
        offsets: offset of each scratch array in the workspace, which has ``workspace_size`` numbers. Arrays that are
            not used at the same time may overlap.
    """

    sensors: list[SensorInput]
    continuous_size: int
    branches: tuple[int, ...]
    memory_size: int
    random_size: int = 0
    arrays: list[Array] = field(default_factory=list)
    common: list[Step] = field(default_factory=list)
    deterministic: list[Step] = field(default_factory=list)
    sampled: list[Step] = field(default_factory=list)
    offsets: dict[int, int] = field(default_factory=dict)
    workspace_size: int = 0

    def add(self, array: Array) -> int:
        """Add an array, and return its number."""
        self.arrays.append(array)
        return len(self.arrays) - 1

    def plan_workspace(self) -> None:
        """Assign each scratch array the lowest offset that is free from its first to its last step."""
        spans: dict[int, list[int]] = {}  # number of an array -> its first and last step
        for time, step in enumerate((*self.common, *self.deterministic, *self.sampled)):
            for number in _mentioned(step.body):
                if self.arrays[number].role is ArrayRole.SCRATCH:
                    spans.setdefault(number, [time, time])[1] = time
        for number in sorted(spans, key=lambda number: -self.arrays[number].size):
            first, last = spans[number]
            taken = sorted(
                (begin, begin + self.arrays[other].size)
                for other, begin in self.offsets.items()
                if spans[other][0] <= last and first <= spans[other][1]
            )
            offset, size = 0, self.arrays[number].size
            for begin, end in taken:
                if offset + size <= begin:
                    break
                offset = max(offset, end)
            self.offsets[number] = offset
            self.workspace_size = max(self.workspace_size, offset + size)


def _mentioned(body: Iterable[Statement]) -> Iterator[int]:
    for statement in body:
        match statement:
            case For(body=inner):
                yield from _mentioned(inner)
            case If(condition, then, otherwise):
                yield from map(int, ELEMENT.findall(condition))
                yield from _mentioned((*then, *otherwise))
            case Let(left, right) | Set(left, right):
                yield from map(int, ELEMENT.findall(left + right))
