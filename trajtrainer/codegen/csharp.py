"""A policy as a C# class, for Unity (IL2CPP too) and any other .NET."""

import json
import re
from typing import Final

from trajtrainer.codegen.printing import Braces, Origin, Syntax, about, identifier, literal, safe, weights
from trajtrainer.codegen.program import Program

_MATH = ("Exp", "Log", "Sqrt", "Tanh", "Sin", "Cos", "Pow", "Floor", "Ceiling")
_SYNTAX = Syntax(
    functions={
        **{name.lower().removesuffix("ing"): f"(float)Math.{name}(" for name in _MATH},
        **{name.lower(): f"Math.{name}(" for name in ("Max", "Min", "Abs")},
        "float": "(float)(",
        "int": "(int)(",
    },
    float_suffix="f",
    weights="Weights{}",
)


_OF_COLLECT_OBSERVATIONS: Final = re.compile(r"(StackingSensor_size\d+_)?VectorSensor_size\d+")
# All strings of an assembly together may have 16 MB, at two bytes per character, and a game may have many policies.
_MOST_WEIGHTS_IN_STRINGS: Final = 50_000


def write_csharp(program: Program, origin: Origin) -> str:
    """The text of the file."""
    name = f"Policy{identifier(origin.behavior)}"
    statements = Braces(_SYNTAX, "float", "int", step=4)
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
    body = "\n".join(code)
    joined = "\n".join(tables)
    names = ", ".join(json.dumps(safe(sensor.name)) for sensor in program.sensors)
    return f"""{comment}

using System;

/// <summary>Decides for up to this number of agents at a time. Each thread needs one of its own.</summary>
public sealed class {name}
{{
    public static readonly string[] Sensors = {{ {names} }};
    public static readonly int[] ObservationSizes = {{ {", ".join(str(sensor.size) for sensor in program.sensors)} }};
    public const int ContinuousSize = {program.continuous_size};
    public const int DiscreteSize = {len(program.branches)};
    public const int MaskSize = {sum(program.branches)};
    public const int MemorySize = {program.memory_size};
    public const int RandomSize = {program.random_size};

    /// <summary>The latest decision, one agent after the other.</summary>
    public readonly float[] Continuous;
    public readonly int[] Discrete;

    readonly float[] work = new float[{max(1, program.workspace_size)}];

{joined}

    public {name}(int maxAgents = 1)
    {{
        Continuous = new float[maxAgents * ContinuousSize];
        Discrete = new int[maxAgents * DiscreteSize];
    }}

    /// <summary>Writes the actions into Continuous and Discrete.</summary>
    /// <param name="agents">How many.</param>
    /// <param name="observations">One array per sensor.</param>
    /// <param name="mask">Null allows all actions.</param>
    /// <param name="memory">Of each agent, replaced by that after the decision; null if the policy has none.</param>
    /// <param name="random">Null if deterministic.</param>
    /// <param name="deterministic">Take the most likely action instead of drawing one.</param>
    public void Decide(
        int agents, float[][] observations, float[] mask, float[] memory, float[] random, bool deterministic)
    {{
        for (int k = 0; k < ObservationSizes.Length; k++)
            Expect("observations of " + Sensors[k], observations[k], agents * ObservationSizes[k]);
        if (mask != null) Expect("mask", mask, agents * MaskSize);
        if (!deterministic) Expect("random", random, agents * RandomSize);
{body}
    }}

    /// <summary>Drops the oldest of an agent's stacked frames and appends the newest.</summary>
    public static void Stack(float[] stacked, float[] frame)
    {{
        Array.Copy(stacked, frame.Length, stacked, 0, stacked.Length - frame.Length);
        Array.Copy(frame, 0, stacked, stacked.Length - frame.Length, frame.Length);
    }}

    static void Expect(string name, float[] array, int length)
    {{
        int found = array == null ? 0 : array.Length;
        if (found < length) throw new ArgumentException(name + ": expected " + length + " numbers, got " + found);
    }}

    static float[] Decode(string text)
    {{
        byte[] bytes = Convert.FromBase64String(text);
        var values = new float[bytes.Length / sizeof(float)];
        Buffer.BlockCopy(bytes, 0, values, 0, bytes.Length);
        return values;
    }}
}}

{_component(program, name)}"""


def _component(program: Program, name: str) -> str:
    """The component for agents whose only sensor is that of ``CollectObservations``, or why there is none."""
    sensor = program.sensors[0]
    found = _OF_COLLECT_OBSERVATIONS.fullmatch(sensor.name)
    if len(program.sensors) > 1 or found is None:
        return (
            "// There is no component for Unity here: Heuristic only gets the observations of CollectObservations,\n"
            f"// and this policy sees other sensors. Pass their numbers to {name}.Decide as arrays.\n"
        )
    source = "GetStackedObservations" if found[1] else "GetObservations"
    return f"""#if UNITY_5_3_OR_NEWER
/// <summary>
/// Lets an agent of ML-Agents act by this policy with Behavior Type Heuristic Only. It sees what CollectObservations
/// adds, and no other sensor.
/// </summary>
public sealed class {name}Heuristic : UnityEngine.MonoBehaviour
{{
    /// <summary>Take the most likely action instead of drawing one.</summary>
    public bool Deterministic;

    /// <summary>
    /// 1 allows a discrete action, 0 forbids it, branch after branch. Heuristic does not see what
    /// WriteDiscreteActionMask forbids, so set it here, too. Null allows all.
    /// </summary>
    public float[] Mask;

    readonly {name} policy = new {name}();
    readonly float[][] observations = {{ new float[{name}.ObservationSizes[0]] }};
    readonly float[] memory = new float[{name}.MemorySize];
    readonly float[] random = new float[{name}.RandomSize];

    /// <summary>Call it in OnEpisodeBegin.</summary>
    public void BeginEpisode()
    {{
        Array.Clear(memory, 0, memory.Length);
    }}

    /// <summary>Call it in Heuristic.</summary>
    public void Fill(Unity.MLAgents.Agent agent, Unity.MLAgents.Actuators.ActionBuffers actions)
    {{
        var seen = agent.{source}();
        if (seen.Count != observations[0].Length)
            throw new InvalidOperationException(
                "The policy sees " + observations[0].Length + " numbers, not " + seen.Count);
        for (int i = 0; i < seen.Count; i++) observations[0][i] = seen[i];
        for (int i = 0; i < random.Length; i++) random[i] = UnityEngine.Random.value;
        policy.Decide(1, observations, Mask, memory, random, Deterministic);
        var continuous = actions.ContinuousActions;
        for (int i = 0; i < policy.Continuous.Length; i++) continuous[i] = policy.Continuous[i];
        var discrete = actions.DiscreteActions;
        for (int i = 0; i < policy.Discrete.Length; i++) discrete[i] = policy.Discrete[i];
    }}
}}
#endif
"""
