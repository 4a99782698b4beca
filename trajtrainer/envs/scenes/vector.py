"""The agents of a scene as the sub-environments of a Gymnasium vector environment.

Shape legend: N sub-environments, D sum of branch sizes. See docs/train/unity-environments.md#unityvectorenv.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray, StepBatch
from trajtrainer.envs.scenes.scene import Batches, BehaviorSpaces, Form, Player, Scene, pick
from trajtrainer.envs.unity.faults import ActionError

if TYPE_CHECKING:
    from trajtrainer.envs.scenes.stable_baselines3 import UnityVecEnv

logger = logging.getLogger(__name__)

Infos = dict[str, Any]
Step = tuple[Any, FloatArray, BoolArray, BoolArray, Infos]
Columns = tuple[NDArray[Any], ...]
"""The observations of agents, then their masks (bool [N, D], True = forbidden) and their groups (i32 [N])."""
_LOCAL_ID = 0xFFFFFFFF
_MASK = "reset_mask"
_NO_AGENT = -1


class UnityVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector environment in which every agent of a behavior is a sub-environment. A single message steps all agents.

    A step lasts until agents ask for decisions again. Unity starts an agent's next episode on its own: ``SAME_STEP``
    and ``DISABLED`` show all of that episode; ``NEXT_STEP`` skips its first decision, with an action that does nothing.

    ``infos`` contains ``deciding`` (bool [N], whether the next action counts: False for agents that skip a decision or
    are gone, and, unless the mode is ``SAME_STEP``, if the episode has just ended), ``agent_id`` (i64 [N]), with
    discrete actions ``action_mask`` (i8 [N, D], 1 means allowed), and in scenes with groups ``group_id`` (i64 [N]).
    Rewards include those of the agent's group.

    Args:
        env: a build, ``sim:NAME``, None for the Editor, or a ``UnityEnvironment``.
        behavior: name of the behavior, required if the scene has several. Agents of other behaviors do nothing.
        num_envs: N; None for the number of agents that ask for the first decisions.
        autoreset_mode: what happens to a sub-environment whose episode has ended.
        observations: how several sensors are combined: ``auto`` (a Dict), ``dict``, ``tuple`` or ``box``.
        uint8_visual: whether pictures are bytes from 0 to 255 instead of floats from 0 to 1.
        time_scale: how fast the game runs.
        arguments: arguments of ``UnityEnvironment``, if it is started here.

    Raises:
        SettingsError: there is no such behavior, or there are several and ``behavior`` is None.
        UnsupportedError: the behavior has no observations or no actions.
        EnvironmentFaultError: the player cannot be started or fails.
    """

    def __init__(
        self,
        env: Player = None,
        *,
        behavior: str | None = None,
        num_envs: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        observations: Form = "auto",
        uint8_visual: bool = False,
        time_scale: float = 20.0,
        **arguments: Any,
    ) -> None:
        self._mode = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self._mode}
        self._scene = Scene(env, behavior, time_scale, arguments)
        try:
            self._prepare(num_envs, observations, uint8_visual)
        except BaseException:
            self._scene.close()
            raise

    def _prepare(self, num_envs: int | None, observations: Form, uint8_visual: bool) -> None:
        names = {BehaviorId.parse(behavior_id).name for behavior_id in self._scene.specs}
        if len(names) > 1:
            raise SettingsError(f"The scene has the behaviors {', '.join(sorted(names))}. Choose one: behavior='NAME'.")
        self.behavior = names.pop()
        spec = next(iter(self._scene.specs.values()))
        self.spaces = BehaviorSpaces(spec, self.behavior, observations, uint8_visual=uint8_visual)
        first = list(self._scene.first.values())
        self.num_envs = count = sum(batch.num_decisions for batch in first) if num_envs is None else num_envs
        self.single_observation_space = self.spaces.observation_space
        self.single_action_space = self.spaces.action_space
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        self._slots = Slots(count)
        self._all = _constant(np.ones(count, np.bool_))
        self._agent_ids: LongArray = _constant(self._slots.agents)
        self._has_groups = any(batch.group.any() for batch in first)
        columns = _columns(first[0], slice(None))
        self._shown: Columns = tuple(np.zeros((count, *column.shape[1:]), column.dtype) for column in columns)
        self._asking: dict[str, LongArray] = {}  # slots of the agents that wait for an action, by behavior id
        self._usual: bytes | None = None  # ids of a message in which every agent decides, in the order of slots
        self._due: BoolArray = np.zeros(count, np.bool_)  # slots whose episode has ended; unused with SAME_STEP
        self._idle: BoolArray = np.zeros(count, np.bool_)  # with NEXT_STEP: slots that skip their first decision
        self._is_reset = self._has_warned = False

    @property
    def agent_ids(self) -> LongArray:
        """The id of the agent in each sub-environment, i64 [N]; -1 if it has had no agent yet."""
        return self._agent_ids

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Start new episodes in all sub-environments or, with the mode ``DISABLED``, in those that a mask selects.

        Args:
            seed: seed of ``np_random`` only, because a player reads its seed when it starts.
            options: ``reset_mask`` (bool [N]) selects the sub-environments to reset, whose episodes must have ended;
                ``parameters`` (name -> number) are environment parameters of the game.

        Raises:
            SettingsError: an episode that the mask selects has not ended, or a parameter cannot be sent.
            EnvironmentFaultError: the player fails.
        """
        super().reset(seed=seed)
        if options and options.get(_MASK) is not None:
            mask = np.asarray(options[_MASK])
            if mask.shape != self._due.shape or mask.dtype != np.bool_ or (mask & ~self._due).any():
                raise SettingsError(
                    f"reset_mask must be a bool array of shape {self._due.shape} that is True only for "
                    "sub-environments whose episode has ended, with the mode DISABLED: Unity resets all agents or none."
                )
            self._due = self._due & ~mask
            since = time.monotonic()
            while not self._deciding().any():  # no agent waits, so the game can continue without actions
                self._scene.check_patience(since)
                self._take_in(self._scene.step({}))
        else:
            batches = self._scene.begin(seed, options)
            self._slots.playing[:] = False
            self._due, self._idle = np.zeros_like(self._all), np.zeros_like(self._all)
            self._is_reset = True
            self._take_in(batches)
        return self.spaces.observations(self._shown[:-2]), self._infos(self._shown, self._deciding())

    def step(self, actions: Any) -> Step:
        """Act in all sub-environments.

        Raises:
            ResetNeeded: ``reset`` has not been called or, with the mode ``DISABLED``, an episode has ended.
            UnityActionException: the actions are not in the action space.
            EnvironmentFaultError: the player fails.
            UnsupportedError: there are more agents than sub-environments.
        """
        if not self._is_reset or (self._mode is AutoresetMode.DISABLED and self._due.any()):
            raise ResetNeeded(
                "Call reset() first; with the mode DISABLED, reset the sub-environments whose episodes have ended."
            )
        continuous, discrete = self.spaces.decisions(actions)
        if len(continuous) != self.num_envs:
            raise ActionError(f"Found {len(continuous)} actions for {self.num_envs} sub-environments.")
        if self._usual is not None:
            decisions = dict.fromkeys(self._asking, (continuous, discrete))
        else:
            if self._due.any():  # With NEXT_STEP, the actions of these slots belong to the episode that has ended.
                continuous, discrete = continuous.copy(), discrete.copy()
                continuous[self._due], discrete[self._due] = self.spaces.nothing(self._shown[-2][self._due])
                self._idle = self._idle | (self._due & self._deciding())
            decisions = {name: (continuous[slots], discrete[slots]) for name, slots in self._asking.items()}
        batches = self._scene.step(decisions)
        batch = next(iter(batches.values())) if len(batches) == 1 else None
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        if batch is not None and not batch.num_terminal and batch.agent.tobytes() == self._usual:
            # Fast path: all agents decide, their rows are in slot order, and no episode ends.
            self._shown = (*batch.obs, batch.mask, batch.group)
            infos = self._infos(self._shown, self._all)
            reward = batch.reward + batch.group_reward
            return self.spaces.observations(batch.obs), reward, terminated, truncated, infos
        reward, last, ids = np.zeros(self.num_envs, np.float32), self._shown, self._agent_ids
        since = time.monotonic()
        while True:
            for batch in batches.values():
                if batch.num_terminal:
                    slots, rows = self._slots.leave(batch.agent[: batch.num_terminal])
                    terminated[slots], truncated[slots] = ~batch.interrupted[rows], batch.interrupted[rows]
                    reward[slots] = batch.reward[rows] + batch.group_reward[rows]
                    last = _written(last, slots, _columns(batch, rows))
            self._take_in(batches, reward)
            all_ended = self._mode is not AutoresetMode.SAME_STEP and not self._slots.playing.any()
            if all_ended or any(map(len, self._asking.values())):
                break
            self._scene.check_patience(since)
            batches = self._scene.step({})
        deciding, ended = self._deciding(), terminated | truncated
        self._warn_of(deciding | ended)
        if ended.any():
            # Slots without a new episode keep their last observation.
            waiting = np.flatnonzero(ended & ~deciding)
            self._shown = _written(self._shown, waiting, tuple(column[waiting] for column in last))
        shown = self._shown
        final: Infos = {}
        if self._mode is not AutoresetMode.SAME_STEP:
            # Rewards of slots that skipped their first decision do not count.
            reward[self._idle & ~ended] = 0.0
            self._idle = self._idle & ~(deciding | ended)
            deciding, self._due = deciding & ~ended, ended
            if (self._due | self._idle).any():
                self._usual = None
            shown = _written(shown, slots := np.flatnonzero(ended), tuple(column[slots] for column in last))
        elif ended.any():
            final = self._final(last, ended, ids)
        observations = self.spaces.observations(shown[:-2])
        return observations, reward, terminated, truncated, self._infos(shown, deciding) | final

    def _take_in(self, batches: Batches, reward: FloatArray | None = None) -> None:
        """Store the observations of agents that ask for a decision, and add their rewards if they are mid-episode."""
        self._asking, before = {}, self._slots.playing.copy()
        for name, batch in batches.items():
            rows = slice(batch.num_terminal, None)
            slots = self._asking[name] = self._slots.assign(batch.agent[rows])
            self._shown = _written(self._shown, slots, _columns(batch, rows))
            if reward is not None:  # a reward at an episode's start is not due to a decision
                reward[slots] += np.where(before[slots], batch.reward[rows] + batch.group_reward[rows], np.float32(0.0))
        is_usual = len(batches) == 1 and np.array_equal(slots, np.arange(self.num_envs))
        self._usual = batch.agent[rows].tobytes() if is_usual else None
        self._agent_ids = _constant(np.where(self._slots.agents < 0, -1, self._slots.agents & _LOCAL_ID))

    def _deciding(self) -> BoolArray:
        deciding = np.zeros(self.num_envs, np.bool_)
        for slots in self._asking.values():
            deciding[slots] = True
        return deciding

    def _warn_of(self, active: BoolArray) -> None:
        if not (self._has_warned or active.all()):
            self._has_warned = True
            logger.warning(
                "%d of %d agents did not ask for a decision in a step, because they decide at other times or are gone. "
                "Their observation stays the same, their reward is 0, and their actions have no effect: "
                "infos['deciding'] shows which. Learn only from the others.",
                np.count_nonzero(~active),
                self.num_envs,
            )

    def _final(self, last: Columns, ended: BoolArray, ids: LongArray) -> Infos:
        """Return the last observations of ended episodes, in the form of Gymnasium's own vector environments."""
        observations, final = self.spaces.observations(last[:-2]), np.full(self.num_envs, None, object)
        for slot in np.flatnonzero(ended):
            final[slot] = pick(observations, int(slot))
        info = {"agent_id": ids, "_agent_id": ended}
        return {"final_obs": final, "_final_obs": ended, "final_info": info, "_final_info": ended}

    def _infos(self, shown: Columns, deciding: BoolArray) -> Infos:
        *_, mask, group = shown
        infos = {"deciding": deciding, "_deciding": self._all, "agent_id": self._agent_ids, "_agent_id": self._all}
        if mask.shape[1]:
            infos |= {"action_mask": (~mask).view(np.int8), "_action_mask": self._all}
        if self._has_groups:
            infos |= {"group_id": group.astype(np.int64), "_group_id": self._all}
        return infos

    def as_stable_baselines3(self) -> UnityVecEnv:
        """Return this environment as a Stable-Baselines3 ``VecEnv``.

        Raises:
            ImportError: Stable-Baselines3 is not installed.
            UnsupportedError: the mode is not ``SAME_STEP``, or Stable-Baselines3 does not support a space.
        """
        from trajtrainer.envs.scenes.stable_baselines3 import UnityVecEnv

        return UnityVecEnv(self)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002
        """Shut down the player."""
        self._scene.close()


def make_vec(num_envs: int = 1, **arguments: Any) -> UnityVectorEnv:
    """Make a ``UnityVectorEnv`` for ``gymnasium.make_vec``, which passes 1 if the user gives no number.

    Only the scene knows how many agents it has, so 1 means that number.
    """
    return UnityVectorEnv(num_envs=None if num_envs == 1 else num_envs, **arguments)


def _constant(array: Any) -> Any:
    """Return a read-only copy, which is safe to return to the user repeatedly."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _columns(batch: StepBatch, rows: slice | LongArray) -> Columns:
    return tuple(column[rows] for column in (*batch.obs, batch.mask, batch.group))


def _written(columns: Columns, slots: LongArray, values: Columns) -> Columns:
    """Return columns with new values in some rows. They are copies, because earlier results must not change."""
    if len(slots) == len(columns[0]) and (slots[:-1] < slots[1:]).all():
        return values  # ``values`` has all slots, in order
    if not len(slots):
        return columns
    copies = tuple(column.copy() for column in columns)
    for column, value in zip(copies, values, strict=True):
        column[slots] = value
    return copies


class Slots:
    """The assignment of agents to N sub-environments.

    An agent keeps its slot from one episode to the next. An agent with a new id, which Unity assigns when agents are
    disabled and enabled again, or are replaced by new ones, gets the first slot whose agent's episode has ended.

    Attributes:
        agents: i64 [N], the current or last agent of each slot; -1 if there has been no agent yet.
        playing: bool [N], whether that agent's episode continues.
    """

    def __init__(self, count: int) -> None:
        self.agents: LongArray = np.full(count, _NO_AGENT, np.int64)
        self.playing: BoolArray = np.zeros(count, np.bool_)

    def leave(self, agents: LongArray) -> tuple[LongArray, LongArray]:
        """End the episodes of agents, and return their slots and their indices in ``agents``.

        Agents that were not playing are left out: their episode was over before they asked for a decision.
        """
        slots = self._slots_of(agents)
        places = np.flatnonzero((slots >= 0) & self.playing[slots])
        self.playing[slots[places]] = False
        return slots[places], places

    def assign(self, agents: LongArray) -> LongArray:
        """Return the slots of agents that decide, i64 [n]. Those that were not playing start an episode.

        Raises:
            UnsupportedError: there are more agents than slots.
        """
        slots = self._slots_of(agents)
        self.playing[slots[slots >= 0]] = True
        newcomers = np.flatnonzero(slots < 0)
        if len(newcomers):
            free = np.flatnonzero(~self.playing)[: len(newcomers)]
            if len(free) < len(newcomers):
                most = len(self.agents)
                raise UnsupportedError(
                    f"{most + len(newcomers) - len(free)} agents play at the same time, but there are only {most} "
                    "sub-environments: the number of agents that asked for the first decision. Set num_envs to the "
                    "maximum number of agents; info['deciding'] is False for sub-environments without an agent."
                )
            slots[newcomers] = free
            self.agents[free] = agents[newcomers]
            self.playing[free] = True
        return slots

    def _slots_of(self, agents: LongArray) -> LongArray:
        """Return the slots of agents, i64 [n], with -1 for agents without a slot."""
        order = np.argsort(self.agents)
        places = np.searchsorted(self.agents, agents, sorter=order)
        slots = order[np.minimum(places, len(order) - 1)]
        return np.where(self.agents[slots] == agents, slots, -1)
