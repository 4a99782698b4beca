"""Network bodies, which encode observations: an encoder per sensor, attention, layers and a memory.

The structure follows ML-Agents (docs/explanation/mlagents-behavior.md#body-and-heads).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

import torch
from attrs import evolve
from torch import Tensor, nn

from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.spec import ObservationKind, ObservationSpec, ObservationType, observation_kind
from trajtrainer.learning.nn.attention import (
    EMBEDDING,
    Embedding,
    EntityEmbedding,
    ResidualSelfAttention,
    padding_mask,
    padding_mask_to_onnx,
)
from trajtrainer.learning.nn.conditioning import HyperBody, Mlp, Regularization
from trajtrainer.learning.nn.encoders import visual_encoder
from trajtrainer.learning.nn.graph import Graph
from trajtrainer.learning.nn.init import initialize
from trajtrainer.learning.nn.memory import Memory, Unrolled
from trajtrainer.learning.nn.mlagents import Names
from trajtrainer.learning.nn.normalization import NormalizedMlp, Normalizer
from trajtrainer.settings.network import Activation, ConditioningType, NetworkSettings


class ObservationEncoder(nn.Module):
    """Encodes all of an agent's observations as one vector.

    The vector contains the vector observations (normalized if the settings say so) and the encoded images in the order
    of their sensors, followed by the result of attention over all variable-length sensors.

    Attributes:
        size: size of the encoding.
        goals: indices of the sensors that are goal signals.
        goal_size: size of the goal's encoding; 0 if no sensor of fixed size is a goal signal.
        kinds: kind of each sensor.
        seen: indices of the encoded sensors, in order.
        lists: indices of the encoded variable-length sensors.
        fixed: indices of the other encoded sensors.

    Args:
        specs: all sensors of the behavior.
        settings: ``network_settings``.
        hidden: indices of the sensors to ignore. :meth:`forward` still takes their observations.
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
        sensors: list[nn.Module] = []
        for i, (spec, kind) in enumerate(zip(specs, self.kinds, strict=True)):
            if i in self.seen and kind is ObservationKind.VISUAL:
                name, vis_encode_type = str(spec.name), settings.vis_encode_type
                sensors.append(visual_encoder(name, spec.shape, vis_encode_type, settings.hidden_units))
            elif i in self.seen and kind is ObservationKind.VARIABLE_LENGTH:
                sensors.append(EntityEmbedding(int(spec.shape[1]), own_size))
            elif i in self.seen and settings.normalize:
                sensors.append(
                    Normalizer(
                        int(spec.shape[0]), settings.clip_obs, prior=settings.normalizer_prior, name=str(spec.name)
                    )
                )
            else:
                sensors.append(nn.Identity())
        self.sensors = nn.ModuleList(sensors)
        self.attention = ResidualSelfAttention() if self.lists else None
        self.own = Embedding(fixed_size) if self.lists and fixed_size else None
        self.size = fixed_size + (EMBEDDING if self.lists else 0)
        self.goal_size = sum(sizes[i] for i in self.goals if i in self.fixed)
        self._names = tuple(str(spec.name) for spec in specs)

    @property
    def is_plain(self) -> bool:
        """True if all encoded sensors are vectors."""
        return all(isinstance(sensor, Normalizer | nn.Identity) for sensor in self.sensors)

    def check_goals(self) -> None:
        """Check that the goal signals can condition a network.

        Raises:
            UnsupportedError: a goal signal has a variable length.
        """
        for i in self.goals:
            if i in self.lists:
                raise UnsupportedError(
                    f"Sensor {self._names[i]!r} is a goal signal of variable length, which cannot condition a "
                    "network together with another goal signal. Make it an ordinary observation in Unity, or set "
                    "goal_conditioning_type: none."
                )

    def forward(self, obs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the encoding [B, size], and the parts from sensors of fixed size in the order of ``fixed``."""
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
        """Select the goal's encoding [B, goal_size] from the ``parts`` that :meth:`forward` returned."""
        return torch.cat([parts[self.fixed.index(i)] for i in self.goals], 1)

    @property
    def mlagents_names(self) -> Names:
        sensors = {f"sensors.{i}": f"processors.{i}" for i in range(len(self.sensors))}
        return {**sensors, "attention": "rsa", "own": "x_self_encoder"}

    def to_onnx(self, graph: Graph, obs: Sequence[str], shapes: Sequence[Sequence[int]]) -> tuple[str, list[str]]:
        """Add nodes that compute :meth:`forward` for observations [batch, *O] with these shapes."""
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
        """Return the normalizers by sensor index."""
        return {i: sensor for i, sensor in enumerate(self.sensors) if isinstance(sensor, Normalizer)}

    def copy_normalization(self, other: ObservationEncoder, obs: Sequence[Tensor] = ()) -> None:
        """Copy the normalizers of an encoder that was updated with ``obs``. Update any that it lacks with ``obs``."""
        theirs = other.normalizers()
        for i, normalizer in self.normalizers().items():
            if i in theirs:
                normalizer.copy_from(theirs[i])
            else:
                normalizer.update(obs[i])


def critic_only_sensors(specs: Sequence[ObservationSpec], settings: NetworkSettings) -> frozenset[int]:
    """Return the indices of the sensors that ``critic_only`` hides from the policy.

    Raises:
        UnsupportedError: the behavior lacks a listed sensor, or no sensor would be left for the policy.
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
            f"network_settings.critic_only lists all sensors of the behavior ({known}), so the policy would see none."
        )
    return hidden


class NetworkBody(nn.Module):
    """The part that actors, critics and reward networks have in common: encoders, layers, and optionally a memory.

    Args:
        observation_specs: the behavior's sensors.
        settings: ``network_settings``.
        action_size: size of the action vector appended to the encoded observations (Q networks, GAIL); 0 for no
            actions.
        regularization: regularization of the layers; ML-Agents has none.
        sees_all: also encode the ``critic_only`` sensors. Critics set this.
        batch_norm: use a ``NormalizedMlp`` for the layers. This makes ``normalize`` unnecessary and treats a goal like
            any other observation.

    Attributes:
        encoding_size: E, the size of the output: ``hidden_units``, or half the memory size with a memory.
        memory_size: H; 0 without a memory.

    Raises:
        UnsupportedError: no encoder supports one of the sensors, or ``critic_only`` does not match the sensors.
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
        # If all goals have a variable length, the layers are not conditioned, as in ML-Agents.
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
        """True if the body is an unregularized ``Mlp`` on vectors, optionally followed by a memory."""
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
        """Encode B steps in S sequences of length L = B / S.

        Args:
            obs: observations of each sensor [B, *O], f32, or u8 for images.
            actions: [B, action_size], if the body takes actions.
            memory: memory before each sequence [S, H]; None for empty memories. A body without a memory returns it
                unchanged.
            sequence_length: L.

        Returns:
            The encoding [B, E], and the memory after each sequence [S, H] (H is 0 without a memory).
        """
        return self.of_encoded(self.encoder(obs), actions, memory, sequence_length)

    def of_encoded(
        self,
        encoded: tuple[Tensor, list[Tensor]],
        actions: Tensor | None = None,
        memory: Tensor | None = None,
        sequence_length: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Like :meth:`forward`, but for observations that ``encoder`` has already encoded.

        Use this to encode observations only once for several actions.
        """
        x = self._layered(encoded, actions)
        if self.memory is None:
            return x, memory if memory is not None else x.new_empty((x.shape[0], 0))
        return self.memory(x, memory, sequence_length)  # type: ignore[no-any-return]

    def unroll(self, obs: Sequence[Tensor], offset: Tensor, memory: Tensor | None, sequence_length: int) -> Unrolled:
        """Encode whole trajectories, with the observations of each sensor [B, *O] in ``obs``.

        The other arguments are those of :meth:`Memory.unroll`.
        """
        assert self.memory is not None
        return self.memory.unroll(self.features(obs), offset, memory, sequence_length)

    def features(self, obs: Sequence[Tensor]) -> Tensor:
        """Compute the output of the layers [B, hidden_units], which is the input of the memory."""
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
        """Add nodes for one step, which map observations [batch, *O] to the encoding [batch, E].

        Args:
            graph: the graph to add the nodes to.
            obs: name of each sensor's observation.
            shapes: O of each sensor.
            memory: name of the memory before the step [batch, 1, H]; None if the body has no memory.
            memory_out: name for the memory after the step [batch, 1, H], if the body has a memory.
        """
        x, parts = self.encoder.to_onnx(graph, obs, shapes)
        goal = [self.encoder.goal_to_onnx(graph, parts)] if self.conditioned else []
        encoding: str = graph.module(self.layers, x, *goal)
        if self.memory is None:
            return encoding
        assert memory is not None
        return self.memory.to_onnx(graph, encoding, memory, memory_out)

    def update_normalization(self, obs: Sequence[Tensor], *, repeats: int = 1) -> None:
        """Update the normalizers with the observations of each sensor [B, *O]."""
        for i, normalizer in self.encoder.normalizers().items():
            normalizer.update(obs[i], repeats)

    def copy_normalization(self, other: NetworkBody, obs: Sequence[Tensor] = ()) -> None:
        self.encoder.copy_normalization(other.encoder, obs)
