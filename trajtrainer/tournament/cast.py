"""The policies of all models for all behaviors of an environment, each worker's with random numbers of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trajtrainer.algos.acting import Acts, PolicyDivergedError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, StepBatch
from trajtrainer.evaluation.acting import act
from trajtrainer.evaluation.models import Model, Roles
from trajtrainer.nn.init import derived_seeds
from trajtrainer.tournament.areas import Agent


class Cast:
    """Decides for agents with the model that plays their team.

    Random numbers are those of a worker, a model and a behavior, so that games repeat whatever other workers do.

    Args:
        entrants: the models.
        seed: of the tournament.
    """

    def __init__(self, entrants: Sequence[Model], seed: int) -> None:
        self._entrants = entrants
        self._roles = Roles(entrants)
        self._seed = seed
        self._policies: dict[tuple[int, int, str], Acts] = {}

    def announce(self, specs: Mapping[str, BehaviorSpec]) -> None:
        """Look whether every model can play the behaviors that an environment names; see ``Roles``."""
        self._roles.announce(specs)

    def act(
        self, worker: int, behavior: str, batch: StepBatch, agents: Sequence[Agent], teams: Sequence[int]
    ) -> ActionBatch:
        """Decide for all agents of a batch that ask for it.

        Args:
            worker: whose message it is.
            behavior: name, without team.
            batch: the agents' observations.
            agents: those that ask, in the order of the batch; each one's area has a match.
            teams: of the worker, in the order in which they are given to the sides.

        Raises:
            PolicyDivergedError: a model gives NaN.
        """
        rows: dict[int, list[int]] = {}
        for row, agent in enumerate(agents):
            assert agent.area.match is not None
            rows.setdefault(agent.area.match.model(teams.index(agent.team)), []).append(row)
        parts = []
        for model, own in rows.items():
            parts.append(self._act(worker, model, behavior, batch, own, [agents[row] for row in own]))
        return parts[0] if len(parts) == 1 else _in_order(parts, np.concatenate([*map(np.asarray, rows.values())]))

    def _act(
        self, worker: int, model: int, behavior: str, batch: StepBatch, rows: list[int], agents: Sequence[Agent]
    ) -> ActionBatch:
        try:
            return act(self._policy(worker, model, behavior), batch, batch.num_terminal + np.array(rows), agents)
        except PolicyDivergedError as error:
            raise PolicyDivergedError(f"{self._entrants[model].name}: {error}") from error

    def _policy(self, worker: int, model: int, behavior: str) -> Acts:
        key = (worker, model, behavior)
        if key not in self._policies:
            seed = derived_seeds(self._seed, f"{worker} {model} {behavior}")[0]
            self._policies[key] = self._roles.policy(model, behavior, seed)
        return self._policies[key]


def _in_order(parts: Sequence[ActionBatch], rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> ActionBatch:
    """Return the decisions of several models as those of one batch, without the memories, which may differ in size."""
    order = np.argsort(rows)

    def joined(name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    return ActionBatch(
        continuous=joined("continuous"),
        discrete=np.concatenate([part.discrete for part in parts])[order],
        env_continuous=joined("env_continuous"),
        log_prob=joined("log_prob"),
        entropy=joined("entropy"),
        memory=np.zeros((len(rows), 0), np.float32),
        version=0,
    )
