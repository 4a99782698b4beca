"""The layout of ML-Agents' checkpoints: which entry corresponds to which of ours, and the order in its optimizers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from trajtrainer.nn.mlagents import CRITIC, POLICY, Key, NetworkPlace

STEP, STEP_ENTRY = "global_step", "_GlobalSteps__global_step"
REWARD_PREFIX = "Module:"
EXTRA = "trajtrainer"  # our own key, for everything that ML-Agents does not keep

# Parameters of ML-Agents' policy that are never trained; they come first, in this order.
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


class CheckpointEntry(NamedTuple):
    """One of our entries: its name in the ``state_dict`` of ``module``, and its keys in ML-Agents' ``network``."""

    module: str
    ours: str
    network: str
    key: Key

    def split(self, value: Tensor) -> Sequence[Tensor]:
        """The parts of our ``value``, one per entry of ML-Agents."""
        return value.split_with_sizes(self.key.rows) if len(self.key.names) > 1 else [value]


def module_entries(module: str, keys: Mapping[str, Key], place: NetworkPlace) -> Iterator[CheckpointEntry]:
    """The entries of one of our modules."""
    for ours, key in keys.items():
        yield CheckpointEntry(
            module, ours, place.entry, key._replace(names=tuple(place.prefix + name for name in key.names))
        )


def entries_of(state: Mapping[str, Any]) -> list[CheckpointEntry]:
    """The weights and normalizers of a state that ML-Agents keeps too: its networks, then its reward signals."""
    places = {
        **state["layout"].networks,
        **{name: NetworkPlace(REWARD_PREFIX + name) for name in state.get("rewards", {})},
    }
    return [entry for name, place in places.items() for entry in module_entries(name, state["keys"][name], place)]


def second_name(name: str) -> str | None:
    """The second name of an encoder's entry, since ML-Agents registers encoders twice; None for other entries."""
    head, found, rest = name.partition(f"{_ENCODER}processors.")
    return f"{head}processors.{rest}" if found else None


def with_second_names(network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a network in ML-Agents' order; second names follow all first names of the encoder."""
    whole: dict[str, Tensor] = {}
    twice: dict[str, Tensor] = {}
    for name, value in network.items():
        if twice and _ENCODER not in name:
            whole, twice = whole | twice, {}
        whole[name] = value
        if second := second_name(name):
            twice[second] = value
    return whole | twice


def shares_critic(checkpoint: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has a shared critic, which contains a copy of the policy."""
    critic = checkpoint.get(CRITIC)
    return isinstance(critic, Mapping) and CONSTANTS[0] in critic


def parameter_indices(checkpoint: Mapping[str, Any], entries: list[CheckpointEntry]) -> dict[tuple[str, str], int]:
    """(network, name) -> index in ML-Agents' Adam over the networks of these entries, constants included.

    Whether a shared critic's own entry counts depends on who wrote the checkpoint, not on our settings.
    """
    order = dict.fromkeys(entry.network for entry in entries)
    if any((entry.module, entry.network) == ("critic", POLICY) for entry in entries):
        order[CRITIC] = None
    if shares_critic(checkpoint):
        order.pop(CRITIC, None)  # a copy of the policy
    networks = {key: checkpoint[key] for key in order if isinstance(checkpoint.get(key), Mapping)}
    names = [(key, str(name)) for key, network in networks.items() for name in network]
    parameters = [(key, name) for key, name in names if not _BUFFER.search(name) and not _SECOND.search(name)]
    return {parameter: index for index, parameter in enumerate(parameters)}
