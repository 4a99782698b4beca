"""Sockets that servers of this package listen at."""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any


def is_loopback(host: str) -> bool:
    """Whether a server at this address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def resolve(host: str, port: int) -> Any:
    """The first result of ``socket.getaddrinfo`` for TCP.

    Raises:
        socket.gaierror: there is no such address, or it cannot be a host name. Python itself raises a UnicodeError for
            a label that is empty or has more than 63 characters (RFC 1035, 2.3.1).
    """
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, "it cannot be the name of a host") from error


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free port.

    Raises:
        socket.gaierror: see ``resolve``; or this machine has no such address.
        OSError: the port is taken, or below 1024 without the right to use it.
    """
    family, kind, protocol, _, address = resolve(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform == "win32":  # there, another program could otherwise take over the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
