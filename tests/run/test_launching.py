"""Players load while the trainer imports torch."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.run import process_tree
from tests.run.at_import import LIMIT_S, command
from tests.run.at_import import players as players_at_import
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.run import acting
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.environment import EnvironmentSettings
from trajtrainer.settings.run import RunSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def start(folder: Path, how: str, *arguments: str) -> subprocess.Popen[str]:
    """Start ``learn``."""
    (folder / "a.yaml").write_text("default_settings: {max_steps: 200, summary_freq: 100}\n", encoding="utf-8")
    return command(folder, how, "learn", "a.yaml", "--run-id=a", *arguments)


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


@pytest.mark.parametrize("module", ["session", "acting"])
def test_checks_and_launch_need_no_torch(module: str) -> None:
    program = f"import sys, trajtrainer.run.{module}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


@pytest.mark.parametrize("is_fault", [True, False])
def test_logs_of_launched_players_stay_after_a_fault_that_the_command_survives(
    is_fault: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = acting.for_inference(RunSettings(env_settings=EnvironmentSettings(env_path="sim:Basic")))
    with acting.launching(settings, [], {}) as players, contextlib.suppress(EnvironmentFaultError):
        assert players is not None
        with acting.opened(settings, StopRequest(), players=players):
            (folder,) = tmp_path.glob("trajtrainer-players-*")
            (folder / "Player-0.log").write_text("the game broke")
            if is_fault:
                raise EnvironmentFaultError(f"The game broke. Its log: {folder}")
    assert (folder / "Player-0.log").exists() == is_fault
