"""What ``trajtrainer`` offers by name, and that it costs nothing until it is asked for."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import trajtrainer
from trajtrainer.core import errors
from trajtrainer.settings import checks

# fmt: off
NAMES = [
    "__version__", "learn", "LearnResult", "BehaviorResult", "load_policy", "LoadedPolicy", "EvaluationResult",
    "TrajtrainerError", "CheckpointError", "ConfigurationError", "DemonstrationError", "EnvironmentFaultError",
    "ExportError", "InvalidDataError", "OutOfMemoryError", "PluginError", "RunFolderError", "SettingsError",
    "UnsupportedError",
    "Training", "EpochStats", "BehaviorStats", "EpisodeStats", "PhaseStats", "Distribution",
    "SavedCheckpoint", "BestCheckpoint", "Evaluation",
    "Algorithm", "AlgorithmRow", "LearningContext", "Hyperparameters", "PackedSteps", "Minibatch", "Columns", "Actor",
    "ValueNetwork", "Statistics",
    "RewardSignal", "RewardSignalRow", "RewardSignalSettings",
    "EncoderRow", "StatsWriter", "StatsWriterRow", "StatsSummary",
    "Environment", "EnvironmentEvent", "EnvironmentScheme", "StepBatch", "ActionBatch",
    "RunSettings", "TrainerSettings", "NetworkSettings", "CommandRow",
    "BehaviorSpec", "ObservationSpec", "ActionSpec", "ActionTuple",
    "Demonstrations", "load_demonstrations",
    "UnityEnvironment",
]
# fmt: on


def test_the_names() -> None:
    assert sorted(trajtrainer.__all__) == sorted(NAMES)
    assert set(NAMES) <= set(dir(trajtrainer))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("__version__", "Statistics")])
def test_each_is_what_its_module_calls_so(name: str) -> None:
    found = getattr(trajtrainer, name)
    assert found.__name__ == name


@pytest.mark.parametrize("name", ["gymnasium", "pettingzoo", "side_channels", "testing", "validators"])
def test_modules_with_names_of_their_own(name: str) -> None:
    assert getattr(trajtrainer, name).__name__ == f"trajtrainer.{name}"


def test_validators_are_those_of_the_built_in_settings() -> None:
    for name in trajtrainer.validators.__all__:
        assert getattr(trajtrainer.validators, name) is getattr(checks, name)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(trajtrainer.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen: dict[str, str | None] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        seen |= {alias.name: node.module for alias in node.names}
    assert seen.keys() == set(NAMES) - {"__version__"}
    for name, module in seen.items():
        assert getattr(importlib.import_module(str(module)), name) is getattr(trajtrainer, name)


def test_every_error_is_there() -> None:
    own = {name for name, each in vars(errors).items() if isinstance(each, type)}
    assert own <= set(NAMES)


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'lern'"):
        trajtrainer.lern  # noqa: B018


@pytest.mark.parametrize(
    ("used", "absent"),
    [
        ("", {"torch", "numpy", "onnx", "attrs", "gymnasium"}),
        ("gymnasium pettingzoo side_channels", {"torch", "onnx"}),
        ("SettingsError TrainerSettings StatsWriter Environment", {"torch", "onnx"}),
    ],
)
def test_a_name_imports_no_more_than_it_needs(used: str, absent: set[str]) -> None:
    code = f"""
import sys, trajtrainer
for name in {used.split()}:
    getattr(trajtrainer, name)
print(*{absent} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=300, capture_output=True, text=True)
    assert done.stdout.split() == []
