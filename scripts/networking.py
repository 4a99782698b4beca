"""``scripts/stress network``: trains on a Ray cluster while the network connections of its nodes fail.

Each node is a network namespace with one ``tun`` device. Packets between the nodes go through this process, which drops
or delays them. Unlike ``tc netem``, this needs no kernel module except for the device. The nodes of an actor, the head
and the learner lose packets, are slow, and are disconnected for seconds or a minute, also in only one direction. The
test fails unless each step that was trained on is counted once, training continues after every fault, and the log has
no more warnings than expected.

Needs Linux, root, iproute2 and the extra ``ray``.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import logging
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import trajtrainer
from tests.run import process_tree
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.rewards.signal import ExtrinsicReward

_NODES = ("head", "learner", "one", "two")
_ADDRESSES = {name: f"10.77.0.{number}" for number, name in enumerate(_NODES, 1)}
_PORT = 6379
_GCS = f"{_ADDRESSES['head']}:{_PORT}"
_ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
_STORE = 80 << 20
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x0001 | 0x1000
_MTU = 9000
_ORDER = "network:"
_RECOVERY_S = 180
_HANG_S = 300
_START_S = 15


class Fault(NamedTuple):
    """A fault of a node's network.

    Attributes:
        node: name of the node.
        name: description for the table.
        seconds: duration of the fault.
        loss: fraction of packets that are lost.
        delay_s: delay of all other packets.
        sent, received: whether packets that the node sends or receives are affected.
        lines: maximum number of warnings in the log.
    """

    node: str
    name: str
    seconds: float
    loss: float = 0.0
    delay_s: float = 0.0
    sent: bool = True
    received: bool = True
    lines: int = 0


_FAULTS = (
    Fault("one", "5 % of the packets are lost", 30, loss=0.05),
    Fault("one", "200 ms, each way", 30, delay_s=0.2),
    Fault("one", "cut off", 5, loss=1.0),
    Fault("one", "cut off", 60, loss=1.0, lines=1),
    Fault("one", "what it sends is lost", 60, loss=1.0, received=False, lines=1),
    Fault("one", "what is sent to it is lost", 60, loss=1.0, sent=False, lines=1),
    Fault("head", "cut off", 12, loss=1.0, lines=1),
    Fault("learner", "cut off", 60, loss=1.0, lines=3),  # one warning about the head, and one about each actor
)


def why_not() -> str | None:
    """Return why the test cannot run on this machine; None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if not (shutil.which("ip") and shutil.which("unshare")):
        return "the programs ip (iproute2) and unshare (util-linux) are not installed"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    if subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        return "this machine does not allow processes to create network namespaces"
    return None if find_spec("ray") else "the extra ray is not installed"


def main() -> int:
    """Create the networks and nodes, and train on the learner's node."""
    reason = why_not()
    if reason is not None:
        print(f"Cannot run here: {reason}.")
        return 1
    with tempfile.TemporaryDirectory() as folder, _networks() as (spaces, switch), contextlib.ExitStack() as stack:
        runs: dict[str, subprocess.Popen[str]] = {}
        for name in _NODES:
            role = f"--head --port={_PORT} --include-dashboard=false" if name == "head" else f"--address={_GCS}"
            cpus = int(name in ("one", "two"))
            start = f"ray start {role} --node-ip-address={_ADDRESSES[name]} --num-cpus={cpus} --block"
            # Ray ends a node that was disconnected for too long. Restart it, as a cluster manager would.
            shell = f"while :; do {start} --object-store-memory={_STORE} >/dev/null 2>&1; sleep 1; done"
            if name == "learner":
                shell = f"({shell}) & {sys.executable} -m scripts.networking"
            runs[name] = stack.enter_context(_on_node(spaces[name], Path(folder) / name, shell))
        run = runs["learner"]
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith(_ORDER):
                switch.begin(int(line.split()[1]))
            else:
                print(line, end="", flush=True)
        code = run.wait()
        if code < 0 or code > 128:
            print(f"FAILED: no steps for {_HANG_S} s, or the learner died (exit code {code})")
        return code


@contextlib.contextmanager
def _networks() -> Iterator[tuple[dict[str, str], Switch]]:
    """Create the namespaces, and a switch that forwards packets between their devices."""
    spaces = {name: f"trajtrainer-{os.getpid()}-{name}" for name in _NODES}
    devices = {}
    try:
        for name, space in spaces.items():
            _ip("netns", "add", space)
            devices[name] = _device(space)
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "addr", "add", f"{_ADDRESSES[name]}/24", "dev", "net0")
            _ip("-n", space, "link", "set", "net0", "up", "mtu", str(_MTU))
        yield spaces, Switch(devices)
    finally:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _device(space: str) -> int:
    """Create ``net0`` in a namespace, and return the file descriptor to read and write its packets."""
    libc = ctypes.CDLL(None, use_errno=True)
    own, there = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{space}", os.O_RDONLY)
    try:
        if libc.setns(there, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"net0", _IFF_TUN_NO_PI))
        finally:
            libc.setns(own, _CLONE_NEWNET)
    finally:
        os.close(own)
        os.close(there)
    return device


@contextlib.contextmanager
def _on_node(space: str, tmp: Path, command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command on a node, with its own ``/tmp`` and process namespace. All its processes end on exit."""
    tmp.mkdir()
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    shell = ["sh", "-c", f'mount --bind "$0" /tmp || exit; {command}', str(tmp)]
    environment = {**os.environ, **_ENVIRONMENT, "RAY_TMPDIR": "/tmp"}
    process = subprocess.Popen(
        ["ip", "netns", "exec", space, *apart, *shell], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Switch:
    """Forwards packets between nodes by their addresses, in a thread.

    Args:
        devices: name of a node -> file descriptor of its packets.
    """

    def __init__(self, devices: dict[str, int]) -> None:
        self._devices = {socket.inet_aton(_ADDRESSES[name]): device for name, device in devices.items()}
        self._sources = {device: address for address, device in self._devices.items()}
        self._fault: Fault | None = None
        self._end_s = 0.0
        self._draw = random.Random(1)
        threading.Thread(target=self._run, name="switch", daemon=True).start()

    def begin(self, number: int) -> None:
        """Start a fault, given by its number. It ends automatically, because the run may be waiting for its end."""
        self._fault = _FAULTS[number]
        self._end_s = time.monotonic() + self._fault.seconds

    def _run(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        count = 0
        while True:
            pause_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            for device in select.select(list(self._sources), [], [], pause_s)[0]:
                packet = os.read(device, _MTU)
                target = self._devices.get(packet[16:20])
                delay_s = self._delay_s(self._sources[device], packet[16:20])
                if target is None or packet[0] >> 4 != 4 or delay_s is None:
                    continue
                if delay_s:
                    count += 1
                    heapq.heappush(waiting, (time.monotonic() + delay_s, count, target, packet))
                else:
                    _write(target, packet)
            while waiting and waiting[0][0] <= time.monotonic():
                _write(*heapq.heappop(waiting)[2:])

    def _delay_s(self, source: bytes, target: bytes) -> float | None:
        """Return the delay of a packet; None if it is lost."""
        fault = self._fault
        if fault is None or time.monotonic() > self._end_s:
            return 0.0
        node = socket.inet_aton(_ADDRESSES[fault.node])
        if not ((fault.sent and node == source) or (fault.received and node == target)):
            return 0.0
        return None if self._draw.random() < fault.loss else fault.delay_s


def _write(device: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # the queue is full, or the device is down
        os.write(device, packet)


class Counted:
    """Records all steps that trainers receive, by patching the reward signal that evaluates new steps.

    Attributes:
        steps: number of steps.
        twice: number of steps that had been received before.
        last_s: actor -> when its steps were last received.
    """

    def __init__(self) -> None:
        self.steps = self.twice = 0
        self.last_s: dict[int, float] = {}
        self._seen: set[bytes] = set()
        collect = ExtrinsicReward.collect

        def recording(signal: ExtrinsicReward, packed: PackedSteps) -> Any:
            # Observations depend on a random start, so observation, action and log-probability identify a step.
            rows = np.column_stack([packed.obs[0], packed["continuous"], packed["log_prob"]])
            self.steps += len(rows)
            for row in rows:
                key = row.tobytes()
                self.twice += key in self._seen
                self._seen.add(key)
            for actor in np.unique(packed.agent >> 32):
                self.last_s[int(actor)] = time.monotonic()
            return collect(signal, packed)

        ExtrinsicReward.collect = recording  # type: ignore[method-assign, assignment]


class _Lines(logging.Handler):
    """Collects the warnings in the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        logging.getLogger("trajtrainer").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _settings() -> dict[str, Any]:
    trainer = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 64, "buffer_size": 10240, "num_epoch": 1},
        "network_settings": {"normalize": True, "hidden_units": 32, "num_layers": 1},
        "max_steps": 1_000_000_000,
        "time_horizon": 64,
        "checkpoint_interval": 100_000,
    }
    quotas = {"max_lifetime_restarts": -1, "restarts_rate_limit_n": -1}
    return {
        "default_settings": trainer,
        "env_settings": {"env_path": "sim:3DBall", "env_args": ["--step-ms", "10"], "seed": 1, **quotas},
        "actors": {"backend": "ray", "count": 2, "envs": 1, "ray": {"address": _GCS}},
        "torch_settings": {"device": "cpu"},
    }


def train() -> int:
    """Train on the learner's node while the networks fail."""
    time.sleep(_START_S)  # let the cluster start
    counted, lines = Counted(), _Lines()
    failures: list[str] = []
    options_of_run: dict[str, Any] = {"run_id": "network", "results_dir": "/tmp/results", "verbose": False}
    print("| node | fault | steps during the fault | longest pause | recovery | log |")
    print("| --- | --- | ---: | ---: | ---: | --- |", flush=True)
    with trajtrainer.Training(_settings(), **options_of_run) as training:
        epochs = iter(training.epochs(steps=100))
        if not _all_come(epochs, counted, failures, "the start"):
            return 1
        for number, fault in enumerate(_FAULTS):
            lines.lines.clear()
            print(_ORDER, number, flush=True)
            before, pause_s = counted.steps, _run_on(epochs, fault.seconds)
            meanwhile, begin_s = counted.steps - before, time.monotonic()
            _all_come(epochs, counted, failures, fault.name)
            found = "; ".join(lines.lines)
            print(
                f"| {fault.node} | {fault.name}, {fault.seconds:g} s | {meanwhile} | {pause_s:.1f} s "
                f"| {time.monotonic() - begin_s:.1f} s | {found} |",
                flush=True,
            )
            if len(lines.lines) > fault.lines:
                failures.append(f"{fault.node} {fault.name}: {len(lines.lines)} lines")
    (behavior,) = training.result.behaviors.values()
    if counted.steps != behavior.steps or counted.twice:
        failures.append("the counts differ")
    print(f"{behavior.steps} steps counted, {counted.steps} received, {counted.twice} received twice")
    commands = [" ".join(process_tree.command_of(pid)[:4]) for pid in process_tree.descendants(os.getpid())]
    left = [command for command in commands if "resource_tracker" not in command]  # ends with this process
    print("remaining processes:", left)
    print("FAILED: " + "; ".join(failures) if failures else "exact")
    return int(bool(failures or left))


def _run_on(epochs: Iterator[Any], seconds: float) -> float:
    """Train for this long, and return the longest time without steps."""
    longest_s = 0.0
    begin_s = last_s = time.monotonic()
    while last_s - begin_s < seconds:
        _next(epochs)
        longest_s = max(longest_s, time.monotonic() - last_s)
        last_s = time.monotonic()
    return longest_s


def _next(epochs: Iterator[Any]) -> None:
    signal.alarm(_HANG_S)  # kills this process
    next(epochs)
    signal.alarm(0)


def _all_come(epochs: Iterator[Any], counted: Counted, failures: list[str], what: str) -> bool:
    """Train until both actors have sent steps; return whether they did so in time."""
    begin_s = time.monotonic()
    while time.monotonic() - begin_s < _RECOVERY_S:
        _next(epochs)
        if sum(last_s > begin_s for last_s in counted.last_s.values()) == 2:
            return True
    failures.append(f"{what}: not all actors recovered")
    return False


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(train())
