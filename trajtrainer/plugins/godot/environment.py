"""A Godot game as an environment."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import re
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from attrs import evolve

from trajtrainer.core.errors import EnvironmentFaultError, InvalidDataError, SettingsError, UnsupportedError
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Parameters, PlayerLogs
from trajtrainer.envs.supervised import SupervisedChildren, SupervisedEnvironment, supervise
from trajtrainer.envs.unity import launcher
from trajtrainer.envs.unity.faults import PlayerQuitError, PlayerTimeoutError
from trajtrainer.envs.unity.ports import BASE_PORT, base_ports, listen, on_free_port
from trajtrainer.plugins.godot import build, messages
from trajtrainer.plugins.godot.connection import LONGEST_WAIT_S, GameConnection, accept, frame
from trajtrainer.settings.environment import ConstantSettings, EngineSettings, EnvironmentSettings, Sampler
from trajtrainer.settings.run import RunSettings

_LOGGER = logging.getLogger(__name__)
EDITOR_PORT = 11008  # the plugin's default port
_SEND_S = 1.0
_METHOD = re.compile(r"[^\W\d]\w*")
_ADVICE_CONNECT = (
    "Check that the scene has a Sync node in the control mode Training and an AIController, and that the game was "
    "exported with the plugin. A slow start needs a larger --timeout-wait."
)
_ADVICE_ANSWER = (
    "It may be stuck in an endless loop, or its scene tree is paused. If a step takes longer than that, use a larger "
    "--timeout-wait."
)


def make_godot_environment(
    settings: RunSettings,
    logs: PlayerLogs,
    *,
    ports_of_run: int = 0,
    here: bool = False,  # noqa: ARG001
    waits: bool = True,
) -> SupervisedEnvironment | SupervisedChildren:
    """Start the games for a run, or wait for the game in the Godot editor.

    For ``ports_of_run``, see ``connect_player``, and for ``waits``, ``SupervisedChildren``. ``here`` has no effect,
    because a game is always a separate program.

    Raises:
        SettingsError: a setting is not supported for Godot games.
        EnvironmentFaultError: see ``SupervisedChildren``.
    """
    environment = settings.env_settings
    if environment.num_areas > 1:
        raise SettingsError("num_areas is for Unity players: the number of agents in a Godot game is set by its scene.")
    log_file = logs.player_log(0)
    connect = partial(
        connect_game,
        settings=settings,
        log_folder=log_file.parent if log_file is not None else None,
        ports_of_run=ports_of_run,
        said=set(),
    )
    return supervise(connect, settings, ports_of_run=ports_of_run, waits=waits)


def connect_game(
    worker: int,
    *,
    settings: RunSettings,
    log_folder: Path | None,
    said: set[str],
    ports_of_run: int = 0,
    busy_wait: bool = False,
    waits: bool = True,
) -> GodotGame:
    """Start the game of one worker on its port or, if that port is in use, on the next free one.

    For ``ports_of_run`` and ``busy_wait``, see ``connect_player``; for ``said`` and ``waits``, see ``GodotGame``.

    Raises:
        EnvironmentFaultError: see ``GodotGame``.
    """
    env = settings.env_settings
    ports = base_ports(env, ports_of_run, settings.num_ports)
    if env.is_editor:
        ports = [EDITOR_PORT if env.base_port == BASE_PORT else env.base_port]

    def connect(base_port: int) -> GodotGame:
        return GodotGame(
            evolve(env, base_port=base_port),
            settings.engine_settings,
            worker=worker,
            log_folder=log_folder,
            busy_wait=busy_wait,
            show_output=settings.debug,
            said=said,
            waits=waits,
        )

    return on_free_port(connect, ports, worker)


class GodotGame(launcher.PlayerOwner):
    """An ``Environment`` with a single worker.

    After a reset, the plugin does not start new episodes before the next decision, and in most games, the answer to
    that decision reports the end of the old episodes. So this class makes this decision itself, with actions that do
    nothing, and omits rewards and ends of episodes from the first step that it reports.

    Args:
        settings: the game to start and its options; ``base_port`` is the port of worker 0.
        engine: engine settings; the time scale sets the game's speed.
        worker: the worker's number, which determines the port, the seed and the agent ids.
        log_folder: folder for the log file with the game's output.
        busy_wait: see ``GameConnection``.
        show_output: also write the game's output to this process's output.
        said: messages that were already logged and should not be repeated; new ones are added.
        waits: wait until the game has described its agents. Otherwise it is only started, and ``connect`` must be
            called next.

    Raises:
        EnvironmentFaultError: the game cannot be started, does not connect, or has agents that cannot be trained.
    """

    num_workers = 1
    _noun = "The game"
    _where_its_output_is = "See the output of the Godot editor."

    def __init__(
        self,
        settings: EnvironmentSettings,
        engine: EngineSettings,
        *,
        worker: int = 0,
        log_folder: Path | None = None,
        busy_wait: bool = False,
        show_output: bool = False,
        said: set[str] | None = None,
        waits: bool = True,
    ) -> None:
        self._settings, self._busy_wait = settings, busy_wait
        self._worker, self._timeout_s = worker, float(settings.timeout_wait)
        self._said = set() if said is None else said
        self._connection: GameConnection | None = None
        self._is_closed = self._reset_is_due = False
        self._awaited: str | None = None  # type of the game's next message; None while the game waits for an answer
        self._is_first = False  # True if the next step is the first one reported after a reset
        self._calls: dict[str, bytes] = {}  # parameter -> message with the call that sets its new value
        self._num_called = 0  # calls that the game has not answered yet
        self._waited_s = 0.0
        port = settings.base_port + worker
        self._listeners = listen(settings.listen_address, port)
        atexit.register(self.close)
        try:
            if settings.is_editor:
                _LOGGER.info("Listening on port %d. Start training by pressing Play in the Godot editor.", port)
            else:
                log = None if log_folder is None else launcher.own_log(str(log_folder), worker)
                if log is not None:
                    launcher.set_aside(log)
                arguments = build.arguments(port, settings.seed + worker, engine, settings.env_args or ())
                command = [*build.command(settings.env_path or ""), *arguments]
                process = launcher.PlayerProcess(command, show_output=show_output, on_exit=lambda: None, output=log)
                self._process = process
                if not show_output:
                    process.log_file = log
        except BaseException:
            self.close()
            raise
        if waits:
            self.connect()

    def connect(self) -> None:
        """Wait until the game has announced its agents; see ``Launched``."""
        if self._connection is not None:
            return
        try:
            self._layout = self._connected()
        except BaseException:
            self.close()
            raise
        self._new_specs = {behavior.name: behavior.spec for behavior in self._layout.behaviors}
        settings = self._settings
        if self._layout.has_pictures and build.draws_nothing(settings.env_path or "", settings.env_args or ()):
            self._say(
                logging.WARNING,
                "The agents observe images, but Godot does not render without a window. Use --env-args --no-headless "
                "(on a machine without a screen, with xvfb-run).",
            )

    def report_device(self, device: str) -> None:
        """See ``Launched``. Godot's plugin has no use for it."""

    def _connected(self) -> messages.Layout:
        def is_game(content: bytearray) -> bool:
            try:
                return messages.parse(content).get("type") == "env_info"
            except InvalidDataError:
                return False

        greeting = frame(messages.HANDSHAKE) + frame(messages.ENV_INFO)
        found = accept(
            self._listeners, greeting, is_game, self._check_alive, self._timeout_s, busy_wait=self._busy_wait
        )
        if isinstance(found, str):
            raise self._silent(f"did not connect within {self._timeout_s:g} s. {found}".rstrip(), _ADVICE_CONNECT)
        connection, answer = found
        self._connection = connection
        layout = messages.Layout(messages.parse(answer), self._worker)
        connection.longest = layout.longest
        return layout

    def reset(self, parameters: Parameters) -> None:
        """See ``Environment``. If the game is still computing a step, the reset is sent after its next message."""
        self._check_usable()
        self.set_parameters(parameters)
        if self._awaited is None:
            self._start_reset()
        else:
            self._reset_is_due = True

    def set_parameters(self, parameters: Parameters) -> None:
        """See ``Environment``. Parameters are sent as calls of methods whose names contain the parameter and value.

        Raises:
            UnsupportedError: a value is not a constant, or the call would not be a valid method name.
        """
        self._calls |= {key: messages.call(method_name(key, sampler)) for key, sampler in parameters.items()}

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        """See ``Environment``."""
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            content = self._receive(deadline_s)
            if content is None:
                return []
            try:
                event = self._event(content)
            except EnvironmentFaultError as fault:
                raise self._failed(fault) from fault.__cause__
            if event is not None:
                return [event]

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        """See ``Environment``.

        Raises:
            ActionError: the number of actions differs from the number of agents.
        """
        if worker != self._worker:
            raise ValueError(f"There is no worker {worker}; the only one is {self._worker}.")
        self._answer(self._layout.write_actions(actions), "step")

    def close(self) -> None:
        """See ``Environment``. The game is asked to exit, and terminated if it does not do so."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        if self._connection is not None:
            with contextlib.suppress(EnvironmentFaultError):
                self._connection.send(frame(messages.CLOSE), _SEND_S)
            self._connection.close()
        self._stop(self._timeout_s, was_asked=self._connection is not None)
        for listener in self._listeners:
            listener.close()

    def _start_reset(self) -> None:
        self._reset_is_due = False
        self._answer(messages.RESET, "reset")

    def _answer(self, content: bytes, awaited: str) -> None:
        """Send the game's next message, which lets it continue. Pending method calls are sent first."""
        self._check_usable()
        if self._awaited is not None:
            raise RuntimeError("The game has not answered yet: receive its message first.")
        self._check_alive()
        calls, self._calls = self._calls.values(), {}
        self._num_called += len(calls)
        self._awaited = awaited
        assert self._connection is not None
        try:
            self._connection.send(b"".join(map(frame, (*calls, content))), self._timeout_s)
        except PlayerQuitError as fault:
            raise self._lost(fault) from None
        except PlayerTimeoutError as fault:
            raise self._failed(fault) from None

    def _receive(self, deadline_s: float) -> bytearray | None:
        """Return the game's next message, or None if it has not arrived by ``deadline_s`` (of ``time.monotonic``)."""
        self._check_usable()
        if self._awaited is None:
            raise RuntimeError("The game is waiting for a message: reset it or send actions first.")
        assert self._connection is not None
        while True:
            begin_s = time.monotonic()
            longest_s = min(LONGEST_WAIT_S, self._timeout_s - self._waited_s)
            try:
                content = self._connection.receive(min(longest_s, max(0.0, deadline_s - begin_s)))
            except PlayerQuitError as fault:
                raise self._lost(fault) from None
            except InvalidDataError as fault:
                raise self._failed(fault) from None
            if content is not None:
                self._waited_s = 0.0
                return content
            self._check_alive()
            # Only count time spent in this loop as waiting, because the game may have sent its message long before.
            now_s = time.monotonic()
            self._waited_s += now_s - begin_s
            if self._waited_s >= self._timeout_s:
                raise self._silent(f"stopped answering within {self._timeout_s:g} s.", _ADVICE_ANSWER)
            if now_s >= deadline_s:
                return None

    def _event(self, content: bytearray) -> EnvironmentEvent | None:
        """Return the event in a message, or None if it needs another message from the game."""
        message = messages.parse(content)
        if self._num_called:
            messages.check_type(message, "call")
            self._num_called -= 1
            _LOGGER.debug("The agents' methods returned %.200r.", message.get("returns"))
            return None
        assert self._awaited is not None
        messages.check_type(message, self._awaited)
        awaited, self._awaited = self._awaited, None
        if self._reset_is_due:
            self._start_reset()
            return None
        if awaited == "reset":
            self._answer(self._layout.write_actions({}), "step")
            self._is_first = True
            return None
        is_first, self._is_first = self._is_first, False
        steps = self._layout.read_first(message) if is_first else self._layout.read_step(message)
        for sentence in self._layout.assumptions - self._said:
            self._say(logging.INFO, sentence)
        specs, self._new_specs = self._new_specs, {}
        return EnvironmentEvent(self._worker, steps, specs, is_reset=is_first)

    def _say(self, level: int, sentence: str) -> None:
        """Log a message only once per run, and only for worker 0."""
        if sentence not in self._said and not self._worker:
            _LOGGER.log(level, "%s", sentence)
        self._said.add(sentence)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise PlayerQuitError("The game has been closed.")
        if self._fault is not None:
            raise self._fault


def method_name(parameter: str, sampler: Sampler) -> str:
    """Return the method that sets a parameter: ``level_2``, ``speed_1_5``, or ``slope_minus_1`` for -1.

    Raises:
        UnsupportedError: the value is not a constant, or the name is not a valid method name.
    """
    if not isinstance(sampler, ConstantSettings):
        raise UnsupportedError(
            f"The environment parameter {parameter!r} is drawn at random, but Godot's plugin only calls methods "
            "without arguments. Use numbers, or draw it in the game."
        )
    value = f"{abs(sampler.value):g}".replace(".", "_")
    name = f"{parameter}_{'minus_' if sampler.value < 0 else ''}{value}"
    if not _METHOD.fullmatch(name):
        raise UnsupportedError(
            f"The environment parameter {parameter!r} with the value {sampler.value:g} would call the method {name}, "
            "which GDScript does not allow. Use a valid variable name and values without an exponent."
        )
    return name
