"""The critic of MA-POCA (Cohen et al. 2021): values of whole groups of agents, and counterfactual baselines.

It follows ML-Agents (docs/explanation/mlagents-behavior.md#poca).

Shape legend: b rows, Q sequences of them, K moments (the agents of one group at one time), D agents at all of these
moments, n agents of the largest group, A numbers of an action, e hidden units, E numbers of an encoding, H memory size,
V reward signals.
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

# In ML-Agents the initial weights of this body's layers are smaller than those of other bodies by this factor, squared.
_GAIN_SQUARED = 0.125


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Steps of agents with their groupmates. Every agent occurs once, however many others see it.

    Attributes:
        obs: per sensor [D, *O].
        actions: f32 [D, A], made by ``flat_actions``.
        members: i64 [K, n], indices of the agents present at each moment; -1 in empty places.
        moment: i64 [b], of each row.
        place: i64 [b], of the row's own agent among the members.
    """

    obs: Sequence[Tensor]
    actions: Tensor
    members: Tensor
    moment: Tensor
    place: Tensor

    def of_rows(self, encoding: Tensor) -> tuple[Tensor, Tensor]:
        """For each row, its moment's encoding for the value and its own agent's for the baseline, [b, x] each.

        Args:
            encoding: [K, n + 1, x], as ``MultiAgentNetworkBody`` returns it.
        """
        width = encoding.shape[1]
        flat = encoding.flatten(0, 1)
        first = self.moment * width
        return flat.index_select(0, first + width - 1), flat.index_select(0, first + self.place)

    def halves(self) -> list[GroupRows]:
        """The first and the second half of the moments, each with only its own agents and without rows."""
        found = []
        for members in self.members.chunk(2):
            agents, places = torch.unique(members.clamp(min=0), return_inverse=True)
            obs = [sensor[agents] for sensor in self.obs]
            members = places.masked_fill(members < 0, -1)
            found.append(GroupRows(obs, self.actions[agents], members, self.moment[:0], self.place[:0]))
        return found


def flat_actions(continuous: Tensor, discrete: Tensor, action_spec: ActionSpec) -> Tensor:
    """Each agent's action as one vector [D, A]: the continuous part, then each branch one-hot."""
    parts = [continuous]
    for column, size in zip(discrete.unbind(1), action_spec.discrete_branches, strict=True):
        parts.append(F.one_hot(column.long(), size).to(continuous.dtype))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class MultiAgentNetworkBody(nn.Module):
    """Encodes observations and actions of a group's agents as one vector, whatever their order and number.

    Goal signals are ordinary observations here, as in ML-Agents.

    Args:
        spec: what the agents see and do.
        settings: ``network_settings``; ``hidden_units`` is a multiple of the attention's heads.

    Attributes:
        max_group_size: agents of the largest group ever seen, 0-d. The number of agents is encoded relative to it.
        encoding_size: E, whose last number encodes the number of agents.
        encoding_of_groups: e + 1, the size of what enters the memory.
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
        """Encode groups for their values: by what their members see, without the memory.

        Args:
            obs: of D agents, per sensor [D, *O].
            members: i64 [K, n], indices of each group's agents; -1 in empty places. At least one each.

        Returns:
            [K, e + 1], whose last number encodes the number of agents: 1 for the largest group ever, -1 for none.
        """
        entities = self.observing(self.encoder(obs)[0], None)
        absent = members < 0
        projected = _gathered(self.attention.project(entities), members)
        features = self.layers(self.attention.attend(projected, absent.to(entities.dtype)))
        return torch.cat((features, self._numbers(absent)), 1)

    def forward(self, obs: Sequence[Tensor], actions: Tensor, members: Tensor) -> Tensor:
        """Encode groups for the baseline of each member, and for their values, without the memory.

        Every agent is embedded twice, with its action and without. The group's n + 1 sets of agents are selected from
        these 2 n embeddings, so most of the arithmetic is done once per agent, not once per agent and set.

        Args:
            obs: as in ``values``.
            actions: of the same agents [D, A].
            members: as in ``values``.

        Returns:
            [K, n + 1, e + 1]: for the baselines of the members, which see the others' actions, then for the value.
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
        """Attend within each set and average: [K, 2 n, e] and empty places, bool [K, n], to [K, n + 1, e]."""
        attention, count = self.attention, absent.shape[1]
        query, key = attention.split(entities.query), attention.split(entities.key)
        chosen, outside = _sets(count, query.dtype, query.device)
        # An entity's query is the same in all sets. Keys come before queries, because torch is slow at a softmax over a
        # short last dimension.
        scores = torch.matmul(torch.matmul(key, query.transpose(2, 3)), chosen * attention.embedding**-0.5)
        lacking = outside + absent.repeat(1, 2).to(outside.dtype)[:, None, :, None]
        weights = torch.softmax(scores + lacking * MASKED_SCORE, 2).flatten(1, 2)
        # The output for a set is the sum of contributions of each entity, by the heads and by the residual.
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
        """Update ``max_group_size`` with groups, given as in ``values``."""
        self.note_group_sizes((members >= 0).sum(1, dtype=self.max_group_size.dtype))

    @torch.no_grad()
    def note_group_sizes(self, number: Tensor) -> None:
        """Update ``max_group_size`` with groups of these sizes."""
        if number.numel():
            torch.maximum(self.max_group_size, number.max(), out=self.max_group_size)

    def remember(self, encoding: Tensor, memory: Tensor | None, sequence_length: int) -> tuple[Tensor, Tensor]:
        """Run the memory over encodings of Q sequences.

        Returns:
            [b, E], and the memories after each sequence [Q, H].
        """
        assert self.memory is not None
        out, after = self.memory(encoding[:, :-1], memory, sequence_length)
        return torch.cat((out, encoding[:, -1:]), 1), after

    def unroll(self, encoding: Tensor, offset: Tensor, memory: Tensor | None, sequence_length: int) -> Unrolled:
        """Run the memory over encodings of whole trajectories, as ``Memory.unroll`` does."""
        assert self.memory is not None
        out, starts, final = self.memory.unroll(encoding[:, :-1], offset, memory, sequence_length)
        return Unrolled(torch.cat((out, encoding[:, -1:]), 1), starts, final)

    def copy_normalization(self, other: NetworkBody, obs: Sequence[Tensor] = ()) -> None:
        self.encoder.copy_normalization(other.encoder, obs)


class GroupCritic(nn.Module):
    """The value of a group's state, and each agent's baseline: the value when its own action is not known.

    Args:
        spec: what the agents see and do.
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
        """Encode moments, [K, n + 1, e + 1], without the memory."""
        encoding: Tensor = self.body(groups.obs, groups.actions, groups.members)
        return encoding

    def forward(
        self, groups: GroupRows, memories: tuple[Tensor | None, Tensor | None] = (None, None), sequence_length: int = 1
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Values and baselines of b rows in Q sequences, [V, b] each, and the memories after each sequence.

        Args:
            groups: the rows.
            memories: of the value and of the baseline, before each sequence [Q, H]; None for empty ones.
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
        """:meth:`forward` of moments that :meth:`encode` has encoded."""
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
    """Gather the entities of groups [K, n, e] out of [D, e]. Empty places get an arbitrary one."""
    columns = F.embedding(members.clamp(min=0), torch.cat(entities, 1))
    return Projected(*columns.chunk(4, 2))


@cache
def _sets(count: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Select the n + 1 sets of a group of n out of its 2 n embeddings, those without and those with action.

    The set for a member's baseline has this member without its action and the others with theirs. The last set, for the
    value, has all of them without.

    Returns:
        [2 n, (n + 1) n], 1 for the embedding of each member in each set; and in the same shape, 1 for each embedding
        that is not in the set.
    """
    member = torch.arange(count)
    acts = (torch.arange(count + 1)[:, None] != member) & (torch.arange(count + 1)[:, None] < count)
    chosen = F.one_hot(member + acts * count, 2 * count)
    outside = (1 - chosen.sum(1)).repeat_interleave(count, 0)
    chosen, outside = (one.t().to(device, dtype).contiguous() for one in (chosen.flatten(0, 1), outside))
    return chosen, outside
