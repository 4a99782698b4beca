"""The locations of weights and optimizers in ML-Agents' checkpoints.

A module whose parts have other names in ML-Agents has an attribute ``mlagents_names``, which maps the path of a part or
tensor within the module to its name in ML-Agents. ML-Agents' checkpoints do not contain parts that the mapping omits.
If a part joins several of ML-Agents' parts along the first dimension, the mapping lists all their names with the number
of rows of each. Modules without the attribute have the same names in both.

Modules are registered in ML-Agents' order, so the parameters of an optimizer have the same order, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from torch import Tensor, nn

Names = Mapping[str, str | Mapping[str, int]]

POLICY, CRITIC = "Policy", "Optimizer:critic"
"""Entries of a checkpoint. With a shared critic, the second is a copy of the first."""


class NetworkPlace(NamedTuple):
    """The entry of an ML-Agents checkpoint that contains a network. The names in it start with ``prefix``."""

    entry: str
    prefix: str = ""


class OptimizerPlace(NamedTuple):
    """The entry that contains the state of an Adam optimizer, and the networks that it trains, in order.

    If no networks are listed, it trains other parameters, which are in ML-Agents' order.
    """

    entry: str
    networks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """The parts of an algorithm that ML-Agents' checkpoints contain, and their locations.

    All other parts are stored in an entry that only trajtrainer uses. By default, the layout contains only the policy,
    so that the checkpoint can be exported and used for initialization.

    Attributes:
        networks: maps a network's name in trajtrainer to its location, in the order of the file.
        optimizers: maps an optimizer's name in trajtrainer to its location, in the order of the file.
        copies: maps the name of a network that ML-Agents lacks to the network from which it is initialized.
    """

    networks: Mapping[str, NetworkPlace] = field(default_factory=lambda: {"actor": NetworkPlace(POLICY)})
    optimizers: Mapping[str, OptimizerPlace] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)

    @property
    def shares_critic(self) -> bool:
        """True if the critic consists of heads on the actor's body."""
        return self.networks.get("critic") == NetworkPlace(POLICY)


class Key(NamedTuple):
    """The location of a ``state_dict`` entry in ML-Agents' checkpoints.

    Attributes:
        names: names in ML-Agents; several if the entry joins several of ML-Agents' entries.
        rows: first dimension of each joined entry; empty if no entries are joined.
        is_parameter: True if an optimizer may train the tensor, False for a buffer.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...] = ()
    is_parameter: bool = True

    def shapes(self, value: Tensor) -> list[tuple[int, ...]]:
        """Return the shape of each of ML-Agents' entries for a joined tensor with the shape of ``value``."""
        if len(self.names) == 1:
            return [tuple(value.shape)]
        return [(rows, *value.shape[1:]) for rows in self.rows]


def mlagents_keys(module: nn.Module) -> dict[str, Key]:
    """Map the ``state_dict`` keys of a module to locations in ML-Agents' checkpoints, in ``state_dict`` order."""
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
