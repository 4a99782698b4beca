"""A node for Godot that acts by an exported policy in the place of an AIController's model."""

from __future__ import annotations

from trajtrainer.export.source.printing import Origin, identifier, safe
from trajtrainer.export.source.program import Program

_RANK_OF_PICTURES = 3


def write_node(program: Program, origin: Origin) -> str:
    """Return the text of the file, which goes beside that of the policy."""
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
