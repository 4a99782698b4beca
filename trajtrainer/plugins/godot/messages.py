"""Messages of games with the Godot RL Agents plugin, protocol 0.7: JSON on the wire, columns in the trainer.

All agents act in the same tick and their number never changes, so every step has one row per agent.

Shape legend: N agents of a behavior, T agents whose episode ended.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.errors import InvalidDataError, UnsupportedError
from trajtrainer.core.numeric import numbers_in
from trajtrainer.core.spec import ActionSpec, BehaviorId, BehaviorSpec, ObservationSpec, usual_sensor
from trajtrainer.core.steps import ActionBatch, FloatArray, LongArray, ObservationArray, StepBatch, agent_ids
from trajtrainer.envs.unity.faults import ActionError, InvalidObservationError
from trajtrainer.envs.unity.gate import Gate

HANDSHAKE = b'{"type": "handshake", "major_version": "0", "minor_version": "7"}'
ENV_INFO = b'{"type": "env_info"}'
RESET = b'{"type": "reset"}'
CLOSE = b'{"type": "close"}'

_DEFAULT_POLICY = "shared_policy"  # the plugin's default, also used for old plugins that send no policy names
_PICTURE = "2d"  # part of the keys of images; godot_rl also distinguishes images from vectors in this way
_CHANNELS = (1, 3, 4)  # gray, RGB, RGBA
_MOST_AGENTS = 10_000
_MOST_POLICIES, _LONGEST_NAME = 1_000, 200
_MOST_NUMBERS = 1 << 24
_MOST_CHOICES = 100_000
_SHOWN = 100
# Upper bounds on the number of characters in a message: 25 for a number, 2 for a byte of an image, plus some slack for
# infos, which can contain anything.
_PER_NUMBER = 32
_PER_BYTE = 2
_SLACK = 1 << 20
_LONGEST = 1 << 26

_DONE_IS_THE_END = (
    "The game marks the ends of its episodes only with done. Each is treated as the end of the task, after which there "
    "are no more rewards, and the observation sent with it as the last one of the episode. A game that ends "
    "episodes because of a time limit should report this: docs/train/godot.md, Ends of episodes."
)
_LAST_OBSERVATION = (
    "An episode was truncated without a final_obs in its info. The observation sent with done is treated as "
    "the last one of the episode, although most games have started the next one by then: "
    "docs/train/godot.md, Ends of episodes."
)


class GodotSensor(NamedTuple):
    """One key of the observations.

    Attributes:
        key: the key in each agent's observation.
        spec: the observation spec of the sensor's column.
        picture: (height, width, channels) of an image, None for vectors. Images are sent as the bytes that
            ``Image.get_data`` returns: row by row, with all channels of each pixel.
    """

    key: str
    spec: ObservationSpec
    picture: tuple[int, int, int] | None

    @property
    def characters(self) -> int:
        """Upper bound on the number of characters of one observation in a message."""
        return math.prod(self.spec.shape) * (_PER_NUMBER if self.picture is None else _PER_BYTE)

    def column(self, observations: Sequence[Any]) -> ObservationArray:
        """Return this sensor's part of the observations, f32 or u8 [N, *O].

        Raises:
            InvalidDataError: a value is missing, has the wrong size or is not a number.
        """
        try:
            values = [observation[self.key] for observation in observations]
            if self.picture is not None:
                pixels = np.frombuffer(bytes.fromhex("".join(values)), np.uint8)
                picture = pixels.reshape(len(values), *self.picture).transpose(0, 3, 1, 2)
                if any(len(value) != _PER_BYTE * math.prod(self.picture) for value in values):
                    raise ValueError("pictures of different sizes")
                return np.ascontiguousarray(picture)
            column = numbers_in(values, np.float32).reshape(len(values), -1)
            if column.shape[1:] != self.spec.shape:
                raise ValueError("vectors of another size")
            return column
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._mismatch(observations) from error

    def _mismatch(self, observations: Sequence[Any]) -> InvalidDataError:
        expected = f"{math.prod(self.spec.shape)} numbers"
        if self.picture is not None:
            expected = f"the {math.prod(self.picture)} bytes of a picture as hexadecimal text"
        for observation in observations:
            if not isinstance(observation, dict) or self.key not in observation:
                return InvalidObservationError(
                    f"The game sent the observation {_shown(observation)} without {self.key!r}, which it announced."
                )
        return InvalidObservationError(
            f"The game sent observations whose {self.key!r} is not {expected} for each agent: "
            f"{_shown([observation[self.key] for observation in observations])}. get_obs must match get_obs_space."
        )


class ActionKey(NamedTuple):
    """One key of the actions: ``size`` continuous numbers or, if ``is_discrete``, one of ``size`` choices.

    ``begin`` is the key's first column among the continuous or the discrete actions.
    """

    key: str
    is_discrete: bool
    size: int
    begin: int

    def values(self, continuous: FloatArray, discrete: NDArray[np.int32]) -> list[Any]:
        """Return the value to send to each agent."""
        if self.is_discrete:
            return discrete[:, self.begin].tolist()  # type: ignore[no-any-return]
        return continuous[:, self.begin : self.begin + self.size].tolist()  # type: ignore[no-any-return]


class GodotBehavior:
    """The agents that share one policy name.

    Args:
        name: the policy name, including the team if it has one (``Player?team=1``).
        sensors: the agents' observation keys.
        actions: the agents' action keys, in the game's order.
        agents: indices of the agents in the game's lists, i64 [N].
        worker: the worker's number, which becomes part of the agent ids.
    """

    def __init__(
        self,
        name: str,
        sensors: tuple[GodotSensor, ...],
        actions: tuple[ActionKey, ...],
        agents: LongArray,
        worker: int,
    ) -> None:
        continuous = sum(action.size for action in actions if not action.is_discrete)
        branches = tuple(action.size for action in actions if action.is_discrete)
        self.name, self.sensors, self.actions = name, sensors, actions
        self.spec = BehaviorSpec([sensor.spec for sensor in sensors], ActionSpec(continuous, branches))
        self.agents: list[int] = agents.tolist()
        self._ids = agent_ids(worker, agents)
        self._num_choices = sum(branches)

    def pick(self, entries: list[Any]) -> list[Any]:
        """Select the entries of these agents from a list with one entry per agent of the game."""
        is_alone = len(entries) == len(self.agents)
        return entries if is_alone else [entries[agent] for agent in self.agents]

    def decisions(self, observations: list[Any]) -> StepBatch:
        """Return a step in which all agents start an episode."""
        count = len(self.agents)
        return self.step(observations, [0.0] * count, [False] * count, [])

    def step(self, observations: list[Any], rewards: list[Any], dones: list[Any], infos: list[Any]) -> StepBatch:
        """Return a step of all agents, which ends the episodes of agents that are done.

        Raises:
            InvalidDataError: the observations or rewards do not match the announced spaces.
        """
        ids, columns = self._ids, [sensor.column(observations) for sensor in self.sensors]
        reward = _rewards(rewards)
        ended = list(itertools.compress(itertools.count(), dones))
        if ended:
            last = [infos[place].get("final_obs", observations[place]) for place in ended]
            ids = np.concatenate((ids[ended], ids))
            columns = [
                np.concatenate((sensor.column(last), column))  # type: ignore[misc]
                for sensor, column in zip(self.sensors, columns, strict=True)
            ]
            reward = np.concatenate((reward[ended], reward))
            reward[len(ended) :][ended] = 0.0
        count = len(ids)
        return StepBatch(
            agent=ids,
            obs=tuple(columns),
            reward=reward,
            group=np.zeros(count, np.int32),
            group_reward=np.zeros(count, np.float32),
            mask=np.zeros((count, self._num_choices), np.bool_),
            interrupted=np.array([bool(infos[place].get("truncated")) for place in ended], np.bool_),
            num_terminal=len(ended),
        )

    def fill(self, rows: list[dict[str, Any]], batch: ActionBatch | None) -> None:
        """Write the actions of these agents into the rows of all agents. If ``batch`` is None, write zeros.

        Raises:
            ActionError: the number of actions differs from the number of agents.
        """
        count = len(self.agents)
        if batch is None:
            idle = self.spec.action_spec.empty_action(count)
            continuous, discrete = idle.continuous, idle.discrete
        else:
            continuous, discrete = batch.env_continuous, batch.discrete
        if len(continuous) != count:
            raise ActionError(f"Behavior {self.name!r}: found {len(continuous)} actions for {count} agents.")
        keys = [action.key for action in self.actions]
        values = zip(*(action.values(continuous, discrete) for action in self.actions), strict=True)
        for agent, row in zip(self.agents, values, strict=True):
            rows[agent] = dict(zip(keys, row, strict=True))


class Layout:
    """The behaviors of a game, from its ``env_info`` message. Parses the game's steps and formats its actions.

    Args:
        message: the game's ``env_info`` message.
        worker: the worker's number, which becomes part of the agent ids.

    Attributes:
        longest: maximum length of a message from the game, in bytes.
        assumptions: log messages about assumptions made so far about the ends of episodes.

    Raises:
        InvalidDataError: the message is not a valid ``env_info``.
        UnsupportedError: the game has an unsupported kind of observation or action.
    """

    def __init__(self, message: dict[str, Any], worker: int) -> None:
        self._num_agents = _whole(message.get("n_agents"), "n_agents", most=_MOST_AGENTS)
        names = message.get("agent_policy_names", [_DEFAULT_POLICY] * self._num_agents)
        observed, acted = (self._of_agents(message, name) for name in ("observation_space", "action_space"))
        if not isinstance(names, list) or len(names) != self._num_agents or not all(isinstance(n, str) for n in names):
            raise InvalidDataError(
                f"The game announced the agent_policy_names {_shown(names)}. Expected a string for each of its "
                f"{self._num_agents} agents."
            )
        if len(set(names)) > _MOST_POLICIES or max(map(len, names)) > _LONGEST_NAME:
            raise InvalidDataError(
                f"The game announced {len(set(names))} policy names with up to {max(map(len, names))} characters. At "
                f"most {_MOST_POLICIES} with up to {_LONGEST_NAME} are supported."
            )
        places: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            places.setdefault(name, []).append(place)
        self.behaviors: list[GodotBehavior] = []
        for name, agents in places.items():
            first = agents[0]
            other = next((a for a in agents if (observed[a], acted[a]) != (observed[first], acted[first])), None)
            if other is not None:
                raise InvalidDataError(
                    f"The agents {first} and {other} of the policy {name!r} observe or do different things: "
                    f"{_shown([observed[first], acted[first]])} and {_shown([observed[other], acted[other]])}. Give "
                    "them different policy names (AIController, Policy Name)."
                )
            BehaviorId.parse(name)  # raises an error if the team is not a number
            sensors, actions = tuple(_sensors(observed[first], name)), tuple(_actions(acted[first], name))
            self.behaviors.append(GodotBehavior(name, sensors, actions, np.array(agents, np.int64), worker))
        length = _SLACK + 2 * sum(  # twice, because a step may also contain the last observation of an episode
            len(behavior.agents) * (_PER_NUMBER + sum(sensor.characters for sensor in behavior.sensors))
            for behavior in self.behaviors
        )
        self.longest = min(length, _LONGEST)
        self.assumptions: set[str] = set()
        self._gate = Gate("The game", "in get_obs and in what adds to reward")

    @property
    def has_pictures(self) -> bool:
        """True if any agent observes images."""
        return any(sensor.picture is not None for behavior in self.behaviors for sensor in behavior.sensors)

    def _of_agents(self, message: dict[str, Any], name: str) -> list[dict[str, Any]]:
        """Return the space of each agent. Older plugins send a single space for all agents."""
        spaces = message.get(name)
        if isinstance(spaces, dict):
            spaces = [spaces] * self._num_agents
        fits = isinstance(spaces, list) and len(spaces) == self._num_agents
        if not fits or not all(isinstance(space, dict) and space for space in spaces):  # type: ignore[union-attr]
            raise InvalidDataError(
                f"The game announced the {name} {_shown(spaces)}. Expected a mapping from keys for each of its "
                f"{self._num_agents} agents."
            )
        return spaces  # type: ignore[return-value]

    @np.errstate(over="ignore")  # numbers that overflow float32 become infinite, and are rejected later
    def read_first(self, message: dict[str, Any]) -> dict[str, StepBatch]:
        """Read the first step of all agents from any message with observations.

        Raises:
            InvalidDataError: the message does not match the ``env_info``.
        """
        observations = self._list(message, "obs")
        return self._checked({each.name: each.decisions(each.pick(observations)) for each in self.behaviors})

    @np.errstate(over="ignore")
    def read_step(self, message: dict[str, Any]) -> dict[str, StepBatch]:
        """Read a step of all agents.

        Raises:
            InvalidDataError: the message does not match the ``env_info``.
        """
        observations, rewards, dones = (self._list(message, name) for name in ("obs", "reward", "done"))
        infos = self._list(message, "info") if "info" in message else [{}] * self._num_agents
        if len(dones) - dones.count(False) - dones.count(True):
            raise InvalidDataError(f"The game sent the done flags {_shown(dones)}. Each must be true or false.")
        for info in itertools.compress(infos, dones):
            if not isinstance(info, dict):
                raise InvalidDataError(f"The game sent the info {_shown(info)}. Expected a mapping.")
            if info.get("truncated", False) not in (False, True):
                raise InvalidDataError(
                    f"The game sent {_shown(info['truncated'])} as truncated in an info. Expected true or false."
                )
            if "final_obs" not in info:
                self.assumptions.add(_LAST_OBSERVATION if info.get("truncated") else _DONE_IS_THE_END)
        return self._checked(
            {each.name: each.step(*map(each.pick, (observations, rewards, dones, infos))) for each in self.behaviors}
        )

    def _checked(self, steps: dict[str, StepBatch]) -> dict[str, StepBatch]:
        for behavior in self.behaviors:
            self._gate.check(behavior.name, behavior.spec, steps[behavior.name])
        return steps

    def _list(self, message: dict[str, Any], name: str) -> list[Any]:
        entries = message.get(name)
        if not isinstance(entries, list) or len(entries) != self._num_agents:
            found = f"{len(entries)} entries" if isinstance(entries, list) else _shown(entries)
            raise InvalidDataError(
                f"The game sent {found} as {name} in a message of the type {_shown(message.get('type'))}. Expected a "
                f"list with an entry for each of its {self._num_agents} agents, whose number never changes."
            )
        return entries

    def write_actions(self, actions: Mapping[str, ActionBatch]) -> bytes:
        """Return the message with all agents' actions. Agents of a behavior without actions do nothing.

        Raises:
            ActionError: the number of actions differs from the number of agents.
        """
        rows: list[dict[str, Any]] = [{}] * self._num_agents
        for behavior in self.behaviors:
            behavior.fill(rows, actions.get(behavior.name))
        return json.dumps({"type": "action", "action": rows}).encode()


def parse(data: bytes | bytearray) -> dict[str, Any]:
    """Parse a message from the game.

    Raises:
        InvalidDataError: the data is not JSON, or not a JSON object.
    """
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        shown = bytes(data[:_SHOWN])
        raise InvalidDataError(
            f"The game sent {len(data)} bytes that are not JSON ({error}), starting with {shown!r}. Numbers that are "
            "infinite or NaN can cause this: Godot writes them in a form that is not valid JSON."
        ) from error
    if not isinstance(message, dict):
        raise InvalidDataError(f"The game sent {_shown(message)}. Expected a mapping with a type.")
    return message


def check_type(message: dict[str, Any], expected: str) -> None:
    """Check that a message is the expected answer.

    Raises:
        InvalidDataError: the message has a different type.
    """
    if message.get("type") != expected:
        raise InvalidDataError(
            f"The game sent a message of the type {_shown(message.get('type'))}, expected {expected!r}."
        )


def call(method: str) -> bytes:
    """Return the message that makes all agents call one of their methods."""
    return json.dumps({"type": "call", "method": method}).encode()


def _sensors(space: dict[str, Any], policy: str) -> Iterator[GodotSensor]:
    numbers = 0
    for key, entry in space.items():
        where = f"the observation {key!r} of the policy {policy!r}"
        size = entry.get("size") if isinstance(entry, dict) else None
        if not isinstance(size, list) or not 1 <= len(size) <= 3:
            raise InvalidDataError(
                f"The game announced {where} as {_shown(entry)}. Expected its size, a list of 1 to 3 whole numbers."
            )
        if entry.get("space", "box") != "box":
            raise UnsupportedError(
                f"The game announced {where} in the space {_shown(entry['space'])}. Only box is supported: send a "
                "discrete value as numbers, for example one-hot."
            )
        sizes = [_whole(part, f"the size of {where}", most=_MOST_NUMBERS) for part in size]
        numbers += math.prod(sizes)
        if numbers > _MOST_NUMBERS:
            raise InvalidDataError(f"The game announced {numbers} numbers or more in {where}; that is too many.")
        if _PICTURE not in key:
            yield GodotSensor(key, usual_sensor((math.prod(sizes),), key), None)
            continue
        picture = _picture(sizes)
        if picture is None:
            raise UnsupportedError(
                f"The game announced {where} with the size {sizes}. A key with {_PICTURE!r} is a picture; expected "
                "[channels, height, width], as the camera sensors of the plugin announce it, or [height, width, "
                "channels], with 1, 3 or 4 channels."
            )
        height, width, channels = picture
        yield GodotSensor(key, usual_sensor((channels, height, width), key), picture)


def _picture(sizes: list[int]) -> tuple[int, int, int] | None:
    """Return height, width and channels, or None if this is not an image. Newer plugins send the channels first."""
    if len(sizes) == 2:
        return sizes[0], sizes[1], 1
    if len(sizes) == 3 and sizes[0] in _CHANNELS:
        return sizes[1], sizes[2], sizes[0]
    if len(sizes) == 3 and sizes[2] in _CHANNELS:
        return sizes[0], sizes[1], sizes[2]
    return None


def _actions(space: dict[str, Any], policy: str) -> Iterator[ActionKey]:
    begins, total = {True: 0, False: 0}, 0
    for key, entry in space.items():
        where = f"the action {key!r} of the policy {policy!r}"
        kind = entry.get("action_type") if isinstance(entry, dict) else None
        if kind not in ("continuous", "discrete"):
            raise InvalidDataError(
                f"The game announced {where} as {_shown(entry)}. Expected a size and the action_type continuous or "
                "discrete."
            )
        size, is_discrete = _whole(entry.get("size"), f"the size of {where}", most=_MOST_CHOICES), kind == "discrete"
        total += size
        if total > _MOST_CHOICES:
            raise InvalidDataError(f"The actions of the policy {policy!r} have more than {_MOST_CHOICES} values.")
        yield ActionKey(key, is_discrete, size, begins[is_discrete])
        begins[is_discrete] += 1 if is_discrete else size


def _rewards(rewards: list[Any]) -> FloatArray:
    try:
        reward = numbers_in(rewards, np.float32)
        if reward.ndim != 1:
            raise TypeError("lists of numbers")
        return reward
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidDataError(f"The game sent the rewards {_shown(rewards)}. Each must be a number.") from error


def _whole(value: object, what: str, most: int) -> int:
    """Return a number from 1 to ``most`` as an integer. Godot writes some integers as 36.0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or not 1 <= value <= most:
        raise InvalidDataError(f"The game announced {_shown(value)} as {what}. Expected a whole number up to {most}.")
    return int(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
