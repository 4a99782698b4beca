"""Listening sockets for the servers of this package."""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any


def is_loopback(host: str) -> bool:
    """Return whether a server at this address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def resolve(host: str, port: int) -> Any:
    """Return the first result of ``socket.getaddrinfo`` for TCP.

    Raises:
        socket.gaierror: the address does not exist, or ``host`` is not a valid host name. Python itself raises a
            UnicodeError for a label that is empty or has more than 63 characters (RFC 1035, 2.3.1).
    """
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, "it is not a valid host name") from error


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 picks a free port.

    Raises:
        socket.gaierror: see ``resolve``.
        OSError: this machine does not have the address, the port is in use, or it is below 1024 and the process may not
            use it.
    """
    family, kind, protocol, _, address = resolve(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform == "win32":  # on Windows, another program could otherwise take over the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
