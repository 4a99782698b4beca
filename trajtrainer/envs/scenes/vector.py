"""The agents of a scene as the sub-environments of a Gymnasium vector environment.

Shape legend: N sub-environments, D sum of branch sizes. See docs/guides/unity-environments.md#unityvectorenv.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray, ObservationArray, StepBatch
from trajtrainer.envs.scenes.scene import Batches, BehaviorSpaces, Decisions, Form, Player, Scene, pick
from trajtrainer.envs.unity.faults import ActionError

if TYPE_CHECKING:
    from trajtrainer.envs.scenes.stable_baselines3 import UnityVecEnv

logger = logging.getLogger(__name__)

Infos = dict[str, Any]
Step = tuple[Any, FloatArray, BoolArray, BoolArray, Infos]
Columns = tuple[ObservationArray, ...]
_COLUMNS = ("agent", "reward", "group", "group_reward", "mask")
_LOCAL_ID = 0xFFFFFFFF
_MASK = "reset_mask"
_NO_AGENT = -1


class UnityVectorEnv(VectorEnv[Any, Any, Any]):
    """Every agent of a behavior is a sub-environment; one message to the player steps all of them.

    A step ends when agents ask for decisions again. Unity begins an agent's next episode on its own: ``SAME_STEP`` and
    ``DISABLED`` show all of it; with ``NEXT_STEP`` its first decision is to do nothing.

    ``infos`` has ``deciding`` (bool [N], whose next action counts: False for agents that skip a decision or are gone,
    and where an episode ended with ``NEXT_STEP``), ``agent_id`` (i64 [N]), with discrete actions ``action_mask`` (i8
    [N, D], 1 is allowed), and in scenes with groups ``group_id`` (i64 [N]). Rewards are those of the agent and its
    group.

    Args:
        env: a build, ``sim:NAME``, None for the Editor, or a ``UnityEnvironment``.
        behavior: name of the behavior; needed where the scene has several. Agents of others do nothing.
        num_envs: N; None for the number of agents that ask for a decision first.
        autoreset_mode: what happens to a sub-environment whose episode has ended.
        observations: how several sensors are one space: ``auto`` (a Dict), ``dict``, ``tuple`` or ``box``.
        uint8_visual: pictures are bytes from 0 to 255, not floats from 0 to 1.
        time_scale: how fast the game runs.
        arguments: of ``UnityEnvironment``, if it is started here.

    Raises:
        SettingsError: no such behavior, or several without a choice.
        UnsupportedError: a behavior without observations or actions.
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
        batch = next(iter(self._scene.first.values()))
        self._no_agents = StepBatch(
            obs=tuple(column[:0] for column in batch.obs),
            num_terminal=0,
            **{name: getattr(batch, name)[:0] for name in (*_COLUMNS, "interrupted")},
        )
        first = self._merged(self._scene.first)
        self.num_envs = count = num_envs if num_envs is not None else first.num_decisions
        self.single_observation_space = self.spaces.observation_space
        self.single_action_space = self.spaces.action_space
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        self._slots = Slots(count)
        self._everyone = np.arange(count)
        self._all = _constant(np.ones(count, np.bool_))
        self._agent_ids: LongArray = _constant(self._slots.agents)
        self._group: LongArray | None = np.zeros(count, np.int64) if first.group.any() else None
        self._columns: Columns = tuple(np.zeros((count, *column.shape[1:]), column.dtype) for column in first.obs)
        self._mask: BoolArray = np.zeros((count, first.mask.shape[1]), np.bool_)
        self._asking: LongArray = self._everyone[:0]
        self._usual: bytes | None = None  # ids of a message in which every agent decides, in the order of slots
        self._due: BoolArray = np.zeros(count, np.bool_)
        self._hidden: BoolArray = np.zeros(count, np.bool_)  # with NEXT_STEP: from an end to an action that counts
        self._acting: BoolArray = np.zeros(count, np.bool_)
        self._owed: FloatArray = np.zeros(count, np.float32)
        self._is_reset = self._has_warned = False

    @property
    def agent_ids(self) -> LongArray:
        """The id of the agent in each sub-environment, i64 [N]; -1 for none yet."""
        return self._agent_ids

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Start new episodes in all sub-environments; or, with the mode ``DISABLED``, in those that have ended.

        Args:
            seed: of ``np_random`` only: a player takes its seed when it starts.
            options: ``reset_mask`` (bool [N]) resets the sub-environments in it, whose episodes must have ended;
                ``parameters`` (name -> number) are environment parameters of the game.

        Raises:
            SettingsError: a mask of others, or parameters that cannot be sent.
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
            self._due &= ~mask
            deciding = np.zeros_like(mask)
            deciding[self._asking] = True
            since = time.monotonic()
            while not deciding.any():  # No agent waits for an action, so the game can continue without one.
                self._scene.check_patience(since)
                deciding = self._take_in(self._exchange(self._no_decisions()))
            return self.spaces.observations(self._columns), self._infos(deciding)
        batch = self._merged(self._scene.begin(seed, options))
        self._slots.playing[:] = False
        self._due[:] = False
        self._hidden[:] = False
        self._owed[:] = 0.0
        self._is_reset = True
        self._acting = self._take_in(batch)
        infos = self._infos(self._acting.copy())
        return self.spaces.observations(self._columns), infos

    def step(self, actions: Any) -> Step:
        """Act in all sub-environments.

        Raises:
            ResetNeeded: before the first reset, or, with the mode ``DISABLED``, after an episode's end.
            UnityActionException: actions that are not of the action space.
            EnvironmentFaultError: the player fails.
            UnsupportedError: more agents than sub-environments.
        """
        if not self._is_reset or (self._mode is AutoresetMode.DISABLED and self._due.any()):
            raise ResetNeeded("Call reset() first; with the mode DISABLED, reset those whose episode has ended.")
        decisions = self.spaces.decisions(actions)
        if len(decisions[0]) != self.num_envs:
            raise ActionError(f"Found {len(decisions[0])} actions for {self.num_envs} sub-environments.")
        if not self._usual:  # Only those of agents that asked, in their order, are sent.
            continuous, discrete = decisions[0][self._asking], decisions[1][self._asking]
            begun = self._due[self._asking]  # With NEXT_STEP, their action was meant for the end that they saw.
            if begun.any():
                continuous[begun], discrete[begun] = self.spaces.nothing(self._mask[self._asking[begun]])
            decisions = continuous, discrete
        batch = self._exchange(decisions)
        if batch.num_terminal or batch.agent.tobytes() != self._usual:
            return self._unusual_step(batch)
        # Every agent decides, in its usual place, and none ends: nothing has to be moved.
        self._columns, self._mask = batch.obs, batch.mask
        none = np.zeros(self.num_envs, np.bool_)
        reward = batch.reward + batch.group_reward
        return self.spaces.observations(batch.obs), reward, none, none.copy(), self._infos(self._all)

    def _unusual_step(self, batch: StepBatch) -> Step:
        reward, last, ids = np.zeros(self.num_envs, np.float32), self._columns, self._agent_ids
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        since = time.monotonic()
        while True:
            rows = slice(0, batch.num_terminal)
            slots, places = self._slots.leave(batch.agent[rows])
            if len(slots):
                terminated[slots], truncated[slots] = ~batch.interrupted[places], batch.interrupted[places]
                reward[slots] = _rewards(batch, rows)[places]
                last = _written(last, slots, tuple(column[places] for column in batch.obs))
            deciding = self._take_in(batch, reward)
            all_ended = self._mode is not AutoresetMode.SAME_STEP and not self._slots.playing.any()
            if batch.num_decisions or all_ended:
                break
            self._scene.check_patience(since)
            batch = self._exchange(self._no_decisions())
        return self._after(deciding, reward, terminated, truncated, last, ids)

    def _take_in(self, batch: StepBatch, reward: FloatArray | None = None) -> BoolArray:
        """Give slots to agents that decide; add to the rewards of those that continue. Returns who decides, [N]."""
        rows = slice(batch.num_terminal, None)
        agents, before = batch.agent[rows], self._slots.playing.copy()
        columns = tuple(column[rows] for column in batch.obs)
        if agents.tobytes() == self._usual:
            self._slots.playing[:] = True
            self._asking = slots = self._everyone
            self._columns, self._mask = columns, batch.mask[rows]
        else:
            self._asking = slots = self._slots.assign(agents)
            self._columns, self._mask = _written(self._columns, slots, columns), self._mask.copy()
            self._mask[slots] = batch.mask[rows]
            self._agent_ids = _constant(np.where(self._slots.agents < 0, -1, self._slots.agents & _LOCAL_ID))
            self._usual = agents.tobytes() if np.array_equal(slots, self._everyone) else None
        if reward is not None:
            continuing = before[slots]  # A reward at an episode's beginning belongs to no decision.
            reward[slots[continuing]] += _rewards(batch, rows)[continuing]
        if self._group is not None:
            self._group[slots] = batch.group[rows]
        deciding = np.zeros(self.num_envs, np.bool_)
        deciding[slots] = True
        return deciding

    def _after(
        self,
        deciding: BoolArray,
        reward: FloatArray,
        terminated: BoolArray,
        truncated: BoolArray,
        last: Columns,
        ids: LongArray,
    ) -> Step:
        """A step by the rules of the autoreset mode. ``last`` and ``ids`` are of those whose episode ended."""
        ended = terminated | truncated
        waiting = np.flatnonzero(ended & ~deciding)  # Until they begin again, they look as they did at their end.
        shown = self._columns = _written(self._columns, waiting, _rows(last, waiting))
        silent = ~(deciding | ended)
        if silent.any() and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%d of %d agents did not ask for a decision in a step, because they decide at other times or are gone. "
                "Their observation stays the same, their reward is 0, and their actions have no effect: "
                "infos['deciding'] shows which. Learn only from the others.",
                np.count_nonzero(silent),
                self.num_envs,
            )
        infos: Infos = {}
        if self._mode is AutoresetMode.SAME_STEP:
            if ended.any():  # in the form of Gymnasium's own vector environments
                observations = self.spaces.observations(last)
                final = np.full(self.num_envs, None, object)
                for slot in np.flatnonzero(ended):
                    final[slot] = pick(observations, int(slot))
                info = {"agent_id": ids, "_agent_id": ended}
                infos = {"final_obs": final, "_final_obs": ended, "final_info": info, "_final_info": ended}
        else:
            if self._mode is AutoresetMode.NEXT_STEP:
                # What agents earn before their first action that counts is counted with what they earn by it.
                self._hidden = (self._hidden | self._due) & ~self._acting & ~ended
                earned = self._owed + reward
                self._owed = np.where(self._hidden, earned, np.float32(0.0))
                if self._hidden.any():
                    self._usual = None
                reward = np.where(self._hidden, np.float32(0.0), earned)
            deciding = deciding & ~ended
            self._due = ended
            if ended.any():
                shown = _written(shown, places := np.flatnonzero(ended), _rows(last, places))
                self._usual = None
        self._acting = deciding.copy()
        return self.spaces.observations(shown), reward, terminated, truncated, self._infos(deciding) | infos

    def _infos(self, deciding: BoolArray) -> Infos:
        infos = {"deciding": deciding, "_deciding": self._all, "agent_id": self._agent_ids, "_agent_id": self._all}
        if self._mask.shape[1]:
            infos |= {"action_mask": (~self._mask).view(np.int8), "_action_mask": self._all}
        if self._group is not None:
            infos |= {"group_id": self._group.copy(), "_group_id": self._all}
        return infos

    def _no_decisions(self) -> Decisions:
        return self.spaces.nothing(self._mask[:0])

    def _exchange(self, decisions: Decisions) -> StepBatch:
        """Send decisions in the order of those that asked; return the next message's agents."""
        if len(self._parts) == 1:
            batches = self._scene.step({self._parts[0][0]: decisions})
        else:
            edges = np.cumsum([count for _, count in self._parts])[:-1]
            pairs = zip(np.split(decisions[0], edges), np.split(decisions[1], edges), strict=True)
            batches = self._scene.step({name: pair for (name, _), pair in zip(self._parts, pairs, strict=False)})
        return self._merged(batches)

    def _merged(self, batches: Batches) -> StepBatch:
        """Join the agents of all teams to one batch, and remember whose decisions are where."""
        self._parts = [(name, batch.num_decisions) for name, batch in batches.items()]
        if len(batches) == 1:
            return next(iter(batches.values()))
        return _joined([self._no_agents, *batches.values()])

    def as_stable_baselines3(self) -> UnityVecEnv:
        """This as a ``VecEnv`` of Stable-Baselines3.

        Raises:
            ImportError: it is not installed.
            UnsupportedError: the mode is not ``SAME_STEP``, or spaces that it does not know.
        """
        from trajtrainer.envs.scenes.stable_baselines3 import UnityVecEnv

        return UnityVecEnv(self)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002
        """End the player."""
        self._scene.close()


def make_vec(num_envs: int = 1, **arguments: Any) -> UnityVectorEnv:
    """Make a ``UnityVectorEnv`` for ``gymnasium.make_vec``, which passes 1 where the user gives no number.

    Only the scene knows how many agents it has, so 1 stands for that number.
    """
    return UnityVectorEnv(num_envs=None if num_envs == 1 else num_envs, **arguments)


def _constant(array: Any) -> Any:
    """A read-only copy, which can be returned many times."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _rewards(batch: StepBatch, rows: slice) -> FloatArray:
    return batch.reward[rows] + batch.group_reward[rows]


def _rows(columns: Columns, rows: LongArray) -> Columns:
    return tuple(column[rows] for column in columns)


def _written(columns: Columns, rows: LongArray, values: Columns) -> Columns:
    """Copies with other rows."""
    if not len(rows):
        return columns
    copies = tuple(column.copy() for column in columns)
    for column, value in zip(copies, values, strict=True):
        column[rows] = value
    return copies


def _joined(batches: Sequence[StepBatch]) -> StepBatch:
    """Several batches as one, terminal rows first."""

    def column(part: Callable[[StepBatch], Any]) -> Any:
        ended = [part(batch)[: batch.num_terminal] for batch in batches]
        return np.concatenate([*ended, *(part(batch)[batch.num_terminal :] for batch in batches)])

    columns = {name: column(attrgetter(name)) for name in _COLUMNS}
    return StepBatch(
        obs=tuple(column(lambda batch, sensor=sensor: batch.obs[sensor]) for sensor in range(len(batches[0].obs))),  # type: ignore[misc]
        interrupted=np.concatenate([batch.interrupted for batch in batches]),
        num_terminal=sum(batch.num_terminal for batch in batches),
        **columns,
    )


class Slots:
    """The agents of N sub-environments.

    An agent keeps its slot from one of its episodes to the next. One with a new id, which Unity gives to agents that
    were disabled or created again, gets the first slot whose agent's episode has ended.

    Attributes:
        agents: i64 [N], the current or last agent; -1 for none yet.
        playing: bool [N], whether its episode continues.
    """

    def __init__(self, count: int) -> None:
        self.agents: LongArray = np.full(count, _NO_AGENT, np.int64)
        self.playing: BoolArray = np.zeros(count, np.bool_)

    def leave(self, agents: LongArray) -> tuple[LongArray, LongArray]:
        """End the episodes of agents; return their slots and their places in ``agents``.

        Those that were not playing are left out: their episode was over before it asked for a decision.
        """
        slots = self._slots_of(agents)
        places = np.flatnonzero((slots >= 0) & self.playing[slots])
        self.playing[slots[places]] = False
        return slots[places], places

    def assign(self, agents: LongArray) -> LongArray:
        """The slots of agents that decide, i64 [n]; those that did not play yet begin an episode.

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
                    "sub-environments, as many as asked for a decision first. Give num_envs=N for the maximum number; "
                    "info['deciding'] is False for sub-environments without an agent."
                )
            slots[newcomers] = free
            self.agents[free] = agents[newcomers]
            self.playing[free] = True
        return slots

    def _slots_of(self, agents: LongArray) -> LongArray:
        """I64 [n], -1 for agents without a slot."""
        order = np.argsort(self.agents)
        places = np.searchsorted(self.agents, agents, sorter=order)
        slots = order[np.minimum(places, len(order) - 1)]
        return np.where(self.agents[slots] == agents, slots, -1)
