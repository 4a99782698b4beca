"""Names from outside never leave the results folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.filenames import behavior_file_name, behavior_of, check_run_id, open_regular
from trajtrainer.policies.folder.run_folder import RunFolder, behavior_exported_as
from trajtrainer.settings.run import CheckpointSettings

SAFE = ["3DBall", "My Behavior", "Läufer", "ボール", "a.b", "100%", "Basic-2", "SoccerTwos_v2"]
HOSTILE = ["../../x", "/etc/passwd", "..", ".", "a/b", "a\\b", "C:\\x", "a\0b", "CON", "nul.txt", "run_logs", "a\nb"]


@pytest.mark.parametrize("name", SAFE)
def test_safe_behavior_names_stay_as_they_are(name: str) -> None:
    assert behavior_file_name(name) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_behavior_names_become_plain_files(name: str) -> None:
    safe = behavior_file_name(name)
    assert safe != name
    assert behavior_of(safe) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Team/Red", "Team%2FRed"),
        ("Team%2FRed", "Team%252FRed"),
        ("..", "%2E%2E"),
        ("run_logs", "%72un_logs"),
        ("Ball.onnx", "Ball%2Eonnx"),
    ],
)
def test_how_names_are_written(name: str, expected: str) -> None:
    assert behavior_file_name(name) == expected


@pytest.mark.parametrize("name", ["100%FFx", "%C3", "%ED%A0", "a%80%2F"])
def test_a_folder_that_no_behavior_was_saved_to_keeps_its_name(name: str) -> None:
    assert behavior_of(name) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ALE/Pong-v5", "ALE_Pong-v5"), ("a::b", "a_b"), ("../x", "_._x"), ("3DBall", "3DBall"), ("100%", "100%")],
)
def test_the_model_for_unity_has_a_clean_name(tmp_path: Path, name: str, expected: str) -> None:
    run = RunFolder(CheckpointSettings(run_id="x", results_dir=str(tmp_path)))
    exported = run.behavior(name).exported
    assert exported == tmp_path / "x" / f"{expected}.onnx"
    assert behavior_exported_as(exported) == name


def test_two_behaviors_never_share_a_model(tmp_path: Path) -> None:
    run = RunFolder(CheckpointSettings(run_id="x", results_dir=str(tmp_path)))
    names = ["ALE/Pong", "ALE_Pong", "ALE:Pong", "Other/One"]
    folders = [run.behavior(name) for name in names]
    exported = {name: folder.exported.name for name, folder in zip(names, folders, strict=True)}
    assert exported == {
        "ALE/Pong": "ALE%2FPong.onnx",
        "ALE_Pong": "ALE_Pong.onnx",
        "ALE:Pong": "ALE%3APong.onnx",
        "Other/One": "Other_One.onnx",
    }
    assert [behavior_exported_as(folder.exported) for folder in folders] == names


def test_a_run_of_0_1_0_keeps_the_name_of_its_model(tmp_path: Path) -> None:
    run = RunFolder(CheckpointSettings(run_id="x", results_dir=str(tmp_path)))
    folder = run.behavior("ALE/Pong-v5")
    old = tmp_path / "x" / "ALE%2FPong-v5.onnx"
    old.touch()
    assert folder.exported == old
    assert behavior_exported_as(old) == "ALE/Pong-v5"


@settings(deadline=None)
@given(st.text(min_size=1, max_size=20) | st.text("./\\%2eEFfconrunlgs_x:", min_size=1, max_size=12))
@example("%2F/")
@example(". ")
@example("%2.onnx")
def test_no_name_leaves_its_folder_and_no_two_share_one(name: str) -> None:
    safe = behavior_file_name(name)
    assert behavior_of(safe) == name
    assert Path("results/run", safe).parent == Path("results/run")
    assert not re.search(r'[<>:"/\\|?*\x00-\x1f]', safe)
    assert safe not in (".", "..", "run_logs", "configuration.yaml")
    assert safe[0] not in ". "
    assert safe[-1] not in ". "
    safe.encode()
    assert len(f"{safe}-{10**17}.onnx".encode()) <= 255


@pytest.mark.parametrize("name", ["", "x" * 200, "ボ" * 70])
def test_impossible_behavior_names_are_refused(name: str) -> None:
    with pytest.raises(RunFolderError, match="name"):
        behavior_file_name(name)


@pytest.mark.parametrize("run_id", ["ppo", "3DBall-1", "experiments/lr3/ppo", "run 7", "läufe", "12:30"])
def test_run_ids_inside_the_results_folder_are_fine(run_id: str) -> None:
    assert check_run_id(run_id, windows=False) == run_id


@pytest.mark.parametrize(
    "run_id",
    [
        "",
        ".",
        "..",
        "../x",
        "a/../../x",
        "/tmp/x",
        "a//b",
        "a/",
        "a\\b",
        "a\0b",
        "NUL",
        "a/con.x",
        "x.",
        "y ",
        "z" * 300,
    ],
)
@pytest.mark.parametrize("windows", [False, True])
def test_run_ids_that_leave_it_are_refused(run_id: str, windows: bool) -> None:
    with pytest.raises(RunFolderError, match="--run-id"):
        check_run_id(run_id, windows=windows)


def test_windows_forbids_more() -> None:
    with pytest.raises(RunFolderError, match="':'"):
        check_run_id("C:x", windows=True)


def test_the_option_is_named() -> None:
    with pytest.raises(RunFolderError, match=r"--initialize-from '\.\./x'"):
        check_run_id("../x", "--initialize-from")


@settings(deadline=None)
@given(st.text(max_size=30) | st.text("./\\ax:", max_size=10))
def test_an_accepted_run_id_stays_inside(run_id: str) -> None:
    try:
        check_run_id(run_id)
    except RunFolderError:
        return
    path = Path("/results") / run_id
    assert path.parts[:2] == Path("/results").parts
    assert ".." not in path.parts
    assert len(path.parts) > 2


def test_a_regular_file_is_opened_and_a_link_to_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    names = ["file", "link"] if (tmp_path / "link").exists() else ["file"]  # links of Wine lead nowhere
    for name in names:
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"content"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_a_pipe_or_a_folder_is_refused_at_once_and_leaves_nothing_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    free = os.dup(0)
    os.close(free)
    with pytest.raises(OSError, match="a pipe or a device; use a file on disk"):
        open_regular(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    again = os.dup(0)
    os.close(again)
    assert again == free
