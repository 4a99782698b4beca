"""The agents of one player as wrappers for other libraries see them: those of chosen behaviours, by messages."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import StepBatch
from trajtrainer.scenes.spaces import Decisions
from trajtrainer.settings.checks import closest
from trajtrainer.settings.environment import ConstantSettings, EngineSettings
from trajtrainer.unity.environment import UnityEnvironment
from trajtrainer.unity.faults import PlayerTimeoutError
from trajtrainer.unity.session import PlayerSession
from trajtrainer.unity.side_channels import (
    EngineConfigurationChannel,
    EnvironmentParametersChannel,
    SideChannel,
    queue_engine,
    queue_parameter,
)

logger = logging.getLogger(__name__)

Player = UnityEnvironment | str | PathLike[str] | None
"""A build, ``sim:NAME``, None for the Editor, or an environment that is connected already."""
Batches = dict[str, StepBatch]
_PARAMETERS = "parameters"
# Arguments of ML-Agents' wrappers for which there is none here.
_GONE = {
    "flatten_branched": ". Branches are a MultiDiscrete space, which Stable-Baselines3 takes as it is.",
    "allow_multiple_obs": ". Use observations='tuple' for all sensors.",
}


class Scene:
    """A player and those of its behaviours that are played from here. Agents of others do nothing.

    The constructor resets the player once, to see what there is.

    Args:
        env: see ``Player``.
        behavior: name of the behaviour that is played, of all its teams; None for all of them.
        time_scale: how fast the game runs.
        arguments: of ``UnityEnvironment``, if it is started here. Its port is any free one then.

    Attributes:
        specs: behaviour id -> what its agents see and do, of those that are played.
        first: the agents that asked for a decision first, after the reset of the constructor.

    Raises:
        SettingsError: there is no such behaviour, or there are arguments for an environment that runs already.
        EnvironmentFaultError: the player cannot be started or fails.
    """

    def __init__(self, env: Player, behavior: str | None, time_scale: float, arguments: Mapping[str, Any]) -> None:
        self._behavior = behavior
        self._has_told_of_seeds = False
        self._parameters: EnvironmentParametersChannel | None = None
        if isinstance(env, UnityEnvironment):
            if arguments:
                raise SettingsError(f"The environment runs already, and takes no {', '.join(arguments)} any more.")
            self._env = env
        else:
            self._env = self._start(None if env is None else fspath(env), time_scale, dict(arguments))
        self.specs: dict[str, BehaviorSpec] = {}
        self._others: list[str] = []
        try:
            self._env.start_reset()
            batches = self._receive()
            self._check_behavior()
            self.first = self._until_asked(batches)
        except BaseException:
            self.close()
            raise

    def _start(self, file_name: str | None, time_scale: float, arguments: dict[str, Any]) -> UnityEnvironment:
        known = inspect.signature(PlayerSession).parameters
        unknown = [name for name in arguments if name not in known]
        if unknown:
            hint = "".join(_GONE.get(name, closest(name, known)) for name in unknown) or "."
            raise SettingsError(f"A Unity scene takes no argument {', '.join(map(repr, unknown))}{hint}")
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
        """Return what ``reset`` does, with what Gymnasium and PettingZoo give to theirs.

        Args:
            seed: of no use to a player, which takes its own at its start.
            options: ``parameters``, if there are any, are environment parameters: name -> number.

        Raises:
            SettingsError: parameters that cannot be sent.
            EnvironmentFaultError: the player fails.
        """
        if seed is not None and not self._has_told_of_seeds:
            self._has_told_of_seeds = True
            logger.info("A player takes its seed at its start (seed=%d as an argument), not at a reset.", seed)
        for name, value in ((options or {}).get(_PARAMETERS) or {}).items():
            if self._parameters is None:
                raise SettingsError(
                    f"The environment parameter {name!r} cannot be sent: the environment was started elsewhere. Use "
                    "the EnvironmentParametersChannel that it was given there."
                )
            queue_parameter(self._parameters, str(name), ConstantSettings(value=float(value)))
        return self.reset()

    def reset(self) -> Batches:
        """Begin all episodes anew; return the agents that ask for a decision first.

        Raises:
            EnvironmentFaultError: the player fails.
        """
        self._env.start_reset()
        return self._until_asked(self._receive())

    def _until_asked(self, batches: Batches) -> Batches:
        since = time.monotonic()
        while not any(batch.num_decisions for batch in batches.values()):
            self.check_patience(since)
            batches = self.step({})
        return batches

    def step(self, decisions: Mapping[str, Decisions]) -> Batches:
        """Send the decisions of those that asked for one, and return the next message's agents.

        Raises:
            UnityActionException: decisions that do not fit the agents.
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
        """Give up on agents that are waited for while the game goes on.

        Args:
            since: when that began, by ``time.monotonic``.

        Raises:
            EnvironmentFaultError: ``timeout_wait`` seconds ago.
        """
        if time.monotonic() - since > self._env.timeout_wait:
            raise PlayerTimeoutError(
                f"The game goes on, but no agent of {', '.join(self.specs) or repr(self._behavior)} has asked for a "
                f"decision for {self._env.timeout_wait:g} s."
            )

    def _check_behavior(self) -> None:
        if not self.specs:
            raise SettingsError(
                f"There is no behavior {self._behavior!r} in the scene. There are: {', '.join(self._others)}."
            )
        if self._others:
            logger.warning("Agents of %s do nothing: %r is played.", ", ".join(self._others), self._behavior)

    def close(self) -> None:
        """End the player."""
        self._env.close()
