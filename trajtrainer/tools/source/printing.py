"""Shared code for all languages: statements, numbers, and the comment at the top of a file."""

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.printable import counted, one_line
from trajtrainer.core.version import __version__
from trajtrainer.policies.checkpoints.export_saved import Origin
from trajtrainer.tools.source.program import (
    ArrayRole,
    For,
    If,
    Let,
    Program,
    SensorInput,
    Set,
    Statement,
    Step,
    with_point,
)

_WIDTH: Final = 118
_ELEMENT: Final = re.compile(r"@(\d+)\[(-?\d+\])?")
_FUNCTION: Final = re.compile(r"\b([a-z]+)\(")
_FLOAT: Final = re.compile(r"(?<![\w.])(\d+\.\d+(?:e[+-]?\d+)?)")
_STACKED: Final = re.compile(r"StackingSensor_size(\d+)_")


@dataclass(frozen=True, slots=True)
class Syntax:
    """The syntax of a language. The defaults are those of languages with braces.

    Attributes:
        functions: function name -> the text to write for the name and its opening parenthesis, if it differs.
        table: pattern of a weight array: its name, number, size and text.
        weights: pattern for the names of weight arrays, with ``{}`` for the number.
        comment: pattern of a comment, with ``{}`` for its text.
        float_suffix: suffix of numbers with a decimal point.
        encoded: pattern of many numbers, with ``{}`` for base64; "" if the language cannot decode it.
        listed: pattern of numbers, with ``{}`` for the lines.
        let: pattern of a declaration: name and value.
        end: end of a statement.
        loop: pattern of a loop's first line: variable, stop and step.
        loop_by_one: the same for a step of 1.
        condition: pattern of a condition, with ``{}`` for the expression.
        otherwise: line between the two branches of a condition.
        has_braces: whether blocks end with a brace.
        indent: indentation of a block.
        outer_indent: indentation of the loop over agents and of a decision's branches.
    """

    functions: Mapping[str, str]
    table: str
    weights: str = "weights{}"
    comment: str = "// {}"
    float_suffix: str = ""
    encoded: str = ""
    listed: str = "{{\n{}}}"
    let: str = "float {} = {}"
    end: str = ";"
    loop: str = "for (int {0} = 0; {0} < {1}; {0} += {2}) {{"
    loop_by_one: str = "for (int {0} = 0; {0} < {1}; {0}++) {{"
    condition: str = "if ({}) {{"
    otherwise: str = "} else {"
    has_braces: bool = True
    indent: str = "  "
    outer_indent: str = "  "

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

    def decisions(self, program: Program, pad: str) -> list[str]:
        """Return the lines of the loop over all agents, with the decision of each one."""
        body, inner = pad + self.outer_indent, pad + 2 * self.outer_indent
        return [
            pad + self.loop_by_one.format("agent", "agents"),
            *self._steps(program, program.common, body),
            body + self.condition.format("deterministic"),
            *self._steps(program, program.deterministic, inner),
            body + self.otherwise,
            *self._steps(program, program.sampled, inner),
            *self._end_of_block(body),
            *self._end_of_block(pad),
        ]

    def _steps(self, program: Program, steps: Iterable[Step], pad: str) -> list[str]:
        """Return the lines of steps. Each step has a comment above it, and its own block if there are braces."""
        lines = []
        for step in steps:
            lines.append(pad + self.comment.format(safe(step.comment)))
            if self.has_braces:
                lines += [pad + "{", *self._body(program, step.body, pad + self.indent), pad + "}"]
            else:
                lines += self._body(program, step.body, pad)
        return lines

    def _body(self, program: Program, body: Iterable[Statement], pad: str) -> list[str]:
        lines: list[str] = []
        inside = pad + self.indent
        for statement in body:
            match statement:
                case Let(name, value):
                    lines.append(pad + self.let.format(name, self.expression(program, value)) + self.end)
                case Set(target, value):
                    text = f"{self.expression(program, target)} = {self.expression(program, value)}"
                    lines.append(pad + text + self.end)
                case For(name, stop, inner, step):
                    first = self.loop_by_one if step == 1 else self.loop
                    lines += [pad + first.format(name, stop, step), *self._body(program, inner, inside)]
                    lines += self._end_of_block(pad)
                case If(condition, then, otherwise):
                    lines.append(pad + self.condition.format(self.expression(program, condition)))
                    lines += self._body(program, then, inside)
                    if otherwise:
                        lines += [pad + self.otherwise, *self._body(program, otherwise, inside)]
                    lines += self._end_of_block(pad)
        return lines

    def _end_of_block(self, pad: str) -> list[str]:
        return [pad + "}"] if self.has_braces else []

    def tables(self, program: Program) -> str:
        """Return the declarations of all weights."""
        return "\n".join(
            self.table.format(name=safe(array.name), number=number, size=array.size, text=self._literal(array.values))
            for number, array in enumerate(program.arrays)
            if array.values is not None
        )

    def _literal(self, values: NDArray[np.float32]) -> str:
        """Write values in the shorter form: little-endian base64, or the shortest decimal forms of float32 numbers."""
        if self.encoded and len(values) > 2:  # 5.3 characters per number instead of about 12
            return self.encoded.format(base64.b64encode(values.astype("<f4").tobytes()).decode())
        texts = (with_point(text) + self.float_suffix for text in values.astype(str).tolist())
        return self.listed.format(_in_lines(texts))


def _in_lines(texts: Iterable[str]) -> str:
    """Join texts with commas, and break the result into lines."""
    lines, line = [], "  "
    for text in texts:
        if len(line) + len(text) > _WIDTH:
            lines.append(line.rstrip())
            line = "  "
        line += text + ", "
    return "\n".join([*lines, line.rstrip(" ,")])


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
