"""Scalars of event files: TensorBoard's, ML-Agents' and ours, of runs that were killed, resumed or damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from tests.policies.folder.runs import REWARD, write
from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder import series as series_module
from trajtrainer.policies.folder.series import read_scalars


def points(folder: Path, tag: str = REWARD) -> list[tuple[int, float]]:
    found = read_scalars(folder)[tag]
    return list(zip(found.steps.tolist(), found.values.tolist(), strict=True))


def test_it_finds_what_tensorboard_finds(tmp_path: Path) -> None:
    """Of files of torch's writer, as ML-Agents uses it, with what is no scalar in between."""
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(50):
            writer.add_scalar("a/b", step**2, step)
            writer.add_scalar("new", -step, step, new_style=True)
            writer.add_histogram("histogram", np.arange(100), step)
            writer.add_text("text", "x" * step, step)
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    assert points(tmp_path, "a/b") == [(event.step, event.value) for event in events.Scalars("a/b")]
    assert points(tmp_path, "new") == [(step, -step) for step in range(50)]
    assert read_scalars(tmp_path).keys() == {"a/b", "new"}


def test_a_killed_and_resumed_run_is_one_course(tmp_path: Path) -> None:
    write(tmp_path, [(step, 1.0) for step in (100, 200, 300, 400)])
    write(tmp_path, [(step, 2.0) for step in (300, 400, 500)], resumed_at=250)
    assert points(tmp_path) == [(100, 1.0), (200, 1.0), (300, 2.0), (400, 2.0), (500, 2.0)]


def test_lost_history_is_left_out_though_nothing_replaces_it(tmp_path: Path) -> None:
    write(tmp_path, [(step, 1.0) for step in (100, 200, 300)])
    write(tmp_path, [], resumed_at=150)
    assert points(tmp_path) == [(100, 1.0)]


def test_a_run_of_ml_agents_that_goes_on_from_before(tmp_path: Path) -> None:
    """It marks nothing: steps that come again tell."""
    for which, steps in enumerate([(100, 200, 300), (200, 400)]):
        with SummaryWriter(str(tmp_path), filename_suffix=f".{which}") as writer:
            for step in steps:
                writer.add_scalar(REWARD, which, step)
    assert points(tmp_path) == [(100, 0.0), (200, 1.0), (400, 1.0)]


@pytest.mark.parametrize("kept", [1, 11, 13, 40, 100])
def test_a_file_that_ends_anywhere(tmp_path: Path, kept: int) -> None:
    write(tmp_path, [(step, float(step)) for step in range(1, 21)])
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    whole = points(tmp_path)
    file.write_bytes(content[:-kept])
    found = read_scalars(tmp_path)
    assert points(tmp_path) == whole[: len(found[REWARD].steps)]
    assert len(found[REWARD].steps) >= 18


def test_a_damaged_file_gives_what_is_before_the_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, [(step, float(step)) for step in range(1, 21)])
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] + bytes(500) + content[len(content) // 2 :])
    found = points(tmp_path)
    assert found == [(step, float(step)) for step in range(1, len(found) + 1)]
    assert 5 < len(found) < 15
    assert "damaged" in caplog.text


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=50)
def test_rubbish(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "events.out.tfevents.1").write_bytes(content)
        assert read_scalars(Path(folder)) == {}


def test_a_record_that_claims_to_be_huge_takes_no_memory(tmp_path: Path) -> None:
    write(tmp_path, [(1, 1.0)])
    (file,) = tmp_path.iterdir()
    length = struct.pack("<Q", 1 << 60)
    with file.open("ab") as end:
        end.write(length + struct.pack("<I", event_file.masked_crc(length)) + b"x" * 100)
    assert points(tmp_path) == [(1, 1.0)]


def test_long_runs_are_thinned_out_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_module, "MAX_BUCKETS", 16)
    write(tmp_path, [(step, float(step)) for step in range(1, 1001)])
    found = read_scalars(tmp_path)[REWARD]
    assert 8 <= len(found.steps) <= 17
    assert (found.low[0], found.high[-1], found.steps[-1]) == (1, 1000, 1000)
    assert len(set(np.diff(found.steps[:-1]))) == 1


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, [(1, 1.0), (2, float("nan")), (3, float("inf")), (4, 4.0)])
    assert points(tmp_path) == [(1, 1.0), (4, 4.0)]
