"""Writes a policy in each language: C99 (also valid C++), C#, JavaScript (an ES module), and GDScript."""

import json
import re
from collections.abc import Iterable
from typing import Final

from trajtrainer.policies.checkpoints.saved_policies import Origin
from trajtrainer.tools.source.printing import (
    Braces,
    Syntax,
    about,
    decimals,
    identifier,
    in_lines,
    literal,
    pascal_case,
    safe,
    weights,
)
from trajtrainer.tools.source.program import For, If, Let, Program, Set, Statement, Step
from trajtrainer.tools.templates import fill

_PACKAGE = "trajtrainer.tools.source"
_C_MATH = ("exp", "log", "sqrt", "tanh", "sin", "cos", "pow", "floor", "ceil")

_CSHARP_MATH = ("Exp", "Log", "Sqrt", "Tanh", "Sin", "Cos", "Pow", "Floor", "Ceiling")
_CSHARP = Syntax(
    functions={
        **{name.lower().removesuffix("ing"): f"(float)Math.{name}(" for name in _CSHARP_MATH},
        **{name.lower(): f"Math.{name}(" for name in ("Max", "Min", "Abs")},
        "float": "(float)(",
        "int": "(int)(",
    },
    float_suffix="f",
    weights="Weights{}",
)
_OF_COLLECT_OBSERVATIONS: Final = re.compile(r"(StackingSensor_size\d+_)?VectorSensor_size\d+")
# All strings of an assembly together must not exceed 16 MB, at two bytes per character. A game may have many policies.
_MOST_WEIGHTS_IN_STRINGS: Final = 50_000
_JAVASCRIPT = Syntax(functions={"float": "(", "int": "("}, float_suffix="", weights="weights{}")
_FLOAT_FUNCTIONS = ("max", "min", "abs", "floor", "ceil")
_GDSCRIPT = Syntax(functions={name: f"{name}f(" for name in _FLOAT_FUNCTIONS}, float_suffix="", weights="weights{}")
_RANK_OF_PICTURES = 3


def write_c(program: Program, origin: Origin) -> str:
    """Return the text of the C file."""
    name = f"policy_{identifier(origin.behavior)}".lower()
    macro = name.upper()
    syntax = Syntax(
        functions={
            **{each: f"{each}f(" for each in _C_MATH},
            "abs": "fabsf(",
            "max": f"{name}_max(",
            "min": f"{name}_min(",
            "float": "(float)(",
            "int": "(int)(",
        },
        float_suffix="f",
        weights=f"{name}_weights{{}}",
    )
    statements = Braces(syntax, "float", "int", "/* {} */")
    tables = []
    for number, array, values in weights(program):
        tables.append(f"/* {safe(array.name)} */" if array.name else "")
        tables.append(f"static const float {name}_weights{number}[{array.size}] = {{")
        tables.append(in_lines([f"{text}f" for text in decimals(values)]) + "};")
    comment = about(program, origin, "C99 and C++", f"{name}_stack", " * ")
    arguments = {
        "mask": program.branches,
        "memory": program.memory_size,
        "continuous": program.continuous_size,
        "discrete": program.branches,
        "random": program.random_size,
    }
    code = [f"  const float *const observation{k} = observations[{k}];" for k in range(len(program.sensors))]
    code += ["  const int has_mask = mask != 0;"] if program.branches else []
    code += [f"  (void){argument};" for argument, used in arguments.items() if not used]
    code += [f"  (void)observation{k};" for k in range(len(program.sensors))]
    code.append("  for (int agent = 0; agent < agents; agent++) {")
    code += [*statements.decision(program, 4), "  }", "}"]
    parts = {"tables": "\n".join(tables), "code": "\n".join(code), "comment": comment}
    return fill(_PACKAGE, "policy.h", {"program": program, "name": name, "macro": macro, **parts})


def write_csharp(program: Program, origin: Origin) -> str:
    """Return the text of the C# file."""
    name = f"Policy{identifier(origin.behavior)}"
    statements = Braces(_CSHARP, "float", "int", step=4)
    comment = about(program, origin, "C#", f"{name}.Stack", "// ")
    tables = []
    fits = sum(array.size for _, array, _ in weights(program)) <= _MOST_WEIGHTS_IN_STRINGS
    for number, array, values in weights(program):
        text = literal(values, 'Decode("{}")' if fits else "", "{{\n{}}}", "f")
        head = f"    // {safe(array.name)}\n" if array.name else ""
        tables.append(f"{head}    static readonly float[] Weights{number} = {text};")
    code = [] if not program.memory_size else ['        Expect("memory", memory, agents * MemorySize);']
    code.append("        float[] work = this.work;")
    code += ["        float[] continuous = Continuous;"] if program.continuous_size else []
    if program.branches:
        code += ["        int[] discrete = Discrete;", "        bool has_mask = mask != null;"]
    code += [f"        float[] observation{k} = observations[{k}];" for k in range(len(program.sensors))]
    code.append("        for (int agent = 0; agent < agents; agent++) {")
    code += [*statements.decision(program, 12), "        }"]
    sensor = program.sensors[0]
    found = _OF_COLLECT_OBSERVATIONS.fullmatch(sensor.name)
    if len(program.sensors) > 1 or found is None:
        component = (
            "// There is no component for Unity here: Heuristic can only access observations of CollectObservations,\n"
            f"// and this policy has other sensors. Pass their values to {name}.Decide as arrays.\n"
        )
    else:
        source = "GetStackedObservations" if found[1] else "GetObservations"
        component = fill(_PACKAGE, "component.cs", {"name": name, "source": source})
    names = ", ".join(json.dumps(safe(sensor.name)) for sensor in program.sensors)
    parts = {"tables": "\n".join(tables), "code": "\n".join(code), "comment": comment, "component": component}
    return fill(_PACKAGE, "policy.cs", {"program": program, "name": name, "names": names, **parts})


def write_javascript(program: Program, origin: Origin) -> str:
    """Return the text of the JavaScript file."""
    statements = Braces(_JAVASCRIPT, "let", "let")
    comment = about(program, origin, "JavaScript", "stack()", " * ")
    tables = []
    for number, array, values in weights(program):
        text = literal(values, 'decode("{}")', "new Float32Array([\n{}])")
        tables.append((f"// {safe(array.name)}\n" if array.name else "") + f"const weights{number} = {text};")
    sensors = [{"name": sensor.name, "shape": list(sensor.shape), "size": sensor.size} for sensor in program.sensors]
    sizes = {
        "observations": [sensor.size for sensor in program.sensors],
        "continuous": program.continuous_size,
        "discrete": len(program.branches),
        "mask": sum(program.branches),
        "memory": program.memory_size,
        "random": program.random_size,
    }
    code = [f"    const observation{k} = observations[{k}];" for k in range(len(sensors))]
    code.append("    for (let agent = 0; agent < agents; agent++) {")
    code += [*statements.decision(program, 6), "    }"]
    parts = {"tables": "\n".join(tables), "code": "\n".join(code), "comment": comment}
    return fill(_PACKAGE, "policy.mjs", {"program": program, "sensors": _json(sensors), "sizes": _json(sizes), **parts})


def _json(value: object) -> str:
    return json.dumps(value).replace("\u2028", "\\u2028")


def write_gdscript(program: Program, origin: Origin) -> str:
    """Return the text of the GDScript file."""
    comment = about(program, origin, "Godot 4", "stack()", "# ")
    tables = []
    for number, array, values in weights(program):
        encoded = 'Marshalls.base64_to_raw("{}").to_float32_array()'
        text = literal(values, encoded, "PackedFloat32Array([\n{}])")
        head = f"# {safe(array.name)}\n" if array.name else ""
        tables.append(f"{head}static var weights{number}: PackedFloat32Array = {text}")
    names = json.dumps([safe(sensor.name) for sensor in program.sensors], ensure_ascii=False)
    sizes = [sensor.size for sensor in program.sensors]
    code = [f"\tvar observation{k}: PackedFloat32Array = observations[{k}]" for k in range(len(sizes))]
    code.append("\tfor agent in agents:")
    code += _steps(program, program.common, 2)
    code += ["\t\tif deterministic:", *_steps(program, program.deterministic, 3)]
    code += ["\t\telse:", *_steps(program, program.sampled, 3)]
    parts = {"tables": "\n".join(tables), "code": "\n".join(code), "comment": comment}
    name = pascal_case(origin.behavior)
    return fill(_PACKAGE, "policy.gd", {"program": program, "name": name, "names": names, "sizes": sizes, **parts})


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
                lines.append(f"{pad}var {name}: float = {_GDSCRIPT.expression(program, value)}")
            case Set(target, value):
                lines.append(f"{pad}{_GDSCRIPT.expression(program, target)} = {_GDSCRIPT.expression(program, value)}")
            case For(name, stop, inner, step):
                counts = str(stop) if step == 1 else f"range(0, {stop}, {step})"
                lines += [f"{pad}for {name} in {counts}:", *_body(program, inner, depth + 1)]
            case If(condition, then, otherwise):
                lines += [f"{pad}if {_GDSCRIPT.expression(program, condition)}:", *_body(program, then, depth + 1)]
                if otherwise:
                    lines += [f"{pad}else:", *_body(program, otherwise, depth + 1)]
    return lines


def write_node(program: Program, origin: Origin) -> str:
    """Return the text of the node's file, which belongs in the same folder as the policy's file."""
    policy = f"Policy{pascal_case(origin.behavior)}"
    channels = [sensor.shape[0] if len(sensor.shape) == _RANK_OF_PICTURES else 0 for sensor in program.sensors]
    return fill(_PACKAGE, "node.gd", {"policy": policy, "channels": channels, "behavior": repr(safe(origin.behavior))})
