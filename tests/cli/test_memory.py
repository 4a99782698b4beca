"""Commands that find too little memory end in one message."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trajtrainer.cli import inspect
from trajtrainer.cli.main import main

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
from trajtrainer.cli.main import main
sys.exit(main(["export", "none.pt"]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux limits the address space")
def test_too_little_address_space_for_torch() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: There is not enough memory for this command")
    assert "Traceback" not in done.stderr


def test_memory_that_runs_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fill(_: object) -> int:
        raise MemoryError("Unable to allocate 9.00 TiB")

    monkeypatch.setattr(inspect, "run", fill)
    assert main(["inspect", "x.onnx"]) == 1
    assert "not enough memory for this command (Unable to allocate 9.00 TiB)" in capsys.readouterr().err


def test_modules_that_are_missing_are_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise ImportError("No module named 'other'")

    monkeypatch.setattr(inspect, "run", fail)
    with pytest.raises(ImportError, match="other"):
        main(["inspect", "x.onnx"])
