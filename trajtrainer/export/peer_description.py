"""What a checkpoint of the peer tells about its networks and about what its agents see and do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trajtrainer.errors import CheckpointError
from trajtrainer.export.peer_layout import CRITIC, POLICY, shares_critic
from trajtrainer.nn.attention import EMBEDDING
from trajtrainer.settings.network import ConditioningType, MemorySettings, NetworkSettings
from trajtrainer.spec import ActionSpec, ObservationKind

_BODY = "network_body."
_PROCESSORS = f"{_BODY}observation_encoder.processors."
_LAYERS = f"{_BODY}_body_endoder."


@dataclass(frozen=True, slots=True)
class SensorTrace:
    """What the weights tell about one sensor.

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
    """What a checkpoint tells.

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


def describe(peer: Mapping[str, Any]) -> Description:
    """What can be inferred from a checkpoint in the peer's layout.

    Raises:
        CheckpointError: it holds no policy of ML-Agents.
    """
    policy = peer.get(POLICY)
    try:
        if not isinstance(policy, Mapping):
            raise KeyError(POLICY)
        return _describe(peer, policy)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError, RuntimeError, ArithmeticError) as error:
        raise CheckpointError(
            f"The checkpoint's policy is none of ML-Agents (versions 0.28 to 1.1): {type(error).__name__}: {error}."
        ) from error


def _describe(peer: Mapping[str, Any], policy: Mapping[str, Tensor]) -> Description:
    hidden, layers, encoding = _layers(policy)
    memory = int(policy["memory_size_vector"])
    sensors = _sensors(policy)
    goal = [value.shape[1] for name, value in policy.items() if name.endswith(".hypernet.0.weight")]
    return Description(
        trainer_type=_trainer_type(peer),
        action_spec=_action_spec(policy),
        settings=NetworkSettings(
            normalize=any("normalizer." in name for name in policy),
            hidden_units=hidden,
            num_layers=layers,
            vis_encode_type=_encoder_type(policy),
            memory=MemorySettings(memory_size=memory) if memory else None,
            goal_conditioning_type=ConditioningType.HYPER if goal else ConditioningType.NONE,
        ),
        shared_critic=shares_critic(peer),
        signals=_signals(peer),
        encoding_size=encoding,
        sensors=sensors,
        goal_size=goal[0] if goal else 0,
    )


def _action_spec(policy: Mapping[str, Tensor]) -> ActionSpec:
    branches = (policy["discrete_act_size_vector"].flatten().tolist()) if "discrete_act_size_vector" in policy else []
    return ActionSpec(int(policy["continuous_act_size_vector"]), tuple(int(size) for size in branches))


def _layers(policy: Mapping[str, Tensor]) -> tuple[int, int, int]:
    """hidden_units, num_layers and size of what goes in."""
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


def _sensors(policy: Mapping[str, Tensor]) -> tuple[SensorTrace, ...]:
    entries: dict[int, dict[str, Tensor]] = {}
    for name, value in policy.items():
        if name.startswith(_PROCESSORS):
            index, _, rest = name.removeprefix(_PROCESSORS).partition(".")
            entries.setdefault(int(index), {})[rest] = value
    return tuple(_sensor(index, entries[index], policy) for index in sorted(entries))


def _sensor(index: int, entries: Mapping[str, Tensor], policy: Mapping[str, Tensor]) -> SensorTrace:
    if "normalizer.running_mean" in entries:
        size = len(entries["normalizer.running_mean"])
        return SensorTrace(index, ObservationKind.VECTOR, size, size)
    entity = entries.get("self_ent_encoder.seq_layers.0.weight")
    if entity is not None:
        own = EMBEDDING if any(".x_self_encoder." in name for name in policy) else 0
        return SensorTrace(index, ObservationKind.VARIABLE_LENGTH, entity.shape[1] - own, 0)
    if any(name.startswith("plugin.") for name in entries):  # an encoder of another package, with names of its own
        return SensorTrace(index, ObservationKind.VISUAL, 0, _layers(policy)[0])
    dense = entries.get("dense.weight", entries.get("dense.0.weight"))
    if dense is None:
        raise KeyError(f"sensor {index}")
    first = entries.get("conv_layers.0.weight", entries.get("sequential.0.weight"))
    # Of fully connected pictures the weights tell the number of pixels only.
    channels = dense.shape[1] if first is None else first.shape[1]
    return SensorTrace(index, ObservationKind.VISUAL, channels, dense.shape[0])


def _encoder_type(policy: Mapping[str, Tensor]) -> str:
    """Of the first camera; the default without one."""
    names = {name.removeprefix(_PROCESSORS).partition(".")[2] for name in policy if name.startswith(_PROCESSORS)}
    if "sequential.0.weight" in names:
        return "resnet"
    if "conv_layers.4.weight" in names:
        return "nature_cnn"
    if "conv_layers.0.weight" in names:
        (kernel, *_) = (value.shape[2] for name, value in policy.items() if name.endswith("conv_layers.0.weight"))
        return "match3" if kernel == 3 else "simple"
    return "fully_connected" if "dense.0.weight" in names else "simple"


def _trainer_type(peer: Mapping[str, Any]) -> str:
    if "Optimizer:adam" in peer:
        return "poca"
    return "sac" if "Optimizer:q_network" in peer else "ppo"


def _signals(peer: Mapping[str, Any]) -> tuple[str, ...]:
    critic = peer.get(CRITIC, peer.get("Optimizer:value_network", {}))
    found = (re.fullmatch(r"value_heads\.value_heads\.(.+)\.weight", str(name)) for name in critic)
    return tuple(match[1] for match in found if match)
