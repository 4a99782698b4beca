"""The experience of agents in groups: an update buffer that includes each row's groupmates, and value estimates.

Each groupmate is stored as a row number, which refers to a row of the buffer, or to a row of ``others`` if the
groupmate's step is not used for learning. The members of a moment are stored only once, so even in a large group a step
needs little more memory than its observations.

Shape legend: B packed steps, S trajectories, N filled rows, E others, K moments (the members of one group at one time),
n agents in the largest group, b rows of a minibatch, D agents at their moments, V reward signals, L sequence length, Q
sequences, e hidden units, H memory size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.columns import ColumnEntry, Columns
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import FloatArray, IntArray, LongArray
from trajtrainer.experience.trajectory import PackedGroups, PackedSteps, offsets
from trajtrainer.learning.algos.ppo.update_buffer import Memories, UpdateBuffer
from trajtrainer.learning.algos.values import AgentMemories, numpy_of, ranges, sequence_offsets, turns
from trajtrainer.learning.nn.minibatch import Minibatch, torch_dtype
from trajtrainer.learning.nn.multi_agent import GroupCritic, GroupRows, flat_actions

# Function that maps row numbers of agents, ascending i64 [D], to each sensor's observations and to flat actions.
AgentsOf = Callable[[Tensor], tuple[Sequence[Tensor], Tensor]]

# Row number of the first agent in ``_others``, higher than any row number in the buffer.
_FIRST_OTHER = 1 << 40
# Maximum number of values in one attention call: few enough for a core's cache, and enough that the overhead per call
# is negligible.
_MAX_NUMBERS = 1 << 21


class GroupMoments(NamedTuple):
    """The moments that steps belong to. A moment is the set of group members present at one time.

    Attributes:
        members: i64 [K, n], row numbers of the agents, descending; -1 for empty slots.
        of_step: i64 [B], the index of each step's moment.
    """

    members: LongArray
    of_step: LongArray


def moments_of(own: NDArray[Any], mates: IntArray) -> GroupMoments:
    """Find the distinct moments and assign each step to one of them.

    Args:
        own: [B], row number of each step.
        mates: [B, M], row numbers of its groupmates in any order; -1 for empty slots.
    """
    everyone = np.concatenate([own[:, None], mates], 1).astype(np.int64)
    everyone.sort(axis=1)
    if not mates.shape[1]:
        return GroupMoments(everyone, np.arange(len(everyone)))
    # Comparing rows as bytes is several times faster than comparing their elements.
    rows = np.ascontiguousarray(everyone[:, ::-1])
    _, first, of_step = np.unique(
        rows.view(np.dtype((np.void, rows.strides[0])))[:, 0], return_index=True, return_inverse=True
    )
    return GroupMoments(rows[first], of_step)


def gathered(members: Tensor, moment: Tensor, own: Tensor, agents_of: AgentsOf) -> GroupRows:
    """Gather rows and their groupmates, looking up each agent only once.

    Args:
        members: i64 [K, n], row numbers of the agents at each moment; -1 for empty slots.
        moment: i64 [b], index of each row's moment.
        own: i64 [b], row number of each row's own agent.
        agents_of: looks up observations and actions.
    """
    moments, of_row = torch.unique(moment, return_inverse=True)
    there, agents = numbered(members[moments])
    obs, actions = agents_of(agents)
    # A padding row is not a member of the moment it refers to, so its index is arbitrary.
    place = (members[moment] == own[:, None]).int().argmax(1).clamp(max=there.shape[1] - 1)
    return GroupRows(obs, actions, there, of_row, place)


def numbered(members: Tensor) -> tuple[Tensor, Tensor]:
    """Replace members with indices into a list of distinct members, and remove empty columns.

    Args:
        members: i64 [K, n]; -1 for empty slots.

    Returns:
        The indices, i64 [K, n'] with -1 for empty slots, and the distinct members, i64 [D], ascending.
    """
    members = members[:, (members >= 0).any(0)]
    agents, places = torch.unique(members, return_inverse=True)
    if agents[0] < 0:
        return places - 1, agents[1:]
    return places, agents


class GroupBuffer(UpdateBuffer):
    """PPO's update buffer with the groupmates of each row."""

    def __init__(
        self,
        spec: BehaviorSpec,
        *arguments: Any,
        num_signals: int,
        memories: Mapping[str, int],
        more: Mapping[str, ColumnEntry] | None = None,
        **named: Any,
    ) -> None:
        of_signals = ColumnEntry(np.dtype(np.float32), (num_signals,))
        columns = {**(more or {}), "baseline": of_signals, "moment": ColumnEntry(np.dtype(np.int64), ())}
        if "weight" in columns:
            columns["baseline_returns"] = of_signals
        memories = {**memories, "baseline_memory": memories["critic_memory"]}
        super().__init__(spec, *arguments, num_signals=num_signals, memories=memories, more=columns, **named)
        self._action_spec = spec.action_spec
        self._members: list[Tensor] = []
        self._others: list[Columns[Tensor]] = []
        self._num_moments = self._num_others = 0

    def append(self, packed: PackedSteps, learned: Mapping[str, NDArray[Any]], memories: Memories) -> None:
        assert packed.groups is not None
        members, of_step = moments_of(np.arange(len(packed)), packed.groups.mates)
        others = packed.groups.others
        of_others = _FIRST_OTHER + self._num_others + np.arange(len(others))
        # The index -1 of an empty slot refers to the last element, which is -1.
        numbers = np.concatenate([self.places(packed), of_others, [-1]])
        self._members.append(torch.from_numpy(numbers[members]).to(self._device))
        self._others.append(
            others.map(lambda column: torch.from_numpy(column).to(self._device, torch_dtype(column.dtype)))
        )
        super().append(packed, {**learned, "moment": of_step + self._num_moments}, memories)
        self._num_moments += len(members)
        self._num_others += len(others)

    def clear(self) -> None:
        super().clear()
        self._members, self._others = [], []
        self._num_moments = self._num_others = 0

    def moments_in_order(self, order: Tensor) -> Tensor:
        """Sort the sequences by the position of their first row's moment in ``order``, i64 [K]. Returns i64 [Q]."""
        place = order.argsort().to(self._device)
        return place[self.column("moment")[:: self.sequence_length]].argsort(stable=True)

    @property
    def num_moments(self) -> int:
        """The number of moments, K."""
        return self._num_moments

    def minibatches(self, order: Tensor, batch_size: int, columns: Mapping[str, Tensor]) -> Iterator[Minibatch]:
        # Pad the moments of all drains to the size of the largest group.
        width = max(part.shape[1] for part in self._members)
        self._members = [torch.cat([F.pad(part, (0, width - part.shape[1]), value=-1) for part in self._members])]
        self._others = [Columns({name: torch.cat([one[name] for one in self._others]) for name in self._others[0]})]
        rows = torch.arange(self.num_rows, device=self._device)
        for minibatch in super().minibatches(order, batch_size, {**columns, "row": rows}):
            groups = gathered(self._members[0], minibatch["moment"], minibatch["row"], self._agents)
            yield replace(minibatch, groups=groups)

    def _agents(self, numbers: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        (others,) = self._others
        num_rows = int(torch.searchsorted(numbers, _FIRST_OTHER))
        of_rows, of_others = numbers[:num_rows], numbers[num_rows:] - _FIRST_OTHER
        found = {name: torch.cat((self._rows[name][of_rows], others[name][of_others])) for name in others}
        agents = Columns(found)
        return agents.obs, flat_actions(agents["continuous"], agents["discrete"], self._action_spec)


class GroupEstimates(NamedTuple):
    """The critic's estimates for packed steps.

    Attributes:
        values: f32 [V, B], values of the whole group.
        baselines: f32 [V, B].
        bootstrap: f32 [V, S], values of the group's remaining members after each trajectory, even if it ended there.
        memory: f32 [Q, H], the critic's memory for values before each sequence; None without a memory.
        baseline_memory: f32 [Q, H], the critic's memory for baselines before each sequence; None without a memory.
    """

    values: FloatArray
    baselines: FloatArray
    bootstrap: FloatArray
    memory: Tensor | None
    baseline_memory: Tensor | None


class _Encodings(NamedTuple):
    """Encodings before the memory: for values and baselines [B, e + 1], and for bootstrap values [S, e + 1]."""

    values: Tensor
    baselines: Tensor
    bootstrap: Tensor


class GroupValueEstimator:
    """Estimates values and baselines. Each agent's observation at a moment is encoded only once for the whole group.

    For a recurrent critic, the estimator carries two memories per agent, for values and for baselines, from one
    trajectory to the next and clears them when an episode ends. ML-Agents has a single pair for all agents and never
    clears it (docs/explanation/mlagents-behavior.md#poca).
    """

    def __init__(self, critic: GroupCritic, sequence_length: int) -> None:
        self._critic = critic
        self._length = sequence_length
        self._memories = AgentMemories(2 * critic.memory_size)

    @torch.no_grad()
    def estimate(self, packed: PackedSteps, action_spec: ActionSpec, device: torch.device) -> GroupEstimates:
        assert packed.groups is not None
        moments = moments_of(np.arange(len(packed)), packed.groups.mates)
        agents = _Agents(packed, packed.groups, action_spec, device)
        encodings = self._encode(packed, packed.groups, moments, agents)
        if not self._critic.memory_size:
            values, baselines, bootstrap = (numpy_of(self._critic.heads(encoding)) for encoding in encodings)
            return GroupEstimates(values, baselines, bootstrap, None, None)
        return self._remembering(packed, encodings)

    def reset_worker(self, worker: int | None) -> None:
        self._memories.reset_worker(worker)

    def _encode(self, packed: PackedSteps, groups: PackedGroups, moments: GroupMoments, agents: _Agents) -> _Encodings:
        critic, device = self._critic, agents.device
        own = len(packed) + len(groups.others) + np.arange(packed.num_trajectories)
        after = torch.from_numpy(np.concatenate([own[:, None], groups.next_mates], 1)).to(device, torch.int64)
        members = torch.from_numpy(moments.members).to(device)
        # Do this before the loop, so that all parts encode group sizes relative to the same largest group.
        for one in (members, after):
            critic.body.note_groups(one)
        width = critic.body.encoding_of_groups
        values, baselines = (torch.empty(len(packed), width, device=device) for _ in range(2))
        order = np.argsort(moments.of_step, kind="stable")
        most = members.shape[1]
        per_part = max(1, _MAX_NUMBERS // ((most + 1) * most * max(agents.numbers_of(critic), 8 * most)))
        for part in np.split(order, np.searchsorted(moments.of_step[order], range(per_part, len(members), per_part))):
            steps = torch.from_numpy(part).to(device)
            moment = torch.from_numpy(moments.of_step[part]).to(device)
            rows = gathered(members, moment, steps, agents.acting)
            values[steps], baselines[steps] = rows.of_rows(critic.encode(rows))
        bootstrap = torch.empty(len(after), width, device=device)
        per_part = max(1, _MAX_NUMBERS // (after.shape[1] * agents.numbers_of(critic)))
        for start in range(0, len(after), per_part):
            there, seen = numbered(after[start : start + per_part])
            bootstrap[start : start + per_part] = critic.body.values(agents.observing(seen), there)
        return _Encodings(values, baselines, bootstrap)

    def _remembering(self, packed: PackedSteps, encodings: _Encodings) -> GroupEstimates:
        critic, device = self._critic, encodings.values.device
        first_sequence = sequence_offsets(packed.lengths, self._length)
        num_signals = len(critic.signals)
        found = torch.empty(2, num_signals, len(packed), device=device)
        bootstrap = torch.empty(num_signals, packed.num_trajectories, device=device)
        before = torch.empty(2, int(first_sequence[-1]), critic.memory_size, device=device)
        for some in turns(packed.agent):
            lengths = packed.lengths[some]
            steps = torch.from_numpy(ranges(packed.offset[some], lengths)).to(device)
            sequences = torch.from_numpy(ranges(first_sequence[some], np.diff(first_sequence)[some])).to(device)
            memories = list(self._memories.of(packed.agent[some], device).chunk(2, 1))
            for number, encoding in enumerate((encodings.values, encodings.baselines)):
                offset = torch.from_numpy(offsets(lengths))
                out, starts, memories[number] = critic.body.unroll(
                    encoding[steps], offset, memories[number], self._length
                )
                found[number][:, steps], before[number][sequences] = critic.heads(out), starts
            index = torch.from_numpy(some).to(device)
            out, _ = critic.body.remember(encodings.bootstrap[index], memories[0], 1)
            bootstrap[:, index] = critic.heads(out)
            self._memories.keep(packed.agent[some], packed.ended[some], torch.cat(memories, 1))
        return GroupEstimates(numpy_of(found[0]), numpy_of(found[1]), numpy_of(bootstrap), before[0], before[1])


class _Agents:
    """Looks up agents by row number: first the packed steps, then the others, then the bootstrap observations."""

    def __init__(
        self, packed: PackedSteps, groups: PackedGroups, action_spec: ActionSpec, device: torch.device
    ) -> None:
        self.device = device
        parts = packed.steps, groups.others, packed.bootstrap
        sensors = range(len(packed.obs))
        self._obs = [torch.from_numpy(np.concatenate([part.obs[i] for part in parts])).to(device) for i in sensors]
        continuous, discrete = (
            torch.from_numpy(np.concatenate([packed[name], groups.others[name]])).to(device)
            for name in ("continuous", "discrete")
        )
        self._actions = flat_actions(continuous, discrete, action_spec)

    def numbers_of(self, critic: GroupCritic) -> int:
        """Return an upper bound on the number of values per agent in any layer of the critic."""
        return max(4 * critic.body.encoding_of_groups, sum(sensor[0].numel() for sensor in self._obs))

    def observing(self, numbers: Tensor) -> Sequence[Tensor]:
        return [sensor[numbers] for sensor in self._obs]

    def acting(self, numbers: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        return self.observing(numbers), self._actions[numbers]
