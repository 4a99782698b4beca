"""Contract tests for plugins and environments, with one base class for each kind.

To test a plugin, subclass one of them in a module that pytest collects::

    from trajtrainer.testing import RewardSignalContract

    class TestNovelty(RewardSignalContract):
        row = my_package.novelty.ROW
        name = "novelty"

Under pytest, failed assertions show the compared values.
"""

from __future__ import annotations

import sys

if "pytest" in sys.modules:  # must run before the contracts are imported
    sys.modules["pytest"].register_assert_rewrite("trajtrainer.run.contracts")

from trajtrainer.experience.random_steps import random_steps, vector_spec
from trajtrainer.run.contracts.environments import EnvironmentContract, EnvironmentSchemeContract
from trajtrainer.run.contracts.learning import AlgorithmContract, EncoderContract, RewardSignalContract
from trajtrainer.run.contracts.writers import StatsWriterContract

__all__ = [
    "AlgorithmContract",
    "EncoderContract",
    "EnvironmentContract",
    "EnvironmentSchemeContract",
    "RewardSignalContract",
    "StatsWriterContract",
    "random_steps",
    "vector_spec",
]
