"""Files are there whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from trajtrainer.core import atomic


def test_content_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    atomic.write_text(path, "old")
    atomic.write_text(path, "new\n")
    assert path.read_bytes() == b"new\n"
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_the_file_has_the_usual_rights(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    atomic.write_bytes(tmp_path / "atomic", b"x")
    assert (tmp_path / "atomic").stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    path = tmp_path / "checkpoint.pt"
    atomic.write_bytes(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write(temporary: Path) -> None:
        temporary.write_bytes(b"half of the new")
        if failing == "write":
            fail()

    if failing != "write":
        monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space left"):
        atomic.write_with(path, write)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


class OtherProgram:
    """Has a file open so that Windows does not let others replace it, ``refusals`` times."""

    def __init__(self, refusals: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusals = refusals
        self._replace = os.replace
        monkeypatch.setattr(os, "replace", self.replace)

    def replace(self, source: Path, target: Path) -> None:
        if self.refusals > 0:
            self.refusals -= 1
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        self._replace(source, target)


def test_a_file_that_another_program_has_open_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_PATIENCE_S", 30.0)
    path = tmp_path / "status.json"
    atomic.write_text(path, "old")
    other = OtherProgram(3, monkeypatch)
    atomic.write_text(path, "new")
    assert path.read_text() == "new"
    assert other.refusals == 0
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_stays_open_elsewhere_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_PATIENCE_S", 0.2)
    path = tmp_path / "status.json"
    atomic.write_text(path, "old")
    OtherProgram(float("inf"), monkeypatch)
    with pytest.raises(PermissionError):
        atomic.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_makes_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic.write_with(tmp_path / "a.onnx", lambda _: None)


def test_the_writer_gets_a_path_beside_the_target_with_its_suffix(tmp_path: Path) -> None:
    seen = []

    def write(temporary: Path) -> None:
        seen.append(temporary)
        temporary.write_bytes(b"x")

    atomic.write_with(tmp_path / "Ball-10.onnx", write)
    assert seen[0].parent == tmp_path
    assert seen[0].suffix == ".onnx"
    assert not seen[0].exists()


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    class KilledError(BaseException):
        pass

    kept = tmp_path / "Ball-1.onnx"
    kept.write_bytes(b"x")
    left = []

    def write(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        # What a kill leaves: the cleaning up of write_with does not get to run.
        os.link(temporary, temporary.with_name(temporary.name.replace(".Ball", ".Box")))
        left.append(temporary.with_name(temporary.name.replace(".Ball", ".Box")))
        raise KilledError

    with pytest.raises(KilledError):
        atomic.write_with(kept, write)
    assert atomic.remove_leftovers([tmp_path, tmp_path / "missing"]) == left
    assert list(tmp_path.iterdir()) == [kept]


def test_a_folder_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "results" / "ppo" / "status.json"
    atomic.write_text(path, "text")
    assert path.read_text() == "text"


def test_what_only_informs_is_whole_without_waiting_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int) -> None:
        raise AssertionError("waited for the disk")

    monkeypatch.setattr(os, "fsync", refuse)
    atomic.write_unsynced(tmp_path / "timers.json", "new")
    assert (tmp_path / "timers.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["timers.json"]


def test_informational_files_are_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "timers.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        atomic.write_unsynced(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_renamed_with_its_content(tmp_path: Path) -> None:
    (tmp_path / "partial").mkdir()
    (tmp_path / "partial" / "file").write_text("content")
    atomic.move(tmp_path / "partial", tmp_path / "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    assert (tmp_path / "whole" / "file").read_text() == "content"


def test_a_slow_disk_is_reported_while_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(atomic, "_SLOW_S", 0.0)
    path = tmp_path / "a.txt"
    sync = os.fsync

    def slow(descriptor: int) -> None:
        for _ in range(1000):  # the message comes from another thread
            if caplog.text:
                break
            time.sleep(0.01)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    atomic.write_text(path, "1")
    assert f"The disk is slow. Waiting for {path} to be saved." in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="folders are not synced on Windows")
def test_several_files_share_one_sync_of_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    for name in ("a.pt", "b.pt"):
        atomic.write_bytes(tmp_path / name, b"1", syncs_folder=False)
    atomic.sync_folder(tmp_path)
    assert synced == [False, False, True]
