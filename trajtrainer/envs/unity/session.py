"""A session with one player, from its launch to its exit, that exchanges columns of data with it.

See docs/explanation/mlagents-behavior.md#wire.

Sending and receiving are separate. ``start_reset`` and ``send_actions`` let the player continue and return immediately;
``poll`` and ``receive`` wait for its next message. This lets several players run while the trainer decides for others.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec, first_allowed
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, FirstEnds, FloatArray, IntArray, StepBatch
from trajtrainer.envs.unity import decode, encode, launcher
from trajtrainer.envs.unity.behaviors import PictureOrder, check_api_version, picture_order
from trajtrainer.envs.unity.communicator import Communicator
from trajtrainer.envs.unity.faults import ActionError, LaunchError, PlayerQuitError
from trajtrainer.envs.unity.pictures import OrderSearch
from trajtrainer.envs.unity.ports import LOOPBACK
from trajtrainer.envs.unity.proto.communicator_pb2 import (
    UnityMessageProto,
    UnityRLCapabilitiesProto,
    UnityRLInitializationOutputProto,
)
from trajtrainer.envs.unity.side_channels import ANALYTICS_ID, SideChannel, SideChannels, TrainingAnalyticsChannel

_LOGGER = logging.getLogger(__name__)
EDITOR_PORT = 5004
BASE_PORT = 5005
_ADVICE_CONNECT = (
    "Check that the scene has an Agent with a Decision Requester (or code that calls RequestDecision), that its "
    "Behavior Type is Default, and that the com.unity.ml-agents package is installed. Without a display, a build needs "
    "--no-graphics or xvfb. A slow start needs a larger --timeout-wait."
)
_ADVICE_ANSWER = (
    "It may be stuck in an endless loop or waiting for input, or no agent asks for decisions anymore. A game whose "
    "steps take longer needs a larger --timeout-wait."
)


class PlayerConnection(Protocol):
    """A connection to a player: a ``Communicator``, or a player in this process."""

    port: int

    def receive(self, timeout_s: float | None = None) -> bytes | None: ...

    def wake(self) -> None: ...

    def answer(self, reply: bytes) -> None: ...

    def say_goodbye(self) -> None: ...

    def close(self) -> None: ...


class PlayerSession(launcher.PlayerOwner):
    """One player and its connection.

    The constructor returns once the player has connected and waits for its first reset, unless ``waits`` is False. In
    addition to the arguments of ML-Agents' ``UnityEnvironment`` (docs/explanation/mlagents-behavior.md#python-api),
    there are ``listen_address`` and ``busy_wait`` (see ``Communicator``), ``connection``, ``show_output``, ``waits``,
    and two arguments for raw images.

    Args:
        file_name: a build, ``sim:NAME`` for a built-in simulation, or None to wait for the Editor.
        worker_id: number of the player within a run, which determines its port, log file and agent ids.
        base_port: the port is ``base_port + worker_id``; None means 5005, or 5004 for the Editor; 0 means any port.
        seed: seed for the player's random numbers.
        timeout_wait: seconds to wait for the connection and for each answer.
        additional_args: arguments to append to the player's command line.
        side_channels: channels in addition to the training analytics.
        log_folder: folder for the player's log; None to let the player choose.
        num_areas: number of areas for the player's TrainingAreaReplicator.
        connection: connection to a player that is already running, so that no program is started and no port is used.
        raw_image_order: ``auto``, ``hwc`` or ``chw``; see ``EnvironmentSettings``. A simulation sends ``hwc``.
        presumed_raw_image_order: order to assume if the raw images do not reveal it.
        show_output: pass the player's output through to ours; None does so if debug messages are logged.
        waits: wait until the player has connected. Otherwise it only starts, and ``connect`` must be called next.

    Attributes:
        owes_answer: True while the player waits for ``start_reset`` or ``send_actions``, False while we wait for it.
        capabilities, package_version: as announced by the player.
        timeout_wait: as passed to the constructor.
        raw_image_order: order of this player's raw images, as set or detected; ``AUTO`` while it is not known, and for
            packages before 3.0.

    Raises:
        EnvironmentFaultError: the player cannot be started, never connects, or has an incompatible API version.
    """

    def __init__(
        self,
        file_name: str | None = None,
        worker_id: int = 0,
        base_port: int | None = None,
        seed: int = 0,
        no_graphics: bool = False,
        no_graphics_monitor: bool = False,
        timeout_wait: float = 60,
        additional_args: Sequence[str] | None = None,
        side_channels: Sequence[SideChannel] | None = None,
        log_folder: str | None = None,
        num_areas: int = 1,
        *,
        listen_address: str = LOOPBACK,
        busy_wait: bool = False,
        connection: PlayerConnection | None = None,
        raw_image_order: RawImageOrder | str = RawImageOrder.AUTO,
        presumed_raw_image_order: RawImageOrder = RawImageOrder.AUTO,
        show_output: bool | None = None,
        waits: bool = True,
    ) -> None:
        if file_name is None and worker_id != 0:
            raise LaunchError(
                "Without a build to launch, the Editor is the environment, and there is only one: worker 0."
            )
        self.raw_image_order = _image_order(raw_image_order, file_name)
        self._search: OrderSearch | None = OrderSearch(
            presumed_raw_image_order, logging.INFO if worker_id == 0 else logging.DEBUG
        )
        command = launcher.command(file_name) if file_name is not None and connection is None else None
        self._analytics = TrainingAnalyticsChannel()
        channels = list(side_channels or ())
        if not any(channel.channel_id == ANALYTICS_ID for channel in channels):
            channels.append(self._analytics)
        self._channels = SideChannels(channels)
        self._worker, self._seed, self._num_areas = worker_id, seed, num_areas
        self.timeout_wait = timeout_wait
        self.owes_answer = False
        self._is_reset = False
        self._is_showing_images = False
        self._is_closed = False
        self._has_connected = self._is_ready = False
        self._waited_s = 0.0
        self._specs: dict[str, BehaviorSpec] = {}
        self._encoders: dict[str, encode.ActionEncoder] = {}
        self._steps: dict[str, StepBatch] = {}  # unlike events, includes an agent's repeated episode ends
        self._first_ends = FirstEnds()
        if base_port is None:
            base_port = EDITOR_PORT if command is None else BASE_PORT
        self._communicator = connection or Communicator(
            base_port + worker_id if base_port else 0, listen_address, busy_wait=busy_wait
        )
        atexit.register(self.close)
        try:
            if connection is None and command is None:
                _LOGGER.info(
                    "Listening on port %d. Start training by pressing the Play button in the Unity Editor.", self.port
                )
            if command is not None:
                command += launcher.player_arguments(
                    self.port,
                    worker_id=worker_id,
                    no_graphics=no_graphics,
                    no_graphics_monitor=no_graphics_monitor,
                    log_folder=log_folder,
                    additional_args=additional_args or (),
                )
                if log_folder is not None:
                    launcher.set_aside(launcher.own_log(log_folder, worker_id))
                self._process = launcher.PlayerProcess(
                    command,
                    show_output=_LOGGER.isEnabledFor(logging.DEBUG) if show_output is None else show_output,
                    on_exit=self._communicator.wake,
                    output=None if log_folder is None else launcher.output_file(log_folder, worker_id),
                )
        except BaseException:
            self.close()
            raise
        if waits:
            self.connect()

    def connect(self) -> None:
        """Wait until the player has connected and waits for its first reset.

        Raises:
            EnvironmentFaultError: the player never connects, or has an incompatible API version. It has been closed.
        """
        if self._is_ready:
            return
        self._check_usable()
        try:
            announced = self._shake_hands()
        except BaseException:
            self.close()
            raise
        self.capabilities: UnityRLCapabilitiesProto = announced.capabilities
        self.package_version = announced.package_version
        if not announced.capabilities.trainingAnalytics or self._worker != 0:
            self._channels.mute(ANALYTICS_ID)
        self._analytics.environment_initialized()
        self._is_ready = True

    @property
    def port(self) -> int:
        """The port that the player connects to."""
        return self._communicator.port

    def start_reset(self) -> None:
        """Tell the player to reset the scene, and send the messages queued in the side channels.

        Raises:
            EnvironmentFaultError: the player is gone.
        """
        self._answer(encode.reset(self._channels.take_outgoing()))
        self._is_reset = True

    def send_actions(self, actions: Mapping[str, ActionBatch]) -> None:
        """Answer the agents that asked for a decision in the last event, in their order, and let the player continue.

        A behavior may be left out. If its agents asked for a decision, they get zeros.

        Raises:
            ActionError: the actions do not fit the agents or the action space.
            EnvironmentFaultError: the player is gone.
        """
        self.send({name: (batch.env_continuous, batch.discrete) for name, batch in actions.items()})

    def send(self, actions: Mapping[str, tuple[FloatArray, IntArray]]) -> None:
        """Like ``send_actions``, but takes arrays: continuous f32 [N, C] and discrete i32 [N, K] actions."""
        for name in actions.keys() - self._steps.keys():
            if len(actions[name][0]):
                raise ActionError(f"There are actions for {name!r}, but none of its agents asked for a decision.")
        parts = []
        for name, batch in self._steps.items():
            count = batch.num_decisions
            if name in actions:
                continuous, discrete = actions[name]
            else:
                empty = self._specs[name].action_spec.empty_action(count)
                continuous, discrete = empty.continuous, empty.discrete
            if len(continuous) != count:
                raise ActionError(
                    f"Behavior {name!r}: found {len(continuous)} actions, expected one for each of {count} agents."
                )
            if count:
                parts.append(self._encoders[name].encode(continuous, discrete))
        self._answer(encode.step(parts, self._channels.take_outgoing()))

    def poll(self, timeout_s: float | None = None) -> EnvironmentEvent | None:
        """Wait for the player's next message.

        Returns:
            The event; None if no message arrived within ``timeout_s`` seconds.

        Raises:
            EnvironmentFaultError: the player died, quit, or has not answered after ``timeout_wait`` seconds of waiting.
            InvalidDataError: the player sent unusable data.
        """
        self._check_usable()
        if self.owes_answer:
            raise RuntimeError("The player is waiting for an answer. Call start_reset or send_actions first.")
        while True:
            begin_s = time.monotonic()
            remaining_s = self.timeout_wait - self._waited_s
            try:
                data = self._communicator.receive(remaining_s if timeout_s is None else min(timeout_s, remaining_s))
            except PlayerQuitError as fault:
                raise self._lost(fault) from None
            if data is None:
                self._check_alive()
                # Only time spent in this method counts as waiting, because the trainer may be learning in between.
                self._waited_s += time.monotonic() - begin_s
                if timeout_s is not None and timeout_s < remaining_s:
                    return None
                raise self._silent(f"stopped answering within {self.timeout_wait:g} s.", _ADVICE_ANSWER)
            self._waited_s = 0.0
            event = self._event(data)
            if event is not None:
                return event

    def receive(self) -> EnvironmentEvent:
        """Wait for the player's next message for up to ``timeout_wait`` seconds. Raises what ``poll`` raises."""
        event = self.poll()
        if event is None:
            raise AssertionError("poll without a limit returns an event or raises")
        return event

    def close(self) -> None:
        """Make the player quit, terminate it if it does not, and free the port. May be called more than once."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self._communicator.say_goodbye()
        self._stop(self.timeout_wait, was_asked=self._has_connected)
        self._communicator.close()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise LaunchError("No Unity environment is loaded: it has been closed.")
        if self._fault is not None:
            raise self._fault

    def _shake_hands(self) -> UnityRLInitializationOutputProto:
        first = self._receive_first("did not connect", _ADVICE_CONNECT)
        self._has_connected = True
        announced = UnityMessageProto.FromString(first).unity_output.rl_initialization_output
        self.owes_answer = True
        check_api_version(announced.communication_version, announced.package_version)
        _LOGGER.info(
            "Connected to Unity environment with package version %s and communication version %s",
            announced.package_version,
            announced.communication_version,
        )
        if not announced.capabilities.baseRLCapabilities:
            _LOGGER.warning(
                "The player does not announce the base capabilities of an ML-Agents player. Update its package."
            )
        self._answer(encode.initialization(self._seed, self._num_areas))
        # The player's second message contains only side channel data, and the first reset answers it.
        second = self._receive_first("stopped answering after its first message", _ADVICE_ANSWER)
        self.owes_answer = True

        # The order has to be detected only for packages since 3.0, and only if it is not set.
        order = picture_order(announced.package_version)
        if order is not PictureOrder.ANNOUNCED_CHANNELS_FIRST:
            self.raw_image_order, self._search = RawImageOrder.AUTO, None
        elif self.raw_image_order is not RawImageOrder.AUTO:
            self._search = None
        if self.raw_image_order is RawImageOrder.CHW:
            order = PictureOrder.CHANNELS_FIRST
        self._decoder = decode.MessageDecoder(self._worker, order)
        message = self._decoder.decode(second)
        _check_status(message.status)
        self._channels.receive(message.side_channel)
        return announced

    def _receive_first(self, failure: str, advice: str) -> bytes:
        """Wait for the next message of the handshake."""
        try:
            data = self._communicator.receive(self.timeout_wait)
        except PlayerQuitError as fault:
            raise self._lost(fault) from None
        if data is None:
            raise self._silent(f"{failure} within {self.timeout_wait:g} s.", advice)
        return data

    def _answer(self, reply: bytes) -> None:
        self._check_usable()
        if not self.owes_answer:
            raise RuntimeError("The player is not waiting for an answer. Receive its message first.")
        self._check_alive()
        self.owes_answer = False
        try:
            self._communicator.answer(reply)
        except PlayerQuitError as fault:
            raise self._lost(fault) from None

    def _event(self, data: bytes) -> EnvironmentEvent | None:
        """Return the event for a message; None if the message was only needed for its images, and has been answered."""
        self.owes_answer = True
        try:
            message = self._decoder.decode(data)
            _check_status(message.status)
            self._channels.receive(message.side_channel)
            if self._search is not None and (message.new_raw_images or self._is_showing_images):
                message = self._look_at_images(self._search, message, data)
        except EnvironmentFaultError as fault:
            self._failed(fault)
            raise
        for name, spec in message.new_specs.items():
            if name not in self._specs:
                _LOGGER.info("Connected new brain: %s", name)
                self._specs[name] = spec
                self._encoders[name] = encode.ActionEncoder(name, spec.action_spec)
        self._steps = message.steps
        if self._is_showing_images:
            self._answer_unseen()
            return None
        is_reset, self._is_reset = self._is_reset, False
        return EnvironmentEvent(
            self._worker,
            {name: self._first_ends.of(name, batch) for name, batch in message.steps.items()},
            message.new_specs,
            raw_images=dict.fromkeys(
                () if self.raw_image_order is RawImageOrder.AUTO else message.new_raw_images, self.raw_image_order
            ),
            is_reset=is_reset,
        )

    def _look_at_images(
        self, search: OrderSearch, message: decode.DecodedMessage, data: bytes
    ) -> decode.DecodedMessage:
        """Detect the order of raw images. Return the message, decoded again if the order was wrong.

        After a reset, messages with inconclusive images are held back: the player continues with the first allowed
        actions, and is reset again when the order is known. In the middle of an episode, no message can be held back.
        """
        search.look(self._decoder.raw_images(message.steps))
        if not search.is_over and (self._is_reset or self._is_showing_images):
            self._is_showing_images = True
            return message
        self.raw_image_order, self._search = search.result(), None
        if self.raw_image_order is RawImageOrder.CHW:
            self._decoder.start_over(PictureOrder.CHANNELS_FIRST)
            return self._decoder.decode(data)
        return message

    def _answer_unseen(self) -> None:
        """Answer a message that was held back: request more images or, if the order is known, reset the player."""
        if self._search is None:
            self._is_showing_images = False
            # Behaviors that were new in the held-back messages must be reported as new again.
            self._decoder.start_over(self._decoder.order)
            self.start_reset()
            return
        chosen = {}
        for name, batch in self._steps.items():
            actions = self._specs[name].action_spec
            zeros = actions.empty_action(batch.num_decisions).continuous
            chosen[name] = zeros, first_allowed(actions, batch.mask[batch.num_terminal :])
        self.send(chosen)


def _image_order(given: RawImageOrder | str, file_name: str | None) -> RawImageOrder:
    try:
        order = RawImageOrder(given)
    except ValueError:
        known = ", ".join(each.value for each in RawImageOrder)
        raise LaunchError(f"raw_image_order is {given!r}. Expected one of {known}.") from None
    is_known = order is RawImageOrder.AUTO and launcher.is_simulation(file_name)
    return RawImageOrder.HWC if is_known else order


def _check_status(status: int) -> None:
    if status != decode.STATUS_OK:
        raise PlayerQuitError(f"The player has quit (status {status}): it was closed, or the Editor left play mode.")
