"""training_status.json, in ML-Agents' format."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajtrainer.policies.folder.run_folder import BehaviorFolder
from trajtrainer.policies.folder.status import (
    CheckpointRecord,
    TrainingStatus,
    finite_or_none,
    installed_version,
    origin_of,
    write_origin,
)

FOLDER = BehaviorFolder("Ball", "Ball", Path("results/x/Ball"))


def reloaded(status: TrainingStatus) -> dict[str, Any]:
    status.save()
    assert status.path is not None
    content: dict[str, Any] = json.loads(status.path.read_text())
    return content


@pytest.mark.parametrize("run", ["ppo_continuous", "ppo_discrete_two_behaviors"])
def test_mlagents_file_is_read_and_written_as_it_was(shared_data: Path, tmp_path: Path, run: str) -> None:
    golden = json.loads((shared_data / "golden" / "runs" / run / "run_logs" / "training_status.json").read_text())
    status = TrainingStatus(tmp_path / "status.json")
    for name, entry in golden.items():
        if "lesson_num" in entry:
            status.set_lesson(name, entry["lesson_num"])
        elif "checkpoints" in entry:
            root = Path("results") / run
            folder = BehaviorFolder(name, name, root / name)
            records = [CheckpointRecord.from_json(each) for each in entry["checkpoints"]]
            kept = [record for record in records if record]
            status.set_checkpoints(folder, kept, kept[-1])
    mine = reloaded(status)
    versions = mine.pop("metadata")
    assert versions.keys() == golden.pop("metadata").keys()
    assert versions["stats_format_version"] == "0.3.0"
    assert versions["mlagents_version"] == "1.1.0"
    assert json.dumps(mine) == json.dumps(golden), "values and the order of the keys"
    assert (tmp_path / "status.json").read_text().startswith('{\n    "')


def test_what_was_saved_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    status = TrainingStatus(tmp_path / "status.json")
    status.set_lesson("mass", 2)
    status.set_elo("Ball", 1213.5)
    records = [CheckpointRecord(10, None, 1.5), CheckpointRecord(20, -1.25, 2.5)]
    status.set_checkpoints(FOLDER, records)
    status.save()
    again = TrainingStatus.load(tmp_path / "status.json")
    assert (again.lesson("mass"), again.lesson("Ball"), again.lesson("new")) == (2, None, None)
    assert (again.elo("Ball"), again.elo("new")) == (1213.5, None)
    assert again.checkpoints("Ball") == records
    assert again.checkpoints("new") is None
    assert caplog.text == ""


def test_a_parameter_and_a_behavior_of_one_name_share_their_entry(tmp_path: Path) -> None:
    status = TrainingStatus(tmp_path / "status.json")
    for name in ("Ball", "metadata"):
        folder = BehaviorFolder(name, name, Path(name))
        status.set_lesson(name, 1)
        status.set_checkpoints(folder, [CheckpointRecord(10, 1.0, 1.0)])
    status.save()
    again = TrainingStatus.load(tmp_path / "status.json")
    for name in ("Ball", "metadata"):
        assert again.lesson(name) == 1
        assert again.checkpoints(name) == [CheckpointRecord(10, 1.0, 1.0)]


def test_the_reason_of_an_early_end_is_cleared_when_training_continues(tmp_path: Path) -> None:
    status = TrainingStatus(tmp_path / "status.json")
    status.set_stopped("Ball", {"reason": "threshold"})
    status.set_evaluation("Ball", {"reward": 2.5})
    status.set_training("Ball", {"reward": 1.5})
    assert reloaded(status)["Ball"] == {
        "stopped": {"reason": "threshold"},
        "evaluation": {"reward": 2.5},
        "training": {"reward": 1.5},
    }
    status.set_stopped("Ball", None)
    assert "stopped" not in reloaded(status)["Ball"]


@pytest.mark.parametrize(
    ("value", "number"),
    [(3, 3.0), (-0.5, -0.5), (True, None), ("3", None), (float("nan"), None), (float("inf"), None), (10**400, None)],
)
def test_a_number_as_json_can_hold_it(value: object, number: float | None) -> None:
    assert finite_or_none(value) == number


def test_a_downloaded_run_says_where_it_is_from_in_every_folder(tmp_path: Path) -> None:
    inner = tmp_path / "ball" / "Ball"
    inner.mkdir(parents=True)
    assert origin_of(inner) is None
    write_origin(tmp_path / "ball", "hf.co/someone/ball")
    assert origin_of(inner) == origin_of(tmp_path / "ball") == "hf.co/someone/ball"
    assert origin_of(tmp_path) is None


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert installed_version("no-such-package-anywhere") == "unknown"
    assert installed_version("numpy")[0].isdigit()


def test_entries_that_nobody_asks_for_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    path.write_text(json.dumps({"gone": {"lesson_num": 4}, "metadata": {}}))
    assert reloaded(TrainingStatus.load(path))["gone"] == {"lesson_num": 4}


@pytest.mark.parametrize(
    ("content", "warning"),
    [(None, "not found"), (b"", "damaged"), (b'{"a": {"les', "damaged"), (b"\xff\xfe", "damaged"), (b"[1]", "no JSON")],
)
def test_a_missing_or_damaged_file_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, warning: str
) -> None:
    path = tmp_path / "status.json"
    if content is not None:
        path.write_bytes(content)
    status = TrainingStatus.load(path)
    assert warning in caplog.text
    assert status.checkpoints("Ball") is None
    assert reloaded(status).keys() == {"metadata"}


def test_other_versions_are_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "status.json"
    path.write_text(json.dumps({"metadata": {"stats_format_version": "0.3.0", "mlagents_version": "0.28.0"}}))
    TrainingStatus.load(path)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "ML-Agents version 0.28.0" in caplog.text
    caplog.clear()
    path.write_text("{}")
    TrainingStatus.load(path)
    assert "has no version" in caplog.text


def test_paths_in_the_file_are_not_believed() -> None:
    record = CheckpointRecord.from_json(
        {"steps": 5, "file_path": "/etc/passwd", "auxillary_file_paths": ["../../x"], "reward": 1, "creation_time": 2}
    )
    assert record == CheckpointRecord(5, 1.0, 2.0)
    assert record.to_json(FOLDER)["auxillary_file_paths"] == ["results/x/Ball/Ball-5.pt"]


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "file" / "status.json"
    path.parent.write_text("where a folder should be")
    TrainingStatus(path).save()
    assert f"{path} could not be written: File exists." in caplog.messages


def test_inference_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    path.write_text('{"mass": {"lesson_num": 1}, "metadata": {}}')
    status = TrainingStatus.load(path, writes=False)
    status.set_lesson("mass", 2)
    status.save()
    assert json.loads(path.read_text())["mass"] == {"lesson_num": 1}
    TrainingStatus(None).save()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["steps", "reward", "creation_time", "file_path", "auxillary_file_paths"]
ENTRY = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["lesson_num", "elo", "checkpoints", "final_checkpoint"]), JSON | st.lists(ENTRY, max_size=3)
    )
)
def test_rubbish_in_the_file_never_ends_a_run(tmp_path_factory: pytest.TempPathFactory, entry: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("status") / "status.json"
    path.write_text(json.dumps({"Ball": entry, "metadata": {}}))
    status = TrainingStatus.load(path)
    lesson, elo = status.lesson("Ball"), status.elo("Ball")
    assert lesson is None or lesson >= 0
    assert elo is None or isinstance(elo, float)
    for record in status.checkpoints("Ball") or []:
        assert 0 <= record.steps < 10**18
        json.dumps(record.to_json(FOLDER), allow_nan=False)
