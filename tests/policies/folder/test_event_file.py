"""TensorBoard event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.event_file import EventFile


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
def test_histograms_are_those_of_mlagents_writer(values: list[float]) -> None:
    summary = pytest.importorskip("torch.utils.tensorboard.summary")
    numbers = np.array(values)
    message = event_file.histogram("a_hist", numbers)
    expected = summary.make_histogram(numbers, np.array(event_file._borders()))
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


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    file = EventFile(tmp_path / "file" / "folder")
    file.add([event_file.scalar("a", 1.0)], 1)
    with pytest.raises(NotADirectoryError):
        file.flush()
    (tmp_path / "file").unlink()
    file.close()
    assert scalars(tmp_path / "file" / "folder", "a") == [(1, 1.0)]


@pytest.mark.skipif(os.name == "nt", reason="Windows deletes no open files")
def test_a_deleted_folder_is_made_again(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "run" / "Ball")
    for step in (1, 2, 3):
        file.add([event_file.scalar("a", step)], step)
        file.flush()
        if step == 2:
            shutil.rmtree(tmp_path / "run")
    file.close()
    assert scalars(tmp_path / "run" / "Ball", "a") == [(3, 3.0)]


def steps_in_the_server(folder: Path, tag: str) -> list[int]:
    """What the TensorBoard server shows; it reads by other rules than the library that scripts use."""
    accumulator = plugin_event_accumulator.EventAccumulator(str(folder), tensor_size_guidance={"scalars": 0}).Reload()
    return [event.step for event in accumulator.Tensors(tag)]


def test_history_after_the_checkpoint_of_a_resumed_run_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs of 500 steps per summary, killed after steps 4000 and 3500, resumed from 2600 and 3000."""
    clock = itertools.count(time.time())
    monkeypatch.setattr(time, "time", lambda: next(clock))  # files are read in the order of their names
    for number, (resumed_at, first, last) in enumerate(((None, 500, 4000), (2600, 3000, 3500), (3000, 3500, 5000))):
        file = EventFile(tmp_path, resumed_at)
        for step in range(first, last + 1, 500):
            file.add([event_file.scalar("a", number)], step)
        file.close()
    expected = [(500, 0), (1000, 0), (1500, 0), (2000, 0), (2500, 0), (3000, 1), (3500, 2), (4000, 2), (4500, 2)]
    assert scalars(tmp_path, "a") == [*expected, (5000, 2)]
    assert steps_in_the_server(tmp_path, "a") == [step for step, _ in scalars(tmp_path, "a")]


def test_who_observes_tensorboards_writer_is_told_of_our_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Weights & Biases does for ``sync_tensorboard=True``."""
    told: list[str] = []

    class Observed(event_file_writer.EventFileWriter):  # type: ignore[misc]
        def __init__(self, logdir: str, *args: Any, **kwargs: Any) -> None:
            told.append(logdir)
            super().__init__(logdir, *args, **kwargs)

    monkeypatch.setattr(event_file_writer, "EventFileWriter", Observed)
    file = EventFile(tmp_path)
    for step in (1, 2):
        file.add([event_file.scalar("a", step)], step)
        file.flush()
    assert told == [str(tmp_path)]
    assert len(list(tmp_path.iterdir())) == 1
    assert scalars(tmp_path, "a") == [(1, 1.0), (2, 2.0)]
    file.close()


def test_without_an_observer_tensorboards_writer_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file_writer.EventFileWriter, "__init__", lambda *_: pytest.fail("it was used"))
    file = EventFile(tmp_path)
    file.add([event_file.scalar("a", 1.0)], 1)
    file.close()
    assert scalars(tmp_path, "a") == [(1, 1.0)]
