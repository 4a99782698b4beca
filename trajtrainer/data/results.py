"""Wins, draws and losses, as the last rewards of an episode tell them.

See docs/mlagents-behavior.md#self-play.

Shape legend: S trajectories of one message.
"""

from __future__ import annotations

import numpy as np

from trajtrainer.core.steps import WORKER_SHIFT
from trajtrainer.data.agent_processor import AgentProcessor, Recorded
from trajtrainer.data.rows import RowPool


def match_results(
    pool: RowPool, processor: AgentProcessor, recorded: Recorded, team: int, *, per_match: bool = False
) -> list[float]:
    """Return the results of the episodes that ended for good, and with them those of the agents' whole groups.

    Args:
        pool: where the rows stand.
        processor: that took the message.
        recorded: what came of the last one it took: S trajectories, or none.
        team: of the message.
        per_match: one result for each group instead of each of its agents, by the sum of their rewards.

    Returns:
        1 for a win (the last reward, the group's included, is positive), 0 for a loss, 0.5 for a draw.
    """
    trajectories = recorded.trajectories
    if trajectories is None or not trajectories.terminated.any():
        return []
    ended = np.flatnonzero(trajectories.terminated)
    last = trajectories.rows[trajectories.offset[1:][ended] - 1]
    reward, group = pool["reward"][last] + pool["group_reward"][last], pool["group"][last]
    worker = int(trajectories.agent[0]) >> WORKER_SHIFT
    decided = (group == 0) | ~np.isin(group, processor.playing_groups(worker, team, recorded.rows))
    reward, group = reward[decided], group[decided]
    if per_match:
        alone = reward[group == 0]
        grouped = [reward[group == one].sum() for one in np.unique(group[group != 0])]
        reward = np.array([*alone, *grouped], np.float32)
    return [0.5 + 0.5 * float(sign) for sign in np.sign(reward)]
