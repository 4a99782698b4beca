"""Children end when their parent kills them or is gone, even if their interpreters do not react."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.envs.workers.stuck import WAYS, start

LIMIT_S = 300.0
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="named pipes and signals of POSIX")


class HeldPipe:
    """A named pipe into which each stuck child writes one byte. Its end shows that nothing holds it any more."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "held"
        os.mkfifo(self.path)

    def wait_for(self, children: int) -> None:
        self._reader = os.open(self.path, os.O_RDONLY)
        for _ in range(children):
            assert os.read(self._reader, 1) == b"\n"

    def wait_for_end(self) -> None:
        reader = threading.Thread(target=os.read, args=(self._reader, 1), daemon=True)
        reader.start()
        reader.join(LIMIT_S)
        assert not reader.is_alive(), "something still holds the pipe"


@pytest.fixture
def pipe(tmp_path: Path) -> HeldPipe:
    return HeldPipe(tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_a_kill_needs_nothing_from_the_child(pipe: HeldPipe, way: str) -> None:
    children = [start(pipe.path, way) for _ in range(2)]
    pipe.wait_for(len(children))
    for child in children:
        child.kill()
    pipe.wait_for_end()
    assert [child.bury() for child in children] == ["was killed by the signal SIGKILL"] * 2


@pytest.mark.parametrize("way", WAYS)
def test_a_burial_ends_what_a_child_has_started(pipe: HeldPipe, way: str) -> None:
    child = start(pipe.path, way)
    pipe.wait_for(1)
    assert child.bury(0.0) == "was killed by the signal SIGKILL"
    pipe.wait_for_end()


@pytest.mark.parametrize("way", WAYS)
def test_children_end_with_a_parent_that_is_killed(pipe: HeldPipe, way: str) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tests.envs.workers.stuck import start;"
        "children = [start(Path(sys.argv[1]), sys.argv[2]) for _ in range(2)]; time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(pipe.path), way]) as parent:
        pipe.wait_for(2)
        parent.kill()
    pipe.wait_for_end()


def test_a_signal_to_the_group_of_the_parent_does_not_reach_a_child(pipe: HeldPipe) -> None:
    child = start(pipe.path, "busy")
    pipe.wait_for(1)
    assert child.pid is not None
    assert os.getpgid(child.pid) == child.pid
    child.bury(0.0)
