"""Starts Ray or connects to a running cluster, for all features that use other machines (docs/operate/clusters.md).

Ray is imported only when needed.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from trajtrainer.core.errors import SettingsError
from trajtrainer.envs.workers.guard import guarded_folder
from trajtrainer.run.actors.messages import TransportLostError

_LOGGER = logging.getLogger(__name__)

_CONNECT_S = 10.0
_AUTO = "auto"
# Socket paths in Ray's folder must not exceed about 100 characters, so the folder is not created in TMPDIR, which may
# have a long path.
_SHORT = Path("/tmp")  # noqa: S108  (a new folder is created in it)
NAME = "actors.backend ray"  # for messages
_ADVICE = "Expected the address that 'ray start --head' has printed (port 6379 unless you chose another)"


class ClusterLostError(TransportLostError):
    """The connection to Ray is lost and cannot be restored."""


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray.

    Attributes:
        ray: the package ``ray``.
        address: the address from the user; None if this process started Ray.
        ending: cleanup for ``close``; empty if the user's program opened the connection.
    """

    ray: ModuleType
    address: str | None
    ending: ExitStack = field(default_factory=ExitStack)

    def __str__(self) -> str:
        return "Ray on this machine" if self.address is None else f"Ray's cluster at {self.address}"

    def nodes(self) -> list[dict[str, Any]]:
        """Return Ray's description of each node that it considers alive."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def close(self) -> None:
        """Disconnect, and shut down Ray if this process started it. Can be called more than once."""
        self.ending.close()


def check(address: str | None, what: str) -> str | None:
    """Check the address and the installation, as far as possible without starting anything.

    Args:
        address, what: see ``connect``.

    Returns:
        The address, which may come from ``RAY_ADDRESS``; None without an address.

    Raises:
        SettingsError: Ray is not installed, or there is no cluster at the address.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address not in (None, _AUTO):
        _probe(address)
    if find_spec("ray") is None:
        raise SettingsError(
            f"{what} needs the package ray, which is not installed. Install it with: pip install 'trajtrainer[ray]'."
        )
    if address is not None and not _imported(alone=False).is_initialized():
        # Ray resolves "auto", and replaces a loopback address with another address of this machine.
        services = importlib.import_module("ray._private.services")
        try:
            resolved = str(services.canonicalize_bootstrap_address(address))
        except Exception as error:
            raise SettingsError(_unreachable(address, error)) from error
        if resolved != address:
            _probe(resolved)
    return address


def address_of_program() -> str | None:
    """Return the address of the cluster to which the user's program has connected this process, or None."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    return str(ray.get_runtime_context().gcs_address)


def connect(address: str | None, cpus: int, what: str, runtime_env: dict[str, Any] | None = None) -> Cluster:
    """Connect to a cluster, or start a local one that other machines cannot access.

    Args:
        address: ``HOST:PORT``, or ``auto`` for the cluster that this machine is a node of. None for the address in
            ``RAY_ADDRESS`` or, if it is not set, a new local cluster that ends with this process.
        cpus: number of cores that a new local cluster offers.
        what: the feature that needs Ray, for error messages.
        runtime_env: the packages and files that Ray sets up on the nodes, in Ray's format.

    Raises:
        SettingsError: Ray is not installed, or there is no cluster at the address.
    """
    address = check(address, what)
    ray = _imported(alone=address is None)
    cluster = Cluster(ray, address)
    if ray.is_initialized():
        return cluster
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": runtime_env}
    if address is not None:
        try:
            _init(ray, address=address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            raise SettingsError(_unreachable(address, error)) from error
        cluster.ending.callback(ray.shutdown)
        _log_exposure(cluster)
        return cluster
    folder = cluster.ending.enter_context(_ray_folder())
    try:
        _init(ray, address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=folder, **options)
    except (OSError, RuntimeError, ValueError) as error:
        with suppress(Exception):
            ray.shutdown()
        cluster.close()
        raise SettingsError(f"Ray cannot be started on this machine: {_first_line(error)}") from error
    cluster.ending.callback(ray.shutdown)
    atexit.register(cluster.close)
    return cluster


@contextmanager
def _ray_folder() -> Iterator[str]:
    """Create a folder for Ray if this process starts it. It is removed when this process ends, even if it is killed."""
    path = tempfile.mkdtemp(prefix="trajtrainer-ray-", dir=_SHORT if _SHORT.is_dir() else None)
    with guarded_folder(Path(path)):
        yield path
        shutil.rmtree(path, ignore_errors=True)


def _imported(*, alone: bool) -> ModuleType:
    if alone and "ray" not in sys.modules:  # Ray reads these variables when it is imported
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if not any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # By default, workers would get a lower priority than all other processes.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Despite its name, this variable makes Ray listen on loopback. Ray would ignore an explicit loopback address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    module: ModuleType = ray
    return module


def _init(ray: ModuleType, **options: Any) -> None:
    """Call ``ray.init``, and restore the SIGTERM handler that it replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _unreachable(address: str, error: Exception) -> str:
    return (
        f"Cannot connect to a Ray cluster at {address}: {_first_line(error)} This machine must be a node of the "
        "cluster: 'ray start --address=HOST:PORT' makes it one. If the cluster asks for a token, set "
        "RAY_AUTH_MODE=token and copy its ~/.ray/auth_token to this machine (docs/operate/clusters.md)."
    )


def _probe(address: str) -> None:
    """Check that a gRPC server answers at the address. Without this check, Ray would keep trying for minutes."""
    if address.startswith("ray://"):
        raise SettingsError(
            f"Ray's address {address} is for Ray Client, which copies everything that is sent. Expected HOST:PORT "
            "of the cluster itself, used from a machine that is a node of it."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise SettingsError(f"Ray's address is {address!r}; expected 'auto' or HOST:PORT such as 10.0.0.5:6379.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: not a valid host name
        raise SettingsError(
            f"No Ray cluster answers at {address}: {error}. {_ADVICE}, reachable from this machine."
        ) from error
    if os.environ.get("RAY_USE_TLS", "0") not in ("0", ""):
        return
    import grpc

    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(_CONNECT_S)
        except grpc.FutureTimeoutError as error:
            raise SettingsError(f"The program that answers at {address} is not a Ray cluster. {_ADVICE}.") from error


def _log_exposure(cluster: Cluster) -> None:
    """Log that other machines can reach the cluster, if so, and warn if it does not require a token."""
    addresses = sorted({str(node["NodeManagerAddress"]) for node in cluster.nodes()})
    if all(each.startswith("127.") or each in ("::1", "localhost") for each in addresses):
        return
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        _LOGGER.info("%s is on the network (%s) and requires its token.", cluster, ", ".join(addresses))
        return
    _LOGGER.warning(
        "%s is on the network (%s) and requires no token: anyone who can reach its ports can run programs on all "
        "nodes. Start it with RAY_AUTH_MODE=token (docs/operate/clusters.md).",
        cluster,
        ", ".join(addresses),
    )


def _first_line(error: BaseException) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if line.endswith(".") else f"{line}."
