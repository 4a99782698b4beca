"""The teams of a behavior with self-play, as an actor knows them. The learner decides who plays whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trajtrainer.actors.messages import Assignment, Matches, OpponentSlot
from trajtrainer.algos.acting import Acts, Policy
from trajtrainer.core.queues import PolicyUpdate
from trajtrainer.core.spec import BehaviorId
from trajtrainer.data.trajectory import TrajectoryBatch
from trajtrainer.settings.trainer import SelfPlaySettings


class Sides:
    """Applies assignments, and counts what the learner has to know.

    Attributes:
        settings: of the behavior.
        policies: behavior id -> who plays for a team that does not learn.
        matches: since they were last reported.
    """

    def __init__(self, settings: SelfPlaySettings, policy: Policy, ask: Callable[[BehaviorId], Assignment]) -> None:
        """Begin without teams.

        Args:
            settings: of the behavior.
            policy: acts for the team that learns.
            ask: tells the learner of a new team; gives the assignment that has it.
        """
        self.settings = settings
        self.policies: dict[str, Acts] = {}
        self.matches: list[Matches] = []
        self._policy = policy
        self._ask = ask
        self._learning: int | None = None
        self._number = 0
        self._twins: dict[str, tuple[int, Policy]] = {}  # behavior id -> seed, the policy that draws by it

    def learns(self, team: int) -> bool:
        """Return whether this team learns."""
        return team == self._learning

    def join(self, behavior_id: BehaviorId) -> None:
        """Add a team, at its first message."""
        self.apply(self._ask(behavior_id))

    def count(self, trajectories: TrajectoryBatch, results: Sequence[float]) -> None:
        """Note the results of one message of the team that learns."""
        ended = int(np.count_nonzero(trajectories.ended))
        self.matches.append(Matches(self._number, ended, trajectories.num_steps, results))

    def take_matches(self) -> Sequence[Matches]:
        """Return what has not been reported yet."""
        matches, self.matches = self.matches, []
        return matches

    def apply(self, assignment: Assignment) -> None:
        """Let the teams play as the learner says."""
        self._learning, self._number = assignment.learning, assignment.number
        self.policies.clear()
        for name, slot in assignment.slots.items():
            self.policies[name] = slot.acts or self._twin(name, slot)

    def _twin(self, name: str, slot: OpponentSlot) -> Policy:
        seed, twin = self._twins.get(name, (None, None))
        if twin is None or seed != slot.seed:
            twin = self._policy.twin(seed=slot.seed)
            self._twins[name] = slot.seed, twin
        twin.load(PolicyUpdate(0, slot.weights))
        return twin
