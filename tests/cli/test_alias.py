"""The command ``mlagents-learn`` for scripts that call it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from trajtrainer.cli.alias import remove, write
from trajtrainer.cli.main import main
from trajtrainer.core.errors import RunFolderError

LAUNCHER = f"""#!{sys.executable}
import sys
from trajtrainer.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    launcher = tmp_path / "trajtrainer"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    (tmp_path / "trajtrainer.exe").write_bytes(b"MZ\0PK" + LAUNCHER.encode())
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="a launcher of POSIX")
def test_the_command_learns(scripts: Path) -> None:
    assert "now runs 'trajtrainer learn'" in write(scripts)

    done = subprocess.run([scripts / "mlagents-learn", "--help"], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("usage: trajtrainer learn ")
    write(scripts)  # again, of a newer version, say
    assert remove(scripts) == f"Removed {scripts / 'mlagents-learn'}."
    assert remove(scripts) == f"{scripts / 'mlagents-learn'} does not exist."


def test_on_windows_it_is_a_program(scripts: Path) -> None:
    write(scripts, ".exe")
    assert (scripts / "mlagents-learn.exe").read_bytes() == (scripts / "trajtrainer.exe").read_bytes()
    remove(scripts, ".exe")
    assert not (scripts / "mlagents-learn.exe").exists()


def test_the_command_of_mlagents_stays(scripts: Path) -> None:
    theirs = scripts / "mlagents-learn"
    theirs.write_text("from mlagents.trainers.learn import main")
    for change in (write, remove):
        with pytest.raises(
            RunFolderError, match="does not belong to trajtrainer; ML-Agents seems to be installed here"
        ):
            change(scripts)
    assert theirs.read_text() == "from mlagents.trainers.learn import main"


def test_what_cannot_be_read_stays(scripts: Path) -> None:
    (scripts / "mlagents-learn").mkdir()
    for change in (write, remove):
        with pytest.raises(RunFolderError, match=r"mlagents-learn cannot be read: .*It was not changed"):
            change(scripts)


def test_a_folder_that_cannot_be_changed(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(scripts)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(RunFolderError, match="mlagents-learn cannot be removed: Permission denied"):
        remove(scripts)
    with pytest.raises(RunFolderError, match="mlagents-learn cannot be written: Permission denied"):
        write(scripts)
    assert (scripts / "mlagents-learn").exists()


def test_an_environment_without_our_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert main(["alias"]) == 1
    assert "pip install trajtrainer" in capsys.readouterr().err
    assert main(["alias", "--remove"]) == 0
    assert os.listdir(tmp_path) == []
