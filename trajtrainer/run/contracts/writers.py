"""Base class for tests of statistics writers."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from trajtrainer.core.plugins import resolve
from trajtrainer.core.stats import StatsSummary, StatsWriter, StatsWriterRow
from trajtrainer.core.steps import Aggregation
from trajtrainer.settings.run import CheckpointSettings, RunSettings


class StatsWriterContract:
    """Tests that every statistics writer must pass. Set ``row``, and override ``settings`` if needed.

    Attributes:
        row: registry row of the writer.
    """

    row: ClassVar[StatsWriterRow]

    def settings(self, folder: Path) -> RunSettings:
        """Return the settings of a run that writes into ``folder``."""
        return RunSettings(checkpoint_settings=CheckpointSettings(run_id="run", results_dir=str(folder)))

    def make(self, folder: Path) -> list[StatsWriter]:
        """Create the writers for a run."""
        (folder / "run").mkdir(exist_ok=True)
        made: StatsWriter | list[StatsWriter] = resolve(self.row.create)(self.settings(folder))
        return made if isinstance(made, list) else [made]

    def test_it_is_a_writer(self, tmp_path: Path) -> None:
        for writer in self.make(tmp_path):
            assert isinstance(writer, StatsWriter)
            writer.close()

    def test_it_takes_what_a_run_has(self, tmp_path: Path) -> None:
        values = {
            "Environment/Cumulative Reward": StatsSummary([1.0, 3.0]),
            "Goals": StatsSummary(np.array([2.0, 5.0]), Aggregation.SUM),
            "Losses/Policy Loss": StatsSummary([]),
        }
        for writer in self.make(tmp_path):
            writer.add_hyperparameters("A", "trainer_type: ppo")
            writer.add_settings("A", {"trainer_type": "ppo", "hyperparameters": {"batch_size": 8}})
            for step in (100, 200):
                writer.write_stats("A", values, step)
            writer.close()

    def test_it_goes_on_after_a_kill(self, tmp_path: Path) -> None:
        values = {"Environment/Cumulative Reward": StatsSummary([1.0])}
        for writer in self.make(tmp_path):
            writer.write_stats("A", values, 100)
            writer.write_stats("A", values, 200)
        for writer in self.make(tmp_path):
            writer.resume("A", 100)
            writer.write_stats("A", values, 200)
            writer.close()
