"""From observations to an encoding: one encoder per sensor, attention, layers, memory.

See docs/mlagents-behavior.md#body-and-heads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

import torch
from attrs import evolve
from torch import Tensor, nn

from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.spec import ObservationKind, ObservationSpec, ObservationType, observation_kind
from trajtrainer.nn.attention import (
    EMBEDDING,
    Embedding,
    EntityEmbedding,
    ResidualSelfAttention,
    padding_mask,
    padding_mask_to_onnx,
)
from trajtrainer.nn.conditioning import HyperBody, Mlp, Regularization
from trajtrainer.nn.encoders import visual_encoder
from trajtrainer.nn.graph import Graph
from trajtrainer.nn.init import initialize
from trajtrainer.nn.memory import Memory, Unrolled
from trajtrainer.nn.mlagents import Names
from trajtrainer.nn.normalization import NormalizedMlp, Normalizer
from trajtrainer.settings.network import Activation, ConditioningType, NetworkSettings


class ObservationEncoder(nn.Module):
    """All sensors of an agent to one vector.

    Vectors (normalized if asked) and encoded pictures stand side by side in the order of the sensors; the attention
    over all variable-length sensors comes last.

    Attributes:
        size: of the encoding.
        goals: sensors that are goal signals.
        goal_size: of the goal's encoding; 0 if no sensor of fixed size is a goal signal.
        kinds: kind of each sensor.
        seen: numbers of the sensors that are encoded, in order.

    Args:
        specs: all sensors of the behavior.
        settings: ``network_settings``.
        hidden: numbers of the sensors that are left out. Observations are given of all sensors nevertheless.
    """

    def __init__(
        self, specs: Sequence[ObservationSpec], settings: NetworkSettings, hidden: Collection[int] = ()
    ) -> None:
        super().__init__()
        if not specs:
            raise UnsupportedError("The behavior has no observations. Add a sensor or vector observations in Unity.")
        self.kinds = tuple(observation_kind(spec) for spec in specs)
        self.seen = tuple(i for i in range(len(specs)) if i not in hidden)
        self.lists = tuple(i for i in self.seen if self.kinds[i] is ObservationKind.VARIABLE_LENGTH)
        self.fixed = tuple(i for i in self.seen if i not in self.lists)
        self.goals = tuple(i for i in self.seen if specs[i].observation_type == ObservationType.GOAL_SIGNAL)
        sizes = [
            settings.hidden_units if kind is ObservationKind.VISUAL else int(spec.shape[0])
            for spec, kind in zip(specs, self.kinds, strict=True)
        ]
        fixed_size = sum(sizes[i] for i in self.fixed)
        own_size = EMBEDDING if fixed_size else 0
        self.sensors = nn.ModuleList(
            _sensor(spec, settings, own_size) if i in self.seen else nn.Identity() for i, spec in enumerate(specs)
        )
        self.attention = ResidualSelfAttention() if self.lists else None
        self.own = Embedding(fixed_size) if self.lists and fixed_size else None
        self.size = fixed_size + (EMBEDDING if self.lists else 0)
        self.goal_size = sum(sizes[i] for i in self.goals if i in self.fixed)
        self._names = tuple(str(spec.name) for spec in specs)

    @property
    def is_plain(self) -> bool:
        """Whether all sensors are vectors."""
        return all(isinstance(sensor, Normalizer | nn.Identity) for sensor in self.sensors)

    def check_goals(self) -> None:
        """Raise if a goal signal cannot condition a network.

        Raises:
            UnsupportedError: a goal signal is variable-length.
        """
        for i in self.goals:
            if i in self.lists:
                raise UnsupportedError(
                    f"Sensor {self._names[i]!r} is a goal signal of variable length, which cannot condition a "
                    "network together with another goal signal. Make it an ordinary observation in Unity, or set "
                    "goal_conditioning_type: none."
                )

    def forward(self, obs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The encoding [B, size], and what each sensor of fixed size became, in the order of ``fixed``."""
        parts = [self.sensors[i](obs[i]) for i in self.fixed]
        if self.attention is None:
            return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)), parts
        own = None
        encoding = parts
        if self.own is not None:
            fixed = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            own, encoding = self.own(fixed), [fixed]
        entities = torch.cat([self.sensors[i](obs[i], own) for i in self.lists], 1)
        padding = torch.cat([padding_mask(obs[i]) for i in self.lists], 1)
        attended = self.attention(entities, padding)
        return torch.cat([*encoding, attended], 1), parts

    def goal(self, parts: Sequence[Tensor]) -> Tensor:
        """The goal's encoding [B, goal_size] out of what :meth:`forward` returned beside the encoding."""
        return torch.cat([parts[self.fixed.index(i)] for i in self.goals], 1)

    @property
    def mlagents_names(self) -> Names:
        sensors = {f"sensors.{i}": f"processors.{i}" for i in range(len(self.sensors))}
        return {**sensors, "attention": "rsa", "own": "x_self_encoder"}

    def to_onnx(self, graph: Graph, obs: Sequence[str], shapes: Sequence[Sequence[int]]) -> tuple[str, list[str]]:
        """Draw it: observations [batch, *O] of these shapes to what :meth:`forward` returns."""
        parts = [graph.module(self.sensors[i], obs[i]) for i in self.fixed]
        if self.attention is None:
            return graph.concat(parts, axis=1), parts
        own = None if self.own is None else self.own.to_onnx(graph, graph.concat(parts, axis=1))
        counts = {i: int(shapes[i][0]) for i in self.lists}
        entities = [graph.module(self.sensors[i], obs[i], own, counts[i]) for i in self.lists]
        padding = [padding_mask_to_onnx(graph, obs[i]) for i in self.lists]
        attended = self.attention.to_onnx(
            graph, graph.concat(entities, axis=1), graph.concat(padding, axis=1), sum(counts.values())
        )
        return graph.concat([*parts, attended], axis=1), parts

    def goal_to_onnx(self, graph: Graph, parts: Sequence[str]) -> str:
        return graph.concat([parts[self.fixed.index(i)] for i in self.goals], axis=1)

    def normalizers(self) -> dict[int, Normalizer]:
        """Sensor number -> its normalizer."""
        return {i: sensor for i, sensor in enumerate(self.sensors) if isinstance(sensor, Normalizer)}

    def copy_normalization(self, other: ObservationEncoder, obs: Sequence[Tensor] = ()) -> None:
        """Take over another encoder's normalizers, which have taken ``obs`` in; those it does not have take it in."""
        theirs = other.normalizers()
        for i, normalizer in self.normalizers().items():
            if i in theirs:
                normalizer.copy_from(theirs[i])
            else:
                normalizer.update(obs[i])


def critic_only_sensors(specs: Sequence[ObservationSpec], settings: NetworkSettings) -> frozenset[int]:
    """The numbers of the sensors that ``critic_only`` keeps from the policy.

    Raises:
        UnsupportedError: one does not exist, or the policy would see nothing.
    """
    names = [str(spec.name) for spec in specs]
    known = ", ".join(f"{i} {name!r}" for i, name in enumerate(names))
    hidden = frozenset(i for i, name in enumerate(names) if {i, name} & set(settings.critic_only))
    missing = [each for each in settings.critic_only if each not in names and each not in range(len(names))]
    if missing:
        listed = ", ".join(map(repr, missing))
        raise UnsupportedError(
            f"network_settings.critic_only: the behavior has no sensor {listed}. Its sensors are {known}."
        )
    if hidden and len(hidden) == len(names):
        raise UnsupportedError(
            f"network_settings.critic_only has all sensors of the behavior ({known}), so the policy would see nothing."
        )
    return hidden


def _sensor(spec: ObservationSpec, settings: NetworkSettings, own_size: int) -> nn.Module:
    kind = observation_kind(spec)
    if kind is ObservationKind.VISUAL:
        return visual_encoder(str(spec.name), spec.shape, settings.vis_encode_type, settings.hidden_units)
    if kind is ObservationKind.VARIABLE_LENGTH:
        return EntityEmbedding(int(spec.shape[1]), own_size)
    return Normalizer(int(spec.shape[0]), settings.clip_obs) if settings.normalize else nn.Identity()


class NetworkBody(nn.Module):
    """The part that actor, critics and reward networks have in common: sensors, layers, and memory if asked.

    Args:
        observation_specs: the behavior's sensors.
        settings: ``network_settings``.
        action_size: numbers that are appended to the encoded observations (Q networks, GAIL); 0 for none.
        regularization: of the layers; none in ML-Agents.
        sees_all: whether it also encodes the sensors of ``critic_only``, as critics do.
        batch_norm: the layers are a ``NormalizedMlp``, which makes ``normalize`` superfluous; a goal is an observation
            like any other then.

    Attributes:
        encoding_size: E, of the output: hidden_units, or half the memory size with a memory.
        memory_size: H; 0 without a memory.

    Raises:
        UnsupportedError: a sensor that no encoder takes, or ``critic_only`` does not fit the sensors.
    """

    mlagents_names: ClassVar[Names] = {"encoder": "observation_encoder", "layers": "_body_endoder", "memory": "lstm"}

    def __init__(
        self,
        observation_specs: Sequence[ObservationSpec],
        settings: NetworkSettings,
        *,
        action_size: int = 0,
        regularization: Regularization | None = None,
        batch_norm: bool = False,
        sees_all: bool = False,
    ) -> None:
        super().__init__()
        if batch_norm:
            settings = evolve(settings, normalize=False, goal_conditioning_type=ConditioningType.NONE)
        unseen = frozenset[int]() if sees_all else critic_only_sensors(observation_specs, settings)
        self.encoder = ObservationEncoder(observation_specs, settings, unseen)
        size = self.encoder.size + action_size
        hidden = settings.hidden_units
        # Goals that are all of variable length condition nothing, as in ML-Agents.
        self.conditioned = settings.goal_conditioning_type is ConditioningType.HYPER and self.encoder.goal_size > 0
        if self.conditioned:
            self.encoder.check_goals()
            self.layers: nn.Module = HyperBody(
                size, self.encoder.goal_size, hidden, settings.num_layers, settings.activation
            )
        elif batch_norm:
            self.layers = NormalizedMlp(size, hidden, settings.num_layers)
        else:
            self.layers = Mlp(
                size, hidden, settings.num_layers, activation=settings.activation, regularization=regularization
            )
        if not batch_norm:
            initialize(self.layers, settings.initialization)
        self.memory = Memory(hidden, settings.memory.memory_size) if settings.memory is not None else None
        self.action_size = action_size
        self.memory_size = 0 if self.memory is None else self.memory.memory_size
        self.encoding_size = hidden if self.memory is None else self.memory.hidden_size

    @property
    def is_mlp(self) -> bool:
        """Whether it is layers on vectors, perhaps with a memory behind them, and nothing else."""
        return isinstance(self.layers, Mlp) and self.layers.regularization is None and self.encoder.is_plain

    @property
    def is_swish(self) -> bool:
        return isinstance(self.layers, Mlp) and self.layers.activation is Activation.SWISH

    def forward(
        self,
        obs: Sequence[Tensor],
        actions: Tensor | None = None,
        memory: Tensor | None = None,
        sequence_length: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Encode B steps, which are S sequences of length L = B / S.

        Args:
            obs: per sensor [B, *O], f32 or (pictures) u8.
            actions: [B, action_size], where the body takes actions.
            memory: before each sequence [S, H]; None for empty ones. Handed through without a memory.
            sequence_length: L.

        Returns:
            The encoding [B, E], and the memories after each sequence [S, H] (H is 0 without a memory).
        """
        return self.of_encoded(self.encoder(obs), actions, memory, sequence_length)

    def of_encoded(
        self,
        encoded: tuple[Tensor, list[Tensor]],
        actions: Tensor | None = None,
        memory: Tensor | None = None,
        sequence_length: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Do as :meth:`forward`, from what ``encoder`` made of the observations.

        With several actions for the same observations these are encoded once.
        """
        x = self._layered(encoded, actions)
        if self.memory is None:
            return x, memory if memory is not None else x.new_empty((x.shape[0], 0))
        return self.memory(x, memory, sequence_length)  # type: ignore[no-any-return]

    def unroll(self, obs: Sequence[Tensor], offset: Tensor, memory: Tensor | None, sequence_length: int) -> Unrolled:
        """Encode whole trajectories with a memory: see :meth:`Memory.unroll`. ``obs`` per sensor [B, *O]."""
        assert self.memory is not None
        return self.memory.unroll(self.features(obs), offset, memory, sequence_length)

    def features(self, obs: Sequence[Tensor]) -> Tensor:
        """What the layers make of each step [B, hidden_units], ahead of the memory."""
        return self._layered(self.encoder(obs), None)

    def _layered(self, encoded: tuple[Tensor, list[Tensor]], actions: Tensor | None) -> Tensor:
        x, parts = encoded
        if actions is not None:
            x = torch.cat((x, actions), 1)
        if self.conditioned:
            return self.layers(x, self.encoder.goal(parts))  # type: ignore[no-any-return]
        return self.layers(x)  # type: ignore[no-any-return]

    def to_onnx(
        self,
        graph: Graph,
        obs: Sequence[str],
        shapes: Sequence[Sequence[int]],
        memory: str | None,
        memory_out: str,
    ) -> str:
        """Draw one step: observations [batch, *O] to the encoding [batch, E].

        Args:
            graph: what is added to.
            obs: per sensor.
            shapes: O of each sensor.
            memory: memories before the step [batch, 1, H]; None if the body has none.
            memory_out: what to call the memories after the step [batch, 1, H], if the body has any.
        """
        x, parts = self.encoder.to_onnx(graph, obs, shapes)
        goal = [self.encoder.goal_to_onnx(graph, parts)] if self.conditioned else []
        encoding: str = graph.module(self.layers, x, *goal)
        if self.memory is None:
            return encoding
        assert memory is not None
        return self.memory.to_onnx(graph, encoding, memory, memory_out)

    def update_normalization(self, obs: Sequence[Tensor], *, repeats: int = 1) -> None:
        """Take observations, per sensor [B, *O], into the normalizers; see :meth:`Normalizer.update`."""
        for i, normalizer in self.encoder.normalizers().items():
            normalizer.update(obs[i], repeats)

    def copy_normalization(self, other: NetworkBody, obs: Sequence[Tensor] = ()) -> None:
        """Take over another body's normalizers: see :meth:`ObservationEncoder.copy_normalization`."""
        self.encoder.copy_normalization(other.encoder, obs)
