"""Two processes never train into one folder."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.run.runs import LearnProcess, behaviors_settings, learn, ppo
from trajtrainer.core.errors import RunFolderError
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.policies.folder.run_lock import RunLock, ask_to_stop, find_holder, lock_file, stop_file
from trajtrainer.settings.run import CheckpointSettings

LIMIT_S = 300.0
# Windows' answer to who opens a file at the moment at which it is removed.
BEING_REMOVED = [PermissionError] if sys.platform == "win32" else []
HOLDER = """
import sys, time
from pathlib import Path
from trajtrainer.policies.folder.run_lock import RunLock, ask_to_stop, find_holder, lock_file, stop_file
RunLock(Path(sys.argv[1]), Path("run")).acquire()
print("has it", flush=True)
time.sleep(600)
"""


def folder(results: Path, *, resume: bool = False, force: bool = False, inference: bool = False) -> RunFolder:
    return RunFolder(CheckpointSettings(resume=resume, force=force, inference=inference, results_dir=str(results)))


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"force": True}])
def test_a_second_run_is_refused_with_folder_and_process(tmp_path: Path, options: dict[str, bool]) -> None:
    with folder(tmp_path).exclusive():
        expected = rf"^Process {os.getpid()} on .* is training into {re.escape(str(tmp_path / 'ppo'))} right now"
        with pytest.raises(RunFolderError, match=expected), folder(tmp_path, **options).exclusive():
            raise AssertionError("it began")
        with pytest.raises(RunFolderError, match=expected), folder(tmp_path, **options).exclusive():
            raise AssertionError("the refused one has taken the lock away")
    with folder(tmp_path, **options).exclusive():
        pass


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"force": True}])
def test_a_run_that_is_training_is_named_before_any_advice(tmp_path: Path, options: dict[str, bool]) -> None:
    """``--resume`` and ``--force`` would not help."""
    (tmp_path / "ppo" / "Ball").mkdir(parents=True)
    (tmp_path / "ppo" / "Ball" / "checkpoint.pt").touch()
    with folder(tmp_path).exclusive():
        expected = rf"^Process {os.getpid()} on .* is training into {re.escape(str(tmp_path / 'ppo'))} right now"
        with pytest.raises(RunFolderError, match=expected):
            folder(tmp_path, **options).check({})
        folder(tmp_path, inference=True, resume=True).check({})


def test_inference_disturbs_nobody(tmp_path: Path) -> None:
    with folder(tmp_path).exclusive(), folder(tmp_path, inference=True).exclusive():
        pass
    with folder(tmp_path / "new", inference=True).exclusive():
        assert not (tmp_path / "new").exists()


def test_a_run_that_failed_gives_the_folder_back(tmp_path: Path) -> None:
    with pytest.raises(KeyError), folder(tmp_path).exclusive():
        raise KeyError
    with folder(tmp_path).exclusive():
        pass


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
def test_the_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "has it\n"
        lock = RunLock(path, tmp_path)
        with pytest.raises(RunFolderError, match=f"Process {holder.pid} on "):
            lock.acquire()
        holder.send_signal(signal.SIGKILL)
        holder.wait(LIMIT_S)
    lock.acquire()
    lock.release()
    lock.release()


def test_of_many_that_come_and_go_only_one_has_it(tmp_path: Path) -> None:
    """The file is removed at the end of each; whoever had opened it before must not take the removed one's lock."""
    inside: list[int] = []
    most: list[int] = []

    def come_and_go(number: int) -> int:
        # Nobody is promised a turn while others try; who has had enough of them stops, so everybody comes to it.
        entered, latest = 0, time.monotonic() + LIMIT_S
        while entered < 100 and time.monotonic() < latest:
            lock = RunLock(tmp_path / "lock", tmp_path)
            with contextlib.suppress(RunFolderError, *BEING_REMOVED):
                lock.acquire()
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)
                lock.release()
                entered += 1
        return entered

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(come_and_go, range(4))) == [100] * 4
    assert max(most) == 1
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize("text", ["", "rubbish", "12", "\N{SNOWMAN} on ice"])
def test_a_lock_that_does_not_tell_whose_it_is(tmp_path: Path, text: str) -> None:
    lock = RunLock(tmp_path / "lock", tmp_path)
    lock.acquire()
    (tmp_path / "lock").write_text(text, encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"^Another process is training into"):
        RunLock(tmp_path / "lock", tmp_path).acquire()
    lock.release()


@pytest.mark.parametrize("kind", ["symbolic", "dangling", "hard", "pipe"])
def test_a_link_is_not_followed(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "precious"
    path = tmp_path / ".ppo.lock"
    if kind != "dangling":
        target.write_text("content")
    if kind == "hard":
        path.hardlink_to(target)
    elif kind == "pipe":
        pytest.importorskip("fcntl")
        os.mkfifo(path)
    else:
        path.symlink_to(target)
        if not path.is_symlink():
            pytest.skip("Wine makes links of its own")
    with (
        pytest.raises(RunFolderError, match=r"\.ppo\.lock, .*is a link or not a regular file"),
        folder(tmp_path).exclusive(),
    ):
        raise AssertionError("it began")
    assert target.exists() == (kind != "dangling")
    assert kind == "dangling" or target.read_text() == "content"


def test_the_lock_outlives_the_folder(tmp_path: Path) -> None:
    with folder(tmp_path).exclusive():
        folder(tmp_path).create()
        shutil.rmtree(tmp_path / "ppo")
        with pytest.raises(RunFolderError, match="is training into"), folder(tmp_path).exclusive():
            raise AssertionError("it began")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="fcntl")
def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("trajtrainer.policies.folder.run_lock.fcntl.flock", refuse)
    with caplog.at_level(logging.WARNING), folder(tmp_path).exclusive():
        assert "has no locks (No locks available)" in caplog.text


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(RunFolderError, match="cannot be written"), folder(tmp_path / "results").exclusive():
        pass


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
def test_on_the_command_line(tmp_path: Path) -> None:
    """With workers, which must not keep the lock of a controller that was killed."""
    environment = ("--env=sim:Basic", "--num-envs=2", "--env-args", "--agents", "4")
    run = LearnProcess(tmp_path, behaviors_settings(Basic=ppo(1_000_000, checkpoint_interval=500)), *environment)
    run.wait_for(lambda: bool(list((run.folder / "Basic").glob("Basic-*.pt"))))
    settings = behaviors_settings(Basic=ppo(100))
    refused = learn(tmp_path, settings, "--force", *environment)
    assert refused.exit_code == 1
    assert f"Process {run.process.pid} on " in refused.output
    assert "Traceback" not in refused.output
    assert run.process.poll() is None
    run.send(signal.SIGKILL)
    run.process.wait(LIMIT_S)
    resumed = learn(tmp_path, settings, "--resume", *environment)
    assert resumed.exit_code == 0, resumed.output


def test_who_holds_it_is_told_without_taking_it(tmp_path: Path) -> None:
    path = lock_file(tmp_path / "ppo")
    assert find_holder(path) is None
    with folder(tmp_path).exclusive():
        for _ in range(3):
            found = find_holder(path)
            assert found is not None
            assert (found.pid, found.is_here) == (os.getpid(), True)
        path.write_text(f"{os.getpid()} another-machine")
        found = find_holder(path)
        assert found is not None
        assert not found.is_here
    path.write_text(f"{os.getpid()} {platform.node()}")  # left behind by a process that was killed
    assert find_holder(path) is None
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert find_holder(path) is None


def test_whoever_only_looks_keeps_no_run_from_its_start(tmp_path: Path) -> None:
    path = lock_file(tmp_path / "ppo")
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            find_holder(path)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(50):
            with folder(tmp_path).exclusive():
                pass
            path.touch()
    finally:
        over.set()
        looker.join()


def test_a_stop_is_for_the_run_that_is_at_work_only(tmp_path: Path) -> None:
    ask_to_stop(tmp_path / "ppo")  # too late: that run has ended
    run = folder(tmp_path)
    with run.exclusive():
        assert not run.take_stop()
        ask_to_stop(tmp_path / "ppo")
        ask_to_stop(tmp_path / "ppo")
        assert run.take_stop()
        assert not run.take_stop()
        ask_to_stop(tmp_path / "ppo")
    assert not stop_file(tmp_path / "ppo").exists()


def test_a_stop_writes_through_no_link(tmp_path: Path) -> None:
    stop_file(tmp_path / "ppo").symlink_to(tmp_path / "elsewhere")
    ask_to_stop(tmp_path / "ppo")
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_that_takes_half_of_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / ".run.lock", os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: max(1, len(data) // 2)]))
    lock = RunLock(path, tmp_path / "run")
    lock.acquire()
    assert path.read_text().split()[0] == str(os.getpid())
    lock.release()

    def refusing(file: int, data: bytes) -> int:
        write(file, data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", refusing)
    with pytest.raises(OSError, match="No space"):
        RunLock(path, tmp_path / "run").acquire()
    assert path.read_bytes() == b"", "half a number is that of another process"
