"""Ports that another program has taken: which program, and which port to take instead."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from trajtrainer.settings.environment import EnvironmentSettings
from trajtrainer.unity.faults import PortInUseError

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)
BASE_PORT = EnvironmentSettings().base_port
_LARGEST = 65535
_MOST_TRIED = 50


def base_ports(settings: EnvironmentSettings, ports_of_run: int, all_ports: int) -> Iterable[int]:
    """Return the base ports that an environment may take.

    One that is not the default is taken as meant, unless this is one of several environments of a run, whose ports
    follow each other: ``ports_of_run`` is how many they take together, and 0 for the training's only environment.
    ``all_ports`` is what the run's environments and evaluations take.
    """
    if ports_of_run > 0 or settings.base_port == BASE_PORT:
        return candidates(settings.base_port, settings.num_envs, ports_of_run or all_ports)
    return [settings.base_port]


def on_free_port(connect: Callable[[int], T], base_ports: Iterable[int], worker: int) -> T:
    """Return what ``connect`` makes of the first base port for which the port of a worker is free.

    Raises:
        PortInUseError: there is none.
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
            _LOGGER.warning("Port %d is in use%s. Took port %d.", first, _by_whom(first), base_port + worker)
        return made
    raise PortInUseError(f"{taken} It is held{_by_whom(first)}.") from taken


def _by_whom(port: int) -> str:
    who = holder(port)
    return f" by {who}" if who is not None else ", by whom the system does not tell"


def candidates(base_port: int, num_workers: int, ports_of_run: int) -> Iterator[int]:
    """Yield base ports to try one after the other.

    They are ``ports_of_run`` apart, so that no two environments of a run ever try the same port.

    Args:
        base_port: of this environment.
        num_workers: of this environment, each with a port of its own.
        ports_of_run: ports of all environments of the run together, which are neighbors.
    """
    highest = _LARGEST - num_workers + 1
    yield from range(base_port, min(base_port + _MOST_TRIED * ports_of_run, highest + 1), ports_of_run)


def holder(port: int) -> str | None:
    """Return which process listens on a TCP port of this machine: ``process 4711 (its command line)``.

    Returns:
        None where the system does not show it: the process is another user's, say.
    """
    import psutil  # every child has this module, and hardly any a port that is taken

    for process in psutil.process_iter():
        # One by one: macOS shows only root the sockets of all processes at once.
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
