"""Logs of players on other machines."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from trajtrainer.run.actors import messages
from trajtrainer.run.actors.messages import NodeLogs, write_logs


def test_where_the_learner_is_they_are_in_the_run_s_folder(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path, "a node")
    logs.arrive("a node")
    assert logs.player_log(3) == tmp_path / "Player-3.log"
    assert logs.collect() == {}


def test_nothing_is_written_where_nothing_may_be() -> None:
    logs = NodeLogs(None, "a node")
    logs.arrive("another node")
    assert logs.player_log(0) is None
    assert logs.collect() == {}


def test_elsewhere_their_ends_are_sent_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_MOST_BYTES", 8)
    logs = NodeLogs(tmp_path, "a node")
    logs.arrive("another node")
    assert logs.collect() == {}
    log = logs.player_log(0)
    assert log is not None
    away = log.parent
    assert away != tmp_path
    (away / "Player-0.log").write_bytes(b"begin and end")
    (away / "Player-1.log").write_bytes(b"short")
    (away / "other").write_bytes(b"no log")
    taken = logs.collect()
    assert taken == {"Player-0.log": b" and end", "Player-1.log": b"short"}
    assert not away.exists()
    assert logs.collect() == {}
    write_logs(tmp_path, taken)
    write_logs(tmp_path, {"Player-1.log": b", and again"})
    assert (tmp_path / "Player-0.log").read_bytes() == b" and end"
    assert (tmp_path / "Player-1.log").read_bytes() == b"short, and again"


@pytest.mark.parametrize("name", ["../Player-0.log", "/tmp/Player-0.log", "Player-0.log\n", "a/Player-0.log", "x"])
def test_other_names_are_not_written(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    write_logs(folder, {name: b"text"})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_actor_may_work_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a node that was started elsewhere on the machine of the learner."""
    monkeypatch.chdir(tmp_path)
    logs = pickle.loads(pickle.dumps(NodeLogs(Path("logs"), "a node")))
    logs.arrive("a node")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert logs.player_log(1) == tmp_path / "logs" / "Player-1.log"
