"""Starts Ray or reaches a cluster that runs already, for whatever has a use for other machines (docs/clusters.md).

Nothing is imported before it is asked for.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import ipaddress
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from trajtrainer.core.errors import EnvironmentFaultError, SettingsError

_LOGGER = logging.getLogger(__name__)

_CONNECT_S = 10.0
_AUTO = "auto"
_GUARD_SCRIPT = """
read -r word || {
  for process in /proc/[0-9]*; do
    case "$process $(tr '\\0' ' ' < "$process/cmdline")" in
      "/proc/$$ "*) ;;
      *"$1"*) kill -s KILL "${process#/proc/}" ;;
    esac
  done
  rm -rf -- "$1"
}
"""
# Paths of sockets below it may be no longer than about 100 characters.
_SHORT = Path("/tmp")  # noqa: S108  (a folder of its own is made in it)


class ClusterLostError(EnvironmentFaultError):
    """Ray is gone and does not come back."""


class Node(NamedTuple):
    """One machine of a cluster, or what plays one.

    Attributes:
        id: of Ray's.
        name: for messages.
        resources: what it has in all, such as ``CPU``.
    """

    id: str
    name: str
    resources: dict[str, float]


class _Folder:
    """The folder of a Ray of this process's own. Both are gone when this process is, whatever ends it.

    Ray's helpers notice that within a minute, and leave the folder. On Linux a guard does not wait for that: a shell at
    the end of a pipe that this process holds open, like those of players.
    """

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="trajtrainer-ray-", dir=_SHORT if _SHORT.is_dir() else None)
        self._guard: subprocess.Popen[bytes] | None = None
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._guard = subprocess.Popen(  # noqa: S603
                    ["/bin/sh", "-c", _GUARD_SCRIPT, "ray-guard", self.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )

    def remove(self) -> None:
        """Remove it, now that Ray has ended."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._guard is not None:
            self._guard.communicate(b"done\n")
            self._guard = None


class Cluster:
    """Ray, connected.

    Attributes:
        ray: the package.
        address: that was given; None for one of this process's own.
    """

    def __init__(self, ray: ModuleType, address: str | None, *, ends: bool, folder: _Folder | None = None) -> None:
        self.ray = ray
        self.address = address
        self._ends = ends
        self._folder = folder

    def __str__(self) -> str:
        return "Ray on this machine" if self.address is None else f"Ray's cluster at {self.address}"

    @property
    def here(self) -> str:
        """The id of the node that this process is on."""
        return str(self.ray.get_runtime_context().get_node_id())

    def nodes(self) -> list[Node]:
        """Return all nodes that are there."""
        return [
            Node(node["NodeID"], f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})", node["Resources"])
            for node in self.ray.nodes()
            if node["Alive"]
        ]

    def close(self) -> None:
        """Leave it, and end it if it is of this process's own. May be called again."""
        if self._ends:
            self._ends = False
            self.ray.shutdown()
        if self._folder is not None:
            self._folder.remove()
            atexit.unregister(self.close)


def check(address: str | None, what: str) -> str | None:
    """See what can be told of Ray without starting anything.

    Args:
        address: see ``connect``.
        what: asks for it, for messages.

    Returns:
        The address, from wherever it comes; None for none.

    Raises:
        SettingsError: Ray is not installed, or nobody listens at the address.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address not in (None, _AUTO):
        _probe(address)
    if find_spec("ray") is None:
        raise SettingsError(
            f"{what} needs the package ray, which is not installed. Install it with: pip install 'trajtrainer[ray]'."
        )
    if address is not None and not _imported(alone=False).is_initialized():
        taken = _as_ray_takes(address)
        if taken != address:
            _probe(taken)
    return address


def address_of_program() -> str | None:
    """Return the address of the cluster that the program has connected this process with itself; None if it has not."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    return str(ray.get_runtime_context().gcs_address)


def connect(address: str | None, cpus: int, what: str, runtime_env: dict[str, Any] | None = None) -> Cluster:
    """Connect with a cluster, or start one on this machine, for this machine alone.

    Args:
        address: ``HOST:PORT``, or ``auto`` for the one that this machine is a node of. None takes that of
            ``RAY_ADDRESS``, and starts one of this process's own where that is not set.
        cpus: that one of its own offers.
        what: asks for it, for messages.
        runtime_env: what is brought to the nodes, as Ray takes it.

    Raises:
        SettingsError: Ray is not installed, or there is no cluster at the address.
    """
    address = check(address, what)
    ray = _imported(alone=address is None)
    if ray.is_initialized():
        return Cluster(ray, address, ends=False)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": runtime_env}
    if address is None:
        return _started(ray, cpus, quiet)
    try:
        _init(ray, address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise SettingsError(_unreachable(address, error)) from error
    cluster = Cluster(ray, address, ends=True)
    _tell_of_network(cluster)
    return cluster


def _imported(*, alone: bool) -> ModuleType:
    if alone and "ray" not in sys.modules:  # it looks at these when it is imported
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if not any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # Workers get the lowest priority otherwise, below whatever else is on this machine.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # So is loopback chosen, whatever it is named after; an address that is given as loopback is not taken.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    module: ModuleType = ray
    return module


def _started(ray: ModuleType, cpus: int, quiet: dict[str, Any]) -> Cluster:
    folder = _Folder()
    try:
        _init(ray, address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=folder.path, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        with contextlib.suppress(Exception):
            ray.shutdown()
        folder.remove()
        raise SettingsError(f"Ray cannot be started on this machine: {_first_line(error)}") from error
    cluster = Cluster(ray, None, ends=True, folder=folder)
    atexit.register(cluster.close)
    return cluster


def _init(ray: ModuleType, **options: Any) -> None:
    """Connect, and leave signals to whoever has a use for them."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _unreachable(address: str, error: Exception) -> str:
    return (
        f"No cluster of Ray can be reached at {address}: {_first_line(error)} This machine has to be a node of it: "
        "'ray start --address=HOST:PORT' makes it one. If the cluster asks for a token, set RAY_AUTH_MODE=token and "
        "bring its ~/.ray/auth_token here (docs/clusters.md)."
    )


def _as_ray_takes(address: str) -> str:
    """Return what ``auto`` stands for; and Ray takes a loopback address for the other one of this machine.

    Raises:
        SettingsError: this machine is not a node of a cluster.
    """
    try:
        return str(importlib.import_module("ray._private.services").canonicalize_bootstrap_address(address))
    except Exception as error:
        raise SettingsError(_unreachable(address, error)) from error


def _probe(address: str) -> None:
    """See that a cluster may listen there: Ray itself would try for minutes.

    Raises:
        SettingsError: nobody listens, or something else, or it is no address.
    """
    if address.startswith("ray://"):
        raise SettingsError(
            f"Ray's address {address} is one of Ray Client, which copies all that is sent. Expected HOST:PORT of the "
            "cluster itself, on a machine that is a node of it."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise SettingsError(f"Ray's address is {address!r}; expected 'auto' or HOST:PORT such as 10.0.0.5:6379.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise SettingsError(
            f"No cluster of Ray answers at {address}: {error}. Expected the address that 'ray start --head' has told "
            "(its port is 6379 unless chosen), reachable from here."
        ) from error
    if os.environ.get("RAY_USE_TLS", "0") in ("0", "") and not _speaks_grpc(address):
        raise SettingsError(
            f"What answers at {address} is no cluster of Ray. Expected the address that 'ray start --head' has told "
            "(its port is 6379 unless chosen)."
        )


def _speaks_grpc(address: str) -> bool:
    import grpc

    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(_CONNECT_S)
        except grpc.FutureTimeoutError:
            return False
    return True


def _tell_of_network(cluster: Cluster) -> None:
    """Tell of a cluster that can be reached by others."""
    addresses = {str(node["NodeManagerAddress"]) for node in cluster.ray.nodes() if node["Alive"]}
    if all(_is_loopback(each) for each in addresses):
        return
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        _LOGGER.info("%s is on the network (%s), and asks for its token.", cluster, ", ".join(sorted(addresses)))
        return
    _LOGGER.warning(
        "%s is on the network (%s), and asks for no token: whoever reaches its ports can run programs on all nodes. "
        "Start it with RAY_AUTH_MODE=token (docs/clusters.md).",
        cluster,
        ", ".join(sorted(addresses)),
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _first_line(error: BaseException) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if line.endswith(".") else f"{line}."
