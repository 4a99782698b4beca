"""The hyperparameters of POCA."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from trajtrainer.learning.algos.ppo.settings import OnPolicy
from trajtrainer.settings.checks import Fault, mismatch
from trajtrainer.settings.components import AlgorithmRow
from trajtrainer.settings.network import NetworkSettings

_ATTENTION_HEADS = 4


@frozen
class POCAHyperparameters(OnPolicy):
    """Hyperparameters of MA-POCA (Cohen et al. 2021), the same as those of PPO."""

    def faults(self, network: NetworkSettings) -> Iterator[Fault]:
        yield from super().faults(network)
        # The attention heads between groupmates split the hidden units among themselves.
        if network.hidden_units % _ATTENTION_HEADS:
            expected = f"a multiple of {_ATTENTION_HEADS} with trainer_type poca"
            yield mismatch(("network_settings", "hidden_units"), network.hidden_units, expected)


ROW = AlgorithmRow(POCAHyperparameters, "trajtrainer.learning.algos.poca.poca:POCA", clones=True)
