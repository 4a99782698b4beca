"""The critic of MA-POCA (Cohen et al. 2021): values of whole groups of agents, and counterfactual baselines.

See docs/mlagents-behavior.md#poca. Shape legend: b rows, Q sequences of them, K moments (the agents of one group at one
time), D agents at all of these moments, n agents of the largest group, R groups to encode, A numbers of an action, e
hidden units, E numbers of an encoding, H memory size, V reward signals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.nn.attention import EntityEmbedding, Projected, ResidualSelfAttention
from trajtrainer.nn.body import NetworkBody, ObservationEncoder
from trajtrainer.nn.conditioning import Mlp
from trajtrainer.nn.heads import ValueHeads
from trajtrainer.nn.memory import Memory, Unrolled
from trajtrainer.nn.mlagents import Names
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.spec import ActionSpec, BehaviorSpec

# ML-Agents makes the encoding's weights this much smaller than those of other bodies.
_GAIN_SQUARED = 0.125


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Steps of agents, with the groupmates of each: every agent stands once, however many see it.

    Attributes:
        obs: per sensor [D, *O].
        actions: f32 [D, A], as ``flat_actions`` gives them.
        members: i64 [K, n], who was there at each moment, by numbers of the D; -1 for nobody.
        moment: i64 [b], of each row.
        own: i64 [b], the agent of each row.
    """

    obs: Sequence[Tensor]
    actions: Tensor
    members: Tensor
    moment: Tensor
    own: Tensor

    def baseline_members(self) -> Tensor:
        """Return the agents that a row's baseline sees: i64 [b, n], D more for those whose actions it sees, too."""
        members = self.members[self.moment]
        knows_action = (members >= 0) & (members != self.own[:, None])
        return members + knows_action * len(self.actions)


def flat_actions(continuous: Tensor, discrete: Tensor, action_spec: ActionSpec) -> Tensor:
    """Return actions as one vector each [D, A]: the continuous ones, then each branch one-hot."""
    parts = [continuous]
    for column, size in zip(discrete.unbind(1), action_spec.discrete_branches, strict=True):
        parts.append(F.one_hot(column.long(), size).to(continuous.dtype))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class MultiAgentNetworkBody(nn.Module):
    """Observations and actions of the agents of a group to one vector, whatever their order and number.

    Goal signals are ordinary observations here, as in ML-Agents.

    Args:
        spec: what the agents see and do.
        settings: ``network_settings``; ``hidden_units`` is a multiple of the attention's heads.

    Attributes:
        max_group_size: the largest group ever seen, [].
        encoding_size: E, with the number of agents as its last.
        encoding_of_groups: e + 1, the same ahead of the memory.
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
        self.layers = Mlp(hidden, hidden, settings.num_layers, math.sqrt(_GAIN_SQUARED / hidden))
        self.memory = Memory(hidden, settings.memory.memory_size) if settings.memory is not None else None
        self.memory_size = 0 if self.memory is None else self.memory.memory_size
        self.encoding_of_groups = hidden + 1
        self.encoding_size = (hidden if self.memory is None else self.memory.hidden_size) + 1

    def forward(self, obs: Sequence[Tensor], actions: Tensor | None, members: Tensor) -> Tensor:
        """Encode groups, ahead of the memory.

        Args:
            obs: of D agents, per sensor [D, *O].
            actions: of the same [D, A]; None where no group is seen with them.
            members: i64 [R, n], of each group: d for agent d by what it sees, D + d by what it sees and does, -1 for
                nobody. At least one member each.

        Returns:
            [R, e + 1], with the number of agents as its last: -1 for none, 1 for as many as ever.
        """
        encoding, _ = self.encoder(obs)
        entities = self.observing(encoding, None)
        if actions is not None:
            entities = torch.cat((entities, self.acting(torch.cat((encoding, actions), 1), None)))
        # Once per agent, in however many groups it is; what follows depends on whom it stands beside.
        projected = torch.cat(self.attention.project(entities), 1)
        absent = members < 0
        gathered = F.embedding(members.clamp(min=0), projected)
        features = self.layers(self.attention.attend(Projected(*gathered.chunk(4, 2)), absent.to(gathered.dtype)))
        return torch.cat((features, self._numbers(absent)), 1)

    def _numbers(self, absent: Tensor) -> Tensor:
        number = (~absent).sum(1, keepdim=True, dtype=self.max_group_size.dtype)
        self.note_group_sizes(number)
        return number * 2.0 / self.max_group_size - 1.0

    @torch.no_grad()
    def note_group_sizes(self, number: Tensor) -> None:
        """Take groups of these sizes into ``max_group_size``."""
        if number.numel():
            torch.maximum(self.max_group_size, number.max(), out=self.max_group_size)

    def remember(self, encoding: Tensor, memory: Tensor | None, sequence_length: int) -> tuple[Tensor, Tensor]:
        """Run the memory over what ``forward`` gave of Q sequences; see ``Memory``.

        Returns:
            [b, E], and the memories after each sequence [Q, H].
        """
        assert self.memory is not None
        out, after = self.memory(encoding[:, :-1], memory, sequence_length)
        return torch.cat((out, encoding[:, -1:]), 1), after

    def unroll(self, encoding: Tensor, offset: Tensor, memory: Tensor | None, sequence_length: int) -> Unrolled:
        """Run the memory over what ``forward`` gave of whole trajectories; see ``Memory.unroll``."""
        assert self.memory is not None
        out, starts, final = self.memory.unroll(encoding[:, :-1], offset, memory, sequence_length)
        return Unrolled(torch.cat((out, encoding[:, -1:]), 1), starts, final)

    def copy_normalization(self, other: NetworkBody) -> None:
        """Take over the normalisers of a body for the same sensors."""
        theirs = other.encoder.normalizers()
        for i, normalizer in self.encoder.normalizers().items():
            normalizer.copy_from(theirs[i])


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
        self.heads = ValueHeads(self.body.encoding_size, signals)

    @property
    def signals(self) -> tuple[str, ...]:
        """The names of the reward signals, in the order of the values."""
        return self.heads.signals

    @property
    def memory_size(self) -> int:
        """H; 0 without a memory."""
        return self.body.memory_size

    def encode(self, groups: GroupRows) -> tuple[Tensor, Tensor]:
        """Return the encodings ahead of the memory: of the moments [K, e + 1], and of the rows' baselines [b, e + 1].

        At one moment all members of a group have the same value.
        """
        members = torch.cat((groups.members, groups.baseline_members()))
        encoding = self.body(groups.obs, groups.actions, members)
        of_moments, of_rows = encoding.split_with_sizes([len(groups.members), len(groups.moment)])
        return of_moments, of_rows

    def forward(
        self, groups: GroupRows, memories: tuple[Tensor | None, Tensor | None] = (None, None), sequence_length: int = 1
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Return values and baselines [V, b] each of b rows in Q sequences, and the memories after each sequence.

        Args:
            groups: the rows.
            memories: of the value and of the baseline, before each sequence [Q, H]; None for empty ones.
            sequence_length: L = b / Q.
        """
        of_moments, of_rows = self.encode(groups)
        if self.body.memory is None:
            values = self.heads(of_moments).index_select(1, groups.moment)
            nothing = of_rows.new_empty((len(of_rows), 0))
            return values, self.heads(of_rows), (nothing, nothing)
        encodings = (of_moments.index_select(0, groups.moment), of_rows)
        remembered = [
            self.body.remember(encoding, memory, sequence_length)
            for encoding, memory in zip(encodings, memories, strict=True)
        ]
        (values, after_values), (baselines, after_baselines) = remembered
        return self.heads(values), self.heads(baselines), (after_values, after_baselines)
