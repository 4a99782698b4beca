"""A recording with a sensor of shape (0,) is learned from."""

from __future__ import annotations

from pathlib import Path

import trajtrainer
from tests.experience.recordings.test_empty_sensors import record


def test_it_is_learnt_from(tmp_path: Path) -> None:
    path = tmp_path / "empty.demo"
    record(path, png=True, by_unity=True)
    trainer = {
        "trainer_type": "bc",
        "dataset": [str(path)],
        "hyperparameters": {"batch_size": 16},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "max_steps": 5,
    }
    given = {"behaviors": {"Empty": trainer}, "torch_settings": {"device": "cpu"}}
    result = trajtrainer.learn(given, run_id="run", results_dir=tmp_path, verbose=False)
    assert result.behaviors["Empty"].steps == 5
    assert (result.run_folder / "Empty.onnx").is_file()
