"""Stand-ins for the parts of ML-Agents that statistics writers import: ``trainers.stats`` and ``RunOptions``.

ML-Agents cannot be installed alongside trajtrainer, so modules with the same names are provided here.
"""

from __future__ import annotations

import enum
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from trajtrainer.core.stats import StatsSummary as Summary
from trajtrainer.core.stats import StatsWriter as Writer
from trajtrainer.core.steps import Aggregation
from trajtrainer.envs.unity import registration  # noqa: F401  (importing mlagents_envs.side_channel requires it)
from trajtrainer.settings.run import CheckpointSettings, RunSettings
from trajtrainer.settings.yaml.convert import to_mapping, trainer_mapping

from mlagents_envs.side_channel.stats_side_channel import StatsAggregationMethod  # isort: skip

_METHODS = {kind: StatsAggregationMethod[kind.name] for kind in Aggregation}


class StatsSummary(NamedTuple):
    """The values of a tag since the last summary, in ML-Agents' format."""

    full_dist: list[float]
    aggregation_method: StatsAggregationMethod

    @staticmethod
    def empty() -> StatsSummary:
        return StatsSummary([], StatsAggregationMethod.AVERAGE)

    @property
    def aggregated_value(self) -> float:
        """The sum if the aggregation is ``SUM``, otherwise the mean."""
        return self.sum if self.aggregation_method == StatsAggregationMethod.SUM else self.mean

    @property
    def mean(self) -> float:
        return float(np.mean(self.full_dist))

    @property
    def std(self) -> float:
        return float(np.std(self.full_dist))

    @property
    def num(self) -> int:
        return len(self.full_dist)

    @property
    def sum(self) -> float:
        return float(np.sum(self.full_dist))


class StatsPropertyType(enum.Enum):
    """The kinds of properties for ``StatsWriter.add_property``."""

    HYPERPARAMETERS = "hyperparameters"
    SELF_PLAY = "selfplay"


class StatsWriter(ABC):
    """Base class of ML-Agents' statistics writers. trajtrainer does not call ``on_add_stat``."""

    def on_add_stat(self, category: str, key: str, value: float, aggregation: Any = None) -> None:  # noqa: B027
        pass

    @abstractmethod
    def write_stats(self, category: str, values: dict[str, StatsSummary], step: int) -> None: ...

    def add_property(self, category: str, property_type: StatsPropertyType, value: Any) -> None:  # noqa: B027
        pass


class RunOptions:
    """The settings of a run under ML-Agents' class name. Also has attributes that only exist in ML-Agents.

    Args:
        settings: settings of the run.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self.checkpoint_settings = _Checkpoints(settings.checkpoint_settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)

    def as_dict(self) -> dict[str, Any]:
        return to_mapping(self._settings)


class _Checkpoints:
    def __init__(self, settings: CheckpointSettings) -> None:
        self._settings = settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)

    @property
    def write_path(self) -> str:
        return str(Path(self._settings.results_dir) / self._settings.run_id)

    @property
    def run_logs_dir(self) -> str:
        return str(Path(self.write_path) / "run_logs")


class MlagentsWriter(Writer):
    """Adapter for a statistics writer that was written for ML-Agents.

    Args:
        name: name of the writer's entry point.
        writer: the writer from an installed package.
        settings: settings of the run.
    """

    def __init__(self, name: str, writer: Any, settings: RunSettings) -> None:
        self.name = name
        self._writer = writer
        self._settings = settings

    def write_stats(self, category: str, values: Mapping[str, Summary], step: int) -> None:
        theirs = {
            tag: StatsSummary([float(value) for value in summary.values], _METHODS[summary.aggregation])
            for tag, summary in values.items()
            if len(summary.values)
        }
        self._writer.write_stats(category, theirs, step)

    def add_hyperparameters(self, category: str, text: str) -> None:  # noqa: ARG002
        settings = self._settings.for_behavior(category)
        self._writer.add_property(category, StatsPropertyType.HYPERPARAMETERS, trainer_mapping(settings))
        if settings.self_play is not None:
            self._writer.add_property(category, StatsPropertyType.SELF_PLAY, True)


def stand_in() -> None:
    """Add the modules to ``sys.modules``, unless ML-Agents itself is installed."""
    if "mlagents" in sys.modules or importlib.util.find_spec("mlagents") is not None:
        return
    contents: dict[str, dict[str, Any]] = {
        "mlagents": {"__path__": []},
        "mlagents.trainers": {"__path__": []},
        "mlagents.trainers.stats": {
            "StatsWriter": StatsWriter,
            "StatsSummary": StatsSummary,
            "StatsPropertyType": StatsPropertyType,
            "StatsAggregationMethod": StatsAggregationMethod,
        },
        "mlagents.trainers.settings": {"RunOptions": RunOptions},
    }
    for name, content in contents.items():
        module = ModuleType(name, "The parts of ML-Agents that statistics writers need, provided by trajtrainer.")
        module.__dict__.update(content)
        sys.modules[name] = module
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)
