"""``trajtrainer demo`` of recordings that are damaged, old or odd."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.envs.unity.test_raw_images import noise
from tests.experience.recordings.test_damaged_archives import archive_arrays, packed_up
from tests.experience.recordings.test_empty_sensors import NUM_STEPS, NUMBERS, record
from tests.experience.recordings.test_raw_images import write
from trajtrainer.cli.main import main
from trajtrainer.experience.recordings.demonstrations import load_demonstrations


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = archive_arrays()
    del arrays["reward"]
    path = packed_up(tmp_path / "bad.npz", arrays)
    assert main(["demo", "info", str(path)]) == 1
    text = capsys.readouterr().err
    assert text.startswith(f"error: {path} is not a valid recording")
    assert "it has no reward" in text
    assert "KeyError" not in text
    assert "Traceback" not in text


def test_a_sensor_without_numbers_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, copy = tmp_path / "empty.demo", tmp_path / "copy.demo"
    record(path, png=True, by_unity=True)
    assert main(["demo", "info", str(path)]) == 0
    assert f"{NUM_STEPS} steps" in capsys.readouterr().out
    assert main(["demo", "convert", str(path), "-o", str(copy)]) == 0
    np.testing.assert_array_equal(load_demonstrations([copy]).packed.obs[-1], NUMBERS[:-1])


def test_the_order_of_raw_images_is_given(tmp_path: Path, shared_data: Path) -> None:
    path, fixed = tmp_path / "noise.demo", tmp_path / "fixed.demo"
    write(path, shared_data, noise)
    given = load_demonstrations([path], raw_image_order="chw").packed.obs[0]
    assert main(["demo", "convert", str(path), "-o", str(fixed), "--raw-image-order=chw"]) == 0
    np.testing.assert_array_equal(load_demonstrations([fixed]).packed.obs[0], given)
