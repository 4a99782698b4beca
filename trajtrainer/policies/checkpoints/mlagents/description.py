"""Infers the network, observations and actions of an ML-Agents checkpoint from its weights.

The weights determine the actions and the network, but not the sizes of the individual vectors, images and lists. An
``.onnx`` file exported from the same run has these shapes. Without such a file, the shapes may still follow from the
weights; otherwise the user has to give them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, ObservationKind, ObservationSpec, usual_sensor
from trajtrainer.learning.nn.attention import EMBEDDING
from trajtrainer.learning.nn.encoders import visual_encoder
from trajtrainer.learning.nn.mlagents import CRITIC, POLICY, mlagents_keys
from trajtrainer.policies.checkpoints.mlagents.convert import shares_critic
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.evaluate import graph_inputs
from trajtrainer.settings.network import ENCODERS, ConditioningType, MemorySettings, NetworkSettings

_BODY = "network_body."
_PROCESSORS = f"{_BODY}observation_encoder.processors."
_LAYERS = f"{_BODY}_body_endoder."
_MAX_SENSORS = 12  # number of sensors for which all combinations of goals are tried

Weights = Mapping[str, Tensor]
Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SensorTrace:
    """The properties of one sensor that the weights reveal.

    Attributes:
        index: position of the sensor in the policy's list of observations.
        kind: kind of the observation.
        size: length of a vector, number of channels of an image, or length of an entity.
        encoding: size of the sensor's part of the encoding; 0 for variable-length sensors, which share a part of size
            128.
    """

    index: int
    kind: ObservationKind
    size: int
    encoding: int


@dataclass(frozen=True, slots=True)
class Description:
    """The properties that can be inferred from a checkpoint.

    Attributes:
        trainer_type: ``ppo``, ``sac`` or ``poca``.
        action_spec: the policy's actions.
        settings: settings of the actor's network. ``sequence_length`` is not stored (acting does not depend on it), and
            goal conditioning ``hyper`` looks like ``none`` if no sensor is a goal.
        shared_critic: whether actor and critic share a network.
        signals: names of the reward signals.
        encoding_size: input size of the first layer.
        sensors: the sensors that have their own weights: all except vectors without a normalizer.
        goal_size: size of the encoded goal; 0 without hyper conditioning.
    """

    trainer_type: str
    action_spec: ActionSpec
    settings: NetworkSettings
    shared_critic: bool
    signals: tuple[str, ...]
    encoding_size: int
    sensors: tuple[SensorTrace, ...]
    goal_size: int

    @property
    def plain_vector_size(self) -> int:
        """The total size of all vectors without a normalizer."""
        attended = EMBEDDING if any(s.kind is ObservationKind.VARIABLE_LENGTH for s in self.sensors) else 0
        return self.encoding_size - attended - sum(sensor.encoding for sensor in self.sensors)


def describe(checkpoint: Mapping[str, Any]) -> Description:
    """Infer a description of the policy from a checkpoint in ML-Agents' layout.

    Raises:
        CheckpointError: the checkpoint has no ML-Agents policy.
    """
    try:
        policy: Weights = checkpoint[POLICY]
        hidden, layers, encoding = _layers(policy)
        memory = int(policy["memory_size_vector"])
        processors: dict[int, dict[str, Tensor]] = {}  # the entries of each sensor's encoder
        for name, value in policy.items():
            if name.startswith(_PROCESSORS):
                index, _, rest = name.removeprefix(_PROCESSORS).partition(".")
                processors.setdefault(int(index), {})[rest] = value
        sensors = tuple(_sensor(index, entries, policy, hidden) for index, entries in sorted(processors.items()))
        cameras = [processors[sensor.index] for sensor in sensors if sensor.kind is ObservationKind.VISUAL]
        branches = policy["discrete_act_size_vector"].flatten().tolist() if "discrete_act_size_vector" in policy else []
        goal = [value.shape[1] for name, value in policy.items() if name.endswith(".hypernet.0.weight")]
        critic = checkpoint.get(CRITIC, checkpoint.get("Optimizer:q_network", {}))
        heads = (re.fullmatch(r"(?:q1_network\.)?value_heads\.value_heads\.(.+)\.weight", str(name)) for name in critic)
        kinds = {"Optimizer:adam": "poca", "Optimizer:q_network": "sac"}
        return Description(
            trainer_type=next((kind for entry, kind in kinds.items() if entry in checkpoint), "ppo"),
            action_spec=ActionSpec(int(policy["continuous_act_size_vector"]), tuple(int(size) for size in branches)),
            settings=NetworkSettings(
                normalize=any("normalizer." in name for name in policy),
                hidden_units=hidden,
                num_layers=layers,
                vis_encode_type=_encoder_type(cameras, hidden),
                memory=MemorySettings(memory_size=memory) if memory else None,
                goal_conditioning_type=ConditioningType.HYPER if goal else ConditioningType.NONE,
            ),
            shared_critic=shares_critic(checkpoint),
            signals=tuple(match[1] for match in heads if match),
            encoding_size=encoding,
            sensors=sensors,
            goal_size=goal[0] if goal else 0,
        )
    except (KeyError, ValueError, IndexError, AttributeError, TypeError, RuntimeError, ArithmeticError) as error:
        raise CheckpointError(
            f"The policy in the checkpoint does not come from ML-Agents 0.28 to 1.1 ({type(error).__name__}: {error})."
        ) from error


def _layers(policy: Weights) -> tuple[int, int, int]:
    """Return ``hidden_units``, ``num_layers`` and the input size."""
    found = {name.removeprefix(_LAYERS): value for name, value in policy.items() if name.startswith(_LAYERS)}
    plain = {name: value for name, value in found.items() if re.fullmatch(r"(seq_)?layers\.\d+\.weight", name)}
    if plain:
        first = min(plain.items(), key=lambda item: int(item[0].split(".")[1]))[1]
        is_hyper = any(".hypernet." in name for name in found)
        return first.shape[0], len(plain) + int(is_hyper), first.shape[1]
    (bias,) = (value for name, value in found.items() if re.fullmatch(r"layers\.\d+\.bias", name))
    (weights,) = (value for name, value in found.items() if name.endswith(".hypernet.5.bias"))
    return len(bias), 1, len(weights) // len(bias)


def _sensor(index: int, entries: Weights, policy: Weights, hidden: int) -> SensorTrace:
    if "normalizer.running_mean" in entries:
        size = len(entries["normalizer.running_mean"])
        return SensorTrace(index, ObservationKind.VECTOR, size, size)
    entity = entries.get("self_ent_encoder.seq_layers.0.weight")
    if entity is not None:
        own = EMBEDDING if any(".x_self_encoder." in name for name in policy) else 0
        return SensorTrace(index, ObservationKind.VARIABLE_LENGTH, entity.shape[1] - own, 0)
    # From a fully connected encoder, only the total number of input values can be inferred.
    weights = sorted((value for value in entries.values() if value.dim() > 1), key=Tensor.dim, reverse=True)
    return SensorTrace(index, ObservationKind.VISUAL, weights[0].shape[1] if weights else 0, hidden)


def _encoder_type(cameras: Iterable[Weights], hidden: int) -> str:
    """Return the encoder type of the first camera, or the default if there is no camera or its encoder is unknown."""

    def traces(entries: Weights) -> dict[str, tuple[int, ...]]:
        """Return the shapes without the layers' input sizes, which depend on the image size."""
        return {name: (value.shape[0], *value.shape[2:]) for name, value in entries.items()}

    held = next(map(traces, cameras), None)
    for name, row in ENCODERS.builtin.items():
        with torch.device("meta"):
            encoder = visual_encoder("", (1, row.smallest_side, row.smallest_side), name, hidden)
        state = encoder.state_dict()
        if held == traces({key.names[0]: state[entry] for entry, key in mlagents_keys(encoder).items()}):
            return name
    return "simple"


# Observations


def sensor(index: int, shape: tuple[int, ...], *, goal: bool = False) -> ObservationSpec:
    """Return a sensor with 1 (vector), 2 (entities, size) or 3 dimensions (channels, height, width)."""
    return usual_sensor(shape, contract.observation_name(index), goal=goal)


def shapes_of_model(path: Path, found: Description) -> list[tuple[int, ...]] | None:
    """Return the observation shapes of an exported model.

    Returns None if the file cannot be read, if an observation has no usable shape, or if the action branches or memory
    differ from the checkpoint's.
    """
    try:
        inputs = graph_inputs(onnx.load(str(path), load_external_data=False))
    except (OSError, DecodeError, ValueError):
        return None
    # Without the batch dimension. A size that the file does not define is 0.
    sizes = {each.name: tuple(int(dim.dim_value) for dim in each.type.tensor_type.shape.dim[1:]) for each in inputs}
    shapes: list[tuple[int, ...]] = []
    while (shape := sizes.pop(contract.observation_name(len(shapes)), None)) is not None:
        shapes.append(shape)
    branches, memory = sum(found.action_spec.discrete_branches), found.settings.memory
    expected: dict[str, tuple[int, ...]] = {contract.ACTION_MASKS: (branches,)} if branches else {}
    if memory is not None:
        expected[contract.RECURRENT_IN] = (1, memory.memory_size)
    if sizes != expected or not shapes or not all(1 <= len(shape) <= 3 and all(shape) for shape in shapes):
        return None
    return shapes


def shapes_of_weights(found: Description) -> list[tuple[int, ...]]:
    """Return the only shapes that fit the weights, assuming at most one vector without a normalizer.

    Raises:
        CheckpointError: several shapes fit. The message lists what is unknown.
    """
    shapes: dict[int, tuple[int, ...]] = {}
    missing = []
    for trace in found.sensors:
        if trace.kind is ObservationKind.VECTOR:
            shapes[trace.index] = (trace.size,)
        elif trace.kind is ObservationKind.VARIABLE_LENGTH:
            missing.append(f"the maximum number of entities (of size {trace.size}) that sensor {trace.index} sends")
        else:
            missing.append(f"the height and width of the images from sensor {trace.index}")
    known = {trace.index for trace in found.sensors}
    gaps = [index for index in range(max(known, default=-1) + 1) if index not in known]
    rest = found.plain_vector_size
    if len(gaps) > 1:
        missing.append(f"the sizes of the vectors {', '.join(map(str, gaps))} ({rest} in total)")
    elif rest:
        shapes[gaps[0] if gaps else len(known)] = (rest,)
    if missing:
        raise CheckpointError(f"its weights do not determine {'; nor '.join(missing)}")
    return [shapes[index] for index in sorted(shapes)]


def possible_specs(found: Description, shapes: Shapes) -> Iterator[BehaviorSpec]:
    """Yield a spec for each possible choice of goal sensors: those whose encoded goal has the right size."""
    # The size that each sensor would add to the encoded goal. A list cannot be a goal, so it gets a size that never
    # fits.
    list_size, picture_size = found.goal_size + 1, found.settings.hidden_units
    encoded = [(shape[0], list_size, picture_size)[len(shape) - 1] for shape in shapes]
    numbers, most = range(min(len(shapes), _MAX_SENSORS)), len(shapes) if found.goal_size else 0
    for goals in itertools.chain.from_iterable(itertools.combinations(numbers, n) for n in range(most + 1)):
        if sum(encoded[index] for index in goals) == found.goal_size:
            sensors = [sensor(index, shape, goal=index in goals) for index, shape in enumerate(shapes)]
            yield BehaviorSpec(sensors, found.action_spec)
