"""Writes a policy in each language: C99 (also valid C++), C#, JavaScript (an ES module), and GDScript."""

import json
import re
from dataclasses import replace
from typing import Final

from trajtrainer.policies.checkpoints.export_saved import Origin
from trajtrainer.tools.source.printing import Syntax, about, identifier, pascal_case, safe
from trajtrainer.tools.source.program import Program
from trajtrainer.tools.templates import fill

_PACKAGE = "trajtrainer.tools.source"
_C_MATH = ("exp", "log", "sqrt", "tanh", "sin", "cos", "pow", "floor", "ceil")
_C_CASTS = {"float": "(float)(", "int": "(int)("}

_CSHARP_MATH = ("Exp", "Log", "Sqrt", "Tanh", "Sin", "Cos", "Pow", "Floor", "Ceiling")
_CSHARP = Syntax(
    functions={
        **{name.lower().removesuffix("ing"): f"(float)Math.{name}(" for name in _CSHARP_MATH},
        **{name.lower(): f"Math.{name}(" for name in ("Max", "Min", "Abs")},
        **_C_CASTS,
    },
    table="    // {name}\n    static readonly float[] Weights{number} = {text};",
    weights="Weights{}",
    float_suffix="f",
    encoded='Decode("{}")',
    outer_indent="    ",
)
_OF_COLLECT_OBSERVATIONS: Final = re.compile(r"(StackingSensor_size\d+_)?VectorSensor_size\d+")
# All strings of an assembly together must not exceed 16 MB, at two bytes per character. A game may have many policies.
_MOST_WEIGHTS_IN_STRINGS: Final = 50_000
_JAVASCRIPT = Syntax(
    functions={"float": "(", "int": "("},
    table="// {name}\nconst weights{number} = {text};",
    encoded='decode("{}")',
    listed="new Float32Array([\n{}])",
    let="let {} = {}",
    loop="for (let {0} = 0; {0} < {1}; {0} += {2}) {{",
    loop_by_one="for (let {0} = 0; {0} < {1}; {0}++) {{",
)
_GDSCRIPT = Syntax(
    functions={name: f"{name}f(" for name in ("max", "min", "abs", "floor", "ceil")},
    table="# {name}\nstatic var weights{number}: PackedFloat32Array = {text}",
    comment="# {}",
    encoded='Marshalls.base64_to_raw("{}").to_float32_array()',
    listed="PackedFloat32Array([\n{}])",
    let="var {}: float = {}",
    end="",
    loop="for {} in range(0, {}, {}):",
    loop_by_one="for {} in {}:",
    condition="if {}:",
    otherwise="else:",
    has_braces=False,
    indent="\t",
    outer_indent="\t",
)
_RANK_OF_PICTURES = 3


def write_c(program: Program, origin: Origin) -> str:
    """Return the text of the C file."""
    name = f"policy_{identifier(origin.behavior)}".lower()
    syntax = Syntax(
        functions={
            **{each: f"{each}f(" for each in _C_MATH},
            "abs": "fabsf(",
            "max": f"{name}_max(",
            "min": f"{name}_min(",
            **_C_CASTS,
        },
        table=f"/* {{name}} */\nstatic const float {name}_weights{{number}}[{{size}}] = {{text}};",
        weights=f"{name}_weights{{}}",
        comment="/* {} */",
        float_suffix="f",
    )
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
    code += [*syntax.decisions(program, "  "), "}"]
    comment = about(program, origin, "C99 and C++", f"{name}_stack", " * ")
    return _file("policy.h", syntax, program, code, name=name, macro=name.upper(), comment=comment)


def write_csharp(program: Program, origin: Origin) -> str:
    """Return the text of the C# file."""
    name = f"Policy{identifier(origin.behavior)}"
    fits = sum(array.size for array in program.arrays if array.values is not None) <= _MOST_WEIGHTS_IN_STRINGS
    syntax = _CSHARP if fits else replace(_CSHARP, encoded="")
    code = [] if not program.memory_size else ['        Expect("memory", memory, agents * MemorySize);']
    code.append("        float[] work = this.work;")
    code += ["        float[] continuous = Continuous;"] if program.continuous_size else []
    if program.branches:
        code += ["        int[] discrete = Discrete;", "        bool has_mask = mask != null;"]
    code += [f"        float[] observation{k} = observations[{k}];" for k in range(len(program.sensors))]
    code += syntax.decisions(program, "        ")
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
    comment = about(program, origin, "C#", f"{name}.Stack", "// ")
    return _file("policy.cs", syntax, program, code, name=name, names=names, comment=comment, component=component)


def write_javascript(program: Program, origin: Origin) -> str:
    """Return the text of the JavaScript file."""
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
    code += _JAVASCRIPT.decisions(program, "    ")
    comment = about(program, origin, "JavaScript", "stack()", " * ")
    parts = {"sensors": json.dumps(sensors), "sizes": json.dumps(sizes), "comment": comment}
    return _file("policy.mjs", _JAVASCRIPT, program, code, **parts)


def write_gdscript(program: Program, origin: Origin) -> str:
    """Return the text of the GDScript file."""
    names = json.dumps([safe(sensor.name) for sensor in program.sensors], ensure_ascii=False)
    sizes = [sensor.size for sensor in program.sensors]
    code = [f"\tvar observation{k}: PackedFloat32Array = observations[{k}]" for k in range(len(sizes))]
    code += _GDSCRIPT.decisions(program, "\t")
    comment = about(program, origin, "Godot 4", "stack()", "# ")
    name = pascal_case(origin.behavior)
    return _file("policy.gd", _GDSCRIPT, program, code, name=name, names=names, sizes=sizes, comment=comment)


def _file(template: str, syntax: Syntax, program: Program, code: list[str], **parts: object) -> str:
    parts = {"program": program, "tables": syntax.tables(program), "code": "\n".join(code), **parts}
    return fill(_PACKAGE, template, parts)


def write_node(program: Program, origin: Origin) -> str:
    """Return the text of the node's file, which belongs in the same folder as the policy's file."""
    policy = f"Policy{pascal_case(origin.behavior)}"
    channels = [sensor.shape[0] if len(sensor.shape) == _RANK_OF_PICTURES else 0 for sensor in program.sensors]
    return fill(_PACKAGE, "node.gd", {"policy": policy, "channels": channels, "behavior": repr(safe(origin.behavior))})
