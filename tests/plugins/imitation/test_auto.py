"""DAgger with ``steps_per_update: auto``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.run.test_learn_auto import updates_once_per_message


def by_the_lamp(observations: Any, mask: Any) -> Any:
    return observations[0].argmax(1)


def test_where_nothing_computes_meanwhile_there_is_one_update_per_message(tmp_path: Path) -> None:
    updates_once_per_message(tmp_path, "dagger", {"expert": f"python:{__name__}:by_the_lamp"})
