"""``trajtrainer demo``: what it prints, writes and returns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.experience.recordings.making import SPECS, packed_steps, write_demo
from trajtrainer.cli.main import main
from trajtrainer.experience.recordings.demonstrations import load_demonstrations


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "x.demo"
    write_demo(path, packed_steps("hybrid", [5, 4, 3, 2], grouped=True, cut=True), SPECS["hybrid"], "Walker")
    return path


def run(*arguments: object) -> int:
    return main(["demo", *map(str, arguments)])


def test_info(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", recording) == 0
    text = capsys.readouterr().out
    assert "Walker: 3 episodes (1 of them ended by the step limit) and 1 unfinished, 14 steps" in text
    assert "observation 1: entities 4x2" in text
    assert "length: mean 3.5, standard deviation 1.118, 2 to 5" in text


def test_info_as_json(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = load_demonstrations([recording]).packed
    assert run("info", "--json", recording, recording) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first == second
    returns = [packed["reward"][a:b].sum() for a, b in zip(packed.offset[:-1], packed.offset[1:], strict=True)]
    assert first["returns"]["mean"] == pytest.approx(np.mean(returns))
    assert first["returns"]["std"] == pytest.approx(np.std(returns))
    assert (first["returns"]["min"], first["returns"]["max"]) == (min(returns), max(returns))
    assert first["group_returns"]["max"] is not None
    assert first["discrete"] == [np.bincount(packed["discrete"][:, 0], minlength=3).tolist()]
    assert first["continuous"][0]["mean"] == pytest.approx(packed["continuous"].mean())
    assert first["continuous"][0]["std"] == pytest.approx(packed["continuous"].std(), rel=1e-5)
    expected, _ = np.histogram(np.clip(packed["continuous"], -1, 1), np.linspace(-1, 1, 11))
    assert first["histogram"] == [expected.tolist()]
    assert first["action_spec"] == {"continuous_size": 1, "discrete_branches": [3]}


def test_merge(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("merge", recording, recording, "-o", tmp_path / "both.demo") == 0
    packed = load_demonstrations([tmp_path / "both.demo"]).packed
    assert packed.lengths.tolist() == [5, 4, 3, 2] * 2
    assert packed.ended.tolist() == [True] * 7 + [False]
    assert "7 episodes (3 of them ended by the step limit) and 1 unfinished, 28 steps" in capsys.readouterr().out


def test_merge_refuses_other_behaviors(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "y.demo"
    write_demo(other, packed_steps("continuous", [3]), SPECS["continuous"], "Other")
    assert run("merge", recording, other, "-o", tmp_path / "both.demo") == 1
    assert "y.demo was recorded with 1 observations" in capsys.readouterr().err
    assert not (tmp_path / "both.demo").exists()


@pytest.mark.parametrize(
    ("how", "expected"), [(("--episodes", 1), 1), (("--fraction", 0.5), 2), (("--fraction", 0.9), 0)]
)
def test_split(recording: Path, tmp_path: Path, how: tuple[str, object], expected: int) -> None:
    a, b = tmp_path / "a.demo", tmp_path / "b.npz"
    assert run("split", recording, *how, "-o", a, "--rest", b) == (0 if expected else 1)
    if expected:
        whole, part = load_demonstrations([recording]).packed, load_demonstrations([a]).packed
        assert part.num_trajectories == expected
        np.testing.assert_array_equal(part.obs[0], whole.obs[0][: len(part)])
        with np.load(b, allow_pickle=False) as rest:
            np.testing.assert_array_equal(rest["obs.0"], whole.obs[0][len(part) :])


def test_convert(recording: Path, tmp_path: Path) -> None:
    assert run("convert", recording, "-o", tmp_path / "x.npz") == 0
    assert run("convert", tmp_path / "x.npz", "-o", tmp_path / "again.demo") == 0
    assert (tmp_path / "again.demo").read_bytes() == recording.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("info", "missing.demo"), "The recording missing.demo does not exist"),
        (("info", "minari:none-v0"), "Minari"),
        (("convert", "x.demo", "-o", "x.txt"), "expected a name that ends in .demo or .npz"),
        (("convert", "x.demo", "-o", "none/x.npz"), "its folder does not exist"),
        (("split", "x.demo", "--episodes", "1", "-o", "a.demo", "--rest", "a.demo"), "are the same file"),
        (
            ("convert", "last_replay_buffer.npz", "-o", "y.demo"),
            "checkpoint.pt is needed in the same folder",
        ),
    ],
)
def test_mistakes(
    recording: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    expected: str,
) -> None:
    monkeypatch.chdir(recording.parent)
    np.savez("last_replay_buffer.npz", start=np.zeros(1), length=np.zeros(1), format=np.ones(1))
    assert run(*arguments) == 1
    assert expected in capsys.readouterr().err


def test_no_action(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "ACTION" in capsys.readouterr().err
