"""Where ML-Agents keeps weights and optimizers in its checkpoints.

A module whose parts have other names in ML-Agents has an attribute ``mlagents_names``: path of a part or tensor within
the module -> its name in ML-Agents. Parts left out are not in ML-Agents' checkpoints. A part that joins several of
ML-Agents' along the first dimension has all their names, with the number of rows of each. Modules without the attribute
have the same names in both.

Modules are registered in ML-Agents' order, so that an optimizer has its parameters in the same order, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from torch import Tensor, nn

Names = Mapping[str, str | Mapping[str, int]]

POLICY, CRITIC = "Policy", "Optimizer:critic"
"""Entries of a checkpoint. With a shared critic the second is a copy of the first."""


class NetworkPlace(NamedTuple):
    """The entry of ML-Agents' checkpoint that holds a network, under names with ``prefix``."""

    entry: str
    prefix: str = ""


class OptimizerPlace(NamedTuple):
    """The entry that holds an Adam, and the networks whose parameters it trains, in order.

    Without networks it trains other parameters, in ML-Agents' order.
    """

    entry: str
    networks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """The parts of an algorithm that ML-Agents keeps in a checkpoint, and where. All others are in our own entry.

    By default only the policy, so that the checkpoint can be exported and used for initialization.

    Attributes:
        networks: our name -> its place, in the order of the file.
        optimizers: likewise.
        copies: name of a network that ML-Agents lacks -> the network that it starts as a copy of.
    """

    networks: Mapping[str, NetworkPlace] = field(default_factory=lambda: {"actor": NetworkPlace(POLICY)})
    optimizers: Mapping[str, OptimizerPlace] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)

    @property
    def shares_critic(self) -> bool:
        """Whether the critic is heads on the actor's body."""
        return self.networks.get("critic") == NetworkPlace(POLICY)


class Key(NamedTuple):
    """The place where ML-Agents keeps one entry of a ``state_dict``.

    Attributes:
        names: more than one if the entry joins several of ML-Agents'.
        rows: first dimensions of the joined entries; empty if none are joined.
        is_parameter: whether an optimizer may train it; False for a buffer.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...] = ()
    is_parameter: bool = True

    def shapes(self, value: Tensor) -> list[tuple[int, ...]]:
        """The shape of each of ML-Agents' entries, if ours has the shape of ``value``."""
        if len(self.names) == 1:
            return [tuple(value.shape)]
        return [(rows, *value.shape[1:]) for rows in self.rows]


def mlagents_keys(module: nn.Module) -> dict[str, Key]:
    """Entry of a module's ``state_dict`` -> where ML-Agents keeps it, in the order of the ``state_dict``."""
    found = _keys(module)
    parameters = {name for name, _ in module.named_parameters()}
    return {
        name: found[name]._replace(is_parameter=name in parameters) for name in module.state_dict() if name in found
    }


def _keys(module: nn.Module) -> dict[str, Key]:
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False), *module.named_children())
    names: Names = getattr(module, "mlagents_names", {name: name for name, _ in own})
    keys = {}
    for path, stated in names.items():
        part = attrgetter(path)(module)
        key = Key((stated,)) if isinstance(stated, str) else Key(tuple(stated), tuple(stated.values()))
        if isinstance(part, nn.Module):
            for entry, below in _keys(part).items():
                joined = tuple(f"{name}.{rest}" for name in key.names for rest in below.names)
                keys[f"{path}.{entry}"] = Key(joined, key.rows or below.rows)
        elif part is not None:
            keys[path] = key
    return keys
