<<comment>>

class_name Policy<<name>>
extends RefCounted

const SENSORS: Array[String] = <<names>>
# Numbers per agent.
const OBSERVATION_SIZES: Array[int] = <<sizes>>
const CONTINUOUS_SIZE := <<program.continuous_size>>
const DISCRETE_SIZE := <<program.branches | length>>
const MASK_SIZE := <<program.branches | sum>>
const MEMORY_SIZE := <<program.memory_size>>
const RANDOM_SIZE := <<program.random_size>>

<<tables>>

# The latest decision, agent by agent.
var continuous := PackedFloat32Array()
var discrete := PackedInt32Array()

var work := PackedFloat32Array()


# Decides for up to max_agents agents at a time. Each thread needs its own policy object.
func _init(max_agents: int = 1) -> void:
	work.resize(<<[1, program.workspace_size] | max>>)
	continuous.resize(max_agents * CONTINUOUS_SIZE)
	discrete.resize(max_agents * DISCRETE_SIZE)


# Writes the actions into continuous and discrete. An empty mask allows all actions. memory is updated. random may be
# empty if deterministic, which takes the most likely action instead of sampling one.
func decide(
	observations: Array[PackedFloat32Array],
	mask: PackedFloat32Array,
	memory: PackedFloat32Array,
	random: PackedFloat32Array,
	deterministic: bool
) -> void:
	var agents: int = observations[0].size() / OBSERVATION_SIZES[0]
	for sensor in SENSORS.size():
		assert(observations[sensor].size() == agents * OBSERVATION_SIZES[sensor], "observations of " + SENSORS[sensor])
	assert(mask.is_empty() || mask.size() == agents * MASK_SIZE, "mask")
	assert(memory.size() == agents * MEMORY_SIZE, "memory")
	assert(deterministic || random.size() == agents * RANDOM_SIZE, "random")
	var has_mask := !mask.is_empty()
<<code>>


# Drops the oldest of an agent's stacked frames and appends the newest one. Start an episode with zeros.
static func stack(stacked: PackedFloat32Array, frame: PackedFloat32Array) -> void:
	var kept := stacked.size() - frame.size()
	for i in kept:
		stacked[i] = stacked[i + frame.size()]
	for i in frame.size():
		stacked[kept + i] = frame[i]
