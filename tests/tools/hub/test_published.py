"""Nothing of the machine and its user is published with a run."""

from __future__ import annotations

import io
import os
import socket
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from tests.cli.test_export import saved
from tests.experience.recordings.making import write_demo
from tests.hub_stand_in import Hub, serving
from tests.policies.onnx.test_onnx import random_actor
from tests.ports import free_ports
from tests.tools.bids import SPEC
from trajtrainer import testing
from trajtrainer.cli.main import main
from trajtrainer.core.filenames import EVENT_FILE_PREFIX
from trajtrainer.core.local_paths import without_folders
from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.event_file import EventFile
from trajtrainer.policies.folder.event_reader import EventRecordReader
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.policies.play.loaded_policy import load_policy
from trajtrainer.tools.hub.push import pack

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # as the command does, before the package is imported
pytest.importorskip("huggingface_hub", reason="the extra 'hub' is not installed")

import huggingface_hub.constants

ROOT = Path(__file__).resolve().parents[3]
PERSON, HOST = "zelda-quimby", "quimby-tower"
WORDS = (PERSON, HOST, "Secret Project", "Own Games", "Recordings")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", "hf_secretSecretSecret")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)  # the stand-in has the older storage
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of somebody, on a machine of theirs."""
    folder = tmp_path / "home" / PERSON
    folder.mkdir(parents=True)
    for name, value in {"HOME": str(folder), "USERPROFILE": str(folder), "USER": PERSON, "LOGNAME": PERSON}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    return folder


def build(folder: Path) -> Path:
    """A program that plays Duel, whatever --config it is given."""
    folder.mkdir()
    path = folder / "Duel.x86_64"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from trajtrainer.envs.sim.__main__ import main\n"
        "sys.exit(main(['Duel', *(word for word in sys.argv[1:] if '--config' not in word)]))\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def trained(home: Path) -> Path:
    """Results with a run that has a path wherever one can be given."""
    results, game = home / "Secret Project" / "results", build(home / "Own Games")
    demo = home / "Recordings" / "of play.demo"
    demo.parent.mkdir()
    learn_(results, "first", game, {"max_steps": 60})
    spec = load_policy(results / "first" / "Duel.onnx").spec
    write_demo(demo, testing.random_steps(spec), spec, "Duel")
    self_play = {
        "save_steps": 50,
        "team_change": 200,
        "swap_steps": 20,
        "window": 2,
        "play_against_latest_model_ratio": 0.0,
        "opponents": [str(results / "first" / "Duel.onnx")],
    }
    signals = {"extrinsic": {"strength": 1.0}, "gail": {"strength": 0.1, "demo_path": str(demo), "encoding_size": 8}}
    learn_(results, "run", game, {"max_steps": 120, "self_play": self_play, "reward_signals": signals})
    return results


def learn_(results: Path, run_id: str, game: Path, trainer: dict[str, Any]) -> None:
    """Train in a process of its own, as the somebody of this environment."""
    results.mkdir(parents=True, exist_ok=True)
    settings = {
        "behaviors": {
            "Duel": {
                "trainer_type": "ppo",
                "hyperparameters": {"batch_size": 16, "buffer_size": 32},
                "network_settings": {"hidden_units": 8, "num_layers": 1},
                "summary_freq": 20,
                "checkpoint_interval": 40,
                **trainer,
            }
        },
        "env_settings": {
            "env_path": str(game),
            "env_args": [f"--config={game.parent / 'the game.json'}"],
            "base_port": free_ports(2),
        },
        "checkpoint_settings": {"run_id": run_id, "results_dir": str(results)},
        "torch_settings": {"device": "cpu"},
    }
    path = results / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    program = (
        f"import socket, sys\nsocket.gethostname = lambda: {HOST!r}\n"
        "from trajtrainer.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "learn", str(path)],
        cwd=results.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def contents(name: str, data: bytes) -> Iterator[bytes]:
    """The bytes of a file, and what is in it when it is unpacked."""
    yield name.encode()
    yield data
    if name.endswith(".pt"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                yield entry.filename.encode() + entry.comment
                yield archive.read(entry)
    if name.endswith(".png"):
        with Image.open(io.BytesIO(data)) as image:
            yield repr(image.info).encode()


@pytest.mark.skipif(sys.platform == "win32", reason="the build is a script")
@pytest.mark.filterwarnings("ignore:.*content=:DeprecationWarning")  # of the hub's own package
def test_no_byte_tells_of_the_machine(hub: Hub, home: Path, tmp_path: Path) -> None:
    results = trained(home)
    typed = repr(yaml.safe_load((results / "run" / "configuration.yaml").read_text()))
    assert all(word in typed for word in (PERSON, "Own Games", "Recordings"))
    assert any(HOST in path.name for path in (results / "run" / "Duel").iterdir())

    assert main(["push", "run", "anna/duel", f"--results-dir={results}"]) == 0

    files = hub.models["anna/duel"]
    for name, data in files.items():
        for content in contents(name, data):
            for word in (*WORDS, str(tmp_path), str(results)):
                assert word.encode() not in content, f"{word} in {name}"
    # What the names say remains.
    settings = yaml.safe_load(files["configuration.yaml"])
    duel = settings["behaviors"]["Duel"]
    assert settings["env_settings"]["env_path"] == "Duel.x86_64"
    assert settings["env_settings"]["env_args"] == ["--config=the game.json"]
    assert duel["self_play"]["opponents"] == ["Duel.onnx"]
    assert duel["reward_signals"]["gail"]["demo_path"] == "of play.demo"
    state = torch.load(io.BytesIO(files["Duel/checkpoint.pt"]), weights_only=True)
    assert "Duel.onnx" in state["trajtrainer"]["self_play"]["ratings"]

    # The files themselves have nothing to hide, except for the name of an event file.
    (own,) = (results / "run" / "Duel").glob(f"{EVENT_FILE_PREFIX}*")
    (pushed,) = (tmp_path / name for name in files if EVENT_FILE_PREFIX in name)
    pushed.parent.mkdir()
    pushed.write_bytes(files[f"Duel/{pushed.name}"])
    assert pushed.read_bytes() == own.read_bytes()
    assert files["Duel/checkpoint.pt"] == (results / "run" / "Duel" / "checkpoint.pt").read_bytes()
    before = records(pushed)
    assert len(list(LegacyEventFileLoader(str(pushed)).Load())) == len(before)  # TensorBoard checks all checksums
    assert main(["pull", "anna/duel", f"--results-dir={tmp_path / 'theirs'}"]) == 0
    assert main(["export", "duel", f"--results-dir={tmp_path / 'theirs'}"]) == 0


def records(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return list(EventRecordReader(path).records(file))


def test_what_an_earlier_version_wrote_is_left_out(hub: Hub, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It wrote whole paths into event files and checkpoints."""
    run = home / "results" / "old"
    saved(run / "Bids" / "checkpoint.pt", {"opponent": f"{home}/x.onnx"})
    saved(run / "Bids" / "best.pt", {"opponent": "x.onnx"})
    export_policy(random_actor(SPEC), SPEC, run / "Bids.onnx")
    events = EventFile(run / "Bids")
    events.add([event_file.scalar("Reward", 1.5)], 1)
    events.add([event_file.text("Notes", f"see {home}/notes.md")], 2)
    events.add([event_file.hparams_begin({"a": {"demo": f"{home}/x y.demo"}, "n": 3})], 3)
    events.add([event_file.scalar("Reward", 2.5)], 4)
    events.close()
    (path,) = (run / "Bids").glob(f"{EVENT_FILE_PREFIX}*")
    with path.open("ab") as file:
        file.write(event_file.record(Event(step=6))[:-3])  # a run that was killed

    folder = home / "packed"
    folder.mkdir()
    pack(run, "anna/old", folder)

    files = {each.relative_to(folder).as_posix(): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    assert not [name for name, content in files.items() if PERSON.encode() in content]
    assert {"Bids.onnx", "Bids/best.pt"} <= files.keys()
    assert "Bids/checkpoint.pt" not in files
    assert "checkpoint.pt contains an absolute path of this machine, so it is not uploaded" in caplog.text
    (packed,) = (folder / "Bids").glob(f"{EVENT_FILE_PREFIX}*")
    assert HOST not in packed.name
    assert records(packed) == [records(path)[number] for number in (0, 1, 4)]


@pytest.mark.parametrize(
    ("value", "cut"),
    [
        ("/home/anna/My Games/x.demo", "x.demo"),
        ("C:\\Users\\anna\\x y.exe", "x y.exe"),
        ("\\\\server\\anna\\x.demo", "x.demo"),
        ("~/Games/x.demo", "x.demo"),
        ("~anna/Games/x.demo", "x.demo"),
        ("--config=/home/anna/My Games/x.json", "--config=x.json"),
        ("pack.module:Wrapper a=/home/anna/x.json b=/home/anna/y.json", "pack.module:Wrapper a=x.json b=y.json"),
        ("sqlite:////home/anna/mlflow.db", "sqlite:///mlflow.db"),
        ("sqlite:///C:/Users/anna/mlflow.db", "sqlite:///mlflow.db"),
        ("file:///home/anna/my runs", "file:///my runs"),
        ("https://anna:secret@mlflow.example.org/a/b", "https://mlflow.example.org/a/b"),
        ("python:/home/anna/env.py:Env", "python:env.py:Env"),
        ("['/home/anna/a', 'C:\\\\Users\\\\anna\\\\b']", "['a', 'b']"),
        ("results", "results"),
        ("gym:ALE/Pong-v5", "gym:ALE/Pong-v5"),
        ("sim:3DBall", "sim:3DBall"),
        ("1.00 +/- 0.5 and/or a/b", "1.00 +/- 0.5 and/or a/b"),
        (3, 3),
    ],
)
def test_of_a_path_the_last_part_stays(value: Any, cut: Any) -> None:
    assert without_folders({"a": [value]}) == {"a": [cut]}
