# Makes an AIController of the Godot RL Agents plugin act with a policy, without an .onnx model.
# Policy: <<behavior>>, <<policy>>, which was written with this file. Neither C# nor an extension is needed.
# Add the node to the scene as a child of the AIController, and leave out the Sync node.
#
# License: Apache-2.0, like trajtrainer.

class_name <<policy>>Node
extends Node

## Physics frames per decision. Use the value that the Sync node had in training; 8 is only its default.
@export var action_repeat := 8
## Take the most likely action instead of sampling one.
@export var deterministic := true

# Channels of each observation that is an image; 0 for numbers.
const CHANNELS: Array[int] = <<channels>>

var policy := <<policy>>.new()
var memory := PackedFloat32Array()
var random := PackedFloat32Array()
var frames := 0

@onready var controller := get_parent()


func _ready() -> void:
	memory.resize(<<policy>>.MEMORY_SIZE)
	random.resize(<<policy>>.RANDOM_SIZE)


func _physics_process(_delta: float) -> void:
	if frames % action_repeat == 0:
		decide()
	frames += 1


func decide() -> void:
	if controller.get_done():
		memory.fill(0.0)
		controller.set_done_false()
	controller.zero_reward()
	controller.set_heuristic("model")
	var seen: Dictionary = controller.get_obs()
	var observations: Array[PackedFloat32Array] = []
	for sensor in <<policy>>.SENSORS.size():
		var value = seen[<<policy>>.SENSORS[sensor]]
		observations.append(pixels(value, CHANNELS[sensor]) if CHANNELS[sensor] else numbers(value))
	if not deterministic:
		for i in random.size():
			random[i] = randf()
	policy.decide(observations, PackedFloat32Array(), memory, random, deterministic)
	controller.set_action(actions(controller.get_action_space()))


# The latest decision, with the keys of the action space and in their order.
func actions(space: Dictionary) -> Dictionary:
	var chosen := {}
	var number := 0
	var branch := 0
	for key in space:
		if space[key]["action_type"] == "discrete":
			chosen[key] = policy.discrete[branch]
			branch += 1
		else:
			var size: int = space[key]["size"]
			chosen[key] = Array(policy.continuous.slice(number, number + size))
			number += size
	return chosen


static func numbers(value: Variant) -> PackedFloat32Array:
	var found := PackedFloat32Array()
	for part in value:
		if part is Array:
			found.append_array(numbers(part))
		else:
			found.append(part)
	return found


# Converts the hexadecimal text of an image to numbers from 0 to 1, channel by channel.
static func pixels(text: String, channels: int) -> PackedFloat32Array:
	var bytes := text.hex_decode()
	var count: int = bytes.size() / channels
	var found := PackedFloat32Array()
	found.resize(bytes.size())
	for channel in channels:
		for pixel in count:
			found[channel * count + pixel] = bytes[pixel * channels + channel] / 255.0
	return found
