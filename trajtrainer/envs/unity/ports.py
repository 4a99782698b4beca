"""The ports of players: listening sockets, and the choice of another port when one is in use."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from trajtrainer.core.listening import resolve
from trajtrainer.envs.unity.faults import LaunchError, PortInUseError
from trajtrainer.settings.environment import LARGEST_PORT, EnvironmentSettings

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
_LOOPBACK_6 = "::1"
_ANY_6 = "::"
_BACKLOG = 16
BASE_PORT = EnvironmentSettings().base_port
_MOST_TRIED = 50


def listen(address: str, port: int) -> list[socket.socket]:
    """Listen on a port of an address.

    For the loopback address, this includes the IPv6 loopback address if there is one, because players connect to
    "localhost", which some machines resolve to ::1 first.

    Args:
        address: a host name or IP address of this machine.
        port: the port; 0 for any free port, on IPv4 only.

    Returns:
        The sockets. The last one is for ``address``.

    Raises:
        PortInUseError: another program is listening on the port.
        LaunchError: the address does not belong to this machine, or the port is not allowed.
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
        family, kind, protocol, _, location = resolve(address, port)
        made = socket.socket(family, kind, protocol)
        try:
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != _ANY_6))
            if sys.platform == "win32":  # reusing an address there would share the port with another trainer
                made.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            else:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(location)
            made.listen(_BACKLOG)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"Port {port} of {address} is in use, by another training run or by a player that a run left behind. "
                "Stop that process or use other ports with --base-port (the Editor's port is set in Unity, Project "
                "Settings, ML-Agents)."
            ) from error
        raise LaunchError(
            f"Cannot listen for the player at {address}, port {port}: {error.strerror or error}. The address "
            "(env_settings.listen_address) must belong to this machine, and the port (env_settings.base_port) must be "
            "above 1023."
        ) from error
    return made


def _has_ipv6() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((_LOOPBACK_6, 0))
    except OSError:
        return False
    return True


def base_ports(settings: EnvironmentSettings, ports_of_run: int, all_ports: int) -> Iterable[int]:
    """Return the base ports that an environment may use.

    A base port other than the default is the only candidate, unless this is one of several environments of a run, whose
    ports are consecutive. ``ports_of_run`` is the number of ports that they use together, or 0 if the run has only one
    environment. ``all_ports`` is the number of ports that the run's environments and evaluations use.
    """
    if ports_of_run > 0 or settings.base_port == BASE_PORT:
        return candidates(settings.base_port, settings.num_envs, ports_of_run or all_ports)
    return [settings.base_port]


def on_free_port(connect: Callable[[int], T], base_ports: Iterable[int], worker: int) -> T:
    """Call ``connect`` with each base port until this worker's port is free, and return its result.

    Raises:
        PortInUseError: no port is free.
    """
    taken: PortInUseError | None = None
    first = 0
    for base_port in base_ports:
        try:
            made = connect(base_port)
        except PortInUseError as error:
            taken, first = taken or error, first or base_port + worker
            continue
        if taken is not None:
            _LOGGER.warning("Port %d is in use%s. Using port %d instead.", first, _by_whom(first), base_port + worker)
        return made
    raise PortInUseError(f"{taken} The port is in use{_by_whom(first)}.") from taken


def _by_whom(port: int) -> str:
    who = holder(port)
    return f" by {who}" if who is not None else "; the system does not show by which process"


def candidates(base_port: int, num_workers: int, ports_of_run: int) -> Iterator[int]:
    """Yield the base ports to try, in steps of ``ports_of_run``.

    The steps ensure that no two environments of a run try the same port.

    Args:
        base_port: base port of this environment.
        num_workers: number of workers of this environment, each of which has its own port.
        ports_of_run: number of ports that all environments of the run use together. They are consecutive.
    """
    highest = LARGEST_PORT - num_workers + 1
    yield from range(base_port, min(base_port + _MOST_TRIED * ports_of_run, highest + 1), ports_of_run)


def holder(port: int) -> str | None:
    """Return which process is listening on a TCP port of this machine, as ``process 4711 (its command line)``.

    Returns:
        The process; None if the system does not show it, for example because the process belongs to another user.
    """
    import psutil  # imported here because most processes never need it: it is only used when a port is taken

    for process in psutil.process_iter():
        # Query each process separately, because on macOS only root can list the sockets of all processes at once.
        with contextlib.suppress(psutil.Error):
            if any(
                socket.status == psutil.CONN_LISTEN and socket.laddr.port == port
                for socket in process.net_connections("tcp")
            ):
                with contextlib.suppress(psutil.Error):
                    if command := " ".join(process.cmdline()):
                        return f"process {process.pid} ({command})"
                return f"process {process.pid}"
    return None
