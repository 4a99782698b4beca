"""The common base of the wrappers for other libraries: a player's agents, their spaces, and single messages.

Shape legend: N agents of a batch, C continuous actions, K discrete branches, D sum of branch sizes, O shape of an
observation.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.core.spec import BehaviorId, BehaviorSpec, first_allowed
from trajtrainer.core.spelling import closest
from trajtrainer.core.steps import BoolArray, FloatArray, IntArray, ObservationArray, StepBatch
from trajtrainer.envs.unity.environment import UnityEnvironment
from trajtrainer.envs.unity.faults import PlayerTimeoutError
from trajtrainer.envs.unity.session import PlayerSession
from trajtrainer.envs.unity.side_channels import (
    EngineConfigurationChannel,
    EnvironmentParametersChannel,
    SideChannel,
    queue_engine,
    queue_parameter,
)
from trajtrainer.settings.environment import ConstantSettings, EngineSettings

logger = logging.getLogger(__name__)

Player = UnityEnvironment | str | PathLike[str] | None
"""A build, ``sim:NAME``, None for the Editor, or an environment that is already connected."""
Batches = dict[str, StepBatch]
_PARAMETERS = "parameters"
# Arguments of ML-Agents' wrappers that do not exist here, with hints for error messages.
_GONE = {
    "flatten_branched": ". Branches are a MultiDiscrete space, which Stable-Baselines3 supports directly.",
    "allow_multiple_obs": ". Use observations='tuple' for all sensors.",
}

Form = Literal["auto", "box", "dict", "tuple"]
"""How sensors are combined: ``auto`` is a Box for one sensor and a Dict for several; ``box`` joins vectors."""

_PICTURE_RANK = 3
_LARGEST_BYTE = np.float32(255.0)
Decisions = tuple[FloatArray, IntArray]
"""Continuous f32 [N, C] and discrete i32 [N, K] actions."""


class BehaviorSpaces:
    """The spaces of one behavior.

    - A vector or a list of entities is a Box without bounds. A picture is a Box in [0, 1], or of bytes, of shape
      (channels, height, width).
    - Continuous actions are a Box in [-1, 1], one discrete branch is a Discrete, and several are a MultiDiscrete. If a
      behavior has both continuous and discrete actions, they are a Tuple of the two.

    Args:
        spec: spec of the behavior.
        name: name of the behavior, for messages.
        form: see ``Form``.
        uint8_visual: whether pictures are bytes from 0 to 255.

    Attributes:
        observation_space: observation space of one agent.
        action_space: action space of one agent.

    Raises:
        SettingsError: the form is unknown.
        UnsupportedError: there are no observations or no actions, or the sensors cannot be joined into a Box.
    """

    def __init__(self, spec: BehaviorSpec, name: str, form: Form = "auto", *, uint8_visual: bool = False) -> None:
        if form not in get_args(Form):
            raise SettingsError(f"observations={form!r}: expected one of {', '.join(get_args(Form))}.")
        sensors, actions = spec.observation_specs, spec.action_spec
        if not sensors:
            raise UnsupportedError(f"The agents of {name!r} have no observations, so there is no observation space.")
        if not actions.continuous_size and not actions.discrete_size:
            raise UnsupportedError(f"The agents of {name!r} have no actions, so there is no action space.")
        self._actions = actions
        self._bytes = uint8_visual
        self._is_picture = [len(sensor.shape) == _PICTURE_RANK for sensor in sensors]
        picture = (0, 255, np.uint8) if uint8_visual else (0.0, 1.0, np.float32)
        boxes: list[spaces.Box] = []
        self._names: list[str] = []  # unique, and without dots, because torch does not allow dots in module names
        for index, sensor in enumerate(sensors):
            key = sensor.name.replace(".", "_") or f"observation_{index}"
            self._names.append(key if key not in self._names else f"{key}_{index}")
            low, high, dtype = picture if self._is_picture[index] else (-np.inf, np.inf, np.float32)
            boxes.append(spaces.Box(low, high, tuple(sensor.shape), dtype))
        self._form: Form = ("box" if len(sensors) == 1 else "dict") if form == "auto" else form
        self.observation_space = self._space(boxes, name)

        chosen: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (actions.continuous_size,), np.float32)
        if actions.discrete_size:
            branches: spaces.Space[Any] = (
                spaces.Discrete(actions.discrete_branches[0])
                if actions.discrete_size == 1
                else spaces.MultiDiscrete(np.array(actions.discrete_branches))
            )
            chosen = spaces.Tuple((chosen, branches)) if actions.continuous_size else branches
        self.action_space = chosen

    def _space(self, boxes: Sequence[spaces.Box], name: str) -> spaces.Space[Any]:
        if self._form == "dict":
            return spaces.Dict(dict(zip(self._names, boxes, strict=True)))
        if self._form == "tuple":
            return spaces.Tuple(boxes)
        if len(boxes) == 1:
            return boxes[0]
        if any(len(box.shape) != 1 for box in boxes):
            shapes = ", ".join(str(box.shape) for box in boxes)
            raise UnsupportedError(
                f"observations='box' only joins vectors, but the sensors of {name!r} have the shapes {shapes}. Use "
                "'dict' or 'tuple'."
            )
        return spaces.Box(-np.inf, np.inf, (sum(box.shape[0] for box in boxes),), np.float32)

    def observations(self, columns: Sequence[ObservationArray]) -> Any:
        """Return a batch of the observation space: an array [N, *O], or a dict or a tuple of such arrays."""
        found = []
        for column, is_picture in zip(columns, self._is_picture, strict=True):
            if is_picture and self._bytes and column.dtype != np.uint8:
                column = np.rint(column * _LARGEST_BYTE).astype(np.uint8)
            elif is_picture and not self._bytes and column.dtype != np.float32:
                column = column.astype(np.float32) / _LARGEST_BYTE
            found.append(column)
        if self._form == "dict":
            return dict(zip(self._names, found, strict=True))
        if self._form == "tuple":
            return tuple(found)
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

    def decisions(self, actions: Any) -> Decisions:
        """Convert N actions of the batched action space to decisions."""
        size, branches = self._actions.continuous_size, self._actions.discrete_size
        actions, chosen = actions if size and branches else (actions, actions)
        number = len(chosen)
        continuous: FloatArray = np.asarray(actions, np.float32) if size else np.zeros((number, 0), np.float32)
        discrete: IntArray = np.asarray(chosen, np.int32) if branches else np.zeros((number, 0), np.int32)
        return continuous, discrete[:, None] if branches == 1 and discrete.ndim == 1 else discrete

    def batch_of_one(self, action: Any) -> Any:
        """Return an action of ``action_space`` as a batch for ``decisions``."""
        is_pair = isinstance(self.action_space, spaces.Tuple)
        return tuple(np.asarray(part)[None] for part in action) if is_pair else np.asarray(action)[None]

    def nothing(self, mask: BoolArray) -> Decisions:
        """Return actions that do nothing: zeros, and the first choice of each branch that ``mask`` allows."""
        return np.zeros((len(mask), self._actions.continuous_size), np.float32), first_allowed(self._actions, mask)

    def sample_mask(self, allowed: NDArray[np.int8]) -> Any:
        """Return one agent's mask, i8 [D], in the form that ``action_space.sample(mask=...)`` takes."""
        parts = np.split(allowed, np.cumsum(self._actions.discrete_branches)[:-1])
        chosen: Any = parts[0] if len(parts) == 1 else tuple(parts)
        return (None, chosen) if self._actions.continuous_size else chosen


def pick(batch: Any, index: int) -> Any:
    """Return one observation of a batch."""
    return mapped(batch, lambda column: column[index])


def mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to the arrays of a batch of observations."""
    if isinstance(batch, Mapping):
        return {name: change(column) for name, column in batch.items()}
    return tuple(map(change, batch)) if isinstance(batch, tuple) else change(batch)


class Scene:
    """A player with one or all of its behaviors controlled by a wrapper. Agents of other behaviors do nothing.

    The constructor resets the player once to discover its behaviors.

    Args:
        env: see ``Player``.
        behavior: name of the behavior to play, including all of its teams; None for all behaviors.
        time_scale: how fast the game runs.
        arguments: arguments of ``UnityEnvironment``, if it is started here. A build then uses any free port by default.

    Attributes:
        specs: behavior id -> spec, for the behaviors that are played.
        first: the first agents that asked for a decision after the constructor's reset.

    Raises:
        SettingsError: there is no such behavior, or there are arguments for an environment that is already running.
        EnvironmentFaultError: the player cannot be started or fails.
    """

    def __init__(self, env: Player, behavior: str | None, time_scale: float, arguments: Mapping[str, Any]) -> None:
        self._behavior = behavior
        self._has_noted_a_seed = False
        self._parameters: EnvironmentParametersChannel | None = None
        if isinstance(env, UnityEnvironment):
            if arguments:
                raise SettingsError(
                    f"The environment is already running and does not accept arguments: {', '.join(arguments)}."
                )
            self._env = env
        else:
            self._env = self._start(None if env is None else fspath(env), time_scale, dict(arguments))
        self.specs: dict[str, BehaviorSpec] = {}
        self._others: list[str] = []
        try:
            self._env.start_reset()
            batches = self._receive()
            if not self.specs:
                raise SettingsError(
                    f"There is no behavior {behavior!r} in the scene. The behaviors are: {', '.join(self._others)}."
                )
            if self._others:
                logger.warning(
                    "Only the behavior %r is controlled. Agents of %s do nothing.", behavior, ", ".join(self._others)
                )
            self.first = self._until_asked(batches)
        except BaseException:
            self.close()
            raise

    def _start(self, file_name: str | None, time_scale: float, arguments: dict[str, Any]) -> UnityEnvironment:
        known = inspect.signature(PlayerSession).parameters
        unknown = [name for name in arguments if name not in known]
        if unknown:
            hint = "".join(_GONE.get(name, closest(name, known)) for name in unknown) or "."
            raise SettingsError(f"A Unity scene does not accept the argument {', '.join(map(repr, unknown))}{hint}")
        given: Sequence[SideChannel] = arguments.pop("side_channels", None) or ()
        channels = list(given)
        if not any(isinstance(channel, EngineConfigurationChannel) for channel in given):
            engine = EngineConfigurationChannel()
            queue_engine(engine, EngineSettings(time_scale=time_scale))
            channels.append(engine)
        if not any(isinstance(channel, EnvironmentParametersChannel) for channel in given):
            self._parameters = EnvironmentParametersChannel()
            channels.append(self._parameters)
        if file_name is not None:
            arguments.setdefault("base_port", 0)
        return UnityEnvironment(file_name, side_channels=channels, **({"busy_wait": True} | arguments))

    def begin(self, seed: int | None, options: Mapping[str, Any] | None) -> Batches:
        """Start new episodes, and return the first agents that ask for a decision.

        Args:
            seed: ignored, because a player reads its seed when it starts.
            options: may contain environment parameters (name -> number) as ``parameters``.

        Raises:
            SettingsError: a parameter cannot be sent.
            EnvironmentFaultError: the player fails.
        """
        if seed is not None and not self._has_noted_a_seed:
            self._has_noted_a_seed = True
            logger.info("A player is seeded when it starts (pass seed=%d as an argument), not at a reset.", seed)
        for name, value in ((options or {}).get(_PARAMETERS) or {}).items():
            if self._parameters is None:
                raise SettingsError(
                    f"The environment parameter {name!r} cannot be sent, because the environment was started "
                    "elsewhere. Use the EnvironmentParametersChannel that it was given there."
                )
            queue_parameter(self._parameters, str(name), ConstantSettings(value=float(value)))
        self._env.start_reset()
        return self._until_asked(self._receive())

    def _until_asked(self, batches: Batches) -> Batches:
        since = time.monotonic()
        while not any(batch.num_decisions for batch in batches.values()):
            self.check_patience(since)
            batches = self.step({})
        return batches

    def step(self, decisions: Mapping[str, Decisions]) -> Batches:
        """Send the decisions of the agents that asked for one, and return the agents of the next message.

        Raises:
            UnityActionException: the decisions do not fit the agents.
            EnvironmentFaultError: the player fails.
        """
        self._env.send(decisions)
        return self._receive()

    def _receive(self) -> Batches:
        event = self._env.receive()
        for behavior_id, spec in event.new_specs.items():
            if self._behavior in (None, BehaviorId.parse(behavior_id).name):
                self.specs[behavior_id] = spec
            else:
                self._others.append(behavior_id)
        batches = event.steps
        if self._others:
            batches = {name: batch for name, batch in batches.items() if name in self.specs}
        return batches

    def check_patience(self, since: float) -> None:
        """Raise an error if the game continues for too long without an agent asking for a decision.

        Args:
            since: when the wait started, by ``time.monotonic``.

        Raises:
            EnvironmentFaultError: the wait started more than ``timeout_wait`` seconds ago.
        """
        if time.monotonic() - since > self._env.timeout_wait:
            raise PlayerTimeoutError(
                f"The game continues, but no agent of {', '.join(self.specs) or repr(self._behavior)} has asked for a "
                f"decision for {self._env.timeout_wait:g} s."
            )

    def close(self) -> None:
        """Shut down the player."""
        self._env.close()
