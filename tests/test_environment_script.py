"""What the scripts install, tried with stand-ins for the index and the machine, and what they do without git."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 300.0
CPU = "2.13.0+cpu"
CUDA = "2.13.0"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="a script for POSIX shells")


def stand_in_wheel(version: str) -> bytes:
    """The smallest torch that pip takes."""
    content = BytesIO()
    folder = f"torch-{version}.dist-info"
    with zipfile.ZipFile(content, "w") as wheel:
        wheel.writestr(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{folder}/RECORD", "")
    return content.getvalue()


Answer = Callable[[BaseHTTPRequestHandler], None]


def serve_torch(version: str) -> Answer:
    name = f"torch-{version}-py3-none-any.whl"

    def answer(request: BaseHTTPRequestHandler) -> None:
        wanted = request.path.replace("%2B", "+")
        found = {"/torch/": f'<a href="/{name}">{name}</a>'.encode(), f"/{name}": stand_in_wheel(version)}.get(wanted)
        request.send_response(404 if found is None else 200)
        request.send_header("Content-Type", "text/html")
        request.end_headers()
        request.wfile.write(found or b"")

    return answer


def serve_a_login_page(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "text/html")
    request.end_headers()
    request.wfile.write(b"<html>Welcome to the hotel</html>")


@contextmanager
def index(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """An index on the loopback: its address, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


class Machine:
    """A machine whose programs ``uname`` and ``nvidia-smi`` answer as wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.has("uname", "echo Linux")
        self.has("nvidia-smi", "exit 9")

    def has(self, program: str, script: str) -> None:
        path = self._folder / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def torch_options(self, cpu_index: str) -> tuple[list[str], str]:
        """pip's options for torch, and what is told."""
        done = subprocess.run(
            [bash(), "-c", 'source scripts/environment.sh && torch_options "$1"', "-", sys.executable],
            cwd=ROOT,
            env={
                **os.environ,
                "PATH": f"{self._folder}{os.pathsep}{os.environ['PATH']}",
                "TORCH_CPU_INDEX": cpu_index,
                "NO_PROXY": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT_S,
        )
        return done.stdout.split(), done.stderr


def bash() -> str:
    found = shutil.which("bash")
    if found is None:
        pytest.skip("There is no bash here.")
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_gpu_the_cpu_index_is_taken(machine: Machine) -> None:
    with index(serve_torch(CPU)) as (address, asked):
        options, told = machine.torch_options(address)
    assert options == ["--extra-index-url", address]
    assert "without CUDA" in told
    assert "0.2 GB" in told
    assert asked == ["/torch/"]  # nothing of torch itself is fetched for the choice


def test_a_gpu_gets_cuda_and_nobody_is_asked(machine: Machine) -> None:
    machine.has("nvidia-smi", "echo 'GPU 0: NVIDIA'")
    with index(serve_torch(CPU)) as (address, asked):
        options, told = machine.torch_options(address)
    assert options == []
    assert "with CUDA: 4.9 GB" in told
    assert asked == []


def test_other_systems_have_no_cuda_to_avoid(machine: Machine) -> None:
    machine.has("uname", "echo Darwin")
    with index(serve_torch(CPU)) as (address, asked):
        options, told = machine.torch_options(address)
    assert options == []
    assert "0.2 GB" in told
    assert asked == []


def test_an_index_out_of_reach_is_told_with_the_size(machine: Machine) -> None:
    with index(serve_torch(CPU)) as (address, _):
        pass  # its port is closed again
    options, told = machine.torch_options(address)
    assert options == []
    assert address in told
    assert "4.9 GB" in told


def test_an_index_that_does_not_answer_is_given_up(machine: Machine) -> None:
    released = threading.Event()

    def wait(_: BaseHTTPRequestHandler) -> None:
        released.wait(LIMIT_S)

    with index(wait) as (address, asked):
        options, told = machine.torch_options(address)
        released.set()
    assert options == []
    assert "4.9 GB" in told
    assert asked == ["/torch/"]  # once: no retries


def test_a_page_that_is_no_index_is_none(machine: Machine) -> None:
    with index(serve_a_login_page) as (address, _):
        assert machine.torch_options(address)[0] == []


def test_an_index_without_the_pinned_version_is_none(machine: Machine) -> None:
    with index(serve_torch("2.9.0+cpu")) as (address, _):
        assert machine.torch_options(address)[0] == []


def test_pip_takes_the_build_without_cuda_of_both_indexes(machine: Machine, tmp_path: Path) -> None:
    with index(serve_torch(CUDA)) as (plain, _), index(serve_torch(CPU)) as (cpu, _):
        options, _ = machine.torch_options(cpu)
        command = [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps", "-c", "constraints.txt"]
        subprocess.run(
            [*command, "--dest", str(tmp_path), "--index-url", plain, *options, "torch"],
            cwd=ROOT,
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        )
    assert [path.name for path in tmp_path.glob("*.whl")] == [f"torch-{CPU}-py3-none-any.whl"]


SCRIPTS = [path.name for path in sorted((ROOT / "scripts").iterdir()) if path.is_file() and not path.suffix]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the repository as a download has it: without git, in a folder with a space in its name."""
    folder = tmp_path / "my copy"
    for name in ("scripts", "config"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_needs_no_installation(script: str, copy: Path) -> None:
    done = subprocess.run(
        [bash(), str(copy / "scripts" / script), "--help"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    comment = (copy / "scripts" / script).read_text(encoding="utf-8").splitlines()[1]
    assert done.stdout.splitlines()[0] == comment.removeprefix("# ")
    assert done.stderr == ""
    assert not (copy / ".venv").exists()


def test_help_of_the_benchmarks_names_all_parts(copy: Path) -> None:
    from scripts.benchmarks.__main__ import LONG, PARTS

    done = subprocess.run(
        [bash(), str(copy / "scripts" / "bench"), "-h"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert {*PARTS, *LONG} <= set(done.stdout.replace(",", " ").split())


def test_the_demo_works_in_a_copy_and_a_second_time(copy: Path) -> None:
    """Training is short: the configuration learns, but that is for other tests."""
    shutil.copytree(ROOT / "trajtrainer", copy / "trajtrainer")
    configuration = copy / "config" / "quick" / "3DBall.yaml"
    text, count = re.subn(r"max_steps: \d+", "max_steps: 2400", configuration.read_text(encoding="utf-8"))
    assert count == 1
    configuration.write_text(text, encoding="utf-8")
    virtual = copy / ".venv"
    (virtual / "bin").mkdir(parents=True)
    # As if it were installed: an installation takes minutes.
    (virtual / "installed-page").write_text(
        (copy / "pyproject.toml").read_text(encoding="utf-8") + (copy / "constraints.txt").read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    command = virtual / "bin" / "trajtrainer"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m trajtrainer "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    for _ in range(2):
        done = subprocess.run(
            [bash(), str(copy / "scripts" / "demo")],
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=10 * LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "trajtrainer page demo" in done.stdout
        assert (copy / "results" / "demo" / "3DBall.onnx").is_file()
