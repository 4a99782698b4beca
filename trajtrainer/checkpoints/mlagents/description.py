"""A description of networks, observations and actions out of a checkpoint of ML-Agents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trajtrainer.checkpoints.mlagents.layout import CRITIC, POLICY, shares_critic
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.spec import ActionSpec, ObservationKind
from trajtrainer.nn.attention import EMBEDDING
from trajtrainer.nn.encoders import visual_encoder
from trajtrainer.nn.mlagents import mlagents_keys
from trajtrainer.settings.network import ENCODERS, ConditioningType, MemorySettings, NetworkSettings

_BODY = "network_body."
_PROCESSORS = f"{_BODY}observation_encoder.processors."
_LAYERS = f"{_BODY}_body_endoder."


@dataclass(frozen=True, slots=True)
class SensorTrace:
    """Traces of one sensor in the weights.

    Attributes:
        index: in the order of the sensors.
        kind: of observation.
        size: numbers of a vector, channels of pictures, numbers per entity.
        encoding: numbers that it adds to the encoding; 0 for variable-length ones, which add 128 all together.
    """

    index: int
    kind: ObservationKind
    size: int
    encoding: int


@dataclass(frozen=True, slots=True)
class Description:
    """The content of a checkpoint as far as it tells.

    Attributes:
        trainer_type: ``ppo``, ``sac`` or ``poca``.
        action_spec: what the agents do.
        settings: of the actor, as far as the weights tell: ``sequence_length`` is not stored (it does not matter for
            acting), and goal conditioning ``hyper`` looks like ``none`` where no sensor is a goal.
        shared_critic: the critic's heads are on the actor's body.
        signals: names of the reward signals.
        encoding_size: numbers that go into the first layer.
        sensors: those that leave a trace. Vectors that are not normalised do not.
        goal_size: numbers of the encoded goal; 0 without hyper conditioning.
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
        """Numbers of all vectors together that are not normalised."""
        attended = EMBEDDING if any(s.kind is ObservationKind.VARIABLE_LENGTH for s in self.sensors) else 0
        return self.encoding_size - attended - sum(sensor.encoding for sensor in self.sensors)


def describe(checkpoint: Mapping[str, Any]) -> Description:
    """Return what can be inferred from a checkpoint in ML-Agents' layout.

    Raises:
        CheckpointError: it holds no policy of ML-Agents.
    """
    policy = checkpoint.get(POLICY)
    try:
        if not isinstance(policy, Mapping):
            raise KeyError(POLICY)
        return _describe(checkpoint, policy)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError, RuntimeError, ArithmeticError) as error:
        raise CheckpointError(
            f"The checkpoint's policy is none of ML-Agents (versions 0.28 to 1.1): {type(error).__name__}: {error}."
        ) from error


def _describe(checkpoint: Mapping[str, Any], policy: Mapping[str, Tensor]) -> Description:
    hidden, layers, encoding = _layers(policy)
    memory = int(policy["memory_size_vector"])
    processors = _processors(policy)
    sensors = tuple(_sensor(index, entries, policy, hidden) for index, entries in processors.items())
    cameras = [processors[sensor.index] for sensor in sensors if sensor.kind is ObservationKind.VISUAL]
    goal = [value.shape[1] for name, value in policy.items() if name.endswith(".hypernet.0.weight")]
    return Description(
        trainer_type=_trainer_type(checkpoint),
        action_spec=_action_spec(policy),
        settings=NetworkSettings(
            normalize=any("normalizer." in name for name in policy),
            hidden_units=hidden,
            num_layers=layers,
            vis_encode_type=_encoder_type(cameras, hidden),
            memory=MemorySettings(memory_size=memory) if memory else None,
            goal_conditioning_type=ConditioningType.HYPER if goal else ConditioningType.NONE,
        ),
        shared_critic=shares_critic(checkpoint),
        signals=_signals(checkpoint),
        encoding_size=encoding,
        sensors=sensors,
        goal_size=goal[0] if goal else 0,
    )


def _action_spec(policy: Mapping[str, Tensor]) -> ActionSpec:
    branches = (policy["discrete_act_size_vector"].flatten().tolist()) if "discrete_act_size_vector" in policy else []
    return ActionSpec(int(policy["continuous_act_size_vector"]), tuple(int(size) for size in branches))


def _layers(policy: Mapping[str, Tensor]) -> tuple[int, int, int]:
    """Return hidden_units, num_layers and size of what goes in."""
    found = {name.removeprefix(_LAYERS): value for name, value in policy.items() if name.startswith(_LAYERS)}
    plain = {name: value for name, value in found.items() if re.fullmatch(r"(seq_)?layers\.\d+\.weight", name)}
    hyper = [value for name, value in found.items() if re.fullmatch(r"layers\.\d+\.bias", name)]
    if plain:
        first = min(plain.items(), key=lambda item: int(item[0].split(".")[1]))[1]
        is_hyper = any(".hypernet." in name for name in found)
        return first.shape[0], len(plain) + int(is_hyper), first.shape[1]
    (bias,) = hyper
    (weights,) = (value for name, value in found.items() if name.endswith(".hypernet.5.bias"))
    return len(bias), 1, len(weights) // len(bias)


def _processors(policy: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Return the entries of each sensor's encoder, in the order of the sensors."""
    entries: dict[int, dict[str, Tensor]] = {}
    for name, value in policy.items():
        if name.startswith(_PROCESSORS):
            index, _, rest = name.removeprefix(_PROCESSORS).partition(".")
            entries.setdefault(int(index), {})[rest] = value
    return dict(sorted(entries.items()))


def _sensor(index: int, entries: Mapping[str, Tensor], policy: Mapping[str, Tensor], hidden: int) -> SensorTrace:
    if "normalizer.running_mean" in entries:
        size = len(entries["normalizer.running_mean"])
        return SensorTrace(index, ObservationKind.VECTOR, size, size)
    entity = entries.get("self_ent_encoder.seq_layers.0.weight")
    if entity is not None:
        own = EMBEDDING if any(".x_self_encoder." in name for name in policy) else 0
        return SensorTrace(index, ObservationKind.VARIABLE_LENGTH, entity.shape[1] - own, 0)
    # Of fully connected pictures the weights tell the number of pixels only.
    weights = sorted((value for value in entries.values() if value.dim() > 1), key=Tensor.dim, reverse=True)
    return SensorTrace(index, ObservationKind.VISUAL, weights[0].shape[1] if weights else 0, hidden)


def _encoder_type(cameras: Iterable[Mapping[str, Tensor]], hidden: int) -> str:
    """Return the encoder of the first camera; the default without one, or where it is none of ours."""
    held = next(map(_traces, cameras), None)
    for name, row in ENCODERS.builtin.items():
        with torch.device("meta"):
            encoder = visual_encoder("", (1, row.smallest_side, row.smallest_side), name, hidden)
        state = encoder.state_dict()
        if held == _traces({key.names[0]: state[entry] for entry, key in mlagents_keys(encoder).items()}):
            return name
    return "simple"


def _traces(entries: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an encoder's weights without what depends on the pictures: what goes into a layer."""
    return {name: (value.shape[0], *value.shape[2:]) for name, value in entries.items()}


def _trainer_type(checkpoint: Mapping[str, Any]) -> str:
    if "Optimizer:adam" in checkpoint:
        return "poca"
    return "sac" if "Optimizer:q_network" in checkpoint else "ppo"


def _signals(checkpoint: Mapping[str, Any]) -> tuple[str, ...]:
    critic = checkpoint.get(CRITIC, checkpoint.get("Optimizer:q_network", {}))
    found = (re.fullmatch(r"(?:q1_network\.)?value_heads\.value_heads\.(.+)\.weight", str(name)) for name in critic)
    return tuple(match[1] for match in found if match)
