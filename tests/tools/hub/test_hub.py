"""Runs that go to the hub and come from there, against a small server of its interface."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.test_export import checkpoint_of, saved
from tests.hub_stand_in import COMMIT, Hub, serving
from tests.learning.nn.specs import network
from tests.policies.onnx.test_onnx import random_actor
from tests.tools.bids import SPEC
from trajtrainer.cli.main import main
from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.event_file import EventFile
from trajtrainer.policies.folder.notes import RunNotes, write_notes
from trajtrainer.policies.folder.run_lock import RunLock, lock_file
from trajtrainer.policies.onnx.export import export_policy

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # as the command does, before the package is imported
pytest.importorskip("huggingface_hub", reason="the extra 'hub' is not installed")

import huggingface_hub.constants

pytestmark = pytest.mark.filterwarnings("ignore:.*content=:DeprecationWarning")  # of the hub's own package

HEAD = {"ETag": '"0"', "X_Repo_Commit": COMMIT}
TOKEN = "hf_secretSecretSecret"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)  # the stand-in has the older storage
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with a run, as a training leaves it."""
    results = tmp_path_factory.mktemp("somebody") / "results"
    run = results / "first"
    content = checkpoint_of(random_actor(SPEC), network())
    for name in ("Bids-10.pt", "Bids-30.pt", "checkpoint.pt", "best.pt"):
        saved(run / "Bids" / name, content)
    export_policy(random_actor(SPEC), SPEC, run / "Bids.onnx")
    shutil.copy(run / "Bids.onnx", run / "Bids" / "Bids-30.onnx")
    events = EventFile(run / "Bids")
    for step in (10, 20, 30):
        events.add([event_file.scalar("Environment/Cumulative Reward", step / 10)], step)
    events.close()
    settings = {
        "behaviors": {"Bids": {"trainer_type": "ppo", "max_steps": 30, "init_path": str(results / "x.pt")}},
        "env_settings": {"env_path": r"C:\Users\anna\Game.exe"},
        "checkpoint_settings": {"results_dir": str(results)},
    }
    (run / "configuration.yaml").write_text(yaml.safe_dump(settings))
    (run / "run_logs").mkdir()
    (run / "run_logs" / "Player-0.log").write_text("private")
    write_notes(run, RunNotes("confidential", ("for-us-alone",)))
    record = {"steps": 30, "reward": 3.0, "file_path": str(run / "Bids.onnx")}
    status = {"Bids": {"final_checkpoint": record, "best": {"steps": 20, "reward": 4.5, "by": "training"}}}
    (run / "run_logs" / "training_status.json").write_text(json.dumps(status))
    if sys.platform != "win32":
        (run / "Bids" / "best.onnx").symlink_to("/etc/hostname")
    return results


def push(results: Path, *options: str) -> int:
    return main(["push", "first", "anna/ppo-Bids", f"--results-dir={results}", *options])


def pull(results: Path, *options: str) -> int:
    return main(["pull", "anna/ppo-Bids", f"--results-dir={results}", *options])


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def front(card: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return content


def test_a_run_goes_to_the_hub_and_comes_back(
    hub: Hub, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert push(trained, "--private") == 0

    files = hub.models["anna/ppo-Bids"]
    (events,) = (name for name in files if "events" in name)
    assert set(files) == {
        ".gitattributes",
        "README.md",
        "config.json",
        "configuration.yaml",
        "curves.png",
        "Bids.onnx",
        "Bids/Bids-30.pt",
        "Bids/Bids-30.onnx",
        "Bids/checkpoint.pt",
        "Bids/best.pt",
        events,
        "run_logs/training_status.json",
    }
    run = trained / "first"
    for name in ("Bids.onnx", "Bids/checkpoint.pt", "Bids/Bids-30.pt"):
        assert files[name] == (run / name).read_bytes()
    assert files["curves.png"].startswith(b"\x89PNG")
    assert json.loads(files["config.json"]) == yaml.safe_load(files["configuration.yaml"])
    assert hub.private == {"anna/ppo-Bids": True}
    assert f"The run is at {hub.url}/anna/ppo-Bids." in capsys.readouterr().out

    # Nothing of this machine and its user.
    everything = b"".join(content for name, content in files.items() if not name.endswith((".pt", ".onnx")))
    for secret in (str(trained), "Users", "private\n", "confidential", "for-us-alone", TOKEN, socket.gethostname()):
        assert secret.encode() not in everything + " ".join(files).encode()
    assert TOKEN not in caplog.text

    assert pull(tmp_path / "results", "--run-id=theirs") == 0
    fetched = tree(tmp_path / "results" / "theirs")
    origin = fetched.pop("pulled_from.txt").decode()
    assert origin == f"{hub.url}/anna/ppo-Bids at {COMMIT}\n"
    assert fetched == {name: content for name, content in files.items() if name != ".gitattributes"}
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["theirs"]
    assert main(["export", "theirs", f"--results-dir={tmp_path / 'results'}"]) == 0
    assert hub.tokens == {f"Bearer {TOKEN}", None}  # none for the storage of large files


def test_the_model_card(hub: Hub, trained: Path, tmp_path: Path) -> None:
    evaluation = {"results": [{"model": "first", "behaviors": {"Bids": {"mean": 2.5, "std": 0.5, "episodes": 100}}}]}
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(evaluation))
    assert push(trained, f"--evaluation={path}") == 0

    card = hub.models["anna/ppo-Bids"]["README.md"].decode()
    head = front(card)
    assert head["library_name"] == "ml-agents"
    assert {"Bids", "ML-Agents-Bids", "reinforcement-learning", "deep-reinforcement-learning"} <= set(head["tags"])
    metrics = [entry["metrics"][0] for entry in head["model-index"][0]["results"]]
    assert [metric["value"] for metric in metrics] == ["2.50 +/- 0.50", "3.00", "4.50"]
    assert "| Bids | mean reward | 2.500 ± 0.500 | 100 episodes, evaluated |" in card
    assert "](curves.png)" in card
    assert "trajtrainer pull anna/ppo-Bids" in card
    assert "    trainer_type: ppo" in card
    huggingface_hub.ModelCard(card)  # is one


def test_what_was_pushed_is_what_mlagents_load_from_hf_fetches(
    hub: Hub, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert push(trained) == 0
    folder = huggingface_hub.HfApi(endpoint=hub.url).snapshot_download("anna/ppo-Bids", local_dir=tmp_path / "download")
    loaded = {name: content for name, content in tree(Path(folder)).items() if not name.startswith(".cache")}
    assert loaded == hub.models["anna/ppo-Bids"]


def test_a_second_push_goes_to_the_same_model(hub: Hub, trained: Path) -> None:
    assert push(trained) == 0
    assert push(trained) == 0


@pytest.mark.parametrize(
    ("status", "token", "message"),
    [
        (401, True, "rejected the token (401): it is wrong or has expired. Log in with 'hf auth login'"),
        (401, False, "only to certain users, or there is no such model (401). Log in with"),
        (403, True, "does not allow this for anna/ppo-Bids with your token (403)"),
        (404, True, "has no model anna/ppo-Bids"),
        (429, True, "too many requests (429). Try again in a few minutes"),
        (503, True, "has an internal problem (503). Try again later"),
        (400, True, "rejected this (400)"),
    ],
)
@pytest.mark.parametrize("command", ["push", "pull"])
def test_what_the_hub_refuses_is_one_message(
    command: str, status: int, token: bool, message: str, hub: Hub, trained: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not token:
        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    hub.fails_with = status
    assert (push(trained) if command == "push" else pull(tmp_path / "results")) == 1
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.count("\n") == 1
    assert TOKEN not in told.err + told.out
    assert not (tmp_path / "results").exists()


def test_a_run_that_is_training_is_not_replaced(tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "ppo-Bids"
    target.mkdir()
    lock = RunLock(lock_file(target), target)
    lock.acquire()
    try:
        assert pull(tmp_path) == 1
    finally:
        lock.release()
    assert f"is training into {target} right now" in capsys.readouterr().err


def test_a_hub_that_does_not_answer(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert pull(tmp_path) == 1  # refuses
        silent.listen()
        monkeypatch.setattr("trajtrainer.tools.hub.pull._TIMEOUT_S", 0.2)
        assert pull(tmp_path) == 1  # takes the call, and says nothing
    assert push(trained) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3
    assert all("does not respond" in line and "HF_ENDPOINT" in line for line in told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "../evil.pt", "/etc/evil", "a/../../evil", "a\\..\\evil", "C:evil", "con", "a/", "x\n", "a\0b", "x.", "x ",
        ".git/hooks/post-checkout", "a/.GIT/config", "GIT~1/config", ".git./config", ".g\u200cit/config", "\ud800",
        "Aux.onnx", "com1 .txt", "LPT\u00b9", "CONIN$", "a/nul.tar.gz", ".", "a//b", ".hidden/../../x",
        "100%FFx/checkpoint.pt",
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(name: str, hub: Hub, tmp_path: Path, capsys: Any) -> None:
    hub.models["anna/ppo-Bids"] = {"fine.onnx": b"1", name: b"2"}
    assert pull(tmp_path / "inner" / "results") == 1
    assert "whose name contains" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "announced", "message"),
    [
        ({"a.onnx": b"12345"}, {"a.onnx": 3}, "sent more than it announced. Try again later."),
        ({"a.onnx": b"12345"}, {"a.onnx": 9}, "sent something different from what it announced for a.onnx"),
        ({"a": b"1"}, {"a": 3_000_000_000}, "is 3,000.0 MB, larger than 2,000.0 MB. Nothing was downloaded; increase"),
        ({"a": b"1", "A": b"2"}, {}, "names differ only in case"),
        ({f"{number}": b"" for number in range(5_001)}, {}, "has 5001 files"),
        ({".gitattributes": b""}, {}, "has no files"),
    ],
)
def test_what_the_hub_sends_is_bounded(
    files: dict[str, bytes], announced: dict[str, int], message: str, hub: Hub, tmp_path: Path, capsys: Any
) -> None:
    hub.models["anna/ppo-Bids"] = files
    hub.announced = announced
    assert pull(tmp_path / "results") == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "results").exists() or list((tmp_path / "results").iterdir()) == []


def sibling(**changes: Any) -> dict[str, Any]:
    return {"rfilename": "a.onnx", "size": 3, **changes}


@pytest.mark.parametrize(
    ("siblings", "message"),
    [
        ([sibling(size="3")], "'a.onnx' has the size '3', expected a number of bytes"),
        ([sibling(size=-1)], "'a.onnx' has the size -1"),
        ([sibling(size=True)], "'a.onnx' has the size True"),
        ([sibling(), sibling(rfilename="A.onnx/b")], "'a.onnx' is both a file and a folder"),
        ([sibling(rfilename="o\u0308"), sibling(rfilename="\u00d6")], "whose names differ only in case"),
        ([sibling(rfilename=f".git/{number}") for number in range(9)], "; and 4 more. Nothing was downloaded."),
        ([sibling(rfilename=7)], "sent an unexpected response"),
        ([None], "sent an unexpected response"),
        ([sibling(lfs="x")], "sent an unexpected response"),
        ("abc", "sent an unexpected response"),
        (7, "sent an unexpected response"),
    ],
)
def test_a_listing_of_another_kind_is_one_message(
    siblings: Any, message: str, hub: Hub, tmp_path: Path, capsys: Any
) -> None:
    hub.models["anna/ppo-Bids"] = {"a.onnx": b"123"}
    hub.listing = {"id": "anna/ppo-Bids", "sha": COMMIT, "siblings": siblings}
    assert pull(tmp_path / "results") == 1
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        ([1], "sent an unexpected response"),
        ({"id": "a/b", "sha": "../main", "siblings": []}, "did not name a commit of anna/ppo-Bids: found '../main'"),
        ({"id": "a/b", "siblings": []}, "did not name a commit of anna/ppo-Bids: found None"),
        ({"id": "a/b", "sha": 5}, "sent an unexpected response"),
        (b"<html>Sign in</html>", "sent an unexpected response"),
        pytest.param(b"[" * 200_000, "sent an unexpected response", id="lists in lists"),
    ],
)
def test_a_listing_without_a_commit(listing: Any, message: str, hub: Hub, tmp_path: Path, capsys: Any) -> None:
    hub.models["anna/ppo-Bids"] = {"a.onnx": b"123"}
    hub.listing = listing
    assert pull(tmp_path / "results") == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_hidden_files_are_no_part_of_a_run(hub: Hub, tmp_path: Path) -> None:
    hub.models["anna/ppo-Bids"] = {"a.onnx": b"1", ".gitignore": b"x", ".vscode/tasks.json": b"{}", "a/.DS_Store": b"2"}
    assert pull(tmp_path) == 0
    assert set(tree(tmp_path / "ppo-Bids")) == {"a.onnx", "pulled_from.txt"}


def test_a_file_that_was_changed_on_its_way(hub: Hub, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    hub.models["anna/ppo-Bids"] = {"a.onnx": b"12345"}
    monkeypatch.setattr("tests.hub_stand_in._Handler.file", lambda self, _: self.answer(200, b"54321", **HEAD))
    assert pull(tmp_path) == 1
    assert "sent something different from what it announced for a.onnx" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(hub: Hub, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.models["anna/ppo-Bids"] = {"a.onnx": b"1" * 10, "b/c.pt": b"2" * 20}
    written: list[int] = []

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert pull(tmp_path / "results") == 1
    assert "No space left on device. It needs 0.0 MB. " in capsys.readouterr().err
    assert list((tmp_path / "results").iterdir()) == []


def test_a_run_that_is_there_is_kept(hub: Hub, tmp_path: Path, capsys: Any) -> None:
    hub.models["anna/ppo-Bids"] = {"a.onnx": b"new", "Pulled_From.txt": b"nowhere"}
    (tmp_path / "ppo-Bids").mkdir()
    (tmp_path / "ppo-Bids" / "mine").write_text("1")
    (tmp_path / ".ppo-Bids.pull-abc").mkdir()  # of a process that was killed
    assert pull(tmp_path) == 1
    assert "ppo-Bids already exists" in capsys.readouterr().err
    assert pull(tmp_path, "--force") == 0
    origin = f"{hub.url}/anna/ppo-Bids at {COMMIT}\n".encode()
    assert tree(tmp_path) == {
        "ppo-Bids/a.onnx": b"new", "ppo-Bids/pulled_from.txt": origin, "ppo-Bids.old/mine": b"1"
    }  # fmt: skip
    assert not (tmp_path / ".ppo-Bids.pull-abc").exists()
    assert pull(tmp_path, "--run-id=../x") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["push", "first", "anna"], "'anna' is not a valid name of a model on the hub. Expected OWNER/NAME"),
        (["push", "none", "anna/x"], "There is no run"),
        (["push", "empty", "anna/x"], "has no model (.onnx) yet"),
        (["push", "first", "anna/x", "--evaluation=none.json"], "--evaluation none.json: the file cannot be read"),
        (["pull", "../x"], "is not a valid name of a model on the hub"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, trained: Path, capsys: Any) -> None:
    (trained / "empty").mkdir(exist_ok=True)
    assert main([*arguments, f"--results-dir={trained}"]) == 1
    assert message in capsys.readouterr().err


def test_the_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert pull(tmp_path) == 1
    assert "pip install 'trajtrainer[hub]'" in capsys.readouterr().err
