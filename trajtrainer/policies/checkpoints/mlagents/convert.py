"""Converts checkpoints between our state and the key layout of ML-Agents, so that either can continue a run.

Our state of an algorithm is plain data::

    {
        "step": 2500,
        "modules": {"actor": state_dict, "critic": state_dict},  # a shared critic has its heads only
        "optimizers": {"adam": state_dict},
        "rewards": {"RND-pred": state_dict, ...},      # networks of reward signals; may be absent
        "keys": {"actor": mlagents_keys(actor), ...},  # of all these networks, as far as ML-Agents has them
        "layout": CheckpointLayout,                    # where ML-Agents keeps networks and optimizers
        "extra": {...},                                # everything else that is kept; may be absent
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
EXTRA = "trajtrainer"  # our own key, for everything that ML-Agents does not keep
LEARNER = "learner"

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
_VERSION = 3.0
_MOMENTS = ("exp_avg", "exp_avg_sq")
_GROUP_KEYS = ("lr", "betas", "eps", "weight_decay")
# What ML-Agents' torch 2.1 also writes, regardless of the Adam that we use.
_OFF = {"amsgrad": False, "maximize": False, "foreach": None, "capturable": False, "differentiable": False}
_MISSING = "missing (kept as initialized)"
_MISMATCHED = "not fitting (kept as initialized)"
_UNUSED = "not used"


# the layout


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


# ours -> theirs


def to_mlagents(state: Mapping[str, Any]) -> State:
    """Our state under exactly ML-Agents' keys, plus the key ``trajtrainer``, which ML-Agents ignores.

    That key holds our extra and, in ``learner``, the networks and optimizers that ML-Agents does not have. Tensors are
    shared with ``state``, not copied.

    Raises:
        TypeError: ``extra`` holds something that a safe load would refuse.
    """
    layout, entries, rewards = state["layout"], entries_of(state), state.get("rewards", {})
    modules = {**state["modules"], **rewards}
    # What ML-Agents stores of the action space, next to the weights.
    actor, discrete = modules["actor"], ("actor", "head.discrete.bias")
    branches = next((entry.key.rows for entry in entries if (entry.module, entry.ours) == discrete), ())
    mu, recurrent = actor.get("head.mu.bias"), actor.get("body.memory.lstm.weight_hh_l0")
    continuous = 0 if mu is None else len(mu)
    memory = 0 if recurrent is None else 2 * recurrent.shape[1]
    numbers = (_VERSION, not branches, continuous, branches, continuous + sum(branches), memory)
    constants = {name: torch.tensor([number]).float() for name, number in zip(CONSTANTS, numbers, strict=True)}
    # The networks. Where one of our layers joins several of theirs, theirs follow one another.
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
    """The parameters of an Adam over these modules, in its order."""
    return [entry for name in modules for entry in entries if entry.module == name and entry.key.is_parameter]


def _adam(state: State, entries: list[CheckpointEntry], networks: Mapping[str, Any]) -> State:
    """The state of an Adam, under the indices of ML-Agents, which also count branches and constants."""
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
        raise TypeError(f"{path} is a {type(value).__name__}; a checkpoint holds only tensors and plain data")


# theirs -> ours


def from_mlagents(
    checkpoint: Mapping[str, Any],
    like: Mapping[str, Any],
    *,
    source: str = "The checkpoint",
    policy_alone: bool = False,
) -> State:
    """Read a checkpoint, ours or ML-Agents', into a state like ``like``, that of a freshly made algorithm.

    This is as lenient as ML-Agents: entries that exist and fit are loaded, the rest stays as in ``like``. One warning
    names everything that is missing, unused or does not fit, with ``source`` for the file. With ``policy_alone`` only
    the policy is expected. Weights and moments are copies; ``extra`` is empty if ML-Agents wrote the file.
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
    """Reads the entries of a checkpoint that fit, and remembers the others."""

    def __init__(self, checkpoint: Mapping[str, Any]) -> None:
        self._checkpoint = checkpoint
        self._used: set[tuple[str, str]] = set()
        self._differences: dict[str, dict[str, None]] = {}  # what it is -> the names, each once

    def _note(self, what: str, name: str) -> None:
        self._differences.setdefault(what, {})[name] = None

    def differences(self, network: str = "") -> str:
        """All mismatches, or those of one network, in words; empty if there are none."""
        shown = {
            what: [name for name in names if not network or name.split("/")[0] == network]
            for what, names in self._differences.items()
        }
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in shown.items() if names)

    def value(self, entry: CheckpointEntry, like: Tensor) -> Tensor | None:
        """An entry as a tensor like ``like``; None if it is missing or does not fit."""
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
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def adam(
        self, key: str, parameters: Sequence[tuple[CheckpointEntry, Tensor]], loaded: set[CheckpointEntry], like: State
    ) -> State:
        """The state of one of our Adams, with the moments of the entries that were ``loaded``.

        ``like`` is the state of a fresh one; its settings that are not hyperparameters (``fused`` ...) stay.
        ``parameters`` are those of networks, each with a tensor like it; none if our Adam is over other parameters.
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
        """The step of the checkpoint; 0 if it is missing, which counts as a difference."""
        try:
            return int(self._checkpoint[STEP][STEP_ENTRY])
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):
            self._note(_MISSING, STEP)
            return 0

    def find_unused(self, layout: CheckpointLayout) -> None:
        """Note the entries of the checkpoint that no network uses."""
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
    """The state of an optimizer does not belong to these networks."""


def _gathered(sources: Sequence[Mapping[str, Any]], shapes: Sequence[tuple[int, ...] | None]) -> State:
    """The moments of a parameter, joined from those of several of ML-Agents'. A shape of None accepts any."""
    for source, shape in zip(sources, shapes, strict=True):
        expected = tuple(source[_MOMENTS[0]].shape if shape is None else shape)
        for name in _MOMENTS:
            if tuple(source[name].shape) != expected:
                raise _MismatchError(f"{name} has shape {tuple(source[name].shape)}, expected {expected}")
    gathered = {name: torch.cat([source[name].float() for source in sources]) for name in _MOMENTS}
    return {"step": torch.as_tensor(sources[0]["step"], dtype=torch.float32).reshape(()).clone(), **gathered}
