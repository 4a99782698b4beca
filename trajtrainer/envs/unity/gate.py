"""Checks everything that an environment sends, before it is used for learning.

Shape legend: N agents of a step batch, D sum of branch sizes.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.numeric import first_not_finite
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import LOCAL_ID, StepBatch
from trajtrainer.envs.unity.faults import InvalidObservationError, NotFiniteError

logger = logging.getLogger(__name__)


class Gate:
    """Checks that step batches of one environment have finite numbers, distinct agents, and masks that allow a choice.

    Args:
        sender: name of the environment, used as the subject of messages.
        advice: where to look for a mistake in its numbers, used as the end of a message.
    """

    def __init__(self, sender: str, advice: str) -> None:
        self._sender, self._advice = sender, advice
        self._distinct_ids: dict[str, bytes] = {}
        # Maps each behavior to the first mask column of each branch; empty if its masks need no further checks.
        self._branches: dict[str, NDArray[np.int64]] = {}

    def check(self, behavior_id: str, spec: BehaviorSpec, batch: StepBatch) -> None:
        """Check the agents of one behavior. A mask that forbids all choices of a branch only causes a warning.

        Raises:
            NotFiniteError: a number is NaN or infinite, which would permanently corrupt a network.
            InvalidObservationError: an agent asks for more than one decision.
        """
        place = first_not_finite((batch.reward, batch.group_reward, *batch.obs))
        if place is not None:
            raise self._not_finite(behavior_id, spec, batch, *place)
        deciding = batch.agent[batch.num_terminal :]
        ids = deciding.tobytes()  # usually the same as in the previous message, and then already checked
        if ids != self._distinct_ids.get(behavior_id):
            found, counts = np.unique(deciding, return_counts=True)
            if len(found) < len(deciding):
                raise InvalidObservationError(
                    f"{self._sender} sent an id twice: behavior {behavior_id!r}, the agent "
                    f"{found[counts > 1][0] & LOCAL_ID} asks for {counts.max()} decisions in one message, expected "
                    "one. The ids of all agents must be distinct."
                )
            self._distinct_ids[behavior_id] = ids
        starts = self._branches.get(behavior_id)
        if starts is None:
            starts = self._branches[behavior_id] = np.cumsum((0, *spec.action_spec.discrete_branches))[:-1]
        if len(starts) and batch.mask.any():
            blocked = np.logical_and.reduceat(batch.mask, starts, axis=1).any(axis=0)
            if blocked.any():
                self._branches[behavior_id] = starts[:0]
                logger.warning(
                    "Behavior %r: an action mask forbids all %d choices of discrete branch %d. One of them is taken "
                    "anyway. Allow at least one choice in every branch, for example one that does nothing.",
                    behavior_id,
                    spec.action_spec.discrete_branches[blocked.argmax()],
                    blocked.argmax(),
                )

    def _not_finite(
        self, behavior_id: str, spec: BehaviorSpec, batch: StepBatch, number: int, row: int, *element: int
    ) -> NotFiniteError:
        column = (batch.reward, batch.group_reward, *batch.obs)[number]
        what, where = ("a reward", "a group reward", "an observation")[min(number, 2)], ""
        if number > 1:
            sensor = spec.observation_specs[number - 2]
            inside = list(element) if len(element) > 1 else element[0]
            where = f", sensor {sensor.name!r} (observation {number - 2}), element {inside}"
        return NotFiniteError(
            f"{self._sender} sent {column[row, *element]} as {what}: behavior {behavior_id!r}, agent "
            f"{batch.agent[row] & LOCAL_ID}{where}. Training cannot use this value. Look for errors "
            f"such as a division by zero {self._advice}."
        )
