"""Sockets that listen for a player."""

from __future__ import annotations

import errno
import socket
import sys

from trajtrainer.unity.faults import LaunchError, PortInUseError

LOOPBACK = "127.0.0.1"
_LOOPBACK_6 = "::1"
_ANY_6 = "::"
_BACKLOG = 16


def listen(address: str, port: int) -> list[socket.socket]:
    """Listen on a port of an address.

    On the loopback, on its IPv6 address as well where there is one, because players connect to "localhost", which some
    machines take for ::1 first.

    Args:
        address: a name or number of this machine.
        port: 0 for any free one, and IPv4 only.

    Returns:
        The sockets, that of ``address`` last.

    Raises:
        PortInUseError: somebody else listens there.
        LaunchError: the address is not one of this machine, or the port is not allowed.
    """
    sockets = []
    if address == LOOPBACK and port and _has_ipv6():
        sockets.append(_bound(_LOOPBACK_6, port))
    try:
        sockets.append(_bound(address, port))
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets


def _bound(address: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, location = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        try:
            _set_options(made, address)
            made.bind(location)
            made.listen(_BACKLOG)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"Port {port} of {address} is in use, by another training or by a player that one left behind. End "
                "that, or choose other ports with --base-port (the Editor's port is set in Unity, Project Settings, "
                "ML-Agents)."
            ) from error
        raise LaunchError(
            f"Cannot listen for the player at {address}, port {port}: {error.strerror or error}. The address must be "
            "one of this machine (env_settings.listen_address) and the port above 1023 (env_settings.base_port)."
        ) from error
    return made


def _set_options(made: socket.socket, address: str) -> None:
    if made.family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != _ANY_6))
    if sys.platform == "win32":  # where reuse would mean to share the port with another trainer
        made.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _has_ipv6() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((_LOOPBACK_6, 0))
    except OSError:
        return False
    return True
