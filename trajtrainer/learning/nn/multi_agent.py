"""The critic of MA-POCA (Cohen et al. 2021): values of whole groups of agents, and counterfactual baselines.

It follows ML-Agents (docs/explanation/mlagents-behavior.md#poca).

Shape legend: b rows, Q sequences of rows, K moments (the agents of one group at one time), D agents at all of these
moments, n agents in the largest group, A action size, e hidden units, E encoding size, H memory size, V reward signals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.learning.nn.attention import (
    MASKED_SCORE,
    MEAN_EPSILON,
    EntityEmbedding,
    Projected,
    ResidualSelfAttention,
)
from trajtrainer.learning.nn.body import NetworkBody, ObservationEncoder
from trajtrainer.learning.nn.conditioning import Mlp
from trajtrainer.learning.nn.heads import ValueHeads
from trajtrainer.learning.nn.init import initialize
from trajtrainer.learning.nn.memory import Memory, Unrolled
from trajtrainer.learning.nn.mlagents import Names
from trajtrainer.settings.network import NetworkSettings

# ML-Agents scales the initial weights of this body's layers by sqrt(_GAIN_SQUARED / hidden_units).
_GAIN_SQUARED = 0.125


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Steps of agents and their groupmates. Each agent is stored once, no matter how many rows refer to it.

    Attributes:
        obs: observations of each sensor [D, *O].
        actions: f32 [D, A], as returned by ``flat_actions``.
        members: i64 [K, n], indices of the agents present at each moment; -1 for empty slots.
        moment: i64 [b], index of each row's moment.
        place: i64 [b], position of the row's own agent among the members of its moment.
    """

    obs: Sequence[Tensor]
    actions: Tensor
    members: Tensor
    moment: Tensor
    place: Tensor

    def of_rows(self, encoding: Tensor) -> tuple[Tensor, Tensor]:
        """Select each row's encoding for the value (its moment's) and for the baseline (its own agent's), [b, x] each.

        Args:
            encoding: [K, n + 1, x], as returned by ``MultiAgentNetworkBody``.
        """
        width = encoding.shape[1]
        flat = encoding.flatten(0, 1)
        first = self.moment * width
        return flat.index_select(0, first + width - 1), flat.index_select(0, first + self.place)

    def halves(self) -> list[GroupRows]:
        """Split the moments into two halves. Each contains only the agents it refers to, and no rows."""
        found = []
        for members in self.members.chunk(2):
            agents, places = torch.unique(members.clamp(min=0), return_inverse=True)
            obs = [sensor[agents] for sensor in self.obs]
            members = places.masked_fill(members < 0, -1)
            found.append(GroupRows(obs, self.actions[agents], members, self.moment[:0], self.place[:0]))
        return found


def flat_actions(continuous: Tensor, discrete: Tensor, action_spec: ActionSpec) -> Tensor:
    """Return each agent's action as one vector [D, A]: the continuous actions, then each branch one-hot encoded."""
    parts = [continuous]
    for column, size in zip(discrete.unbind(1), action_spec.discrete_branches, strict=True):
        parts.append(F.one_hot(column.long(), size).to(continuous.dtype))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class MultiAgentNetworkBody(nn.Module):
    """Encodes the observations and actions of a group of agents as one vector, for any number and order of agents.

    As in ML-Agents, goal signals are treated as ordinary observations.

    Args:
        spec: the behavior's observations and actions.
        settings: ``network_settings``; ``hidden_units`` must be a multiple of the number of attention heads.

    Attributes:
        max_group_size: number of agents in the largest group seen so far, 0-d. The number of agents is encoded relative
            to it.
        encoding_size: E; the last element of an encoding is the encoded number of agents.
        encoding_of_groups: e + 1, the size of an encoding before the memory.
        memory_size: H; 0 without a memory.
    """

    mlagents_names: ClassVar[Names] = {
        "max_group_size": "_current_max_agents",
        "encoder": "observation_encoder",
        "observing": "obs_encoder",
        "acting": "obs_action_encoder",
        "attention": "self_attn",
        "layers": "linear_encoder",
        "memory": "lstm",
    }

    max_group_size: Tensor

    def __init__(self, spec: BehaviorSpec, settings: NetworkSettings) -> None:
        super().__init__()
        hidden, action = settings.hidden_units, spec.action_spec
        action_size = int(action.continuous_size) + sum(action.discrete_branches)
        self.register_buffer("max_group_size", torch.ones(()))
        self.encoder = ObservationEncoder(spec.observation_specs, settings)
        self.observing = EntityEmbedding(self.encoder.size, 0, hidden)
        self.acting = EntityEmbedding(self.encoder.size + action_size, 0, hidden)
        self.attention = ResidualSelfAttention(hidden)
        self.layers = Mlp(hidden, hidden, settings.num_layers, math.sqrt(_GAIN_SQUARED / hidden), settings.activation)
        initialize(self.layers, settings.initialization)
        self.memory = Memory(hidden, settings.memory.memory_size) if settings.memory is not None else None
        self.memory_size = 0 if self.memory is None else self.memory.memory_size
        self.encoding_of_groups = hidden + 1
        self.encoding_size = (hidden if self.memory is None else self.memory.hidden_size) + 1

    def values(self, obs: Sequence[Tensor], members: Tensor) -> Tensor:
        """Encode groups for their values, from the members' observations and without the memory.

        Args:
            obs: observations of D agents, for each sensor [D, *O].
            members: i64 [K, n], indices of each group's agents; -1 for empty slots. Each group has at least one member.

        Returns:
            [K, e + 1]; the last element encodes the number of agents, from -1 for no agents to 1 for the largest group
            so far.
        """
        entities = self.observing(self.encoder(obs)[0], None)
        absent = members < 0
        projected = _gathered(self.attention.project(entities), members)
        features = self.layers(self.attention.attend(projected, absent.to(entities.dtype)))
        return torch.cat((features, self._numbers(absent)), 1)

    def forward(self, obs: Sequence[Tensor], actions: Tensor, members: Tensor) -> Tensor:
        """Encode groups for the baseline of each member and for their values, without the memory.

        Each agent is embedded twice, with and without its action. The group's n + 1 sets of agents are selected from
        these 2 n embeddings, so most of the computation is done once per agent instead of once per agent and set.

        Args:
            obs: as in ``values``.
            actions: actions of the same agents [D, A].
            members: as in ``values``.

        Returns:
            [K, n + 1, e + 1]: the encodings for the members' baselines, which take the other members' actions into
            account, followed by the encoding for the value.
        """
        encoding, _ = self.encoder(obs)
        observing = self.observing(encoding, None)
        acting = self.acting(torch.cat((encoding, actions), 1), None)
        absent = members < 0
        both = torch.cat((members, (members + len(actions)).masked_fill(absent, -1)), 1)
        projected = _gathered(self.attention.project(torch.cat((observing, acting))), both)
        attended = self._attend(projected, absent)
        features = self.layers(attended.flatten(0, 1)).view(attended.shape)
        numbers = self._numbers(absent)[:, None].expand(-1, features.shape[1], -1)
        return torch.cat((features, numbers), 2)

    def _attend(self, entities: Projected, absent: Tensor) -> Tensor:
        """Apply attention to each set of embeddings [K, 2 n, e] and average. Returns [K, n + 1, e]."""
        attention, count = self.attention, absent.shape[1]
        query, key = attention.split(entities.query), attention.split(entities.key)
        chosen, outside = _sets(count, query.dtype, query.device)
        # An entity's query is the same in all sets. The keys' dimension comes before the queries', because torch's
        # softmax is slow over a short last dimension.
        scores = torch.matmul(torch.matmul(key, query.transpose(2, 3)), chosen * attention.embedding**-0.5)
        lacking = outside + absent.repeat(1, 2).to(outside.dtype)[:, None, :, None]
        weights = torch.softmax(scores + lacking * MASKED_SCORE, 2).flatten(1, 2)
        # The output for a set is the sum of each entity's contributions through the heads and through the residual.
        parts = torch.cat((attention.outputs(entities.value), entities.normalized + attention.out.bias), 1)
        weights = torch.cat((weights, chosen.expand(len(weights), -1, -1)), 1)
        attended = torch.bmm(weights.transpose(1, 2), parts)
        attended = F.layer_norm(attended, (attention.embedding,)).view(-1, count + 1, count, attention.embedding)
        present = (~absent).to(attended.dtype)
        mean = present / (present.sum(1, keepdim=True) + MEAN_EPSILON)
        return torch.matmul(mean[:, None, None], attended).squeeze(2)

    def _numbers(self, absent: Tensor) -> Tensor:
        number = (~absent).sum(1, keepdim=True, dtype=self.max_group_size.dtype)
        self.note_group_sizes(number)
        return number * 2.0 / self.max_group_size - 1.0

    def note_groups(self, members: Tensor) -> None:
        """Update ``max_group_size`` with groups in the format of ``values``."""
        self.note_group_sizes((members >= 0).sum(1, dtype=self.max_group_size.dtype))

    @torch.no_grad()
    def note_group_sizes(self, number: Tensor) -> None:
        """Update ``max_group_size`` with groups of these sizes."""
        if number.numel():
            torch.maximum(self.max_group_size, number.max(), out=self.max_group_size)

    def remember(self, encoding: Tensor, memory: Tensor | None, sequence_length: int) -> tuple[Tensor, Tensor]:
        """Run the memory over the encodings of Q sequences.

        Returns:
            The encodings after the memory [b, E], and the memory after each sequence [Q, H].
        """
        assert self.memory is not None
        out, after = self.memory(encoding[:, :-1], memory, sequence_length)
        return torch.cat((out, encoding[:, -1:]), 1), after

    def unroll(self, encoding: Tensor, offset: Tensor, memory: Tensor | None, sequence_length: int) -> Unrolled:
        """Run the memory over the encodings of whole trajectories, as ``Memory.unroll`` does."""
        assert self.memory is not None
        out, starts, final = self.memory.unroll(encoding[:, :-1], offset, memory, sequence_length)
        return Unrolled(torch.cat((out, encoding[:, -1:]), 1), starts, final)

    def copy_normalization(self, other: NetworkBody, obs: Sequence[Tensor] = ()) -> None:
        self.encoder.copy_normalization(other.encoder, obs)


class GroupCritic(nn.Module):
    """Estimates the value of a group's state, and each agent's baseline: the value without knowing its own action.

    Args:
        spec: the behavior's observations and actions.
        settings: ``network_settings``.
        signals: names of the reward signals, in order.
    """

    mlagents_names: ClassVar[Names] = {"body": "network_body", "heads": "value_heads"}

    def __init__(self, spec: BehaviorSpec, settings: NetworkSettings, signals: Sequence[str]) -> None:
        super().__init__()
        self.body = MultiAgentNetworkBody(spec, settings)
        self.heads = ValueHeads(self.body.encoding_size, signals, initialization=settings.initialization)

    @property
    def signals(self) -> tuple[str, ...]:
        return self.heads.signals

    @property
    def memory_size(self) -> int:
        return self.body.memory_size

    def encode(self, groups: GroupRows) -> Tensor:
        """Encode moments without the memory, [K, n + 1, e + 1]."""
        encoding: Tensor = self.body(groups.obs, groups.actions, groups.members)
        return encoding

    def forward(
        self, groups: GroupRows, memories: tuple[Tensor | None, Tensor | None] = (None, None), sequence_length: int = 1
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Compute the values and baselines of b rows in Q sequences, [V, b] each, and the memories after each sequence.

        Args:
            groups: the rows.
            memories: memories for the value and for the baseline before each sequence [Q, H]; None for empty memories.
            sequence_length: L = b / Q.
        """
        return self.of_encoding(self.encode(groups), groups, memories, sequence_length)

    def of_encoding(
        self,
        encoding: Tensor,
        groups: GroupRows,
        memories: tuple[Tensor | None, Tensor | None] = (None, None),
        sequence_length: int = 1,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Do the same as :meth:`forward`, but for moments that :meth:`encode` has already encoded."""
        encodings = groups.of_rows(encoding)
        if self.body.memory is None:
            nothing = encodings[0].new_empty((len(groups.moment), 0))
            values, baselines = (self.heads(encoding) for encoding in encodings)
            return values, baselines, (nothing, nothing)
        remembered = [
            self.body.remember(encoding, memory, sequence_length)
            for encoding, memory in zip(encodings, memories, strict=True)
        ]
        (values, after_values), (baselines, after_baselines) = remembered
        return self.heads(values), self.heads(baselines), (after_values, after_baselines)


def _gathered(entities: Projected, members: Tensor) -> Projected:
    """Gather the entities of groups [K, n, e] from [D, e]. Empty slots get an arbitrary entity."""
    columns = F.embedding(members.clamp(min=0), torch.cat(entities, 1))
    return Projected(*columns.chunk(4, 2))


@cache
def _sets(count: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Select the n + 1 sets of a group of n agents from its 2 n embeddings: n without and n with actions.

    The set for a member's baseline contains this member without its action and the others with their actions. The last
    set, for the value, contains all members without their actions.

    Returns:
        [2 n, (n + 1) n], 1 for the embedding of each member in each set; and another tensor of the same shape, 1 for
        each embedding that is not in the set.
    """
    member = torch.arange(count)
    acts = (torch.arange(count + 1)[:, None] != member) & (torch.arange(count + 1)[:, None] < count)
    chosen = F.one_hot(member + acts * count, 2 * count)
    outside = (1 - chosen.sum(1)).repeat_interleave(count, 0)
    chosen, outside = (one.t().to(device, dtype).contiguous() for one in (chosen.flatten(0, 1), outside))
    return chosen, outside
