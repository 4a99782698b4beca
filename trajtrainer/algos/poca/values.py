"""Values and baselines of whole trajectories at collection time, with a recurrent critic's memories.

Shape legend: V reward signals, B packed steps, E others among the groupmates, S trajectories, K moments, L sequence
length, Q sequences, e hidden units, H memory size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trajtrainer.algos.poca.update_buffer import Moments, gathered, moments_of, numbered
from trajtrainer.algos.values import AgentMemories, ranges, sequence_offsets, turns
from trajtrainer.core.spec import ActionSpec
from trajtrainer.core.steps import FloatArray
from trajtrainer.data.trajectory import PackedGroups, PackedSteps, offsets
from trajtrainer.nn.multi_agent import GroupCritic, flat_actions

# How many numbers may stand in the attention at once: few enough to stay in a core's cache, enough that the calls do
# not count.
_MAX_NUMBERS = 1 << 21


class GroupEstimates(NamedTuple):
    """Estimates of the critic for packed steps.

    Attributes:
        values: f32 [V, B], of the group.
        baselines: f32 [V, B].
        bootstrap: f32 [V, S], of what is left of the group after each trajectory, whether or not it ended.
        memory: f32 [Q, H], the critic's memory of values before each sequence; None without one.
        baseline_memory: f32 [Q, H], likewise of baselines.
    """

    values: FloatArray
    baselines: FloatArray
    bootstrap: FloatArray
    memory: Tensor | None
    baseline_memory: Tensor | None


class _Encodings(NamedTuple):
    """Encodings ahead of the memory, of steps [B, e + 1] twice and of what comes after trajectories [S, e + 1]."""

    values: Tensor
    baselines: Tensor
    bootstrap: Tensor


class GroupValueEstimator:
    """Values and baselines, each agent's observation encoded once for all that see it at a moment.

    A recurrent critic carries two memories per agent, of values and of baselines, over the trajectories that the
    horizon cut, and clears them when an episode ends; ML-Agents has one of each for all agents and never clears them
    (docs/mlagents-behavior.md#poca).
    """

    def __init__(self, critic: GroupCritic, sequence_length: int) -> None:
        self._critic = critic
        self._length = sequence_length
        self._memories = AgentMemories(2 * critic.memory_size)

    @torch.no_grad()
    def estimate(self, packed: PackedSteps, action_spec: ActionSpec, device: torch.device) -> GroupEstimates:
        """Return estimates for steps with groupmates."""
        assert packed.groups is not None
        moments = moments_of(np.arange(len(packed)), packed.groups.mates)
        agents = _Agents(packed, packed.groups, action_spec, device)
        encodings = self._encode(packed, packed.groups, moments, agents)
        if not self._critic.memory_size:
            values, baselines, bootstrap = (_numpy(self._critic.heads(encoding)) for encoding in encodings)
            return GroupEstimates(values, baselines, bootstrap, None, None)
        return self._remembering(packed, encodings)

    def reset_worker(self, worker: int | None) -> None:
        """Clear the memories of one worker's agents, or of all: their episodes were broken off."""
        self._memories.reset_worker(worker)

    def _encode(self, packed: PackedSteps, groups: PackedGroups, moments: Moments, agents: _Agents) -> _Encodings:
        critic, device = self._critic, agents.device
        own = len(packed) + len(groups.others) + np.arange(packed.num_trajectories)
        after = torch.from_numpy(np.concatenate([own[:, None], groups.next_mates], 1)).to(device, torch.int64)
        members = torch.from_numpy(moments.members).to(device)
        # Ahead of the parts, all of which are to see the same.
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
        return GroupEstimates(_numpy(found[0]), _numpy(found[1]), _numpy(bootstrap), before[0], before[1])


class _Agents:
    """The rows that the groupmates of packed steps are numbers of: steps, others, and bootstraps behind them."""

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
        """Return how many numbers an agent takes on its way through the critic."""
        return max(4 * critic.body.encoding_of_groups, sum(sensor[0].numel() for sensor in self._obs))

    def observing(self, numbers: Tensor) -> Sequence[Tensor]:
        """Return what these observe."""
        return [sensor[numbers] for sensor in self._obs]

    def acting(self, numbers: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """Return what these observe and do."""
        return self.observing(numbers), self._actions[numbers]


def _numpy(tensor: Tensor) -> FloatArray:
    array: FloatArray = tensor.cpu().numpy()
    return array
