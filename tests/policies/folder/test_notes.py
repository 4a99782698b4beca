"""Notes about a run, next to its folder."""

from __future__ import annotations

import errno
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.policies.folder.runs import LOG, make_run, write_events
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.notes import RunNotes, change_notes, notes_file, notes_locked, parse_notes, write_notes
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.policies.folder.run_lock import HeldError
from trajtrainer.policies.folder.saved_run import SavedRun
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
        ({"color": "red", "text": "x"}, "Notes do not have color; expected text, labels or archived."),
        ({"text": 1}, "The text of a note can have up to 20,000 characters."),
        ({"text": "x" * 20_001}, "The text of a note can have up to 20,000 characters."),
        ({"labels": "good"}, "Labels must be a list of strings."),
        ({"labels": ["good", 1]}, "Labels must be a list of strings."),
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
    monkeypatch.setattr("trajtrainer.policies.folder.notes._PATIENCE_S", 0.05)
    with notes_locked(tmp_path / "ball"), pytest.raises(HeldError, match="another process holds this lock"):
        change_notes(ContainedFolder(tmp_path), ("ball",), lambda _: RunNotes("of an impatient page"))
    assert [path.name for path in tmp_path.iterdir()] == ["ball"]


@pytest.mark.skipif(sys.platform == "win32", reason="fcntl")
def test_a_file_system_without_locks_keeps_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("trajtrainer.policies.folder.run_lock.fcntl.flock", refuse)
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


class TestWhichRunTheyAreAbout:
    def note(self, results: Path, text: str = "of the first") -> None:
        change_notes(ContainedFolder(results), ("ball",), lambda notes: notes.changed({"text": text, "archived": True}))

    @pytest.mark.parametrize("files", ["log", "events", "both"])
    def test_another_run_in_its_place_does_not_get_them(self, tmp_path: Path, files: str) -> None:
        run, other = make_run(tmp_path, "ball"), make_run(tmp_path / "elsewhere", "ball", log=f"2025{LOG[4:]}")
        for each in (run, other):
            if files == "log":
                shutil.rmtree(each / "Ball")
            elif files == "events":
                (each / "run_logs" / "trainer.log").unlink()
        self.note(tmp_path)
        assert saved(tmp_path).notes.text == "of the first"
        shutil.rmtree(run)
        shutil.move(other, run)
        assert saved(tmp_path).notes == RunNotes()
        self.note(tmp_path, "of the second")
        assert saved(tmp_path).notes.text == "of the second"

    def test_they_stay_while_the_run_grows_and_is_resumed(self, tmp_path: Path) -> None:
        logs = tmp_path / "ball" / "run_logs"
        logs.mkdir(parents=True)
        (logs / "trainer.log").write_text(LOG[:200].rpartition("\n")[0])
        self.note(tmp_path)
        with (logs / "trainer.log").open("a") as log:
            log.write(f"\n2026-01-01 10:00:06 INFO [loop.py:1] More.\n2026-02{LOG[7:]}")
        write_events(tmp_path / "ball" / "Ball", [(1, {"a": 1.0})])
        assert saved(tmp_path).notes.text == "of the first"
        self.note(tmp_path, "with its curves")
        write_events(tmp_path / "ball" / "Ball", [(2, {"a": 1.0})], resumed_at=1)
        (logs / "trainer.log").unlink()
        assert saved(tmp_path).notes.text == "with its curves"

    def test_they_stay_when_a_long_log_goes_on_in_another_file(self, tmp_path: Path) -> None:
        logs = tmp_path / "ball" / "run_logs"
        logs.mkdir(parents=True)
        (logs / "trainer.log").write_text(LOG)
        self.note(tmp_path)
        (logs / "trainer.log").rename(logs / "trainer.log.1")
        (logs / "trainer.log").write_text(f"2026-02{LOG[7:]}")
        assert saved(tmp_path).notes.text == "of the first"

    def test_a_copy_with_its_notes_keeps_them(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, "ball")
        self.note(tmp_path)
        backup = tmp_path / "backup"
        backup.mkdir()
        shutil.copytree(run, backup / "ball")
        shutil.copy(notes_file(run), notes_file(backup / "ball"))
        assert saved(backup).notes == saved(tmp_path).notes

    def test_files_of_the_first_version_do_not_say_it(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, "ball")
        notes_file(run).write_text('{"text": "old", "labels": ["a"], "archived": false}')
        assert saved(tmp_path).notes == RunNotes("old", ("a",))

    def test_a_page_cannot_change_it(self) -> None:
        with pytest.raises(ValueError, match="Notes do not have about"):
            RunNotes().changed({"about": ["log x"]})

    def test_a_run_that_was_deleted_gets_none(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="the run was deleted"):
            self.note(tmp_path)
        assert list(tmp_path.iterdir()) == []
