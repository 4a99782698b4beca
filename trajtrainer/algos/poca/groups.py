"""From the groupmates of steps to what the critic of groups takes.

Shape legend: B packed steps, S trajectories, M most groupmates of a step, K moments, n agents of the largest group, b
rows, D agents at their moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.steps import IntArray, LongArray
from trajtrainer.nn.multi_agent import GroupRows

# Gives observations per sensor and flat actions of agents by their numbers, ascending i64 [D].
AgentsOf = Callable[[Tensor], tuple[Sequence[Tensor], Tensor]]


class Moments(NamedTuple):
    """The moments of steps: whoever of a group was there at one time. All of them share a moment.

    Attributes:
        members: i64 [K, n], numbers of the agents' rows, descending; -1 for nobody.
        of_step: i64 [B].
    """

    members: LongArray
    of_step: LongArray


def moments_of(own: NDArray[Any], mates: IntArray) -> Moments:
    """Return the moments of steps.

    Args:
        own: number of each step's own row, [B].
        mates: of the groupmates' rows [B, M], in any order; -1 for none.
    """
    everyone = np.concatenate([own[:, None], mates], 1).astype(np.int64)
    everyone.sort(axis=1)
    if not mates.shape[1]:
        return Moments(everyone, np.arange(len(everyone)))
    # Compared as bytes: several times faster than number by number.
    rows = np.ascontiguousarray(everyone[:, ::-1])
    _, first, of_step = np.unique(
        rows.view(np.dtype((np.void, rows.strides[0])))[:, 0], return_index=True, return_inverse=True
    )
    return Moments(rows[first], of_step)


def gathered(members: Tensor, moment: Tensor, own: Tensor, agents_of: AgentsOf) -> GroupRows:
    """Return rows with their groupmates, each agent once.

    Args:
        members: i64 [K, n] of all moments, numbers of the agents' rows; -1 for nobody.
        moment: i64 [b], of the rows.
        own: i64 [b], numbers of the rows' own agents.
        agents_of: gives the agents' observations and actions.
    """
    moments, of_row = torch.unique(moment, return_inverse=True)
    there, agents = numbered(members[moments])
    obs, actions = agents_of(agents)
    # The rows of padding are at a moment without them: any place is as good.
    place = (members[moment] == own[:, None]).int().argmax(1).clamp(max=there.shape[1] - 1)
    return GroupRows(obs, actions, there, of_row, place)


def numbered(members: Tensor) -> tuple[Tensor, Tensor]:
    """Return members by their places among the distinct ones, in as many columns as the largest group needs.

    Args:
        members: i64 [K, n]; -1 for nobody.

    Returns:
        i64 [K, n'], and the distinct ones i64 [D], ascending.
    """
    members = members[:, (members >= 0).any(0)]
    agents, places = torch.unique(members, return_inverse=True)
    if agents[0] < 0:
        return places - 1, agents[1:]
    return places, agents
