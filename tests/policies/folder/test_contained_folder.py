"""Nothing outside of the results folder is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trajtrainer.policies.folder import contained_folder as folder_module
from trajtrainer.policies.folder.contained_folder import ContainedFolder, Parts


@pytest.fixture(params=[True, False], ids=["from folder to folder", "by path, as on Windows"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContainedFolder:
    if request.param and not folder_module._BY_DESCRIPTOR:
        pytest.skip("this system opens no folder from another one")
    monkeypatch.setattr(folder_module, "_BY_DESCRIPTOR", request.param)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("secret")
    results = tmp_path / "results"
    (results / "run").mkdir(parents=True)
    (results / "run" / "file").write_text("content")
    (results / "link").symlink_to(tmp_path / "secret", target_is_directory=True)
    (results / "run" / "link").symlink_to(tmp_path / "secret" / "file")
    (results / "run" / "inner").symlink_to("file")
    return ContainedFolder(results)


def test_what_is_inside_is_there(folder: ContainedFolder) -> None:
    assert [each.name for each in folder.entries(())] == ["run"]
    assert [(each.name, each.is_folder, each.size) for each in folder.entries(("run",))] == [("file", False, 7)]
    assert folder.tail(("run", "file"), 4) == b"tent"
    entry = folder.entry(("run", "file"))
    assert entry is not None
    assert entry.size == 7


@pytest.mark.parametrize(
    "parts",
    [
        ("..", "secret", "file"),
        ("run", "..", "..", "secret", "file"),
        ("../secret", "file"),
        ("run/../../secret/file",),
        ("/etc/hostname",),
        ("", "etc", "hostname"),
        (".", "run", "file"),
        ("link", "file"),
        ("run", "link"),
        ("run", "inner"),
        ("run", "file\0"),
        ("run",),
        (),
        ("gone", "file"),
    ],
)
def test_what_is_not_is_not(folder: ContainedFolder, parts: Parts) -> None:
    assert folder.tail(parts, 100) is None
    assert folder.tail(parts, 100) is None
    with pytest.raises((OSError, ValueError)), folder.open(parts):
        pass
    if parts != ("run",):
        assert folder.entry(parts) is None
        assert parts == () or folder.list(parts) == []


def test_a_pipe_keeps_nobody_waiting(folder: ContainedFolder) -> None:
    os.mkfifo(folder.path / "run" / "pipe")
    assert folder.tail(("run", "pipe"), 10) is None
    assert "pipe" not in [each.name for each in folder.entries(("run",))]


def test_the_results_folder_itself_may_be_a_link(folder: ContainedFolder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(folder.path, target_is_directory=True)
    assert ContainedFolder(tmp_path / "elsewhere").tail(("run", "file"), 10) == b"content"


def test_names_that_no_browser_could_ask_for_are_left_out(folder: ContainedFolder) -> None:
    (Path(os.fsdecode(os.fsencode(folder.path) + b"/run/\xff"))).write_text("x")
    assert [each.name for each in folder.entries(("run",))] == ["file"]
