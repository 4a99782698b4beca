"""Ports for what tests start."""

from __future__ import annotations

import random
import socket
from contextlib import closing

# Below those that systems give to outgoing connections (from 32768 on, on Windows 49152): one of these might
# take a port between its choice and its use.
_FIRST, _LAST = 20000, 32000
_choice = random.SystemRandom()


def free_port() -> int:
    """A port that nobody uses."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of some neighboring ports that nobody uses."""
    for _ in range(100):
        first = _choice.randrange(_FIRST, _LAST)
        if not any(is_taken(first + number) for number in range(count)):
            return first
    raise AssertionError("no free ports")


def is_taken(port: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
