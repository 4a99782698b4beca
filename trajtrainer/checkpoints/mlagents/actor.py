"""A policy out of a checkpoint alone, to export it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trajtrainer.checkpoints.mlagents.description import describe
from trajtrainer.checkpoints.mlagents.layout import POLICY, module_entries
from trajtrainer.checkpoints.mlagents.reader import Reader
from trajtrainer.core.errors import CheckpointError, UnsupportedError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.init import seeded
from trajtrainer.nn.mlagents import mlagents_keys
from trajtrainer.settings.network import NetworkSettings


def load_actor(
    checkpoint: Mapping[str, Any],
    spec: BehaviorSpec,
    *,
    network: NetworkSettings | None = None,
    tanh_squash: bool | None = None,
    source: str = "The checkpoint",
) -> Actor:
    """Return the policy of a checkpoint in ML-Agents' layout (of PPO, SAC or POCA). No random generator is changed.

    Args:
        checkpoint: what ``read_checkpoint`` gave.
        spec: what the agents see and do; a checkpoint does not tell it all (see ``describe``).
        network: its settings; by default those that its weights tell.
        tanh_squash: whether continuous actions are squashed; by default those of SAC are.
        source: the file's name, for messages.

    Raises:
        CheckpointError: no policy of ML-Agents, or one for agents that see or do something else.
    """
    found = describe(checkpoint)
    wanted = (int(spec.action_spec.continuous_size), tuple(spec.action_spec.discrete_branches))
    held = (found.action_spec.continuous_size, tuple(found.action_spec.discrete_branches))
    if wanted != held:
        raise CheckpointError(
            f"{source} holds a policy of {held[0]} continuous actions and the branches {held[1]}, not of {wanted[0]} "
            f"and {wanted[1]}."
        )
    settings = found.settings if network is None else network
    squash = found.trainer_type == "sac" if tanh_squash is None else tanh_squash
    conditional = any(name.endswith("_continuous_distribution.log_sigma.weight") for name in checkpoint[POLICY])
    # First without memory behind the weights: a damaged or hostile file may speak of a network of any size.
    with torch.device("meta"):
        shapes = _make(spec, settings, source, conditional_sigma=conditional, tanh_squash=squash)
    reader = _read(checkpoint, shapes)[1]
    if reader.differences:
        raise CheckpointError(
            f"{source} is of agents with other observations: its first layer takes {found.encoding_size} numbers, "
            f"{found.plain_vector_size} of them from vectors as they are. {reader.describe()}."
        )
    with seeded(0):
        actor = _make(spec, settings, source, conditional_sigma=conditional, tanh_squash=squash)
    actor.load_state_dict(_read(checkpoint, actor)[0])
    return actor


def _make(spec: BehaviorSpec, settings: NetworkSettings, source: str, **head: bool) -> Actor:
    try:
        return Actor(spec, settings, **head)
    except (UnsupportedError, RuntimeError) as error:
        raise CheckpointError(f"{source} does not fit these observations. {error}") from error


def _read(checkpoint: Mapping[str, Any], actor: Actor) -> tuple[dict[str, torch.Tensor], Reader]:
    """Return the actor's ``state_dict`` with the checkpoint's weights, and what is missing or does not fit."""
    weights = actor.state_dict()
    reader = Reader(checkpoint)
    for entry in module_entries("actor", mlagents_keys(actor), POLICY):
        value = reader.value(entry, weights[entry.ours])
        if value is not None:
            weights[entry.ours] = value
    return weights, reader
