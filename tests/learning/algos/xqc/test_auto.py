"""XQC with ``steps_per_update: auto``."""

from __future__ import annotations

from pathlib import Path

from tests.run.test_learn_auto import SAC, updates_once_per_message


def test_where_nothing_computes_meanwhile_there_is_one_update_per_message(tmp_path: Path) -> None:
    own = {**SAC, "learning_starts": 0, "critic_hidden_units": 16, "critic_num_layers": 1}
    updates_once_per_message(tmp_path, "xqc", own)
