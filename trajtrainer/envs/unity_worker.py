"""One Unity player, connected to this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from attrs import evolve

from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Parameters, PlayerLogs
from trajtrainer.envs.supervised import SupervisedChildren, SupervisedEnvironment, supervise
from trajtrainer.envs.unity import launcher
from trajtrainer.envs.unity import side_channels as channels
from trajtrainer.envs.unity.ports import base_ports, on_free_port
from trajtrainer.envs.unity.session import EDITOR_PORT, PlayerConnection, PlayerSession
from trajtrainer.settings.environment import EngineSettings, EnvironmentSettings
from trajtrainer.settings.run import RunSettings


def make_unity_environment(
    settings: RunSettings, logs: PlayerLogs, *, ports_of_run: int = 0, here: bool = False, waits: bool = True
) -> SupervisedEnvironment | SupervisedChildren:
    """Start the players of a run. A single player is connected to this process, and several to one child process each.

    See ``connect_player`` for ``ports_of_run`` and ``here``, and ``SupervisedChildren`` for ``waits``.

    Raises:
        EnvironmentFaultError: see ``SupervisedChildren``.
    """
    environment = settings.env_settings
    log_file = logs.player_log(0)
    connect = partial(
        connect_player,
        settings=environment,
        engine=settings.engine_settings,
        log_folder=log_file.parent if log_file is not None else None,
        run=settings,
        ports_of_run=ports_of_run,
        here=here,
    )
    return supervise(connect, settings, ports_of_run=ports_of_run, waits=waits)


def connect_player(
    worker: int,
    *,
    settings: EnvironmentSettings,
    engine: EngineSettings,
    log_folder: Path | None,
    run: RunSettings | None = None,
    busy_wait: bool = False,
    side_channels: tuple[channels.SideChannel, ...] = (),
    ports_of_run: int = 0,
    here: bool = False,
    raw_image_order: RawImageOrder = RawImageOrder.AUTO,
    waits: bool = True,
) -> UnityWorker:
    """Start the player of one worker on its port or, if that is in use, on the next free one.

    With ``here``, a built-in simulation runs in this process if it can, because two simulation processes and a trainer
    would overload a machine with two cores. ``run`` is used for the training analytics, ``side_channels`` are
    additional channels, and ``raw_image_order`` is the order of raw images detected by the run's other players, if
    known. See ``ports.base_ports`` for ``ports_of_run``, ``Communicator`` for ``busy_wait``, and ``PlayerSession`` for
    ``waits``.

    Raises:
        EnvironmentFaultError: see ``UnityWorker``.
    """
    if raw_image_order is not RawImageOrder.AUTO:
        settings = evolve(settings, raw_image_order=raw_image_order)
    connection = None
    if here and settings.env_path is not None and launcher.is_simulation(settings.env_path):
        from trajtrainer.envs.sim.conversation import in_process_player  # imported here because it is rarely needed

        arguments = launcher.player_arguments(
            0,
            worker_id=worker,
            no_graphics=engine.no_graphics,
            no_graphics_monitor=engine.no_graphics_monitor,
            additional_args=settings.env_args or (),
        )
        kinds = settings.env_path.strip().removeprefix(launcher.SIMULATION_PREFIX)
        connection = in_process_player([kinds, *arguments])
    step = settings.num_envs if run is None else run.num_ports
    ports = [EDITOR_PORT] if settings.env_path is None else base_ports(settings, ports_of_run, step)

    def connect(base_port: int) -> UnityWorker:
        return UnityWorker(
            evolve(settings, base_port=base_port),
            engine,
            seed=settings.seed,
            worker=worker,
            log_folder=log_folder,
            side_channels=side_channels,
            analytics=None if run is None else channels.RunAnalytics(run),
            busy_wait=busy_wait,
            connection=connection,
            show_output=None if run is None else run.debug,
            waits=waits,
        )

    return on_free_port(connect, ports, worker)


class UnityWorker:
    """An ``Environment`` of one worker. The constructor returns once the player has connected, if ``waits``.

    Args:
        settings: selects the player; without ``env_path``, it is the Editor on its own port.
        engine: engine settings, which are sent with the first reset.
        seed: seed of the run; the player gets ``seed + worker``.
        worker: number of the worker, which is part of its events and agent ids.
        log_folder: folder for the player's log.
        side_channels: additional side channels of the user.
        analytics: reports the training to the player if the player announces that capability.
        busy_wait: see ``Communicator``.
        connection, show_output, waits: see ``PlayerSession``.

    Raises:
        EnvironmentFaultError: the player cannot be started, never connects, or has an incompatible API version.
    """

    num_workers = 1

    def __init__(
        self,
        settings: EnvironmentSettings,
        engine: EngineSettings,
        *,
        seed: int,
        worker: int = 0,
        log_folder: Path | None = None,
        side_channels: tuple[channels.SideChannel, ...] = (),
        analytics: channels.RunAnalytics | None = None,
        busy_wait: bool = False,
        connection: PlayerConnection | None = None,
        show_output: bool | None = None,
        waits: bool = True,
    ) -> None:
        engine_channel = channels.EngineConfigurationChannel()
        channels.queue_engine(engine_channel, engine)
        self._parameters = channels.EnvironmentParametersChannel()
        self._statistics = channels.StatisticsChannel()
        self._analytics = analytics
        if analytics is not None:
            side_channels = (*side_channels, analytics)
        self._worker = worker
        self._reset_is_due = False
        self._unseen: EnvironmentEvent | None = None
        self._session = PlayerSession(
            file_name=settings.env_path,
            worker_id=worker,
            base_port=settings.base_port if settings.env_path is not None else None,
            seed=seed + worker,
            no_graphics=engine.no_graphics,
            no_graphics_monitor=engine.no_graphics_monitor,
            timeout_wait=settings.timeout_wait,
            additional_args=settings.env_args,
            side_channels=(engine_channel, self._parameters, self._statistics, *side_channels),
            log_folder=str(log_folder) if log_folder is not None else None,
            num_areas=settings.num_areas,
            listen_address=settings.listen_address,
            busy_wait=busy_wait,
            connection=connection,
            raw_image_order=settings.raw_image_order,
            presumed_raw_image_order=settings.presumed_raw_image_order,
            show_output=show_output,
            waits=waits,
        )

    def connect(self) -> None:
        """Wait until the player has connected; see ``PlayerSession``."""
        self._session.connect()

    def report_device(self, device: str) -> None:
        """Set the device that the training analytics report with the first reset."""
        if self._analytics is not None:
            self._analytics.device = device

    def reset(self, parameters: Parameters) -> None:
        """Reset the player or, if it is busy, reset it as soon as it sends its next message."""
        self.set_parameters(parameters)
        if self._analytics is not None:
            self._analytics.announce_run()
        if self._session.owes_answer:
            self._session.start_reset()
        else:
            self._reset_is_due = True

    def set_parameters(self, parameters: Parameters) -> None:
        """Change parameters; see ``Environment``.

        Raises:
            SettingsError: a name or number cannot be sent.
        """
        for key, sampler in parameters.items():
            channels.queue_parameter(self._parameters, key, sampler)

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            event = self._session.poll(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if event is None:
                return []
            if self._analytics is not None and event.new_specs:
                self._analytics.announce(event.new_specs)
            event.statistics = self._statistics.take()
            event.take_over(self._unseen)
            self._unseen = None
            if not self._reset_is_due:
                return [event]
            self._reset_is_due = False
            self._unseen = event
            self._session.start_reset()

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        """Answer the last event; see ``Environment``.

        Raises:
            ActionError: the actions do not fit the agents or the action space.
        """
        if worker != self._worker:
            raise ValueError(f"There is no worker {worker}; the only one is {self._worker}.")
        self._session.send_actions(actions)

    def close(self) -> None:
        self._session.close()

    def kill(self) -> None:
        self._session.kill()
