"""Players load while the trainer imports torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.run import process_tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
LIMIT_S = 300.0
# Stops at the import of torch: says which players there are, and then goes on, or waits for a signal.
PROGRAM = """
import sys, time
from pathlib import Path

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and self in sys.meta_path:
            sys.meta_path.remove(self)
            from tests.run import process_tree
            players = process_tree.players(__import__("os").getpid())
            Path("players").write_text(" ".join(map(str, players)))
            while "wait" in sys.argv[1] and not Path("signaled").exists():
                time.sleep(0.02)

sys.meta_path.insert(0, Finder())
from trajtrainer.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def start(folder: Path, how: str, *arguments: str) -> subprocess.Popen[str]:
    """Start ``learn``."""
    (folder / "a.yaml").write_text("default_settings: {max_steps: 200, summary_freq: 100}\n", encoding="utf-8")
    return command(folder, how, "learn", "a.yaml", "--run-id=a", *arguments)


def command(folder: Path, how: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def players_at_import(folder: Path) -> list[int]:
    deadline_s = time.monotonic() + LIMIT_S
    while not (folder / "players").exists() or not (folder / "players").read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return [int(pid) for pid in (folder / "players").read_text().split()]


@pytest.mark.parametrize("num_envs", [1, 2])
def test_players_are_running_when_torch_is_imported(num_envs: int, tmp_path: Path) -> None:
    env = ["--env=sim:Basic", f"--num-envs={num_envs}"]
    run = start(tmp_path, "go", *env)
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, output
    if num_envs == 1:  # several are started by worker processes, which are only just loading
        assert len(players_at_import(tmp_path)) == 1
    assert (tmp_path / "results" / "a" / "Basic.onnx").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_during_the_import_ends_the_player_too(number: signal.Signals, code: int, tmp_path: Path) -> None:
    run = start(tmp_path, "wait", "--env=sim:Basic")
    players = players_at_import(tmp_path)
    run.send_signal(number)
    (tmp_path / "signaled").touch()
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == code, output
    assert "Stopped before the environment was connected; nothing was trained." in output
    assert "Traceback" not in output
    assert players
    assert not any(map(process_tree.is_alive, players))


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_device_that_does_not_exist_is_found_late_and_ends_the_players(num_envs: int, tmp_path: Path) -> None:
    run = start(tmp_path, "go", "--env=sim:Basic", "--torch-device=nonsense", f"--num-envs={num_envs}")
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 1
    assert "error: torch_settings.device is 'nonsense', which cannot be used here" in output
    assert "Traceback" not in output
    if num_envs == 1:  # several are started by worker processes, which are only just loading
        players = players_at_import(tmp_path)
        assert players
        assert not any(map(process_tree.is_alive, players))
    processes = [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(tmp_path)]
    _, alive = psutil.wait_procs(processes, timeout=LIMIT_S)  # guards end their players within seconds
    assert not alive


ACTING = {
    "evaluate": ["evaluate", "random", "heuristic", "--env=sim:Basic", "--episodes=2"],
    "record": ["record", "--policy=heuristic", "--env=sim:Basic", "--episodes=2", "--output=a.demo"],
    "tournament": ["tournament", "random", "heuristic", "--env=sim:Duel", "--games=2"],
}


@pytest.mark.parametrize("name", ACTING)
def test_commands_that_act_launch_their_player_before_torch_is_imported(name: str, tmp_path: Path) -> None:
    run = command(tmp_path, "go", *ACTING[name])
    output, _ = run.communicate(timeout=LIMIT_S)
    # There is no heuristic for Duel, but that is only known once the player has described its agents.
    assert run.returncode == (name == "tournament"), output
    assert ("heuristic cannot play 'Duel'" in output) == (name == "tournament")
    players = players_at_import(tmp_path)
    assert len(players) == 1
    assert not any(map(process_tree.is_alive, players))


@pytest.mark.parametrize("name", ACTING)
def test_a_signal_while_a_command_that_acts_is_importing_ends_the_player_too(name: str, tmp_path: Path) -> None:
    run = command(tmp_path, "wait", *ACTING[name])
    players = players_at_import(tmp_path)
    run.send_signal(signal.SIGINT)
    (tmp_path / "signaled").touch()
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130, output
    assert "Interrupted." in output
    assert "Traceback" not in output
    assert players
    assert not any(map(process_tree.is_alive, players))


@pytest.mark.parametrize(
    ("model", "message", "num_players"),
    [
        ("missing", "There is no file or folder missing", 0),
        ("damaged.pt", "The checkpoint damaged.pt was rejected", 1),  # nobody can know before it is read
    ],
)
def test_a_model_that_cannot_be_used_leaves_no_player(
    model: str, message: str, num_players: int, tmp_path: Path
) -> None:
    (tmp_path / "damaged.pt").write_bytes(b"damaged")
    run = command(tmp_path, "go", "evaluate", model, "--env=sim:Basic")
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 1, output
    assert message in output
    players = [int(pid) for pid in (tmp_path / "players").read_text().split()]
    assert len(players) == num_players
    assert not any(map(process_tree.is_alive, players))


@pytest.mark.parametrize("module", ["session", "acting"])
def test_checks_and_launch_need_no_torch(module: str) -> None:
    program = f"import sys, trajtrainer.run.{module}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"
