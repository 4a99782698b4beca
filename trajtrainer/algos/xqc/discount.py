"""The discount by the length of episodes, as in XQC (Palenicek et al. 2026)."""

from __future__ import annotations

from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.rewards.novelty import OfAgents

_LOWEST, _HIGHEST = 0.95, 0.995


def gamma_for(length: int) -> float:
    """Return the discount whose effective horizon is a fifth of an episode.

    >>> gamma_for(40), gamma_for(500), gamma_for(100_000)
    (0.95, 0.99, 0.995)
    """
    return min(max(1.0 - 5.0 / max(length, 1), _LOWEST), _HIGHEST)


class EpisodeLengths:
    """Finds the longest episode, those that have not ended among them.

    Attributes:
        longest: in steps.
        of_agent: steps of its episode so far.
    """

    def __init__(self, longest: int = 0) -> None:
        self.longest = longest
        self.of_agent = OfAgents()

    def add(self, packed: PackedSteps) -> None:
        for agent, length, ended in zip(packed.agent.tolist(), packed.lengths.tolist(), packed.ended, strict=True):
            steps = self.of_agent.get(agent, 0) + length
            self.longest = max(self.longest, steps)
            self.of_agent.keep(agent, 0 if ended else steps)
