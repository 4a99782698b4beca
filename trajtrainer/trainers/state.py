"""The state of an algorithm and its reward signals in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trajtrainer.algos.algorithm import Algorithm
from trajtrainer.core.errors import CheckpointError
from trajtrainer.nn.mlagents import mlagents_keys

_CLONING = "cloning"


def learned_state(algorithm: Algorithm) -> dict[str, Any]:
    """Return ``modules``, ``optimizers``, ``rewards``, ``keys`` and ``extra`` (``checkpoints.mlagents.convert``).

    Tensors are not copied but for those that are parts of larger ones, which would be saved whole.
    """
    signals, rewards, cloning = algorithm.signals, _reward_modules(algorithm), algorithm.cloning
    return {
        "modules": {name: _entries(network) for name, network in algorithm.networks.items()},
        "optimizers": algorithm.optimizer_states(),
        "rewards": {name: module.state_dict() for name, module in rewards.items()},
        "keys": {name: mlagents_keys(module) for name, module in {**algorithm.networks, **rewards}.items()},
        "extra": {
            "rng": {name: generator.get_state() for name, generator in _generators(algorithm).items()},
            "reward_optimizers": {
                signal.name: state for signal in signals if (state := signal.optimizer_state()) is not None
            },
            **({} if cloning is None else {_CLONING: cloning.state()}),
            **algorithm.extra_state(),
        },
    }


def load_learned(algorithm: Algorithm, state: Mapping[str, Any]) -> None:
    """Take networks and optimizers of what ``learned_state`` gave; ``rewards`` and ``extra`` may be absent.

    Raises:
        CheckpointError: the state is not of networks like these. They may be loaded in part then.
    """
    reward_states = state.get("rewards", {})
    extra = state.get("extra", {})
    reward_optimizers = extra.get("reward_optimizers", {})
    try:
        for name, network in algorithm.networks.items():
            network.load_state_dict(state["modules"][name])
        for name, module in _reward_modules(algorithm).items():
            if name in reward_states:
                module.load_state_dict(reward_states[name])
        algorithm.load_optimizer_states(state["optimizers"])
        for signal in algorithm.signals:
            if signal.name in reward_optimizers:
                signal.load_optimizer_state(reward_optimizers[signal.name])
        if algorithm.cloning is not None and _CLONING in extra:
            algorithm.cloning.load_state(extra[_CLONING])
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"Behavior {algorithm.context.behavior!r}: the checkpoint is not of these networks. Use the "
            f"network_settings, reward_signals and trainer_type it was saved with. ({error})"
        ) from error


def load_generators(algorithm: Algorithm, states: Mapping[str, Tensor]) -> None:
    """Set the random generators to what they were.

    One without a state goes on as it is, as does one whose state is of another device.
    """
    for name, generator in _generators(algorithm).items():
        state = states.get(name)
        if state is not None and state.shape == generator.get_state().shape:
            generator.set_state(state)


def _generators(algorithm: Algorithm) -> dict[str, torch.Generator]:
    cloning = algorithm.cloning
    return {**algorithm.generators(), **({} if cloning is None else cloning.generators())}


def _reward_modules(algorithm: Algorithm) -> dict[str, nn.Module]:
    return {name: module for signal in algorithm.signals for name, module in signal.modules().items()}


def _entries(network: nn.Module) -> dict[str, Tensor]:
    return {name: _apart(tensor) for name, tensor in network.state_dict().items()}


def _apart(tensor: Tensor) -> Tensor:
    is_part = tensor.untyped_storage().nbytes() > tensor.nbytes
    return tensor.clone(memory_format=torch.contiguous_format) if is_part else tensor
