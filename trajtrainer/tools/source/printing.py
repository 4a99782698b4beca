"""Shared code for all languages: statements, numbers, and the comment at the top of a file."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.printable import counted, one_line
from trajtrainer.core.version import __version__
from trajtrainer.policies.checkpoints.saved_policies import Origin
from trajtrainer.tools.source.program import Array, ArrayRole, For, If, Let, Program, SensorInput, Set, Statement, Step

_WIDTH: Final = 118
_ELEMENT: Final = re.compile(r"@(\d+)\[(-?\d+\])?")
_FUNCTION: Final = re.compile(r"\b([a-z]+)\(")
_FLOAT: Final = re.compile(r"(?<![\w.])(\d+\.\d+(?:e[+-]?\d+)?)")
_STACKED: Final = re.compile(r"StackingSensor_size(\d+)_")


@dataclass(frozen=True, slots=True)
class Syntax:
    """The syntax of expressions in a language.

    Attributes:
        functions: function name -> the text to write for the name and its opening parenthesis, if it differs.
        float_suffix: suffix of numbers with a decimal point.
        weights: pattern for the names of weight arrays, with ``{}`` for the number.
    """

    functions: Mapping[str, str]
    float_suffix: str
    weights: str

    def expression(self, program: Program, text: str) -> str:
        """Translate an expression of the program to this language."""

        def element(found: re.Match[str]) -> str:
            number = int(found[1])
            array = program.arrays[number]
            if array.role is ArrayRole.SCRATCH:
                offset = program.offsets[number]
                return f"work[{offset + int(found[2][:-1])}]" if found[2] else f"work[{offset} + "
            if array.role is ArrayRole.WEIGHTS:
                return f"{self.weights.format(number)}[{found[2] or ''}"
            name = array.name or array.role.value
            start = "" if array.size == 0 else f"agent * {array.size} + "
            return f"{name}[{start}{found[2] or ''}"

        text = _FLOAT.sub(rf"\g<1>{self.float_suffix}", text)
        text = _FUNCTION.sub(lambda found: self.functions.get(found[1], found[0]), text)
        return _ELEMENT.sub(element, text)


class Braces:
    """Writes statements in C and languages with a similar syntax.

    Args:
        syntax: the syntax of expressions.
        local: keyword that declares a local number.
        counter: keyword that declares a loop variable.
        comment: pattern of a comment, with ``{}`` for its text.
        step: indentation of a decision's branches.
    """

    def __init__(self, syntax: Syntax, local: str, counter: str, comment: str = "// {}", step: int = 2) -> None:
        self._syntax, self._local, self._counter, self._comment, self._step = syntax, local, counter, comment, step

    def steps(self, program: Program, steps: Iterable[Step], indent: int) -> list[str]:
        """Return the lines of steps. Each step is a block with a comment above it."""
        lines = []
        for step in steps:
            lines += [" " * indent + self._comment.format(safe(step.comment)), " " * indent + "{"]
            lines += self._body(program, step.body, indent + 2)
            lines.append(" " * indent + "}")
        return lines

    def decision(self, program: Program, indent: int) -> list[str]:
        """Return the lines of one agent's decision."""
        pad = " " * indent
        lines = [*self.steps(program, program.common, indent), f"{pad}if (deterministic) {{"]
        lines += [*self.steps(program, program.deterministic, indent + self._step), f"{pad}}} else {{"]
        return [*lines, *self.steps(program, program.sampled, indent + self._step), f"{pad}}}"]

    def _body(self, program: Program, body: Iterable[Statement], indent: int) -> list[str]:
        lines: list[str] = []
        pad = " " * indent
        for statement in body:
            match statement:
                case Let(name, value):
                    lines.append(f"{pad}{self._local} {name} = {self._syntax.expression(program, value)};")
                case Set(target, value):
                    text = f"{self._syntax.expression(program, target)} = {self._syntax.expression(program, value)};"
                    lines.append(pad + text)
                case For(name, stop, inner, step):
                    forward = f"{name}++" if step == 1 else f"{name} += {step}"
                    lines.append(f"{pad}for ({self._counter} {name} = 0; {name} < {stop}; {forward}) {{")
                    lines += [*self._body(program, inner, indent + 2), pad + "}"]
                case If(condition, then, otherwise):
                    lines.append(f"{pad}if ({self._syntax.expression(program, condition)}) {{")
                    lines += self._body(program, then, indent + 2)
                    if otherwise:
                        lines += [pad + "} else {", *self._body(program, otherwise, indent + 2)]
                    lines.append(pad + "}")
        return lines


def weights(program: Program) -> list[tuple[int, Array, NDArray[np.float32]]]:
    """Return number, array and values of all weights."""
    return [(number, array, array.values) for number, array in enumerate(program.arrays) if array.values is not None]


def decimals(values: NDArray[np.float32]) -> list[str]:
    """Return the shortest decimal forms of float32 numbers, each with a decimal point."""
    texts = []
    for text in values.astype(str).tolist():
        mantissa, exponent, power = text.partition("e")
        texts.append((mantissa if "." in mantissa else mantissa + ".0") + exponent + power)
    return texts


def in_lines(texts: Sequence[str], indent: str = "  ") -> str:
    """Join texts with commas, and break the result into lines."""
    lines, line = [], indent
    for text in texts:
        if len(line) + len(text) > _WIDTH:
            lines.append(line.rstrip())
            line = indent
        line += text + ", "
    return "\n".join([*lines, line.rstrip(" ,")])


def literal(values: NDArray[np.float32], encoded: str, listed: str, suffix: str = "") -> str:
    """Write values in the shorter form: ``encoded`` with little-endian base64, or ``listed`` with decimal numbers."""
    if encoded and len(values) > 2:  # 5.3 characters per number instead of about 12
        return encoded.format(base64.b64encode(values.astype("<f4").tobytes()).decode())
    return listed.format(in_lines([text + suffix for text in decimals(values)]))


def identifier(behavior: str) -> str:
    """Convert a behavior's name to a part of an identifier."""
    return re.sub(r"[^0-9A-Za-z_]", "_", behavior)


def pascal_case(behavior: str) -> str:
    """Convert a behavior's name to a part of a class name: "SharedPolicy" for "shared_policy"."""
    return "".join(word[:1].upper() + word[1:] for word in identifier(behavior).split("_"))


def safe(text: str) -> str:
    """Put a text on one line, and keep it from ending a comment."""
    return one_line(text).replace("*/", "* /")


def stacked_frames(sensor: SensorInput) -> int:
    """Return how many observations a Unity stacking sensor holds, according to its name; 1 for other sensors."""
    found = _STACKED.match(sensor.name)
    frames = int(found[1]) if found else 1
    return frames if frames and sensor.size % frames == 0 else 1


def about(program: Program, origin: Origin, language: str, stack: str, prefix: str) -> str:
    """Return the comment at the top of a file.

    Args:
        program: the policy's program.
        origin: where the policy comes from.
        language: name of the language.
        stack: name of the function for stacked frames in this language.
        prefix: text at the start of each line.
    """
    run = "" if origin.run is None else f" of the run {safe(origin.run)!r}"
    lines = [
        f"The policy of {safe(origin.behavior)!r}{run} after {origin.step} steps, for {language}.",
        f"Written by trajtrainer {__version__}. It needs no other files.",
        "",
        "License: Apache-2.0 for the code, like trajtrainer. The weights belong to the people who trained them.",
        "",
        "Observations, as float32, agent by agent:",
    ]
    for index, sensor in enumerate(program.sensors):
        shape = " x ".join(map(str, sensor.shape))
        kinds = {2: " (entities, size; unused entities are zeros)", 3: " (channels, height, width; pixels from 0 to 1)"}
        frames = stacked_frames(sensor)
        stacked = f": {frames} frames of {sensor.size // frames}, oldest first, see {stack}" if frames > 1 else ""
        lines.append(f"  {index}: {safe(sensor.name)!r}, {shape}{kinds.get(len(sensor.shape), '')}{stacked}")
    lines.append("Actions:")
    if program.continuous_size:
        lines.append(f"  {program.continuous_size} continuous, from -1 to 1")
    if program.branches:
        sizes = ", ".join(map(str, program.branches))
        lines += [
            f"  {counted(len(program.branches), 'discrete branch').replace('branchs', 'branches')} of {sizes} actions",
            f"Mask: {sum(program.branches)} numbers per agent, branch by branch: 1 allows an action, 0 forbids it.",
            "  Without a mask, all actions are allowed.",
        ]
    if program.memory_size:
        lines += [
            f"Memory: {program.memory_size} numbers per agent. Keep them from one decision to the next;",
            "  set them to 0 when an episode starts.",
        ]
    drawn = f"{program.random_size} numbers per agent, drawn uniformly from 0 to 1"
    lines.append(f"Random: {drawn}. Without them, decide deterministically.")
    return "\n".join(f"{prefix}{line}".rstrip() for line in lines)
