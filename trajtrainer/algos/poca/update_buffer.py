"""The experience that MA-POCA has gathered for its next update: PPO's, and the groupmates of every row.

A groupmate is the number of a row, its own or, where its step is none of those to learn from, one of ``others``. Those
of one moment are written down once. So a step takes what it observed and a few numbers, however large its group is.

Shape legend: N rows so far, E others so far, K moments so far, n agents of the largest group, b rows of a minibatch, D
agents at their moments, V reward signals, Q sequences, H memory size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.algos.poca.groups import gathered, moments_of
from trajtrainer.algos.ppo.update_buffer import Memories, UpdateBuffer
from trajtrainer.core.columns import Columns, Entry
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.nn.minibatch import Minibatch, torch_dtype
from trajtrainer.nn.multi_agent import flat_actions

# From this number on they are those of others: more than there will ever be rows.
_FIRST_OTHER = 1 << 40


class GroupBuffer(UpdateBuffer):
    """PPO's rows with their groupmates."""

    def __init__(
        self,
        spec: BehaviorSpec,
        *arguments: Any,
        num_signals: int,
        memories: Mapping[str, int],
        more: Mapping[str, Entry] | None = None,
        **named: Any,
    ) -> None:
        """Take room as ``UpdateBuffer`` does."""
        of_signals = Entry(np.dtype(np.float32), (num_signals,))
        columns = {**(more or {}), "baseline": of_signals, "moment": Entry(np.dtype(np.int64), ())}
        if "weight" in columns:
            columns["baseline_returns"] = of_signals
        memories = {**memories, "baseline_memory": memories["critic_memory"]}
        super().__init__(spec, *arguments, num_signals=num_signals, memories=memories, more=columns, **named)
        self._action_spec = spec.action_spec
        self._members: list[Tensor] = []
        self._others: list[Columns[Tensor]] = []
        self._num_moments = self._num_others = 0

    def append(self, packed: PackedSteps, learned: Mapping[str, NDArray[Any]], memories: Memories) -> None:
        """See ``UpdateBuffer``. The steps have groupmates."""
        assert packed.groups is not None
        members, of_step = moments_of(np.arange(len(packed)), packed.groups.mates)
        others = packed.groups.others
        behind = _FIRST_OTHER + self._num_others + np.arange(len(others))
        numbers = np.concatenate([self.places(packed), behind, [-1]])  # the last entry is that of -1
        self._members.append(torch.from_numpy(numbers[members]).to(self._device))
        self._others.append(others.map(lambda column: torch.from_numpy(column).to(self._device, _kept_as(column))))
        super().append(packed, {**learned, "moment": of_step + self._num_moments}, memories)
        self._num_moments += len(members)
        self._num_others += len(others)

    def clear(self) -> None:
        """See ``UpdateBuffer``."""
        super().clear()
        self._members, self._others = [], []
        self._num_moments = self._num_others = 0

    def moments_in_order(self, order: Tensor) -> Tensor:
        """Return the sequences sorted by the moments of their first rows, i64 [Q].

        Args:
            order: i64 [K], a permutation of the moments.
        """
        place = order.argsort().to(self._device)
        return place[self.column("moment")[:: self.sequence_length]].argsort(stable=True)

    @property
    def num_moments(self) -> int:
        """K."""
        return self._num_moments

    def minibatches(self, order: Tensor, batch_size: int, columns: Mapping[str, Tensor]) -> Iterator[Minibatch]:
        """See ``UpdateBuffer``; with groupmates."""
        self._members = [_stacked(self._members)]
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


def _kept_as(column: NDArray[Any]) -> torch.dtype:
    return torch_dtype(column.dtype)


def _stacked(members: Sequence[Tensor]) -> Tensor:
    """Return all moments in as many columns as the largest group has."""
    width = max(part.shape[1] for part in members)
    return torch.cat([F.pad(part, (0, width - part.shape[1]), value=-1) for part in members])
