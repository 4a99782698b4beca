"""Notes about a run, next to its folder."""

from __future__ import annotations

import errno
import json
import re
import sys
from pathlib import Path

import pytest

from trajtrainer.rundir.contained_folder import ContainedFolder
from trajtrainer.rundir.folder import RunFolder
from trajtrainer.rundir.notes import RunNotes, change_notes, notes_file, notes_locked, parse_notes, write_notes
from trajtrainer.rundir.run_lock import HeldError
from trajtrainer.rundir.saved_run import SavedRun
from trajtrainer.settings.run import CheckpointSettings


def saved(results: Path, run_id: str = "ball") -> SavedRun:
    return SavedRun(ContainedFolder(results), (run_id,))


def test_they_are_read_as_they_were_written(tmp_path: Path) -> None:
    run = tmp_path / "ball"
    run.mkdir()
    seen = saved(tmp_path)
    assert seen.notes == RunNotes()
    notes = RunNotes().changed({"text": "é\n  two", "labels": ["b\n", " a"], "archived": True})
    assert notes.labels == ("a", "b\\n")
    write_notes(run, notes)
    assert seen.notes == notes
    assert list(run.iterdir()) == []
    write_notes(run, RunNotes())
    assert seen.notes == RunNotes()
    assert [path.name for path in tmp_path.iterdir()] == ["ball"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"text": 1}', '{"labels": [1]}', '{"archived": "yes"}', "[" * 9999]
)
def test_damaged_ones_count_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "ball").mkdir()
    notes_file(tmp_path / "ball").write_text(content)
    assert saved(tmp_path).notes == RunNotes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"color": "red", "text": "x"}, "Notes have no color; expected text, labels or archived."),
        ({"text": 1}, "The text of a note can have up to 20,000 characters."),
        ({"text": "x" * 20_001}, "The text of a note can have up to 20,000 characters."),
        ({"labels": "good"}, "Labels must be a list of texts."),
        ({"labels": ["good", 1]}, "Labels must be a list of texts."),
        ({"labels": ["x" * 41]}, "A run can have up to 20 labels of up to 40 characters each."),
        (
            {"labels": [str(number) for number in range(21)]},
            "A run can have up to 20 labels of up to 40 characters each.",
        ),
        ({"archived": "yes"}, "archived must be true or false."),
    ],
)
def test_values_that_notes_cannot_have_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        RunNotes("kept").changed(changes)


def test_attributes_of_later_versions_are_ignored() -> None:
    assert parse_notes(json.dumps({"text": "x", "color": "red"})) == RunNotes("x")


def test_a_link_is_neither_read_nor_followed(tmp_path: Path) -> None:
    run = tmp_path / "results" / "ball"
    run.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text('{"text": "secret"}')
    notes_file(run).symlink_to(elsewhere)
    assert saved(tmp_path / "results").notes == RunNotes()
    write_notes(run, RunNotes("own"))
    assert json.loads(elsewhere.read_text()) == {"text": "secret"}
    assert not notes_file(run).is_symlink()
    assert saved(tmp_path / "results").notes == RunNotes("own")


def test_a_change_waits_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ball").mkdir()
    monkeypatch.setattr("trajtrainer.rundir.notes._PATIENCE_S", 0.05)
    with notes_locked(tmp_path / "ball"), pytest.raises(HeldError, match="another process holds this lock"):
        change_notes(ContainedFolder(tmp_path), ("ball",), lambda _: RunNotes("of an impatient page"))
    assert [path.name for path in tmp_path.iterdir()] == ["ball"]


@pytest.mark.skipif(sys.platform == "win32", reason="fcntl")
def test_a_file_system_without_locks_keeps_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("trajtrainer.rundir.run_lock.fcntl.flock", refuse)
    (tmp_path / "ball").mkdir()
    change_notes(ContainedFolder(tmp_path), ("ball",), lambda notes: notes.changed({"text": "new"}))
    assert saved(tmp_path).notes == RunNotes("new")


class TestRunsOfTheSameName:
    def folder(self, results: Path, *, force: bool = False) -> RunFolder:
        return RunFolder(CheckpointSettings(run_id="ball", force=force, results_dir=str(results)))

    def test_notes_about_an_overwritten_run_move_with_it(self, tmp_path: Path) -> None:
        run = tmp_path / "ball"
        (run / "Ball").mkdir(parents=True)
        (run / "Ball" / "checkpoint.pt").touch()
        write_notes(run, RunNotes("of the first"))
        folder = self.folder(tmp_path, force=True)
        with folder.exclusive():
            folder.create()
            assert saved(tmp_path).notes == RunNotes("of the first"), "it may still fail to connect"
            folder.begin()
            assert saved(tmp_path).notes == RunNotes()
        assert saved(tmp_path, "ball.old").notes == RunNotes("of the first")

    def test_notes_about_a_deleted_run_are_not_those_of_a_new_one(self, tmp_path: Path) -> None:
        write_notes(tmp_path / "ball", RunNotes("of a deleted run", archived=True))
        folder = self.folder(tmp_path)
        with folder.exclusive():
            folder.create()
            folder.begin()
            assert saved(tmp_path).notes == RunNotes()

    def test_notes_stay_when_a_run_is_resumed(self, tmp_path: Path) -> None:
        run = tmp_path / "ball"
        (run / "Ball").mkdir(parents=True)
        (run / "Ball" / "checkpoint.pt").touch()
        write_notes(run, RunNotes("kept"))
        folder = RunFolder(CheckpointSettings(run_id="ball", resume=True, results_dir=str(tmp_path)))
        with folder.exclusive():
            folder.create()
            folder.begin()
        assert saved(tmp_path).notes == RunNotes("kept")
