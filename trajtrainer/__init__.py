"""Train Unity ML-Agents behaviors and agents in Gymnasium and PettingZoo environments.

>>> import trajtrainer  # doctest: +SKIP
>>> trajtrainer.learn("config/gym/CartPole.yaml", "gym:CartPole-v1", run_id="pole")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trajtrainer.core.version import __version__

if TYPE_CHECKING:
    from trajtrainer.cli.commands import CommandRow
    from trajtrainer.core.columns import Columns
    from trajtrainer.core.errors import (
        CheckpointError,
        DemonstrationError,
        EnvironmentFaultError,
        ExportError,
        InvalidDataError,
        OutOfMemoryError,
        PluginError,
        RunFolderError,
        SettingsError,
        TrajtrainerError,
        UnsupportedError,
    )
    from trajtrainer.core.spec import ActionSpec, ActionTuple, BehaviorSpec, ObservationSpec
    from trajtrainer.core.stats import Distribution, StatsSummary, StatsWriter, StatsWriterRow
    from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, StepBatch
    from trajtrainer.envs.protocol import Environment
    from trajtrainer.envs.unity.environment import UnityEnvironment
    from trajtrainer.experience.recordings.demonstrations import Demonstrations, load_demonstrations
    from trajtrainer.experience.trajectory import PackedSteps
    from trajtrainer.learning.algos.algorithm import Algorithm, LearningContext, Statistics
    from trajtrainer.learning.nn.actor import Actor
    from trajtrainer.learning.nn.critic import ValueNetwork
    from trajtrainer.learning.nn.minibatch import Minibatch
    from trajtrainer.learning.rewards.signal import RewardSignal
    from trajtrainer.policies.play.loaded_policy import LoadedPolicy, load_policy
    from trajtrainer.policies.play.result import EvaluationResult
    from trajtrainer.run.api.epochs import BehaviorStats, EpisodeStats, EpochStats, PhaseStats
    from trajtrainer.run.api.learn import learn
    from trajtrainer.run.api.results import BehaviorResult, LearnResult
    from trajtrainer.run.api.training import Training
    from trajtrainer.run.hooks import BestCheckpoint, Evaluation, SavedCheckpoint
    from trajtrainer.settings.checks import ConfigurationError
    from trajtrainer.settings.components import AlgorithmRow, Hyperparameters, RewardSignalRow, RewardSignalSettings
    from trajtrainer.settings.network import EncoderRow, NetworkSettings
    from trajtrainer.settings.run import RunSettings
    from trajtrainer.settings.schemes import EnvironmentScheme
    from trajtrainer.settings.trainer import TrainerSettings

_HOMES = {
    "cli.commands": "CommandRow",
    "learning.algos.algorithm": "Algorithm LearningContext Statistics",
    "learning.nn.minibatch": "Minibatch",
    "core.columns": "Columns",
    "experience.trajectory": "PackedSteps",
    "experience.recordings.demonstrations": "Demonstrations load_demonstrations",
    "envs.protocol": "Environment",
    "core.errors": "CheckpointError DemonstrationError EnvironmentFaultError ExportError InvalidDataError "
    "OutOfMemoryError PluginError RunFolderError SettingsError TrajtrainerError UnsupportedError",
    "policies.play.loaded_policy": "LoadedPolicy load_policy",
    "policies.play.result": "EvaluationResult",
    "learning.nn.actor": "Actor",
    "learning.nn.critic": "ValueNetwork",
    "learning.rewards.signal": "RewardSignal",
    "run.api.learn": "learn",
    "run.api.epochs": "BehaviorStats EpisodeStats EpochStats PhaseStats",
    "run.hooks": "BestCheckpoint Evaluation SavedCheckpoint",
    "run.api.results": "BehaviorResult LearnResult",
    "run.api.training": "Training",
    "settings.components": "AlgorithmRow Hyperparameters RewardSignalRow RewardSignalSettings",
    "settings.network": "EncoderRow NetworkSettings",
    "settings.checks": "ConfigurationError",
    "settings.run": "RunSettings",
    "settings.schemes": "EnvironmentScheme",
    "settings.trainer": "TrainerSettings",
    "core.spec": "ActionSpec ActionTuple BehaviorSpec ObservationSpec",
    "core.stats": "Distribution StatsSummary StatsWriter StatsWriterRow",
    "core.steps": "ActionBatch EnvironmentEvent StepBatch",
    "envs.unity.environment": "UnityEnvironment",
}
_MODULES = {"gymnasium", "pettingzoo", "side_channels", "testing", "validators"}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "ActionBatch",
    "ActionSpec",
    "ActionTuple",
    "Actor",
    "Algorithm",
    "AlgorithmRow",
    "BehaviorResult",
    "BehaviorSpec",
    "BehaviorStats",
    "BestCheckpoint",
    "CheckpointError",
    "Columns",
    "CommandRow",
    "ConfigurationError",
    "DemonstrationError",
    "Demonstrations",
    "Distribution",
    "EncoderRow",
    "Environment",
    "EnvironmentEvent",
    "EnvironmentFaultError",
    "EnvironmentScheme",
    "EpisodeStats",
    "EpochStats",
    "Evaluation",
    "EvaluationResult",
    "ExportError",
    "Hyperparameters",
    "InvalidDataError",
    "LearnResult",
    "LearningContext",
    "LoadedPolicy",
    "Minibatch",
    "NetworkSettings",
    "ObservationSpec",
    "OutOfMemoryError",
    "PackedSteps",
    "PhaseStats",
    "PluginError",
    "RewardSignal",
    "RewardSignalRow",
    "RewardSignalSettings",
    "RunFolderError",
    "RunSettings",
    "SavedCheckpoint",
    "SettingsError",
    "Statistics",
    "StatsSummary",
    "StatsWriter",
    "StatsWriterRow",
    "StepBatch",
    "TrainerSettings",
    "Training",
    "TrajtrainerError",
    "UnityEnvironment",
    "UnsupportedError",
    "ValueNetwork",
    "__version__",
    "learn",
    "load_demonstrations",
    "load_policy",
]


def __getattr__(name: str) -> Any:
    """Import public names on first access, so that ``import trajtrainer`` is fast and does not import torch."""
    if name in _MODULES:
        return import_module(f"trajtrainer.{name}")
    if name in _HOME_OF:
        return getattr(import_module(f"trajtrainer.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
