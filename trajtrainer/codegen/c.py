"""A policy as a C99 header, which is also C++."""

from trajtrainer.codegen.printing import Braces, Origin, Syntax, about, decimals, identifier, in_lines, safe, weights
from trajtrainer.codegen.program import Program

_MATH = ("exp", "log", "sqrt", "tanh", "sin", "cos", "pow", "floor", "ceil")


def write_c(program: Program, origin: Origin) -> str:
    """The text of the file."""
    name = f"policy_{identifier(origin.behavior)}".lower()
    macro = name.upper()
    syntax = Syntax(
        functions={
            **{each: f"{each}f(" for each in _MATH},
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
    sizes = {
        "SENSORS": len(program.sensors),
        "CONTINUOUS": program.continuous_size,
        "DISCRETE": len(program.branches),
        "MASK": sum(program.branches),
        "MEMORY": program.memory_size,
        "RANDOM": program.random_size,
    }
    arguments = {
        "mask": program.branches,
        "memory": program.memory_size,
        "continuous": program.continuous_size,
        "discrete": program.branches,
        "random": program.random_size,
    }
    parts = [
        f"/*\n{comment}\n */",
        f"#ifndef {macro}_H\n#define {macro}_H\n\n#include <math.h>\n#include <string.h>",
        "\n".join(f"#define {macro}_{key} {value}" for key, value in sizes.items()),
        f"/* Room to compute in: one for each thread that decides. */\ntypedef struct {{\n"
        f"  float values[{max(1, program.workspace_size)}];\n}} {name}_workspace;",
        "\n".join(tables),
        f"static inline float {name}_max(float a, float b) {{ return a > b ? a : b; }}\n"
        f"static inline float {name}_min(float a, float b) {{ return a < b ? a : b; }}",
        f"""/*
 * Decides for several agents at once.
 *
 * observations   one array per sensor
 * mask           or NULL
 * memory         of each agent, replaced by that after the decision; NULL if the policy has none
 * random         or NULL if deterministic
 * deterministic  take the most likely action instead of drawing one
 * continuous     receives {program.continuous_size} per agent
 * discrete       receives {len(program.branches)} per agent
 */
static inline void {name}_decide({name}_workspace *workspace, int agents, const float *const observations[],
                                 const float *mask, float *memory, const float *random, int deterministic,
                                 float *continuous, int *discrete) {{
  float *const work = workspace->values;""",
    ]
    code = [f"  const float *const observation{k} = observations[{k}];" for k in range(len(program.sensors))]
    code += ["  const int has_mask = mask != 0;"] if program.branches else []
    code += [f"  (void){argument};" for argument, used in arguments.items() if not used]
    code += [f"  (void)observation{k};" for k in range(len(program.sensors))]
    code.append("  for (int agent = 0; agent < agents; agent++) {")
    code += [*statements.decision(program, 4), "  }", "}"]
    parts[-1] += "\n" + "\n".join(code)
    parts.append(
        f"""/* Drops the oldest of an agent's stacked frames and appends the newest; begin an episode with zeros. */
static inline void {name}_stack(float *stacked, int size, const float *frame, int frame_size) {{
  memmove(stacked, stacked + frame_size, (size_t)(size - frame_size) * sizeof(float));
  memcpy(stacked + size - frame_size, frame, (size_t)frame_size * sizeof(float));
}}"""
    )
    parts.append("#endif")
    return "\n\n".join(part for part in parts if part) + "\n"
