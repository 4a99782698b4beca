"""The notebooks run from the first cell to the last, in a kernel, as a user runs them, one after the other.

Local servers stand for those of builds and of the hub. Training is short, because the values of the cell with the tag
``parameters`` are replaced.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.hub_stand_in import Hub, serving
from tests.test_packaging import build
from trajtrainer.cli.commands import COMMANDS

nbclient = pytest.importorskip("nbclient", reason="nbclient, nbformat or ipykernel is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbclient, nbformat or ipykernel is not installed")
jupyter_client = pytest.importorskip("jupyter_client", reason="nbclient, nbformat or ipykernel is not installed")
pytest.importorskip("ipykernel", reason="nbclient, nbformat or ipykernel is not installed")
pytest.importorskip("huggingface_hub", reason="the extra 'hub' is not installed")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
COURSE = {
    "course-huggy": "Huggy",
    "course-snowball-target": "SnowballTarget",
    "course-pyramids": "Pyramids",
    "course-soccer-twos": "SoccerTwos",
}
LIMIT_S = 300
OWNER = "anna" if "push" in COMMANDS else ""  # nothing is pushed without a name
# A build of the course: a built-in simulation under the name of the course's behavior.
PLAYER = """#!{python}
import sys
from trajtrainer.envs.sim.__main__ import main
from trajtrainer.envs.sim.registry import SIMULATIONS
SIMULATIONS["{behavior}"] = SIMULATIONS["Chase"]
sys.exit(main(["{behavior}", *{options}, *sys.argv[1:]]))
"""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def tagged(notebook: Any, tag: str) -> Any:
    (cell,) = (cell for cell in notebook.cells if tag in cell.metadata.get("tags", []))
    return cell


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that has a build of each behavior, as a .zip without the right to run it."""
    folder = tmp_path_factory.mktemp("builds")
    for behavior in COURSE.values():
        options = ["--teams", "2"] if behavior == "SoccerTwos" else []
        program = PLAYER.format(python=sys.executable, behavior=behavior, options=options)
        with zipfile.ZipFile(folder / f"{behavior}.zip", "w") as archive:
            archive.writestr(f"{behavior}/{behavior}.x86_64", program)
            archive.writestr(f"{behavior}/UnityPlayer.so", "")
            archive.writestr(f"__MACOSX/{behavior}/._{behavior}.x86_64", "")

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub, where someone is logged in, and an environment that leaves the user's own files alone."""
    own = tmp_path_factory.mktemp("own")
    bin_folder = str(Path(sys.executable).parent)
    python_path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    values = {
        "HF_TOKEN": "hf_secretSecretSecret",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(own / "hf"),
        "IPYTHONDIR": str(own / "ipython"),
        "JUPYTER_CONFIG_DIR": str(own / "jupyter"),
        "JUPYTER_DATA_DIR": str(own / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PATH": os.pathsep.join([bin_folder, os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(python_path),
    }
    with pytest.MonkeyPatch.context() as patch, serving() as hub:
        for name, value in values.items():
            patch.setenv(name, value)
        patch.delenv("CI", raising=False)  # with which there is no progress view
        patch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def hub(world: Hub) -> Hub:
    """The hub, without a model."""
    world.models.clear()
    return world


@pytest.fixture(scope="module")
def kernel(world: Hub) -> Iterator[Any]:
    """One for all notebooks, as it takes seconds to import torch; ``run`` lets each notebook find it empty."""
    manager = jupyter_client.AsyncKernelManager(kernel_name="python3")
    yield manager
    nbclient.util.run_sync(manager.shutdown_kernel)(now=True)


def run(name: str, kernel: Any, folder: Path, parameters: Mapping[str, object]) -> Any:
    """Run a notebook in a folder with some of its parameters replaced. Returns it with its outputs."""
    notebook = read(ROOT / "notebooks" / f"{name}.ipynb")
    given = tagged(notebook, "parameters")
    known = re.findall(r"^([A-Z]+) = ", given.source, re.MULTILINE)
    assert parameters.keys() <= set(known)
    notebook.cells.insert(
        notebook.cells.index(given) + 1,
        nbformat.v4.new_code_cell("\n".join(f"{key} = {value!r}" for key, value in parameters.items())),
    )
    tagged(notebook, "install").source = ""  # test_the_cell_that_installs runs it
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {folder}"))
    execute(notebook, kernel, folder)
    return notebook


def execute(notebook: Any, kernel: Any, folder: Path) -> None:
    client = nbclient.NotebookClient(
        notebook, km=kernel, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    try:
        client.execute()
    finally:
        if client.kc is not None:  # else the client has closed them
            client.kc.stop_channels()


def printed(cell: Any) -> str:
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(map(str, texts))


def assert_pushed(hub: Hub, model: str, notebook: Any, files: set[str]) -> None:
    """The notebook has pushed these files, and others, if there is somebody who can."""
    if OWNER:
        assert f"The run is at {hub.url}/{OWNER}/{model}." in printed(tagged(notebook, "push"))
        assert files <= set(hub.models[f"{OWNER}/{model}"])


def test_every_notebook_is_run_here() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"first-policy", "gymnasium", "unity-build", *COURSE}


def test_first_policy(hub: Hub, kernel: Any, tmp_path: Path) -> None:
    notebook = run("first-policy", kernel, tmp_path, {"OWNER": OWNER})
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    data = [output.data for output in outputs if "data" in output]
    assert any("image/png" in each for each in data)
    assert any("100%" in each.get("text/plain", "") for each in data), "no progress view"
    reward = next(float(each["text/plain"]) for each in data if re.fullmatch(r"-?\d\.\d+", each.get("text/plain", "")))
    assert reward > 0.7, "it has not learned"
    assert_pushed(hub, "ppo-Basic", notebook, {"Basic.onnx", "README.md", "Basic/checkpoint.pt"})


def test_gymnasium(hub: Hub, kernel: Any, tmp_path: Path) -> None:
    notebook = run("gymnasium", kernel, tmp_path, {"OWNER": OWNER, "STEPS": 3000})
    total = next(cell for cell in notebook.cells if cell.source.endswith("\ntotal"))
    assert 8 <= float(printed(total)) <= 200
    assert_pushed(hub, "ppo-CartPole", notebook, {"README.md"})


@pytest.mark.parametrize("kind", ["address", "archive", "folder"])
def test_unity_build(kind: str, hub: Hub, kernel: Any, builds: str, tmp_path: Path) -> None:
    build = f"{builds}/Huggy.zip"
    if kind != "address":
        notebook = read(ROOT / "notebooks" / "unity-build.ipynb")
        names: dict[str, Any] = {"BUILD": build}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            exec(tagged(notebook, "build").source, names)
            source = Path("builds/build.zip") if kind == "archive" else Path("builds/Huggy")
            names["BUILD"] = str(source)
            exec(tagged(notebook, "build").source, names)
        assert names["program"] == tmp_path / "builds" / "Huggy" / "Huggy.x86_64"
        assert os.access(names["program"], os.X_OK)
        return
    notebook = run("unity-build", kernel, tmp_path, {"BUILD": build, "BEHAVIOR": "Huggy", "STEPS": 3000})
    assert (hub.models, printed(tagged(notebook, "push"))) == ({}, ""), "it has no name on the hub"
    assert (tmp_path / "results" / "game" / "Huggy.onnx").is_file()


@pytest.mark.parametrize("name", COURSE)
def test_course(name: str, hub: Hub, kernel: Any, builds: str, tmp_path: Path) -> None:
    behavior = COURSE[name]
    notebook = run(name, kernel, tmp_path, {"BUILD": f"{builds}/{behavior}.zip", "STEPS": 1000, "OWNER": OWNER})
    model = "poca-SoccerTwos" if behavior == "SoccerTwos" else f"ppo-{behavior}"
    assert_pushed(hub, model, notebook, {f"{behavior}.onnx", f"{behavior}/checkpoint.pt"})
    assert (tmp_path / "results" / behavior / "configuration.yaml").is_file()


def test_the_cell_that_installs(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this checkout in place of an index, and no dependencies."""
    build("wheel", tmp_path)
    options = {
        "NO_INDEX": "1", "NO_DEPS": "1", "FIND_LINKS": str(tmp_path), "TARGET": str(tmp_path / "site"),
        "DISABLE_PIP_VERSION_CHECK": "1", "ROOT_USER_ACTION": "ignore", "NO_CACHE_DIR": "1",
    }  # fmt: skip
    for name, value in options.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    notebook = read(ROOT / "notebooks" / "first-policy.ipynb")
    look = "import sys; sys.path.insert(0, 'site'); import trajtrainer; print(trajtrainer.__file__)"
    notebook.cells = [tagged(notebook, "install"), nbformat.v4.new_code_cell(look)]
    execute(notebook, None, tmp_path)
    assert printed(notebook.cells[1]).strip() == str(tmp_path / "site" / "trajtrainer" / "__init__.py")


def test_without_a_name_on_the_hub_nothing_is_pushed(hub: Hub) -> None:
    for path in NOTEBOOKS:
        cells = [tagged(read(path), tag).source for tag in ("login", "push")]
        assert all(re.search(r"^if OWNER", cell, re.MULTILINE) for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestForm:
    def test_it_is_valid_and_has_no_outputs(self, path: Path) -> None:
        notebook = read(path)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(not cell.outputs and cell.execution_count is None for cell in code)
        assert (
            path.read_text(encoding="utf-8")
            == json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=1, ensure_ascii=False) + "\n"
        )

    def test_one_cell_each_to_install_to_train_and_to_push(self, path: Path) -> None:
        notebook = read(path)
        source = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        assert source.count("pip install") == 1
        assert source.count("trajtrainer push") == 1
        assert tagged(notebook, "install").source.startswith("%pip install")

    def test_the_extras_that_it_installs_exist(self, path: Path) -> None:
        (extras,) = re.findall(r'"trajtrainer(?:\[([\w,]+)\])?"', tagged(read(path), "install").source)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert set(filter(None, extras.split(","))) <= project["optional-dependencies"].keys()
        assert project["requires-python"] == ">=3.11"

    def test_all_get_their_builds_with_the_same_cell(self, path: Path) -> None:
        cells = [cell.source for cell in read(path).cells if "build" in cell.metadata.get("tags", [])]
        expected = tagged(read(ROOT / "notebooks" / "unity-build.ipynb"), "build").source
        assert cells == ([expected] if path.stem in {*COURSE, "unity-build"} else [])
