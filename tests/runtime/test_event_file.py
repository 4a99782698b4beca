"""TensorBoard event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trajtrainer.runtime import event_file
from trajtrainer.runtime.event_file import EventFile


def read(folder: Path) -> Any:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    return accumulator.Reload()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def test_scalars_and_text_come_back(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.add([event_file.text("Hyperparameters", "\ttrainer_type:\tppo")], 0)
    file.add([event_file.scalar("a", 0.1), event_file.scalar("b/c d", -2.0)], 1000)
    file.add([event_file.scalar("a", 1e-30)], 2000)
    file.close()
    (name,) = [path.name for path in tmp_path.iterdir()]
    assert name.startswith("events.out.tfevents.")
    assert scalars(tmp_path, "a") == [(1000, float(np.float32(0.1))), (2000, float(np.float32(1e-30)))]
    assert scalars(tmp_path, "b/c d") == [(1000, -2.0)]
    (text,) = read(tmp_path).Tensors("Hyperparameters/text_summary")
    assert (text.step, list(text.tensor_proto.string_val)) == (0, [b"\ttrainer_type:\tppo"])


def test_it_is_complete_after_each_flush(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    for step in (1, 2, 3):
        file.add([event_file.scalar("a", step)], step)
        file.flush()
        assert scalars(tmp_path, "a") == [(s, s) for s in range(1, step + 1)]
    file.close()


def test_two_files_at_once_have_two_names(tmp_path: Path) -> None:
    files = [EventFile(tmp_path) for _ in range(3)]
    for number, file in enumerate(files):
        file.add([event_file.scalar(f"t{number}", number)], 1)
        file.close()
    assert len(list(tmp_path.iterdir())) == 3


@settings(deadline=None)
@given(st.lists(st.floats(-1e18, 1e18), min_size=1, max_size=60))
def test_histograms_are_those_of_the_peers_writer(values: list[float]) -> None:
    summary = pytest.importorskip("torch.utils.tensorboard.summary")
    numbers = np.array(values)
    message = event_file.histogram("a_hist", numbers)
    expected = summary.make_histogram(numbers, np.array(event_file._BORDERS))
    assert message.tag == "a_hist"
    assert message.histo == expected
    assert sum(message.histo.bucket) == len(values)


def test_a_full_disk_keeps_what_is_pending(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    file = EventFile(tmp_path)
    file.add([event_file.scalar("a", 1.0)], 1)
    file.flush()
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    file.add([event_file.text("long", "x" * 4000)], 2)
    file.add([event_file.scalar("a", 3.0)], 3)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, former[1]))  # a part of the text still fits
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            file.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert scalars(tmp_path, "a") == [(1, 1.0)]
    file.close()
    assert scalars(tmp_path, "a") == [(1, 1.0), (3, 3.0)]


def test_what_is_pending_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "_MAX_PENDING_BYTES", 500)
    file = EventFile(tmp_path)
    for step in range(100):
        file.add([event_file.scalar("a", step)], step)
    file.close()
    assert (0, 0.0) in scalars(tmp_path, "a")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 600


def test_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        file.flush()
