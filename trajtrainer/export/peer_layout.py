"""Which of our entries is where in the peer's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trajtrainer.export import peer_names

POLICY = "Policy"
CRITIC = "Optimizer:critic"  # with a shared critic a copy of all of POLICY
STEP, STEP_ENTRY = "global_step", "_GlobalSteps__global_step"
REWARD_PREFIX = "Module:"
EXTRA = "trajtrainer"  # not the peer's: what it does not keep
ENTROPY_OPTIMIZER = "Optimizer:entropy_optimizer"
_Q, _VALUE, _TARGET = "Optimizer:q_network", "Optimizer:value_network", "Optimizer:target_network"


@dataclass(frozen=True, slots=True)
class Entry:
    """One of our entries.

    Attributes:
        module: ours, such as ``actor``.
        ours: name in the module's ``state_dict``.
        network: the peer's, such as ``Policy``.
        theirs: names there; several where ours is theirs side by side.
        rows: the first dimension of each of several.
    """

    module: str
    ours: str
    network: str
    theirs: tuple[str, ...]
    rows: tuple[int, ...]

    def shapes(self, value: Tensor) -> list[tuple[int, ...]]:
        """Shape of each of theirs, where ours is like ``value``."""
        if len(self.theirs) == 1:
            return [tuple(value.shape)]
        return [(rows, *value.shape[1:]) for rows in self.rows]


@dataclass(frozen=True, slots=True)
class OptimizerEntry:
    """One of our Adams: the peer's key, its networks and our modules whose parameters it has, in order."""

    key: str
    networks: tuple[str, ...]
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A trainer's checkpoint.

    Attributes:
        entries: all weights and normalisers, module by module in their order.
        networks: the peer's, each once.
        optimizers: our name -> the peer's, without SAC's for the entropy coefficients.
        shared: the critic is heads on the actor's body.
        sac: SAC's networks.
    """

    entries: tuple[Entry, ...]
    networks: tuple[str, ...]
    optimizers: Mapping[str, OptimizerEntry]
    shared: bool
    sac: bool

    @classmethod
    def of(cls, modules: Mapping[str, Mapping[str, Tensor]]) -> Layout:
        """The layout for these modules, name -> ``state_dict``."""
        sac = "q1" in modules
        shared = "critic" in modules and not any(name.startswith("body.") for name in modules["critic"])
        homes = {"actor": (POLICY, "")}
        optimizers: dict[str, OptimizerEntry] = {}
        if sac:
            homes |= {
                "q1": (_Q, "q1_network."),
                "q2": (_Q, "q2_network."),
                "critic": (_VALUE, ""),
                "target": (_TARGET, ""),
            }
            optimizers = {
                "policy": OptimizerEntry("Optimizer:policy_optimizer", (POLICY,), ("actor",)),
                "value": OptimizerEntry("Optimizer:value_optimizer", (_Q, _VALUE), ("q1", "q2", "critic")),
            }
        elif "critic" in modules:
            homes["critic"] = (POLICY if shared else CRITIC, "")
            networks = (POLICY,) if shared else (POLICY, CRITIC)
            optimizers = {"adam": OptimizerEntry("Optimizer:value_optimizer", networks, ("actor", "critic"))}
        entries = [entry for module, home in homes.items() for entry in module_entries(module, modules[module], *home)]
        return cls(tuple(entries), tuple(dict.fromkeys(home[0] for home in homes.values())), optimizers, shared, sac)

    def optimized(self, optimizer: str) -> list[Entry]:
        """The parameters of one of our optimizers, in its order."""
        return [
            entry
            for module in self.optimizers[optimizer].modules
            for entry in self.entries
            if entry.module == module and peer_names.is_parameter(entry.ours)
        ]


def module_entries(module: str, weights: Mapping[str, Tensor], network: str, prefix: str = "") -> list[Entry]:
    """Where the entries of one of our modules are: in the peer's ``network``, under names with ``prefix``."""
    is_actor = peer_names.BRANCH_SIZES in weights
    names = peer_names.actor_names(weights) if is_actor else peer_names.critic_names(weights)
    rows = tuple(weights[peer_names.BRANCH_SIZES].tolist()) if is_actor else ()
    return [
        Entry(module, ours, network, tuple(prefix + name for name in theirs), rows if len(theirs) > 1 else ())
        for ours, theirs in names.items()
    ]


def shares_critic(peer: Mapping[str, Any]) -> bool:
    """Did the peer train with a shared critic?"""
    critic = peer.get(CRITIC)
    return isinstance(critic, Mapping) and peer_names.CONSTANTS[0] in critic


def parameter_indices(networks: Mapping[str, Any], order: tuple[str, ...]) -> dict[tuple[str, str], int]:
    """(network, name) -> index in the peer's Adam over the parameters of these networks."""
    known = [(key, networks[key]) for key in order if isinstance(networks.get(key), Mapping)]
    parameters = [(key, name) for key, network in known for name in peer_names.peer_parameters(map(str, network))]
    return {parameter: index for index, parameter in enumerate(parameters)}
