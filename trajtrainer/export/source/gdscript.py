"""A policy as a GDScript for Godot 4."""

from __future__ import annotations

import json
from collections.abc import Iterable

from trajtrainer.export.source.printing import (
    Origin,
    Syntax,
    about,
    decimals,
    identifier,
    in_base64,
    in_lines,
    is_shorter_in_base64,
    safe,
    weights,
)
from trajtrainer.export.source.program import For, If, Let, Program, Set, Statement, Step

_FLOAT_FUNCTIONS = ("max", "min", "abs", "floor", "ceil")
_SYNTAX = Syntax(functions={name: f"{name}f(" for name in _FLOAT_FUNCTIONS}, float_suffix="", weights="weights{}")


def write_gdscript(program: Program, origin: Origin) -> str:
    """Return the text of the file."""
    comment = "\n".join(f"# {line}".rstrip() for line in about(program, origin, "Godot 4", {"stack": "stack()"}))
    tables = []
    for number, array, values in weights(program):
        text = (
            f'Marshalls.base64_to_raw("{in_base64(values)}").to_float32_array()'
            if is_shorter_in_base64(values)
            else f"PackedFloat32Array([\n{in_lines(decimals(values))}])"
        )
        tables.append(
            (f"# {safe(array.name)}\n" if array.name else "")
            + f"static var weights{number}: PackedFloat32Array = {text}"
        )
    names = json.dumps([safe(sensor.name) for sensor in program.sensors], ensure_ascii=False)
    sizes = [sensor.size for sensor in program.sensors]
    code = [f"\tvar observation{k}: PackedFloat32Array = observations[{k}]" for k in range(len(sizes))]
    code.append("\tfor agent in agents:")
    code += _steps(program, program.common, 2)
    code += ["\t\tif deterministic:", *_steps(program, program.deterministic, 3)]
    code += ["\t\telse:", *_steps(program, program.sampled, 3)]
    body = "\n".join(code)
    joined = "\n".join(tables)
    return f"""{comment}

class_name Policy{identifier(origin.behavior)}
extends RefCounted

const SENSORS: Array[String] = {names}
# Numbers per agent.
const OBSERVATION_SIZES: Array[int] = {sizes}
const CONTINUOUS_SIZE := {program.continuous_size}
const DISCRETE_SIZE := {len(program.branches)}
const MASK_SIZE := {sum(program.branches)}
const MEMORY_SIZE := {program.memory_size}
const RANDOM_SIZE := {program.random_size}

{joined}

# The latest decision, one agent after the other.
var continuous := PackedFloat32Array()
var discrete := PackedInt32Array()

var work := PackedFloat32Array()


# Decides for up to so many agents at a time. Each thread needs a policy of its own.
func _init(max_agents: int = 1) -> void:
\twork.resize({max(1, program.workspace_size)})
\tcontinuous.resize(max_agents * CONTINUOUS_SIZE)
\tdiscrete.resize(max_agents * DISCRETE_SIZE)


# Writes the actions into continuous and discrete. An empty mask allows all actions. memory is replaced by that after
# the decision. random may be empty if deterministic, which takes the most likely action instead of drawing one.
func decide(
\tobservations: Array[PackedFloat32Array],
\tmask: PackedFloat32Array,
\tmemory: PackedFloat32Array,
\trandom: PackedFloat32Array,
\tdeterministic: bool
) -> void:
\tvar agents: int = observations[0].size() / OBSERVATION_SIZES[0]
\tfor sensor in SENSORS.size():
\t\tassert(observations[sensor].size() == agents * OBSERVATION_SIZES[sensor], "observations of " + SENSORS[sensor])
\tassert(mask.is_empty() || mask.size() == agents * MASK_SIZE, "mask")
\tassert(memory.size() == agents * MEMORY_SIZE, "memory")
\tassert(deterministic || random.size() == agents * RANDOM_SIZE, "random")
\tvar has_mask := !mask.is_empty()
{body}


# Drops the oldest of an agent's stacked frames and appends the newest; begin an episode with zeros.
static func stack(stacked: PackedFloat32Array, frame: PackedFloat32Array) -> void:
\tvar kept := stacked.size() - frame.size()
\tfor i in kept:
\t\tstacked[i] = stacked[i + frame.size()]
\tfor i in frame.size():
\t\tstacked[kept + i] = frame[i]
"""


def _steps(program: Program, steps: Iterable[Step], depth: int) -> list[str]:
    lines = []
    for step in steps:
        lines += ["\t" * depth + f"# {safe(step.comment)}", *_body(program, step.body, depth)]
    return lines


def _body(program: Program, body: Iterable[Statement], depth: int) -> list[str]:
    lines: list[str] = []
    pad = "\t" * depth
    for statement in body:
        match statement:
            case Let(name, value):
                lines.append(f"{pad}var {name}: float = {_SYNTAX.expression(program, value)}")
            case Set(target, value):
                lines.append(f"{pad}{_SYNTAX.expression(program, target)} = {_SYNTAX.expression(program, value)}")
            case For(name, stop, inner, step):
                counts = str(stop) if step == 1 else f"range(0, {stop}, {step})"
                lines += [f"{pad}for {name} in {counts}:", *_body(program, inner, depth + 1)]
            case If(condition, then, otherwise):
                lines += [f"{pad}if {_SYNTAX.expression(program, condition)}:", *_body(program, then, depth + 1)]
                if otherwise:
                    lines += [f"{pad}else:", *_body(program, otherwise, depth + 1)]
    return lines
