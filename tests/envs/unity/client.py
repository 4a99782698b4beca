"""The player's end of the wire, for tests: a gRPC client that says what it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any, TypeVar

import grpc

from trajtrainer.envs.unity.proto.communicator_pb2 import UnityMessageProto

LIMIT_S = 300.0
METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # else all clients of a process share one connection
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 20),  # clients of the tests are often there before the server
    ("grpc.min_reconnect_backoff_ms", 20),
)
Exchange = Callable[[bytes], bytes]
T = TypeVar("T")


@contextmanager
def connected(port: int, host: str = "127.0.0.1", method: str = METHOD) -> Iterator[Exchange]:
    """A connection of its own. Waits for the server to come up."""
    with grpc.insecure_channel(f"{host}:{port}", options=_OPTIONS) as channel:
        call = channel.unary_unary(method)

        def exchange(request: bytes) -> bytes:
            answer: bytes = call(request, timeout=LIMIT_S, wait_for_ready=True)
            return answer

        yield exchange


def in_background(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Runs a player's part beside the test."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread is about to do."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def handshake(api: str = "1.5.0", package: str = "3.0.0", *, analytics: bool = False) -> bytes:
    """A player's first message."""
    message = UnityMessageProto()
    message.header.status = 200
    announced = message.unity_output.rl_initialization_output
    announced.name = "AcademySingleton"
    announced.communication_version = api
    announced.package_version = package
    announced.capabilities.baseRLCapabilities = True
    announced.capabilities.trainingAnalytics = analytics
    return message.SerializeToString()


def header(status: int = 200) -> bytes:
    """A message without content: a player's second, or with status 400 its goodbye."""
    message = UnityMessageProto()
    message.header.status = status
    return message.SerializeToString()


def status(answer: bytes) -> int:
    return UnityMessageProto.FromString(answer).header.status
