"""Launches players before torch is imported, which takes seconds, so that they load at the same time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.seeds import seed_global_generators
from trajtrainer.envs.protocol import Environment, PlayerLogs, connect, report_device
from trajtrainer.envs.select import is_player, make_environment
from trajtrainer.settings.run import RunSettings


class LaunchedPlayers:
    """The players of an environment: launched by the constructor, connected by ``connected``.

    An error of the launch is raised by ``connected``, because only then is there a run whose log can show it.

    Args:
        settings: settings of the run.
        logs: where players write their logs.
        resources: closed by the code that connects the players, after it has closed them.
    """

    def __init__(self, settings: RunSettings, logs: PlayerLogs, resources: ExitStack | None = None) -> None:
        self.resources = ExitStack() if resources is None else resources
        self._environment: Environment | None = None
        self._error: TrajtrainerError | None = None
        self._is_connected = False
        try:
            self._environment = make_environment(settings, logs, waits=False)
        except TrajtrainerError as error:
            self._error = error

    def connected(self, device: str | None = None) -> Environment:
        """Wait until the first player is ready, and return the environment.

        Args:
            device: the torch device to tell the players, or None.

        Raises:
            TrajtrainerError: see ``make_environment``.
        """
        if self._error is not None:
            raise self._error
        assert self._environment is not None
        report_device(self._environment, device)
        connect(self._environment)
        self._is_connected = True
        return self._environment

    def close(self) -> None:
        """Shut down the players. May be called more than once."""
        if self._environment is not None:
            if not self._is_connected:  # It would not answer a request to quit, so do not wait for it.
                self._environment.kill()
            self._environment.close()

    def kill(self) -> None:
        """Kill the players without waiting. Safe in a signal handler."""
        if self._environment is not None:
            self._environment.kill()


def can_launch(settings: RunSettings) -> bool:
    """Return whether the loop of a run will use players, which can be launched early."""
    is_offline = settings.is_offline and not settings.checkpoint_settings.inference
    path = settings.env_settings.env_path
    return not settings.acts_elsewhere and not is_offline and (path is None or is_player(path))


def seed_and_make(seed: int, make: Callable[[], Environment]) -> Environment:
    """Seed the global random generators of an actor's own process, and make its environment."""
    seed_global_generators(seed)
    return make()
