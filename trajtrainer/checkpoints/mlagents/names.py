"""The form in which ML-Agents keeps a whole network: what stands there beside the names that ``nn.mlagents`` gives.

Reading a checkpoint starts from the entries that our networks have and looks for their names in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

# ML-Agents' parameters of its policy that are never trained; they come first, in this order.
CONSTANTS = (
    "version_number",
    "is_continuous_int_deprecated",
    "continuous_act_size_vector",
    "discrete_act_size_vector",
    "act_size_vector_deprecated",
    "memory_size_vector",
)
_ENCODER = "observation_encoder."
_BUFFER = re.compile(r"\.normalizer\.[a-z_]+$")
_SECOND = re.compile(r"(^|\.)(network_body|_encoder)\.processors\.")


def second_name(name: str) -> str | None:
    """Return the second name of an encoder's entry, which ML-Agents registers twice, or None for other entries."""
    head, found, rest = name.partition(f"{_ENCODER}processors.")
    return f"{head}processors.{rest}" if found else None


def with_second_names(network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a network's entries in ML-Agents' order with the second names, which follow all of the encoder's."""
    whole: dict[str, Tensor] = {}
    twice: dict[str, Tensor] = {}
    for name, value in network.items():
        if twice and _ENCODER not in name:
            whole |= twice
            twice = {}
        whole[name] = value
        second = second_name(name)
        if second is not None:
            twice[second] = value
    return whole | twice


def mlagents_parameters(network: Iterable[str]) -> list[str]:
    """Return the parameters among a network's entries, in the order of ML-Agents' optimizers."""
    return [name for name in network if not _BUFFER.search(name) and not _SECOND.search(name)]
