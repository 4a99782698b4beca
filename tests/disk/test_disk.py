"""A sample of the campaign in which every file operation fails once: ``scripts/stress disk`` makes all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.disk import faults
from tests.disk.faults import MODES

ROOT = Path(__file__).parents[2]
SAMPLE = 1  # case of each kind

pytestmark = pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "it can be done here")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    library = faults.build(tmp_path_factory.mktemp("faults"))
    return {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


def run(program: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )


WRITING = """
import os, sys
from pathlib import Path
from tests.disk import faults
folder = Path(sys.argv[1])
faults.arm(folder, int(sys.argv[2]), sys.argv[3], folder.with_suffix(".log"))
file = os.open(folder / "a", os.O_WRONLY | os.O_CREAT)
print(os.write(file, b"0123456789"))
os.fsync(file)
os.rename(folder / "a", folder / "b")
print(os.write(file, b"0123456789"))
os.unlink(folder / "b")
"""


@pytest.mark.parametrize(
    ("number", "mode", "code", "output", "left"),
    [
        (9, "eio", 0, "10\n10\n", None),
        (0, "enospc", 1, "", None),
        (1, "enospc", 1, "5\n", None),  # what comes after a part of a write fails
        (1, "die", faults.EXIT_CODE, "", "01234"),
        (1, "eio", 1, "", ""),
        (2, "eio", 1, "10\n", "0123456789"),
        (3, "full", 1, "10\n", "0123456789"),
        (5, "die", faults.EXIT_CODE, "10\n10\n", "01234567890123456789"),
    ],
)
def test_an_operation_fails(
    number: int, mode: str, code: int, output: str, left: str | None, tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    program = WRITING if (number, mode) != (1, "enospc") else WRITING.replace("os.fsync(file)", "os.write(file, b'5')")
    done = run(["-u", "-c", program, str(folder), str(number), mode], environment)
    assert (done.returncode, done.stdout) == (code, output), done.stderr
    if left is not None:
        (path,) = folder.iterdir()
        assert path.read_text() == left
    names = [each.name for each in faults.operations(folder.with_suffix(".log"))]
    assert names == ["open", "write", "fsync", "rename", "write", "unlink"][: len(names)] or mode == "enospc"


@pytest.mark.slow
def test_whatever_fails_what_was_saved_before_is_there(tmp_path: Path, environment: dict[str, str]) -> None:
    for package, extra in (("optuna", "tune"), ("huggingface_hub", "hub"), ("matplotlib", "plot")):
        pytest.importorskip(package, reason=f"the extra {extra!r} is not installed")
    sample = ["-m", "tests.disk.campaign", f"--folder={tmp_path / 'campaign'}", f"--sample={SAMPLE}", "--seed=24"]
    done = run(sample, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| kind | " + " | ".join(MODES) + " |" in done.stdout
