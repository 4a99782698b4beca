"""Ray that dies while a run has its actors there: the run goes on, or saves everything and says how to go on."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import trajtrainer
from tests.plugins.ray.test_transport import STORE
from tests.run.actors.counted import Counted, Taken
from tests.run.actors.test_kills import settings
from tests.run.process_tree import command_of, descendants, is_alive

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed (extra ray)"),
    pytest.mark.skipif(sys.platform != "linux", reason="finds Ray's processes by /proc"),
]

FOLDER = r"/tmp/trajtrainer-ray-\w+"
RAYLET, GCS = "/raylet/raylet", "/gcs/gcs_server"


def running(what: str) -> list[int]:
    return [pid for pid in descendants(os.getpid()) if what in command_of(pid)[0] and is_alive(pid)]


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def ray_folders() -> set[str]:
    """The folders of Ray whose processes this one has started."""
    return {found for pid in descendants(os.getpid()) for found in re.findall(FOLDER, " ".join(command_of(pid)))}


def processes_in(folders: set[str]) -> list[str]:
    commands = (" ".join(command_of(int(each.name))) for each in Path("/proc").iterdir() if each.name.isdigit())
    return [command for command in commands if any(folder in command for folder in folders)]


@pytest.mark.parametrize("lost", [RAYLET, GCS, "the driver"])
def test_a_run_goes_on_with_a_new_ray_of_its_own(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "12")
    caplog.set_level(logging.WARNING, "trajtrainer")
    taken = Taken(monkeypatch)
    given = settings(count=2, backend="ray")
    given["behaviors"]["Counted"]["max_steps"] = 1_000_000
    killed: list[int] = []
    steps = 0
    folders: set[str] = set()
    shared = set(os.listdir("/dev/shm"))
    options: dict[str, Any] = {"results_dir": tmp_path, "verbose": False, "num_envs": 2}
    with trajtrainer.Training(given, Counted, run_id="run", **options) as training:
        for epoch in training.epochs(steps=200):
            folders |= ray_folders()
            if not killed:
                killed = running(lost) if lost != "the driver" else drivers()
                assert len(killed) == 1
                os.kill(killed[0], signal.SIGKILL)
            elif "Restarting" not in caplog.text:
                steps = epoch.behavior.total_steps  # before Ray is gone for good, its actors go on
            elif not is_alive(killed[0]) and epoch.behavior.total_steps > steps + 1000:
                break
    taken.check(training.result.behaviors["Counted"].steps, 1000)
    assert len(folders) == 2
    wait_until(lambda: not processes_in(folders))
    assert not any(Path(folder).exists() for folder in folders)
    wait_until(lambda: set(os.listdir("/dev/shm")) <= shared)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("trajtrainer")]
    (restart,) = [line for line in lines if "Restarting" in line]
    expected = {
        RAYLET: r"after: Ray's daemon on this machine \(its raylet\) is gone\. All actors are lost with it\.",
        GCS: r"after: The head of Ray's cluster \(its GCS at .*\) is gone\. All actors are lost with it\.",
        "the driver": r"after: The process that is connected to Ray was killed by the signal SIGKILL\. All actors",
    }
    assert re.search(expected[lost], restart)
    others = [line for line in lines if line != restart]
    assert len(others) == (lost == GCS), "that it does not answer is said when it is noticed"


def drivers() -> list[int]:
    """The process that is connected to Ray: it has started the GCS."""
    return [pid for pid in descendants(os.getpid()) if any(GCS in command_of(each)[0] for each in children(pid))]


def children(pid: int) -> list[int]:
    return [each for each in descendants(pid) if parent_of(each) == pid]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


PROGRAM = """
import os, sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **STORE})
cluster.add_node(num_cpus=2, **STORE)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of two nodes, of a program of its own. The learner's has no room for actors."""
    for name, value in (
        ("RAY_AUTH_MODE", "token"),
        ("RAY_AUTH_TOKEN", "0" * 64),
        ("RAY_USAGE_STATS_ENABLED", "0"),
        ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"),
        ("RAY_gcs_rpc_server_reconnect_timeout_s", "12"),
    ):
        monkeypatch.setenv(name, value)
    program = PROGRAM.replace("STORE", str({"object_store_memory": STORE}))
    process = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=300)


def learn(tmp_path: Path, *arguments: str, leads_group: bool = False) -> subprocess.Popen[str]:
    given = settings(count=2)
    given["default_settings"] = given.pop("behaviors")["Counted"] | {"max_steps": 1_000_000}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(given))
    command = [sys.executable, "-m", "trajtrainer", "learn", str(tmp_path / "config.yaml"), "--run-id=run"]
    command += ["--env=python:tests.run.actors.counted:Counted", f"--results-dir={tmp_path}", "--timeout-wait=3"]
    return subprocess.Popen(
        [*command, *arguments], stdout=-1, stderr=subprocess.STDOUT, text=True, start_new_session=leads_group
    )


def steps_of(tmp_path: Path) -> int:
    status = json.loads((tmp_path / "run" / "run_logs" / "training_status.json").read_text())
    (behavior,) = [each for each in status.values() if "final_checkpoint" in each]
    return int(behavior["final_checkpoint"]["steps"])


def test_a_run_whose_cluster_is_gone_saves_and_says_how_to_go_on(tmp_path: Path, cluster: str) -> None:
    lines: list[str] = []
    with learn(tmp_path, "--actor-backend=ray", f"--ray-address={cluster}") as run:
        assert run.stdout is not None
        for line in run.stdout:
            lines.append(line)
            if "Step:" in line and len([each for each in lines if "Step:" in each]) == 2:
                (gcs,) = running(GCS)
                os.kill(gcs, signal.SIGKILL)
    output = "".join(lines)
    assert run.returncode == 1, output
    assert len(re.findall(r"its GCS at \S+\) does not answer", output)) == 1, output
    assert len(re.findall(r"Restarting actor . in .* after: The head of Ray's cluster", output)) == 1, output
    assert (
        "The connection to Ray was lost and has not come back within 3 s (--timeout-wait). No Ray cluster answers at"
        in output
    )
    assert re.search(r"To continue: .*--resume", output)
    saved = steps_of(tmp_path)
    assert saved > 0
    with learn(tmp_path, "--resume", "--actors=2") as again:
        assert again.stdout is not None
        first = next(found for line in again.stdout if (found := re.search(r"Step: (\d+)", line)))
        again.send_signal(signal.SIGINT)
        rest = again.stdout.read()
    assert again.returncode == 0, rest
    assert steps_of(tmp_path) >= int(first[1]) > saved


def test_a_signal_to_the_process_group_loses_no_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As service managers and schedulers send it. Ray and its actors do not see it, and the learner ends them."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    lines: list[str] = []
    with learn(tmp_path, "--actors=2", "--actor-backend=ray", leads_group=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "Step:" in line and not any("Step:" in each for each in lines):
                os.killpg(run.pid, signal.SIGTERM)
            lines.append(line)
    output = "".join(lines)
    assert run.returncode == 143, output
    assert "Restarting actor" not in output
    assert "actors are lost" not in output
    timers = json.loads((tmp_path / "run" / "run_logs" / "timers.json").read_text())
    assert [actor["restarts"] for actor in timers["actors"]] == [0, 0]
    assert steps_of(tmp_path) > 0
