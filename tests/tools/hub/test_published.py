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

import onnx
import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.experience.recordings.making import write_demo
from tests.hub_stand_in import Hub, serving
from tests.ports import free_ports
from trajtrainer import testing
from trajtrainer.cli.main import main
from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.event_file import EventFile
from trajtrainer.policies.folder.event_reader import EventRecordReader
from trajtrainer.policies.play.loaded_policy import load_policy
from trajtrainer.tools.hub.cleaning import Places, clean_events, clean_onnx

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
    local = b"".join(path.read_bytes() for path in (results / "run" / "Duel").iterdir())
    assert all(word.encode() in local for word in (PERSON, "Secret Project", "Recordings"))  # it would be told
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

    # What is not a text is the same, bit for bit.
    (own,) = (results / "run" / "Duel").glob(f"{event_file.PREFIX}*")
    (pushed,) = (tmp_path / name for name in files if event_file.PREFIX in name)
    pushed.parent.mkdir()
    pushed.write_bytes(files[f"Duel/{pushed.name}"])
    before, after = records(own), records(pushed)
    assert len(before) == len(after)
    changed = [Event.FromString(a) for a, b in zip(before, after, strict=True) if a != b]
    assert {value.tag for event in changed for value in event.summary.value} == {
        "Hyperparameters/text_summary",
        "_hparams_/session_start_info",
    }
    assert len(list(LegacyEventFileLoader(str(pushed)).Load())) == len(before)  # TensorBoard checks all checksums
    assert main(["pull", "anna/duel", f"--results-dir={tmp_path / 'theirs'}"]) == 0
    assert main(["export", "duel", f"--results-dir={tmp_path / 'theirs'}"]) == 0


def records(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return list(EventRecordReader(path).records(file))


def test_events_of_others_are_cleaned_too(tmp_path: Path) -> None:
    """What other writers than ours put into event files of a run."""
    folder = tmp_path / "events"
    events = EventFile(folder)
    events.add([event_file.scalar("Reward", 1.5)], 1)
    events.add(
        [event_file.text("Notes", f"see /home/{PERSON}/notes.md, C:\\Users\\{PERSON}\\b.txt, https://a.org/b/c")], 2
    )
    events.add([event_file.hparams_begin({"a": {"demo": f"/home/{PERSON}/x y.demo"}, "n": 3})], 3)
    events.close()
    (path,) = folder.iterdir()
    data = HParamsPluginData()
    data.experiment.user = PERSON
    data.experiment.description = f"~{PERSON}/plan.txt"
    value = event_file.hparams_begin({})
    value.metadata.plugin_data.content = data.SerializeToString()
    with path.open("ab") as file:
        event = Event(step=4)
        event.summary.value.append(value)
        file.write(event_file.record(event))
        file.write(event_file.record(Event(step=5, graph_def=f"/home/{PERSON}/net.py".encode())))
        file.write(event_file.record(Event(step=6))[:-3])  # a run that was killed

    target = tmp_path / "cleaned"
    clean_events(path, target, Places([]))

    assert PERSON.encode() not in target.read_bytes()
    assert records(target)[:2] == records(path)[:2]
    cleaned = [Event.FromString(record) for record in records(target)]
    (text,) = cleaned[2].summary.value[0].tensor.string_val
    assert text == b"see notes.md, b.txt, https://a.org/b/c"
    plugin = cleaned[3].summary.value[0].metadata.plugin_data
    hparams = HParamsPluginData.FromString(plugin.content).session_start_info.hparams
    assert hparams["a.demo"].string_value == "x y.demo"
    assert hparams["n"].number_value == 3
    assert [event.step for event in cleaned] == [0, 1, 2, 3, 4]


def test_the_remarks_of_an_exported_model(tmp_path: Path) -> None:
    """As ``torch.onnx.export`` writes them."""
    node = onnx.helper.make_node("Identity", ["x"], ["y"], "/net/Identity", f'File "/home/{PERSON}/net.py", line 3')
    entry = node.metadata_props.add()
    entry.key, entry.value = "stack_trace", f'File "/home/{PERSON}/net.py", line 3'
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y])), str(path))

    target = clean_onnx(path, tmp_path / "cleaned.onnx", Places([]))

    assert target is not None
    assert PERSON.encode() not in target.read_bytes()
    (node,) = onnx.load(str(target)).graph.node
    assert (node.name, node.doc_string) == ("/net/Identity", 'File "net.py", line 3')
    assert clean_onnx(target, path, Places([])) == target


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
    assert Places([]).in_value({"a": [value]}) == {"a": [cut]}


def test_a_known_place_is_found_with_its_spaces() -> None:
    places = Places(["/home/anna/My Games/x y.demo", "/home/anna"])
    assert places.in_text("of /home/anna/My Games/x y.demo and /home/anna") == "of x y.demo and anna"
    sensors = {"/arm/joint": [1, ("a", "b")]}
    assert places.known_in(sensors) is sensors
    assert places.known_in({"/home/anna/My Games/x y.demo": 1.0}) == {"x y.demo": 1.0}
