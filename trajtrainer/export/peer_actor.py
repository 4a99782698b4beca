"""A policy out of a checkpoint alone, to export it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trajtrainer.errors import CheckpointError, UnsupportedError
from trajtrainer.export.peer_description import describe
from trajtrainer.export.peer_layout import POLICY, module_entries
from trajtrainer.export.peer_reader import Reader
from trajtrainer.nn.actor import Actor
from trajtrainer.spec import BehaviorSpec


def load_actor(peer: Mapping[str, Any], spec: BehaviorSpec, *, source: str = "The checkpoint") -> Actor:
    """The policy of a checkpoint in the peer's layout (of PPO, SAC or POCA), with the network that its weights tell.

    Args:
        peer: what ``read_checkpoint`` gave.
        spec: what the agents see and do; a checkpoint does not tell it all (see ``describe``).
        source: the file's name, for messages.

    Raises:
        CheckpointError: no policy of ML-Agents, or one for agents that see or do something else.
    """
    found = describe(peer)
    wanted = (int(spec.action_spec.continuous_size), tuple(spec.action_spec.discrete_branches))
    held = (found.action_spec.continuous_size, tuple(found.action_spec.discrete_branches))
    if wanted != held:
        raise CheckpointError(
            f"{source} holds a policy of {held[0]} continuous actions and the branches {held[1]}, not of {wanted[0]} "
            f"and {wanted[1]}."
        )
    sac = found.trainer_type == "sac"
    try:
        actor = Actor(spec, found.settings, conditional_sigma=sac, tanh_squash=sac)
    except UnsupportedError as error:
        raise CheckpointError(f"{source} does not fit these observations. {error}") from error
    weights = actor.state_dict()
    reader = Reader(peer)
    for entry in module_entries("actor", weights, POLICY):
        value = reader.value(entry, weights[entry.ours])
        if value is not None:
            weights[entry.ours] = value
    if reader.differences:
        raise CheckpointError(
            f"{source} is of agents with other observations: its first layer takes {found.encoding_size} numbers, "
            f"{found.plain_vector_size} of them from vectors as they are. {reader.describe()}."
        )
    actor.load_state_dict(weights)
    return actor
