"""Checkpoints, ours <-> the key layout of ML-Agents, so that a run can be carried on by either.

Our state of a trainer is plain data::

    {
        "step": 2500,
        "modules": {"actor": state_dict, "critic": state_dict},
        "optimizers": {"adam": state_dict of the Adam over the actor's, then the critic's parameters},
        "rewards": {"RND-pred": state_dict, ...},     # networks of reward signals; may be absent
        "keys": {"actor": mlagents_keys(actor), ...}, # of all these networks
        "extra": {...},                               # whatever ML-Agents does not keep; may be absent
    }

SAC has the modules ``actor``, ``q1``, ``q2``, ``critic`` (V), ``target`` (without V ``q1_target`` and ``q2_target``
instead of the last two) and the optimizers ``policy``, ``value`` (q1, q2, critic) and ``entropy`` (over the discrete,
then the continuous coefficients). The ``state_dict`` of a shared critic holds its heads alone.

:func:`to_mlagents` gives exactly ML-Agents' keys and one more, ``trajtrainer``, with our extra; ML-Agents ignores it.
:func:`from_mlagents` takes over what fits a freshly made trainer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from trajtrainer.checkpoints.mlagents.layout import (
    CRITIC,
    ENTROPY_OPTIMIZER,
    EXTRA,
    POLICY,
    REWARD_PREFIX,
    STEP,
    STEP_ENTRY,
    Entry,
    Layout,
    parameter_indices,
)
from trajtrainer.checkpoints.mlagents.names import CONSTANTS, with_second_names
from trajtrainer.checkpoints.mlagents.optimizer import adam_to_mlagents, group_for_mlagents
from trajtrainer.checkpoints.mlagents.reader import Reader

logger = logging.getLogger(__name__)

State = dict[str, Any]
MlagentsCheckpoint = dict[str, Any]

_VERSION = 3.0
# Of SAC without a value network: what follows what. From a checkpoint that has one they begin as copies again.
_COPIES = {"q1_target": "q1", "q2_target": "q2"}


# ours -> theirs


def to_mlagents(state: Mapping[str, Any]) -> MlagentsCheckpoint:
    """Return our state of a trainer in ML-Agents' layout, plus the entry ``trajtrainer``.

    Tensors are shared, not copied.

    Raises:
        TypeError: ``extra`` holds something that a safe load would refuse.
    """
    layout, rewards = Layout.of(state), state.get("rewards", {})
    networks = _networks(layout, {**state["modules"], **rewards})
    reward_networks = {REWARD_PREFIX + name: networks.pop(REWARD_PREFIX + name) for name in rewards}
    optimizers = {
        optimizer.key: _adam(state["optimizers"][ours], layout, ours, networks)
        for ours, optimizer in layout.optimizers.items()
    }
    if layout.sac:
        optimizers[ENTROPY_OPTIMIZER] = _entropy_adam(state["optimizers"]["entropy"])
    extra = dict(state.get("extra", {}))
    _check_plain(extra, "extra")
    return {
        POLICY: networks.pop(POLICY),
        STEP: {STEP_ENTRY: torch.tensor([state["step"]], dtype=torch.int64)},
        **networks,
        **optimizers,
        **reward_networks,
        EXTRA: extra,
    }


def _networks(layout: Layout, modules: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Return ML-Agents' networks, whose layers stand one after the other where ours stand side by side."""
    networks: dict[str, dict[str, Tensor]] = {key: {} for key in layout.networks}
    networks[POLICY] = _constants(layout, modules["actor"])
    for _, layer in groupby(layout.entries, key=lambda entry: entry.layer):
        parts = [(entry, _split(entry, modules[entry.module][entry.ours])) for entry in layer]
        for k in range(max(len(values) for _, values in parts)):
            for entry, values in parts:
                networks[entry.network][entry.key.names[k]] = values[k]
    networks = {key: with_second_names(network) for key, network in networks.items()}
    if layout.shared:
        networks[CRITIC] = dict(networks[POLICY])
    return networks


def _split(entry: Entry, value: Tensor) -> Sequence[Tensor]:
    return value.split_with_sizes(entry.key.rows) if len(entry.key.names) > 1 else [value]


def _constants(layout: Layout, actor: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what ML-Agents stores of the action space beside the weights."""
    discrete = "actor", "head.discrete.bias"
    branches = next((entry.key.rows for entry in layout.entries if (entry.module, entry.ours) == discrete), ())
    mu, recurrent = actor.get("head.mu.bias"), actor.get("body.memory.lstm.weight_hh_l0")
    continuous = 0 if mu is None else len(mu)
    memory = 0 if recurrent is None else 2 * recurrent.shape[1]
    values = (_VERSION, float(not branches), continuous, [branches], continuous + sum(branches), memory)
    return {
        name: torch.tensor(value if isinstance(value, list) else [value], dtype=torch.float32)
        for name, value in zip(CONSTANTS, values, strict=True)
    }


def _adam(
    state: dict[str, Any], layout: Layout, ours: str, networks: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Any]:
    index = parameter_indices(networks, layout.optimizers[ours].networks)
    entries = layout.optimized(ours)
    return adam_to_mlagents(
        state,
        [[index[entry.network, name] for name in entry.key.names] for entry in entries],
        [entry.key.rows for entry in entries],
        len(index),
    )


def _entropy_adam(state: Mapping[str, Any]) -> dict[str, Any]:
    group = state["param_groups"][0]
    return {"state": state["state"], "param_groups": [group_for_mlagents(group, len(group["params"]))]}


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
    """Return the state that a trainer can restore from a checkpoint of ML-Agents (or ours: the layout is the same).

    As lenient as ML-Agents: what is there and fits is taken over, the rest stays as in ``like``. All that is missing,
    not used or does not fit is named in one warning.

    Args:
        checkpoint: what ``read_checkpoint`` gave.
        like: the state of a freshly made trainer, with the networks that the settings ask for.
        source: the file's name, for the warning.
        policy_alone: nothing else is expected in it, as another algorithm wrote it.

    Returns:
        A state like ``like``, with tensors of its own; ``extra`` is empty if ML-Agents wrote the file.
    """
    layout = Layout.of(like)
    reader = Reader(checkpoint)
    rewards = like.get("rewards", {})
    modules = {name: dict(module) for name, module in {**like["modules"], **rewards}.items()}
    taken = set()
    for entry in layout.entries:
        value = reader.value(entry, modules[entry.module][entry.ours])
        if value is not None:
            modules[entry.module][entry.ours] = value
            taken.add(entry)
    for copy, followed in _COPIES.items():
        if copy in modules and not any(entry.module == copy for entry in taken):
            modules[copy] = {name: value.clone() for name, value in modules[followed].items()}
    optimizers = dict(like["optimizers"])
    for ours in layout.optimizers:
        optimizers[ours] = reader.adam(layout, ours, taken, modules, optimizers[ours])
    if layout.sac:
        optimizers["entropy"] = reader.entropy_adam(optimizers["entropy"])
    extra = checkpoint.get(EXTRA)
    state = {
        "step": reader.step(),
        "modules": {name: modules[name] for name in like["modules"]},
        "optimizers": optimizers,
        "rewards": {name: modules[name] for name in rewards},
        "extra": dict(extra) if isinstance(extra, Mapping) else {},
    }
    reader.find_unused(layout)
    if policy_alone:
        reader.keep_differences_of(POLICY)
    if reader.differences:
        logger.warning("%s does not quite match this behavior's networks: %s.", source, reader.describe())
    return {**like, **state}
