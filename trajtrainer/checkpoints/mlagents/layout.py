"""Places of our entries in ML-Agents' checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trajtrainer.checkpoints.mlagents.names import CONSTANTS, mlagents_parameters
from trajtrainer.nn.mlagents import Key

POLICY = "Policy"
CRITIC = "Optimizer:critic"  # with a shared critic a copy of all of POLICY
STEP, STEP_ENTRY = "global_step", "_GlobalSteps__global_step"
REWARD_PREFIX = "Module:"
EXTRA = "trajtrainer"  # not ML-Agents': what it does not keep
ENTROPY_OPTIMIZER = "Optimizer:entropy_optimizer"
_OF_GROUPS = "body.max_group_size"  # what only POCA's critic has
_Q, _VALUE, _TARGET = "Optimizer:q_network", "Optimizer:value_network", "Optimizer:target_network"
_SAC_HOMES = {
    "q1": (_Q, "q1_network."),
    "q2": (_Q, "q2_network."),
    "critic": (_VALUE, ""),
    "target": (_TARGET, ""),
    # What ML-Agents does not have, where it would stand there.
    "q1_target": (_TARGET, "q1_network."),
    "q2_target": (_TARGET, "q2_network."),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One of our entries.

    Attributes:
        module: ours, such as ``actor``.
        ours: name in the module's ``state_dict``.
        network: ML-Agents', such as ``Policy``.
        key: the names there.
    """

    module: str
    ours: str
    network: str
    key: Key

    @property
    def layer(self) -> tuple[str, str]:
        """The module's part that it belongs to."""
        return self.module, self.ours.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class OptimizerEntry:
    """One of our Adams: ML-Agents' key, its networks and our modules whose parameters it has, in order."""

    key: str
    networks: tuple[str, ...]
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A trainer's checkpoint.

    Attributes:
        entries: all weights and normalisers, module by module in their order, reward signals' last.
        networks: ML-Agents', each once.
        optimizers: our name -> ML-Agents', without SAC's for the entropy coefficients.
        shared: the critic is heads on the actor's body.
        sac: SAC's networks.
    """

    entries: tuple[Entry, ...]
    networks: tuple[str, ...]
    optimizers: Mapping[str, OptimizerEntry]
    shared: bool
    sac: bool

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Layout:
        """Return the layout of a trainer's state."""
        modules, keys = state["modules"], state["keys"]
        sac = "q1" in modules
        shared = "critic" in modules and not any(name.startswith("body.") for name in modules["critic"])
        homes = {"actor": (POLICY, "")}
        optimizers: dict[str, OptimizerEntry] = {}
        if sac:
            homes |= {name: home for name, home in _SAC_HOMES.items() if name in modules}
            trained = ("q1", "q2", "critic") if "critic" in modules else ("q1", "q2")
            of_values = tuple(dict.fromkeys(_SAC_HOMES[name][0] for name in trained))
            optimizers = {
                "policy": OptimizerEntry("Optimizer:policy_optimizer", (POLICY,), ("actor",)),
                "value": OptimizerEntry("Optimizer:value_optimizer", of_values, trained),
            }
        elif "critic" in modules:
            homes["critic"] = (POLICY if shared else CRITIC, "")
            networks = (POLICY,) if shared else (POLICY, CRITIC)
            key = "Optimizer:adam" if _OF_GROUPS in modules["critic"] else "Optimizer:value_optimizer"
            optimizers = {"adam": OptimizerEntry(key, networks, ("actor", "critic"))}
        homes |= {name: (REWARD_PREFIX + name, "") for name in state.get("rewards", {})}
        entries = [entry for module, home in homes.items() for entry in module_entries(module, keys[module], *home)]
        return cls(tuple(entries), tuple(dict.fromkeys(home[0] for home in homes.values())), optimizers, shared, sac)

    def optimized(self, optimizer: str) -> list[Entry]:
        """Return the parameters of one of our optimizers, in its order."""
        return [
            entry
            for module in self.optimizers[optimizer].modules
            for entry in self.entries
            if entry.module == module and entry.key.is_parameter
        ]


def module_entries(module: str, keys: Mapping[str, Key], network: str, prefix: str = "") -> list[Entry]:
    """Return where the entries of one of our modules are: in ML-Agents' ``network``, under names with ``prefix``."""
    return [
        Entry(module, ours, network, key._replace(names=tuple(prefix + name for name in key.names)))
        for ours, key in keys.items()
    ]


def shares_critic(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether ML-Agents trained with a shared critic."""
    critic = checkpoint.get(CRITIC)
    return isinstance(critic, Mapping) and CONSTANTS[0] in critic


def parameter_indices(networks: Mapping[str, Any], order: tuple[str, ...]) -> dict[tuple[str, str], int]:
    """Return (network, name) -> index in ML-Agents' Adam over the parameters of these networks."""
    known = [(key, networks[key]) for key in order if isinstance(networks.get(key), Mapping)]
    parameters = [(key, name) for key, network in known for name in mlagents_parameters(map(str, network))]
    return {parameter: index for index, parameter in enumerate(parameters)}
