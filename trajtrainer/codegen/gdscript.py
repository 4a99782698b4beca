"""A policy as a GDScript for Godot 4."""

import json
from collections.abc import Iterable

from trajtrainer.codegen.printing import Origin, Syntax, about, identifier, literal, safe, weights
from trajtrainer.codegen.program import For, If, Let, Program, Set, Statement, Step

_FLOAT_FUNCTIONS = ("max", "min", "abs", "floor", "ceil")
_SYNTAX = Syntax(functions={name: f"{name}f(" for name in _FLOAT_FUNCTIONS}, float_suffix="", weights="weights{}")


def write_gdscript(program: Program, origin: Origin) -> str:
    """The text of the file."""
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


# Decides for up to this number of agents at a time. Each thread needs a policy of its own.
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


_RANK_OF_PICTURES = 3


def write_node(program: Program, origin: Origin) -> str:
    """The text of the file, which goes beside that of the policy."""
    policy = f"Policy{identifier(origin.behavior)}"
    channels = [sensor.shape[0] if len(sensor.shape) == _RANK_OF_PICTURES else 0 for sensor in program.sensors]
    return f"""# Lets an AIController of the Godot RL Agents plugin act by a policy, in the place of a model.
# Policy: {safe(origin.behavior)!r}, {policy}, which was written with this file. Neither C# nor an extension is needed.
# Add the node to the scene as a child of the AIController, and leave out the Sync node.
#
# License: Apache-2.0, as trajtrainer.

class_name {policy}Node
extends Node

## Physics frames for each decision, as in training.
@export var action_repeat := 8
## Take the most likely action instead of drawing one.
@export var deterministic := true

# Of each observation that is a picture; 0 for numbers.
const CHANNELS: Array[int] = {channels}

var policy := {policy}.new()
var memory := PackedFloat32Array()
var random := PackedFloat32Array()
var frames := 0

@onready var controller := get_parent()


func _ready() -> void:
\tmemory.resize({policy}.MEMORY_SIZE)
\trandom.resize({policy}.RANDOM_SIZE)


func _physics_process(_delta: float) -> void:
\tif frames % action_repeat == 0:
\t\tdecide()
\tframes += 1


func decide() -> void:
\tif controller.get_done():
\t\tmemory.fill(0.0)
\t\tcontroller.set_done_false()
\tcontroller.zero_reward()
\tcontroller.set_heuristic("model")
\tvar seen: Dictionary = controller.get_obs()
\tvar observations: Array[PackedFloat32Array] = []
\tfor sensor in {policy}.SENSORS.size():
\t\tvar value = seen[{policy}.SENSORS[sensor]]
\t\tobservations.append(pixels(value, CHANNELS[sensor]) if CHANNELS[sensor] else numbers(value))
\tif not deterministic:
\t\tfor i in random.size():
\t\t\trandom[i] = randf()
\tpolicy.decide(observations, PackedFloat32Array(), memory, random, deterministic)
\tcontroller.set_action(actions(controller.get_action_space()))


# The latest decision, by the keys of the action space and in their order.
func actions(space: Dictionary) -> Dictionary:
\tvar chosen := {{}}
\tvar number := 0
\tvar branch := 0
\tfor key in space:
\t\tif space[key]["action_type"] == "discrete":
\t\t\tchosen[key] = policy.discrete[branch]
\t\t\tbranch += 1
\t\telse:
\t\t\tvar size: int = space[key]["size"]
\t\t\tchosen[key] = Array(policy.continuous.slice(number, number + size))
\t\t\tnumber += size
\treturn chosen


static func numbers(value: Variant) -> PackedFloat32Array:
\tvar found := PackedFloat32Array()
\tfor part in value:
\t\tif part is Array:
\t\t\tfound.append_array(numbers(part))
\t\telse:
\t\t\tfound.append(part)
\treturn found


# From 0 to 1 and channel after channel, of the hexadecimal text of an image.
static func pixels(text: String, channels: int) -> PackedFloat32Array:
\tvar bytes := text.hex_decode()
\tvar count: int = bytes.size() / channels
\tvar found := PackedFloat32Array()
\tfound.resize(bytes.size())
\tfor channel in channels:
\t\tfor pixel in count:
\t\t\tfound[channel * count + pixel] = bytes[pixel * channels + channel] / 255.0
\treturn found
"""
