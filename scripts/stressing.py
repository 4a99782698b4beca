"""``scripts/stress kills|flat|disk|network``: stress tests of actors and files. Linux only.

``kills [NUMBER]`` trains while actors and players are killed, terminated and stopped. With ``--backend ray``, it also
removes simulated nodes; with ``--env godot:sim:Chase``, the players are Godot games. It fails unless each step that was
trained on is counted once. Afterwards, it kills, terminates, stops and interrupts the learner, two rounds per hundred
kills. The learner must resume from its last checkpoint. No processes and no files in ``/dev/shm`` may remain.

``flat [MINUTES]`` trains without faults, samples memory, open files, shared memory and Ray's store, and compares the
first five minutes with the last five. Ray needs the extra ``ray``.

``disk [CASES]`` makes each file operation of short runs, a search, a download from the hub and some commands fail once,
for example because the disk is full, or kills the process there. With CASES, it tests that many random operations of
each kind. It fails unless earlier files still load, one message reports the failure, no incomplete files remain, and
the run can be resumed (``tests/disk``). The complete test takes about an hour. It needs gcc and the extras ``tune``,
``hub`` and ``plot``.

``network`` makes the network of Ray nodes fail, see ``scripts/networking.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import yaml

import trajtrainer
from scripts import networking
from tests.disk import faults
from tests.run import process_tree

BASE_PORT = 21400
ACTORS = 3
STORE = 80 << 20
_SAMPLE_S = 10.0
_WINDOW_S = 300.0
_LONGEST_PAUSE_S = 300.0
# Players are considered dead after this time without an answer, actors after twice this time plus 30 s.
_TIMEOUT_WAIT_S = 10
_STOPPED_S = 10.0
_GONE_WITHIN_S = 15.0
_SHARED_MEMORY = "/dev/shm"
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0" * 64,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "12",
    "RAY_raylet_start_wait_time_s": "120",
}


def main() -> int:
    parser = argparse.ArgumentParser("scripts/stress", description=__doc__)
    parser.add_argument("what", choices=("kills", "flat", "disk", "network"))
    parser.add_argument(
        "amount", nargs="?", type=float, help="kills (default: 200), minutes (30), or cases of each kind (all)"
    )
    parser.add_argument(
        "--kinds", nargs="+", default=[], help="kinds of cases for disk: ppo, sac, search, ... (default: all)"
    )
    parser.add_argument("--backend", choices=("process", "ray"), default="process")
    parser.add_argument(
        "--env", default="sim:3DBall", help="environment for kills: sim:NAME, or godot:sim:NAME for Godot games"
    )
    parser.add_argument("--step-ms", default="5", help="duration of a player's step (default: 5)")
    arguments = parser.parse_args()
    if arguments.what == "network":
        return networking.main()
    if arguments.what == "disk":
        return _disk(arguments.kinds, int(arguments.amount or 0))
    named_before = set(os.listdir(_SHARED_MEMORY))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        cluster = stack.enter_context(_cluster()) if arguments.backend == "ray" else None
        if arguments.what == "flat":
            return _flat(Path(name), arguments.amount or 30, arguments, cluster)
        number = int(arguments.amount or 200)
        code = _kills(Path(name), number, arguments, cluster)
        code |= _learner_kills(Path(name), max(1, number // 50), arguments, cluster)
    named = sorted(set(os.listdir(_SHARED_MEMORY)) - named_before)
    print(f"remaining files in {_SHARED_MEMORY}: {named}")
    return code or int(bool(named))


def _disk(kinds: list[str], cases: int) -> int:
    reason = faults.why_not()
    if reason:
        print(f"Cannot run here: {reason}.")
        return 1
    with tempfile.TemporaryDirectory() as name:
        environment = {**os.environ, "LD_PRELOAD": str(faults.build(Path(name))), "MPLBACKEND": "agg"}
        campaign = [sys.executable, "-m", "tests.disk.campaign", *kinds, f"--folder={name}/cases", f"--sample={cases}"]
        return subprocess.run(campaign, env=environment, check=False).returncode


@contextlib.contextmanager
def _cluster() -> Iterator[Any]:
    """Start a Ray cluster of three nodes on this machine. The first node is the learner's, without CPUs for actors."""
    os.environ.update(ENVIRONMENT)
    import ray
    from ray.cluster_utils import Cluster

    options = {"object_store_memory": STORE}
    head = {"num_cpus": 0, "include_dashboard": False, **options}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=ACTORS, **options)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def _settings(arguments: argparse.Namespace, cluster: Any, env_path: str, *env_args: str) -> dict[str, Any]:
    trainer = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 64, "buffer_size": 10240, "num_epoch": 1},
        "network_settings": {"normalize": True, "hidden_units": 32, "num_layers": 1},
        "max_steps": 1_000_000_000,
        "time_horizon": 64,
        "summary_freq": 10_000,
        "checkpoint_interval": 20_000,
    }
    actors: dict[str, Any] = {"backend": arguments.backend, "count": ACTORS, "envs": 1}
    if cluster is not None:
        actors["ray"] = {"address": cluster.address}
    return {
        "default_settings": trainer,
        "env_settings": {
            "env_path": env_path,
            "base_port": BASE_PORT + 100 * (cluster is not None),
            "env_args": ["--step-ms", arguments.step_ms, *env_args],
            "seed": 1,
            "max_lifetime_restarts": -1,
            "restarts_rate_limit_n": -1,
            "timeout_wait": _TIMEOUT_WAIT_S,
        },
        "actors": actors,
        "torch_settings": {"device": "cpu"},
    }


def _kills(folder: Path, number: int, arguments: argparse.Namespace, cluster: Any) -> int:
    counted, draw, done = networking.Counted(), random.Random(1), Counter[str]()
    given, backend = _settings(arguments, cluster, arguments.env), arguments.backend
    begin_s = last_s = time.monotonic()
    # Ctrl-C ends the test early, and the results so far are printed.
    with (
        contextlib.suppress(KeyboardInterrupt),
        trajtrainer.Training(given, run_id="stress", results_dir=folder, verbose=False) as training,
    ):
        # One fault per epoch leaves the other actors enough time to finish trajectories.
        for epoch in training.epochs(steps=200):
            if time.monotonic() - last_s > _LONGEST_PAUSE_S:
                print(f"FAILED: no steps for {_LONGEST_PAUSE_S} s after {dict(done)}")
                return 1
            last_s = time.monotonic()
            done[_misdeed(backend, cluster, draw)] += 1
            if done.total() % 20 == 0:
                print(
                    f"{time.monotonic() - begin_s:.0f} s: {epoch.behavior.total_steps} steps, {dict(done)}", flush=True
                )
            if done.total() - done["nobody"] >= number:
                break
    (behavior,) = training.result.behaviors.values()
    status = "exact" if counted.steps == behavior.steps and not counted.twice else "FAILED"
    print(f"{status}: {behavior.steps} steps counted, {counted.steps} received, {counted.twice} twice; {dict(done)}")
    left = _members(backend)
    print("remaining processes:", [process_tree.command_of(pid)[:6] for pid in left])
    return int(status != "exact" or bool(left))


def _misdeed(backend: str, cluster: Any, draw: random.Random) -> str:
    """Kill, terminate or stop an actor, player or node, and return a description."""
    kinds = ["actor", "player"] if cluster is None else ["actor", "actor", "player", "player", "node"]
    kind = draw.choice(kinds)
    if kind == "node":
        cluster.remove_node(draw.choice(list(cluster.worker_nodes)), allow_graceful=False)
        cluster.add_node(num_cpus=ACTORS, object_store_memory=STORE)
        return kind
    # SIGSTOP is rare, because waiting for the timeout takes as long as many kills.
    number = draw.choice([*3 * [signal.SIGKILL], *2 * [signal.SIGTERM], signal.SIGSTOP])
    is_one = _is_player if kind == "player" else lambda pid: _is_actor(pid, backend)
    found = [pid for pid in process_tree.descendants(os.getpid()) if is_one(pid)]
    if not found:
        return "nobody"
    with contextlib.suppress(ProcessLookupError):
        os.kill(draw.choice(found), number)
    return f"{kind} {number.name}"


def _learner_kills(folder: Path, rounds: int, arguments: argparse.Namespace, cluster: Any) -> int:
    """Kill, terminate, stop and interrupt a learner. Each run resumes from the previous one."""
    config, log = folder / "learner.yaml", folder / "learner.log"
    config.write_text(yaml.safe_dump(_settings(arguments, cluster, arguments.env)))
    behavior = "shared_policy" if arguments.env.startswith("godot:") else arguments.env.removeprefix("sim:")
    checkpoint = folder / "learner" / behavior / "checkpoint.pt"
    faults, members, done = list[str](), list[int](), Counter[str]()
    for number in rounds * [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGINT]:
        command = [sys.executable, "-m", "trajtrainer", "learn", str(config), f"--results-dir={folder}"]
        command += ["--run-id=learner", *(["--resume"] if checkpoint.is_file() else [])]
        begin = _saved_step(checkpoint)
        with log.open("w") as file:
            run = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            _wait_for_summaries(run, log, checkpoint)
            members = _members(arguments.backend)
            os.kill(run.pid, number)
            if number is signal.SIGSTOP:
                time.sleep(_STOPPED_S)
                os.kill(run.pid, signal.SIGCONT)
                _wait_for_summaries(run, log, checkpoint)
                os.kill(run.pid, signal.SIGINT)
            code: int | str = run.wait(60)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            code = str(error)
        finally:
            run.kill()
            run.wait()
        expected = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 128 + signal.SIGTERM}.get(number, 0)
        text = log.read_text(errors="replace")
        if code != expected:
            faults.append(f"{number.name}: exit code {code}\n{text[-2000:]}")
        if begin and f"Resuming training from step {begin}" not in text:
            faults.append(f"{number.name}: it did not resume from step {begin}\n{text[:2000]}")
        gone_by_s = time.monotonic() + _GONE_WITHIN_S
        while (left := [pid for pid in members if process_tree.is_alive(pid)]) and time.monotonic() < gone_by_s:
            time.sleep(0.1)
        faults += [f"{number.name}: still running: {process_tree.command_of(pid)[:6]}" for pid in left]
        done[number.name] += 1
    print("\n".join(f"FAILED: learner, {fault}" for fault in faults) or f"the learner: {dict(done)}, all resumed")
    return int(bool(faults))


def _saved_step(checkpoint: Path) -> int:
    if not checkpoint.is_file():
        return 0
    return int(torch.load(checkpoint, weights_only=True)["global_step"]["_GlobalSteps__global_step"])


def _wait_for_summaries(run: subprocess.Popen[bytes], log: Path, checkpoint: Path) -> None:
    """Wait until the run has written three more summaries and a checkpoint."""
    wanted, end_s = log.read_text(errors="replace").count("Step: ") + 3, time.monotonic() + _LONGEST_PAUSE_S
    while log.read_text(errors="replace").count("Step: ") < wanted or not checkpoint.is_file():
        if run.poll() is not None or time.monotonic() > end_s:
            raise TimeoutError(f"no summaries, exit code {run.poll()}")
        time.sleep(0.1)


def _members(backend: str) -> list[int]:
    return [pid for pid in process_tree.descendants(os.getpid()) if _is_player(pid) or _is_actor(pid, backend)]


def _is_player(pid: int) -> bool:
    command = process_tree.command_of(pid)
    is_player = any(word == process_tree.PLAYER or process_tree.GAME.fullmatch(word) for word in command)
    return is_player and process_tree.GUARD not in " ".join(command)


def _is_actor(pid: int, backend: str) -> bool:
    command = " ".join(process_tree.command_of(pid))
    return ("ActorHost" if backend == "ray" else process_tree.WORKER) in command


def _flat(folder: Path, minutes: float, arguments: argparse.Namespace, cluster: Any) -> int:
    config, log, backend = folder / "config.yaml", folder / "log.txt", arguments.backend
    # Large observations, so that chunks of experience go through Ray's store.
    bench = ("sim:Bench", "--agents", "20", "--observation-size", "100")
    config.write_text(yaml.safe_dump(_settings(arguments, cluster, *bench)))
    command = [sys.executable, "-m", "trajtrainer", "learn", str(config), f"--results-dir={folder}", "--run-id=flat"]
    samples: list[tuple[float, dict[str, float]]] = []
    with log.open("w") as file:
        run = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        begin_s = time.monotonic()
        while (now_s := time.monotonic() - begin_s) < 60 * minutes:
            time.sleep(_SAMPLE_S)
            if run.poll() is not None:
                print(log.read_text()[-3000:])
                return 1
            samples.append((now_s, _sample(run.pid, log, backend)))
        run.send_signal(signal.SIGINT)
        code = run.wait(60)
    finally:
        run.kill()
    window_s = min(_WINDOW_S, 60 * minutes / 3)
    first = [each for at_s, each in samples if window_s / 5 < at_s <= window_s * 1.2]  # after all actors have started
    middle = [each for at_s, each in samples if abs(at_s - 30 * minutes) < window_s / 2]
    last = [each for at_s, each in samples if at_s > 60 * minutes - window_s]
    print(f"| {backend}, {minutes:g} min | first {window_s / 60:g} min | middle | last {window_s / 60:g} min |")
    print("| --- | --- | --- | --- |")
    for name in samples[0][1]:
        means = [statistics.mean(each[name] for each in part) for part in (first, middle, last)]
        print(f"| {name} |", " | ".join(f"{mean:,.1f}" for mean in means), "|")
    print(f"exit code {code}")
    return code


def _sample(pid: int, log: Path, backend: str) -> dict[str, float]:
    actors = [each for each in process_tree.descendants(os.getpid()) if _is_actor(each, backend)]
    steps = re.findall(r"Step: (\d+)\.", log.read_text(errors="replace"))
    shared = os.statvfs("/dev/shm")
    found = {
        "step": float(steps[-1]) if steps else 0.0,
        "actors": len(actors),
        "learner MB": _resident_mb(pid),
        "largest actor MB": max(map(_resident_mb, actors), default=0.0),
        "learner's open files": _entries(pid, "fd"),
        "most open files of an actor": max((_entries(each, "fd") for each in actors), default=0),
        "learner's threads": _entries(pid, "task"),
        "/dev/shm MB": (shared.f_blocks - shared.f_bfree) * shared.f_frsize / 1e6,
    }
    return found if backend != "ray" else {**found, "Ray's store MB": _stored_mb()}


def _stored_mb() -> float:
    import ray
    from ray._private.internal_api import node_stats

    stats = [node_stats(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in ray.nodes() if node["Alive"]]
    return float(sum(each.store_stats.object_store_bytes_used for each in stats)) / 1e6


def _entries(pid: int, what: str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/{what}"))
    except OSError:
        return 0


def _resident_mb(pid: int) -> float:
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    sys.exit(main())
