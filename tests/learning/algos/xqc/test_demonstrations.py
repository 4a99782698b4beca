"""Recordings in XQC's batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.learning.algos.test_recorded_batches import learns_from_a_recording_and_goes_on
from tests.run.test_learn_demonstrations import record, trained

XQC: dict[str, Any] = {
    "batch_size": 32,
    "learning_starts": 100,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "constant",
    "tau": 0.05,
    "steps_per_update": 1,
    "policy_delay": 1,
    "init_entcoef": 0.05,
    "critic_hidden_units": 32,
    "critic_num_layers": 2,
}


def test_a_run_learns_from_a_recording_and_goes_on(tmp_path: Path) -> None:
    small = {"critic_hidden_units": 16, "critic_num_layers": 1}
    learns_from_a_recording_and_goes_on(tmp_path, "xqc", learning_starts=50, **small)


def test_two_episodes_show_where_a_rare_reward_is(tmp_path: Path) -> None:
    network = {"hidden_units": 32, "num_layers": 2}
    given = {"trainer_type": "xqc", "hyperparameters": XQC, "network_settings": network, "max_steps": 1500}
    expert = record(tmp_path / "expert.npz", cells=15, chance_of_right=1.0, episodes=2)
    shown = trained(tmp_path, 15, expert, given | {"stop": {"reward": 0.95}})
    assert shown.reward >= 0.95
    assert trained(tmp_path, 15, None, given | {"max_steps": shown.steps}).reward < 0.3
