"""A scene as a turn-based environment of PettingZoo."""

from __future__ import annotations

from typing import Any

from gymnasium.error import ResetNeeded
from pettingzoo.utils.env import AECEnv

from trajtrainer.wrappers.cast import Cast, Turn
from trajtrainer.wrappers.parallel import CastEnv
from trajtrainer.wrappers.scene import Player
from trajtrainer.wrappers.spaces import Form


class UnityAECEnv(CastEnv, AECEnv[str, Any, Any]):  # type: ignore[misc, unused-ignore]
    """All agents of a scene one after the other: those that ask for a decision, in their order.

    The game goes on when the last of them has acted, so that each agent acts upon what it saw when it was asked. Names,
    infos, arguments and errors are those of ``UnityParallelEnv``.
    """

    def __init__(
        self,
        env: Player = None,
        *,
        behavior: str | None = None,
        observations: Form = "auto",
        uint8_visual: bool = False,
        time_scale: float = 20.0,
        **arguments: Any,
    ) -> None:
        super().__init__(Cast(env, behavior, observations, time_scale, arguments, uint8_visual=uint8_visual))
        self.agents: list[str] = []
        self.agent_selection = ""
        self.infos: dict[str, dict[str, Any]] = {}
        self.rewards: dict[str, float] = {}
        self._cumulative_rewards: dict[str, float] = {}
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self._queue: list[str] = []
        self._actions: dict[str, Any] = {}
        self._observations: dict[str, Any] = {}

    def observe(self, agent: str) -> Any:
        """Return what an agent saw last."""
        return self._observations[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin all episodes anew. See ``UnityParallelEnv.reset``."""
        turn = self._cast.reset(seed, options)
        self.agents = []
        self._skip_agent_selection = None
        for each in (self._observations, self.infos, self.rewards, self._cumulative_rewards):
            each.clear()
        self.terminations.clear()
        self.truncations.clear()
        self._take(turn)

    def step(self, action: Any) -> None:
        """Act for ``agent_selection``; None removes an agent whose episode has ended.

        Raises:
            ResetNeeded: there is nobody.
            UnityActionException: an action that is not of the action space.
            EnvironmentFaultError: the player fails.
        """
        if not self.agents:
            raise ResetNeeded("All episodes are over, or have not begun: call reset() first.")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self._actions[agent] = action
        self._queue.pop(0)
        if self._queue:
            self.agent_selection = self._queue[0]
        else:
            self._take(self._cast.step(self._actions))
        self._accumulate_rewards()
        self._deads_step_first()

    def _take(self, turn: Turn) -> None:
        for agent in turn.observations:
            if agent not in self.agents:
                self.agents.append(agent)
                self._cumulative_rewards[agent] = 0.0
        self._observations |= turn.observations
        self.rewards |= turn.rewards
        self.terminations |= turn.terminations
        self.truncations |= turn.truncations
        self.infos |= turn.infos
        self._actions, self._queue = {}, list(self._cast.asked)
        self.agent_selection = (self._queue or self.agents)[0]
