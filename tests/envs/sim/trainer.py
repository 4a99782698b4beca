"""A trainer of a few lines: a gRPC server whose every answer a test decides, and players started for it."""

from __future__ import annotations

import contextlib
import queue
import tempfile
from collections.abc import Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from tests.run import prefork
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

WAIT_SECONDS = 60.0
METHOD = ("communicator_objects.UnityToExternalProto", "Exchange")
MODULE = "trajtrainer.envs.sim"
NEEDS = ("grpc", "trajtrainer.envs.sim.conversation", "trajtrainer.envs.sim.options")


@dataclass
class Call:
    """A message that waits for its answer."""

    data: bytes
    answers: queue.Queue[bytes] = field(default_factory=queue.Queue)

    @property
    def message(self) -> pb.UnityMessageProto:
        return pb.UnityMessageProto.FromString(self.data)

    @property
    def infos(self) -> dict[str, list[pb.AgentInfoProto]]:
        found = self.message.unity_output.rl_output.agentInfos
        return {name: list(infos.value) for name, infos in found.items()}


class Trainer:
    """The server. ``call`` is the newest message that has not been answered."""

    def __init__(self) -> None:
        self._calls: queue.Queue[Call] = queue.Queue()
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        handler = grpc.unary_unary_rpc_method_handler(self._exchange)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(METHOD[0], {METHOD[1]: handler}),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.call = Call(b"")

    def _exchange(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        call = Call(request)
        self._calls.put(call)
        return call.answers.get(timeout=WAIT_SECONDS)

    def receive(self, timeout: float = WAIT_SECONDS) -> Call:
        """The next message.

        Raises:
            queue.Empty: none came in time.
        """
        self.call = self._calls.get(timeout=timeout)
        return self.call

    def answer(self, message: pb.UnityMessageProto) -> None:
        """Answers the newest message, without waiting for the next."""
        self.call.answers.put(message.SerializeToString())

    def shake_hands(self, seed: int = 7) -> pb.UnityRLInitializationOutputProto:
        """Everything up to the message that waits for the first reset. Returns what the player said of itself."""
        announced = self.receive().message.unity_output.rl_initialization_output
        hello = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
        hello.unity_input.rl_initialization_input.seed = seed
        hello.unity_input.rl_initialization_input.communication_version = "1.5.0"
        self.answer(hello)
        assert self.receive().message == pb.UnityMessageProto(header=pb.HeaderProto(status=200))
        return announced

    def command(self, command: pb.CommandProto, side_channel: bytes = b"") -> None:
        """Answers with a command and no actions."""
        message = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
        message.unity_input.rl_input.command = command
        message.unity_input.rl_input.side_channel = side_channel
        self.answer(message)

    def reset(self, side_channel: bytes = b"") -> Call:
        """Orders a reset and waits for what comes of it."""
        self.command(pb.RESET, side_channel)
        return self.receive()

    def step(self, actions: Mapping[str, list[pb.AgentActionProto]] | None = None) -> Call:
        """Sends actions and waits for what comes of them."""
        message = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
        message.unity_input.rl_input.command = pb.STEP
        for behavior, values in (actions or {}).items():
            message.unity_input.rl_input.agent_actions[behavior].value.extend(values)
        self.answer(message)
        return self.receive()

    def end(self) -> None:
        """Tells the player to end."""
        self.answer(pb.UnityMessageProto(header=pb.HeaderProto(status=400)))

    def stop(self) -> None:
        """Goes away without a word."""
        self._server.stop(None)
        self.call.answers.put(b"")


class Player:
    """A player process, with what ``subprocess.Popen`` has of it. ``said`` is all that it has printed."""

    def __init__(self, program: prefork.Program, log: Path) -> None:
        self._program, self._log = program, log
        self.poll, self.wait = program.poll, program.wait
        self.send_signal, self.kill = program.send_signal, program.kill

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")


@contextlib.contextmanager
def player(port: int, *arguments: str) -> Iterator[Player]:
    """A player process, killed at the end if it is still there."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("w") as file:
            options = [*arguments, "--mlagents-port", str(port)]
            process = Player(prefork.start(options, file, module=MODULE, needs=NEEDS), log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def session(*arguments: str) -> Iterator[tuple[Trainer, Player]]:
    """A trainer and a player for it."""
    trainer = Trainer()
    try:
        with player(trainer.port, *arguments) as process:
            yield trainer, process
    finally:
        trainer.stop()
