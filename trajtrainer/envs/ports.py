"""Ports that another program has taken: which program, and which port to take instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_LARGEST = 65535
_MOST_TRIED = 50


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
