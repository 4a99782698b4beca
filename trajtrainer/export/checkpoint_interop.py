"""Checkpoints, ours <-> the key layout of ML-Agents (reference 1.11), so that a run can be carried on by either.

Our state of a trainer is plain data::

    {
        "step": 2500,
        "modules": {"actor": state_dict, "critic": state_dict},
        "optimizers": {"adam": state_dict of the Adam over the actor's, then the critic's parameters},
        "rewards": {"RND-pred": state_dict, ...},     # networks of reward signals; may be absent
        "extra": {...},                               # whatever ML-Agents does not keep; may be absent
    }

SAC has the modules ``actor``, ``q1``, ``q2``, ``critic`` (V), ``target`` and the optimizers ``policy``, ``value``
(q1, q2, critic) and ``entropy`` (over the discrete, then the continuous coefficients). The ``state_dict`` of a shared
critic holds its heads alone.

:func:`to_peer` gives exactly ML-Agents' keys and one more, ``trajtrainer``, with our extra; ML-Agents ignores it.
:func:`from_peer` takes over what fits a freshly made trainer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trajtrainer.export import peer_names
from trajtrainer.export.peer_layout import (
    CRITIC,
    ENTROPY_OPTIMIZER,
    EXTRA,
    POLICY,
    REWARD_PREFIX,
    STEP,
    STEP_ENTRY,
    Layout,
    parameter_indices,
)
from trajtrainer.export.peer_optimizer import adam_to_peer, group_for_peer
from trajtrainer.export.peer_reader import Reader

logger = logging.getLogger(__name__)

State = dict[str, Any]
PeerCheckpoint = dict[str, Any]

_VERSION = 3.0


# ours -> theirs


def to_peer(state: Mapping[str, Any]) -> PeerCheckpoint:
    """Our state of a trainer in the peer's layout, plus the entry ``trajtrainer``. Tensors are shared, not copied.

    Raises:
        TypeError: ``extra`` holds something that a safe load would refuse.
    """
    modules: Mapping[str, Mapping[str, Tensor]] = state["modules"]
    layout = Layout.of(modules)
    networks: dict[str, dict[str, Tensor]] = {key: {} for key in layout.networks}
    networks[POLICY] = _constants(modules["actor"])
    for entry in layout.entries:
        value = modules[entry.module][entry.ours]
        parts = value.split_with_sizes(entry.rows) if len(entry.theirs) > 1 else [value]
        networks[entry.network] |= zip(entry.theirs, parts, strict=True)
    networks = {key: peer_names.in_peer_order(network) for key, network in networks.items()}
    if layout.shared:
        networks[CRITIC] = dict(networks[POLICY])
    optimizers = {
        optimizer.key: _adam_to_peer(state["optimizers"][ours], layout, ours, networks)
        for ours, optimizer in layout.optimizers.items()
    }
    if layout.sac:
        optimizers[ENTROPY_OPTIMIZER] = _entropy_to_peer(state["optimizers"]["entropy"])
    peer: PeerCheckpoint = {
        POLICY: networks.pop(POLICY),
        STEP: {STEP_ENTRY: torch.tensor([state["step"]], dtype=torch.int64)},
        **networks,
        **optimizers,
    }
    for name, network in state.get("rewards", {}).items():
        names = peer_names.reward_names(network)
        entries = {names[ours]: value for ours, value in network.items()}
        peer[REWARD_PREFIX + name] = peer_names.in_peer_order(entries)
    extra = dict(state.get("extra", {}))
    _check_plain(extra, "extra")
    peer[EXTRA] = extra
    return peer


def _constants(actor: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the peer stores of the action space beside the weights."""
    branches = actor[peer_names.BRANCH_SIZES].cpu()
    mu, recurrent = actor.get("head.mu.bias"), actor.get("body.memory.lstm.weight_hh_l0")
    continuous = 0 if mu is None else len(mu)
    memory = 0 if recurrent is None else 2 * recurrent.shape[1]
    total = continuous + int(branches.sum())
    values = (_VERSION, float(len(branches) == 0), continuous, None, total, memory)
    return {
        name: branches.float().unsqueeze(0) if value is None else torch.tensor([float(value)])
        for name, value in zip(peer_names.CONSTANTS, values, strict=True)
    }


def _adam_to_peer(
    state: dict[str, Any], layout: Layout, ours: str, networks: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Any]:
    index = parameter_indices(networks, layout.optimizers[ours].networks)
    entries = layout.optimized(ours)
    return adam_to_peer(
        state,
        [[index[entry.network, name] for name in entry.theirs] for entry in entries],
        [entry.rows for entry in entries],
        len(index),
    )


def _entropy_to_peer(state: Mapping[str, Any]) -> dict[str, Any]:
    group = state["param_groups"][0]
    return {"state": state["state"], "param_groups": [group_for_peer(group, len(group["params"]))]}


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


def from_peer(peer: Mapping[str, Any], like: Mapping[str, Any], *, source: str = "The checkpoint") -> State:
    """The state that a trainer can restore from a checkpoint of the peer's (or ours: the layout is the same).

    As lenient as the peer: what is there and fits is taken over, the rest stays as in ``like``. All that is missing,
    not used or does not fit is named in one warning.

    Args:
        peer: what ``read_checkpoint`` gave.
        like: the state of a freshly made trainer, with the networks that the settings ask for.
        source: the file's name, for the warning.

    Returns:
        A state like ``like``, with tensors of its own; ``extra`` is empty if ML-Agents wrote the file.
    """
    layout = Layout.of(like["modules"])
    reader = Reader(peer)
    modules = {name: dict(module) for name, module in like["modules"].items()}
    taken = set()
    for entry in layout.entries:
        value = reader.value(entry, modules[entry.module][entry.ours])
        if value is not None:
            modules[entry.module][entry.ours] = value
            taken.add(entry)
    rewards = {name: reader.reward(name, network) for name, network in like.get("rewards", {}).items()}
    optimizers = dict(like["optimizers"])
    for ours in layout.optimizers:
        optimizers[ours] = reader.adam(layout, ours, taken, modules, optimizers[ours])
    if layout.sac:
        optimizers["entropy"] = reader.entropy_adam(optimizers["entropy"])
    extra = peer.get(EXTRA)
    state = {
        "step": reader.step(),
        "modules": modules,
        "optimizers": optimizers,
        "rewards": rewards,
        "extra": dict(extra) if isinstance(extra, Mapping) else {},
    }
    reader.find_unused(layout)
    if reader.differences:
        logger.warning("%s does not quite match this behaviour's networks: %s.", source, reader.describe())
    return {**like, **state}
