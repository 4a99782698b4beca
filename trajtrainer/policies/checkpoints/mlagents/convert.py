"""Converts checkpoints between our state and ML-Agents' key layout, so that either trainer can continue a run.

Our state of an algorithm is plain data::

    {
        "step": 2500,
        "modules": {"actor": state_dict, "critic": state_dict},  # for a shared critic, only its heads
        "optimizers": {"adam": state_dict},
        "rewards": {"RND-pred": state_dict, ...},      # networks of reward signals; may be absent
        "keys": {"actor": mlagents_keys(actor), ...},  # for all networks that ML-Agents also has
        "layout": CheckpointLayout,                    # where ML-Agents keeps networks and optimizers
        "extra": {...},                                # all other state; may be absent
    }
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trajtrainer.learning.nn.mlagents import CRITIC, POLICY, CheckpointLayout, Key, NetworkPlace

logger = logging.getLogger(__name__)

State = dict[str, Any]

STEP, STEP_ENTRY = "global_step", "_GlobalSteps__global_step"
REWARD_PREFIX = "Module:"
EXTRA = "trajtrainer"  # our own key, for everything that ML-Agents does not save
LEARNER = "learner"

# Parameters of ML-Agents' policy that are never trained. They come first, in this order.
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
_VERSION = 3.0
_MOMENTS = ("exp_avg", "exp_avg_sq")
_GROUP_KEYS = ("lr", "betas", "eps", "weight_decay")
# Other optimizer settings that torch 2.1 (used by ML-Agents) writes. Our Adam may not have them.
_OFF = {"amsgrad": False, "maximize": False, "foreach": None, "capturable": False, "differentiable": False}
_MISSING = "missing (kept as initialized)"
_MISMATCHED = "mismatched (kept as initialized)"
_UNUSED = "not used"


# Layout


class CheckpointEntry(NamedTuple):
    """One of our entries: its name in the ``state_dict`` of ``module``, and its keys in ML-Agents' ``network``."""

    module: str
    ours: str
    network: str
    key: Key

    def split(self, value: Tensor) -> Sequence[Tensor]:
        """Split our ``value`` into one part per ML-Agents entry."""
        return value.split_with_sizes(self.key.rows) if len(self.key.names) > 1 else [value]


def module_entries(module: str, keys: Mapping[str, Key], place: NetworkPlace) -> Iterator[CheckpointEntry]:
    """Yield the checkpoint entries of one of our modules."""
    for ours, key in keys.items():
        yield CheckpointEntry(
            module, ours, place.entry, key._replace(names=tuple(place.prefix + name for name in key.names))
        )


def entries_of(state: Mapping[str, Any]) -> list[CheckpointEntry]:
    """Return the entries that ML-Agents also saves: weights and normalizers of networks, then of reward signals."""
    places = {
        **state["layout"].networks,
        **{name: NetworkPlace(REWARD_PREFIX + name) for name in state.get("rewards", {})},
    }
    return [entry for name, place in places.items() for entry in module_entries(name, state["keys"][name], place)]


def second_name(name: str) -> str | None:
    """Return the second name of an encoder's entry (ML-Agents registers encoders twice), or None for other entries."""
    head, found, rest = name.partition(f"{_ENCODER}processors.")
    return f"{head}processors.{rest}" if found else None


def with_second_names(network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a network's entries in ML-Agents' order: all first names of an encoder, then all of its second names."""
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
    """Return whether a checkpoint has a shared critic, which contains a copy of the policy."""
    critic = checkpoint.get(CRITIC)
    return isinstance(critic, Mapping) and CONSTANTS[0] in critic


def parameter_indices(checkpoint: Mapping[str, Any], entries: list[CheckpointEntry]) -> dict[tuple[str, str], int]:
    """Map (network, name) to the index in ML-Agents' Adam over the networks of these entries, including constants.

    Whether the critic's own entry counts depends on the checkpoint (in ML-Agents, a shared critic is a copy of the
    policy), not on our settings.
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


# From our state to ML-Agents' layout


def to_mlagents(state: Mapping[str, Any]) -> State:
    """Convert our state to the exact keys of ML-Agents, plus the key ``trajtrainer``, which ML-Agents ignores.

    This key holds our ``extra`` and, under ``learner``, the networks and optimizers that ML-Agents does not have. The
    weights share memory with ``state``.

    Raises:
        TypeError: ``extra`` holds an object that ``read_checkpoint`` would reject.
    """
    layout, entries, rewards = state["layout"], entries_of(state), state.get("rewards", {})
    modules = {**state["modules"], **rewards}
    # The description of the action space that ML-Agents stores next to the weights.
    actor, discrete = modules["actor"], ("actor", "head.discrete.bias")
    branches = next((entry.key.rows for entry in entries if (entry.module, entry.ours) == discrete), ())
    mu, recurrent = actor.get("head.mu.bias"), actor.get("body.memory.lstm.weight_hh_l0")
    continuous = 0 if mu is None else len(mu)
    memory = 0 if recurrent is None else 2 * recurrent.shape[1]
    numbers = (_VERSION, not branches, continuous, branches, continuous + sum(branches), memory)
    constants = {name: torch.tensor([number]).float() for name, number in zip(CONSTANTS, numbers, strict=True)}
    # The networks. If one of our layers joins several of ML-Agents' layers, they are written one after the other.
    found: dict[str, dict[str, Tensor]] = {POLICY: constants}
    for _, layer in groupby(entries, key=lambda entry: (entry.module, entry.ours.rpartition(".")[0])):
        parts = [(entry, entry.split(modules[entry.module][entry.ours])) for entry in layer]
        for k in range(max(len(values) for _, values in parts)):
            for entry, values in parts:
                found.setdefault(entry.network, {})[entry.key.names[k]] = values[k]
    networks: dict[str, Mapping[str, Tensor]] = {key: with_second_names(network) for key, network in found.items()}
    if layout.shares_critic:
        networks[CRITIC] = dict(networks[POLICY])
    optimizers = {
        place.entry: _adam(state["optimizers"][name], _optimized(entries, place.networks), networks)
        for name, place in layout.optimizers.items()
    }
    extra = dict(state.get("extra", {}))
    others = {
        "modules": {name: module for name, module in state["modules"].items() if name not in layout.networks},
        "optimizers": {name: adam for name, adam in state["optimizers"].items() if name not in layout.optimizers},
    }
    if any(others.values()):
        extra[LEARNER] = others
    _check_plain(extra, "extra")
    reward_networks = {key: networks.pop(key, {}) for key in (REWARD_PREFIX + name for name in rewards)}
    return {
        POLICY: networks.pop(POLICY),
        STEP: {STEP_ENTRY: torch.tensor([state["step"]], dtype=torch.int64)},
        **networks,
        **optimizers,
        **reward_networks,
        EXTRA: extra,
    }


def _optimized(entries: Sequence[CheckpointEntry], modules: Sequence[str]) -> list[CheckpointEntry]:
    """Return the parameters of an Adam over these modules, in the optimizer's order."""
    return [entry for name in modules for entry in entries if entry.module == name and entry.key.is_parameter]


def _adam(state: State, entries: list[CheckpointEntry], networks: Mapping[str, Any]) -> State:
    """Convert an Adam's state to ML-Agents' parameter indices, which also count branches and constants."""
    group = state["param_groups"][0]
    moments, count = state["state"], len(group["params"])
    if entries:
        index = parameter_indices(networks, entries)
        moments, count = {}, len(index)
        for number, ours in state["state"].items():
            entry = entries[number]
            parts = zip(entry.key.names, *(entry.split(ours[name]) for name in _MOMENTS), strict=True)
            for name, *values in parts:
                own = {moment: value.clone() for moment, value in zip(_MOMENTS, values, strict=True)}
                step = torch.as_tensor(ours["step"], dtype=torch.float32).clone()
                moments[index[entry.network, name]] = {"step": step, **own}
        moments = dict(sorted(moments.items()))
    kept = {key: group[key] for key in _GROUP_KEYS}
    return {"state": moments, "param_groups": [kept | _OFF | {"fused": None, "params": list(range(count))}]}


def _check_plain(value: object, path: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_plain(key, path)
            _check_plain(item, f"{path}[{key!r}]")
    elif type(value) in (list, tuple):
        for i, item in enumerate(value):  # type: ignore[arg-type]
            _check_plain(item, f"{path}[{i}]")
    elif value is not None and type(value) not in (bool, int, float, str, bytes) and not isinstance(value, Tensor):
        raise TypeError(f"{path} is a {type(value).__name__}; a checkpoint may contain only tensors and plain data")


# From ML-Agents' layout to our state


def from_mlagents(
    checkpoint: Mapping[str, Any],
    like: Mapping[str, Any],
    *,
    source: str = "The checkpoint",
    policy_alone: bool = False,
) -> State:
    """Convert a checkpoint of trajtrainer or ML-Agents to our state.

    This is as lenient as ML-Agents: entries that exist and have the right shape are loaded, and the rest stays as in
    ``like``. One warning lists all missing, unused and mismatched entries. Weights and moments are copied.
    ``extra`` is empty if ML-Agents wrote the file.

    Args:
        checkpoint: as returned by ``read_checkpoint``.
        like: the state of a newly created algorithm.
        source: the name of the file, for the warning.
        policy_alone: expect only the policy, and do not report other mismatches.
    """
    layout, reader, entries = like["layout"], Reader(checkpoint), entries_of(like)
    rewards = like.get("rewards", {})
    modules = {name: dict(module) for name, module in {**like["modules"], **rewards}.items()}
    loaded = set()
    for entry in entries:
        value = reader.value(entry, modules[entry.module][entry.ours])
        if value is not None:
            modules[entry.module][entry.ours] = value
            loaded.add(entry)
    for copy, followed in layout.copies.items():
        if not any(entry.module == copy for entry in loaded):
            modules[copy] = {name: value.clone() for name, value in modules[followed].items()}
    optimizers = dict(like["optimizers"])
    for name, place in layout.optimizers.items():
        parameters = [(entry, modules[entry.module][entry.ours]) for entry in _optimized(entries, place.networks)]
        optimizers[name] = reader.adam(place.entry, parameters, loaded, optimizers[name])
    extra = checkpoint.get(EXTRA)
    state = {
        **like,
        "step": reader.step(),
        "modules": {name: modules[name] for name in like["modules"]},
        "optimizers": optimizers,
        "rewards": {name: modules[name] for name in rewards},
        "extra": dict(extra) if isinstance(extra, Mapping) else {},
    }
    if not policy_alone:
        for part, others in state["extra"].get(LEARNER, {}).items():
            state[part] |= others
    reader.find_unused(layout)
    if differences := reader.differences(POLICY if policy_alone else ""):
        logger.warning("%s does not fully match the networks of this behavior: %s.", source, differences)
    return state


class Reader:
    """Reads the entries of a checkpoint that match, and collects the mismatches."""

    def __init__(self, checkpoint: Mapping[str, Any]) -> None:
        self._checkpoint = checkpoint
        self._used: set[tuple[str, str]] = set()
        self._differences: dict[str, dict[str, None]] = {}  # kind of mismatch -> names (ordered and unique)

    def _note(self, what: str, name: str) -> None:
        self._differences.setdefault(what, {})[name] = None

    def differences(self, network: str = "") -> str:
        """Describe all mismatches, or those of one network. Returns an empty text if there are none."""
        shown = {
            what: [name for name in names if not network or name.split("/")[0] == network]
            for what, names in self._differences.items()
        }
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in shown.items() if names)

    def value(self, entry: CheckpointEntry, like: Tensor) -> Tensor | None:
        """Return an entry with the device and dtype of ``like``, or None if it is missing or has another shape."""
        network, entries = entry.network, self._checkpoint.get(entry.network)
        if not isinstance(entries, Mapping):
            self._note(_MISSING, network)
            return None
        parts = []
        for name, shape in zip(entry.key.names, entry.key.shapes(like), strict=True):
            found = next((known for known in (name, second_name(name)) if known in entries), None)
            if found is None:
                self._note(_MISSING, f"{network}/{name}")
                continue
            self._used.add((network, found))
            value = entries[found]
            if isinstance(value, Tensor) and tuple(value.shape) == shape:
                parts.append(value.detach().to(like.device, like.dtype, copy=True))
            else:
                held = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
                self._note(_MISMATCHED, f"{network}/{name} ({held}, expected shape {shape})")
        if len(parts) < len(entry.key.names):
            return None
        if len(parts) == 1:
            return parts[0]
        # On the meta device, torch.cat imports torch._dynamo, which takes seconds.
        return torch.empty_like(like) if like.is_meta else torch.cat(parts)

    def adam(
        self, key: str, parameters: Sequence[tuple[CheckpointEntry, Tensor]], loaded: set[CheckpointEntry], like: State
    ) -> State:
        """Return the state of one of our Adam optimizers, with the moments of the entries in ``loaded``.

        Args:
            key: the optimizer's entry in the checkpoint.
            parameters: the network parameters that the optimizer trains, each with a tensor of the same shape; empty
                if it trains other parameters.
            loaded: the entries whose weights were loaded.
            like: the state of a new optimizer. It is returned if the checkpoint's optimizer does not match. Settings
                that are not hyperparameters (such as ``fused``) are always taken from it.
        """
        if key not in self._checkpoint:
            self._note(_MISSING, key)
            return like
        try:
            state = self._checkpoint[key]
            (group,), held = state["param_groups"], state["state"]
            if parameters:
                index = parameter_indices(self._checkpoint, [entry for entry, _ in parameters])
                count = len(index)
                sources: list[Any] = [
                    [index.get((entry.network, name)) for name in entry.key.names] if entry in loaded else [None]
                    for entry, _ in parameters
                ]
                shapes: list[Any] = [entry.key.shapes(value) for entry, value in parameters]
            else:
                count = len(like["param_groups"][0]["params"])
                sources, shapes = [[number] for number in range(count)], [[None]] * count
            if len(group["params"]) != count:
                raise _MismatchError(f"it has {len(group['params'])} parameters, expected {count}")
            moments = {
                number: _gathered([held[source] for source in of], sizes)
                for number, (of, sizes) in enumerate(zip(sources, shapes, strict=True))
                if all(source in held for source in of)
            }
            settings = {name: group[name] for name in _GROUP_KEYS}
            return {"state": moments, "param_groups": [{**like["param_groups"][0], **settings}]}
        except _MismatchError as error:
            self._note(_MISMATCHED, f"{key} ({error})")
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            self._note(_MISMATCHED, f"{key} (not the state of an Adam optimizer: {type(error).__name__}: {error})")
        return like

    def step(self) -> int:
        """Return the step of the checkpoint. If it is missing, record a mismatch and return 0."""
        try:
            return int(self._checkpoint[STEP][STEP_ENTRY])
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):
            self._note(_MISSING, STEP)
            return 0

    def find_unused(self, layout: CheckpointLayout) -> None:
        """Record the entries of the checkpoint that were not used."""
        whole = {place.entry for place in layout.optimizers.values()} | {STEP, EXTRA}
        if layout.shares_critic and shares_critic(self._checkpoint):
            whole.add(CRITIC)  # a copy of the policy
        for key, entries in self._checkpoint.items():
            known = {name for network, name in self._used if network == key}
            if key in whole or (not known and isinstance(entries, Mapping) and not entries):
                continue
            if not known:
                self._note(_UNUSED, str(key))
                continue
            known |= {second for name in entries if (second := second_name(str(name)))} | set(CONSTANTS)
            for name in entries:
                if name not in known:
                    self._note(_UNUSED, f"{key}/{name}")


class _MismatchError(Exception):
    """Raised if the state of an optimizer does not match the networks."""


def _gathered(sources: Sequence[Mapping[str, Any]], shapes: Sequence[tuple[int, ...] | None]) -> State:
    """Join the moments of several ML-Agents parameters into those of one of ours. A shape of None accepts any shape."""
    for source, shape in zip(sources, shapes, strict=True):
        expected = tuple(source[_MOMENTS[0]].shape if shape is None else shape)
        for name in _MOMENTS:
            if tuple(source[name].shape) != expected:
                raise _MismatchError(f"{name} has shape {tuple(source[name].shape)}, expected {expected}")
    gathered = {name: torch.cat([source[name].float() for source in sources]) for name in _MOMENTS}
    return {"step": torch.as_tensor(sources[0]["step"], dtype=torch.float32).reshape(()).clone(), **gathered}
