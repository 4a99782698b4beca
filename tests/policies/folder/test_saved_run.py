"""The reader of a run on disk: settings, status, timers and log, whatever state they are in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.policies.folder.runs import REWARD, make_run, write_events
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.saved_run import SavedRun, is_run, shown_setting
from trajtrainer.policies.folder.series import read_scalars


def test_everything_of_a_run(tmp_path: Path) -> None:
    make_run(tmp_path, "a/ball")
    run = SavedRun(ContainedFolder(tmp_path), ("a", "ball"))
    assert (run.run_id, run.path) == ("a/ball", tmp_path / "a" / "ball")
    assert run.configuration.nested["behaviors"]["Ball"]["max_steps"] == 2000
    assert run.configuration.flat["behaviors.Ball.max_steps"] == 2000
    assert "metadata" not in run.sections
    assert run.sections["mass"]["lesson_num"] == 1
    assert run.timers["total"] > 0
    assert [each.kind for each in run.log.records] == ["start", "restart", "warning"]
    assert run.behavior_folders() == ["Ball"]
    assert (run.curves.read_on(10.0), run.curves.share_read) == (True, 1.0)
    assert run.curves.behaviors["Ball"].curves[REWARD].num_points == 20
    assert run.holder() is None
    assert run.problems == []
    own = SavedRun(ContainedFolder(tmp_path / "a" / "ball"))
    assert (own.run_id, own.configuration) == ("ball", run.configuration)


def test_an_empty_folder_is_no_run(tmp_path: Path) -> None:
    folder = ContainedFolder(tmp_path)
    run = SavedRun(folder)
    assert not is_run(folder, ())
    assert (run.configuration, run.sections, run.timers, run.log.records, run.problems) == (({}, {}), {}, {}, [], [])


@pytest.mark.parametrize("content", [b"", b"[", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_a_problem_and_its_last_whole_content_counts(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run_logs" / "timers.json"
    path.parent.mkdir()
    path.write_bytes(content)
    run = SavedRun(ContainedFolder(tmp_path))
    assert run.timers == {}
    assert run.problems == [f"{path} is damaged."]
    path.write_text(json.dumps({"total": 7}))
    assert run.timers == {"total": 7}
    assert run.problems == []
    path.write_bytes(content)
    assert run.timers == {"total": 7}
    assert run.problems == [f"{path} is damaged."]


def test_a_configuration_that_is_too_large_or_no_yaml_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "configuration.yaml"
    path.write_text("a: [")
    run = SavedRun(ContainedFolder(tmp_path))
    assert run.configuration == ({}, {})
    assert str(path) in run.problems[0]
    path.write_text(f"# {'x' * (1 << 23)}")
    assert run.configuration == ({}, {})
    assert "8,388,608 bytes" in run.problems[0]


def test_a_behavior_whose_folder_was_deleted_has_no_curves(tmp_path: Path) -> None:
    for name in ("Ball", "Wall"):
        write_events(tmp_path / name, [(1, {REWARD: 1.0})])
    curves = SavedRun(ContainedFolder(tmp_path)).curves
    assert curves.read_on(10.0)
    assert list(curves.behaviors) == ["Ball", "Wall"]
    before = curves.version
    shutil.rmtree(tmp_path / "Ball")
    assert curves.read_on(10.0)
    assert list(curves.behaviors) == ["Wall"]
    assert curves.version != before


def test_the_settings_of_one_behavior_are_flat(tmp_path: Path) -> None:
    (tmp_path / "configuration.yaml").write_text(
        "behaviors:\n  Ball: {max_steps: 7, hyperparameters: {normalize: true, beta: null}}\n  Wall: 3\n"
    )
    found = SavedRun(ContainedFolder(tmp_path)).configuration
    settings = found.of_behavior("Ball")
    assert settings == {"max_steps": 7, "hyperparameters.normalize": True, "hyperparameters.beta": None}
    assert [shown_setting(value) for value in settings.values()] == ["7", "true", "null"]
    assert found.of_behavior("Wall") == found.of_behavior("None") == {}


def test_a_number_that_no_one_typed_is_shown_with_six_digits() -> None:
    values = (0.0004329871230918273, 1.2345678901234567e-05, -0.12345678901234, 0.9999999, 3e-4, 1e-300, 10**18)
    assert [shown_setting(value) for value in values] == [
        "0.000432987",
        "1.23457e-05",
        "-0.123457",
        "0.9999999",
        "0.0003",
        "1e-300",
        "1000000000000000000",
    ]


def test_a_log_that_begins_in_the_middle_of_a_record(tmp_path: Path) -> None:
    (tmp_path / "run_logs").mkdir()
    lines = [
        "the end of a record that was cut off",
        "2026-11-25 10:00:00 WARNING [trajtrainer.run] Something",
        "  and more",
        "2026-11-25 10:00:01 DEBUG [trajtrainer.run] not shown",
        "nor is this",
    ]
    (tmp_path / "run_logs" / "trainer.log").write_text("\n".join(lines))
    (record,) = SavedRun(ContainedFolder(tmp_path)).log.records
    assert record.text == "Something\nand more"


def test_links_are_not_followed_but_the_run_itself_may_be_one(tmp_path: Path) -> None:
    write_events(tmp_path / "secret" / "Ball", [(1, {REWARD: 1.0})])
    (tmp_path / "secret" / "configuration.yaml").write_text("a: 1")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "Ball").symlink_to(tmp_path / "secret" / "Ball")
    (tmp_path / "run" / "configuration.yaml").symlink_to(tmp_path / "secret" / "configuration.yaml")
    run = SavedRun(ContainedFolder(tmp_path / "run"))
    assert (run.behavior_folders(), run.configuration.flat) == ([], {})
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    assert SavedRun(ContainedFolder(tmp_path / "link")).configuration.flat == {"a": 1}
    (event_file,) = (tmp_path / "secret" / "Ball").iterdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / event_file.name).symlink_to(event_file)
    assert read_scalars(tmp_path / "linked") == {}
    assert read_scalars(tmp_path / "link" / "Ball").keys() == {REWARD}


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_events(tmp_path / "Ball", [(1, {REWARD: 1.0})])

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "events")

    monkeypatch.setattr(ContainedFolder, "open", refuse)
    with pytest.raises(PermissionError):
        read_scalars(tmp_path / "Ball")
