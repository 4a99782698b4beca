"""ML-Agents' names of the weights in its checkpoints, as each module states them, and an algorithm's entries there.

A module whose parts ML-Agents calls otherwise has an attribute ``mlagents_names``: ML-Agents' name of each of its parts
and tensors by their path from the module (those left out are not in ML-Agents' checkpoints). A part that is several of
ML-Agents' side by side, along the first dimension, has all their names, with the rows of each. Modules without the
attribute are called the same in both.

Modules are registered in ML-Agents' order, so that the parameters of an optimizer come in the same order too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from torch import Tensor, nn

Names = Mapping[str, str | Mapping[str, int]]

POLICY, CRITIC = "Policy", "Optimizer:critic"
"""Entries of a checkpoint. With a shared critic the second is a copy of all of the first."""


class NetworkPlace(NamedTuple):
    """The entry of ML-Agents' checkpoint that holds a network, under names with ``prefix``."""

    entry: str
    prefix: str = ""


class OptimizerPlace(NamedTuple):
    """The entry that holds an Adam, and the networks whose parameters it has, in order.

    Without networks it has other parameters, in the same order in ML-Agents.
    """

    entry: str
    networks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """What of an algorithm ML-Agents keeps in a checkpoint, and where. All else is in our own entry.

    By default this is the policy alone, so that the checkpoint can be exported and taken over.

    Attributes:
        networks: our name -> its place, in the order of the file.
        optimizers: likewise.
        copies: name of a network that ML-Agents does not have -> the one that it begins as a copy of.
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
        names: several where the entry is several of ML-Agents' side by side.
        rows: the first dimension of each of several, or of the one that stands for several; else empty.
        is_parameter: an optimizer may own it, because it is no buffer.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...] = ()
    is_parameter: bool = True

    def shapes(self, value: Tensor) -> list[tuple[int, ...]]:
        """The shape of each of ML-Agents' entries, where ours is like ``value``."""
        if len(self.names) == 1:
            return [tuple(value.shape)]
        return [(rows, *value.shape[1:]) for rows in self.rows]


def mlagents_keys(module: nn.Module) -> dict[str, Key]:
    """Where ML-Agents keeps each entry of a module's ``state_dict``, in the order of that."""
    found = _keys(module)
    parameters = {name for name, _ in module.named_parameters()}
    return {
        name: found[name]._replace(is_parameter=name in parameters) for name in module.state_dict() if name in found
    }


def _keys(module: nn.Module) -> dict[str, Key]:
    keys = {}
    for path, stated in _names(module).items():
        part = attrgetter(path)(module)
        key = Key((stated,)) if isinstance(stated, str) else Key(tuple(stated), tuple(stated.values()))
        if isinstance(part, nn.Module):
            for entry, below in _keys(part).items():
                names = tuple(f"{name}.{rest}" for name in key.names for rest in below.names)
                keys[f"{path}.{entry}"] = Key(names, key.rows or below.rows)
        elif part is not None:
            keys[path] = key
    return keys


def _names(module: nn.Module) -> Names:
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False), *module.named_children())
    names: Names = getattr(module, "mlagents_names", {name: name for name, _ in own})
    return names
