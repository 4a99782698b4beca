"""Recovers the policy of a checkpoint, from trajtrainer or ML-Agents, with everything that an export needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trajtrainer.core.errors import CheckpointError, UnsupportedError
from trajtrainer.core.spec import BehaviorSpec, ObservationSpec
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.init import seeded
from trajtrainer.learning.nn.mlagents import POLICY, NetworkPlace, mlagents_keys
from trajtrainer.policies.checkpoints.mlagents import description
from trajtrainer.policies.checkpoints.mlagents.convert import Reader, module_entries
from trajtrainer.policies.checkpoints.policy_record import read_record
from trajtrainer.settings.network import NetworkSettings


@dataclass(frozen=True, slots=True)
class RecoveredPolicy:
    """A policy with the weights of a checkpoint. ``origin`` tells the user where ``spec`` comes from."""

    actor: Actor
    spec: BehaviorSpec
    origin: str
    behavior: str | None = None


def recover_policy(
    checkpoint: Mapping[str, Any], *, source: str, models: Iterable[Path] = (), sensors: Sequence[ObservationSpec] = ()
) -> RecoveredPolicy:
    """Recover the policy of a checkpoint.

    Args:
        checkpoint: as returned by ``read_checkpoint``.
        source: the name of the file, for messages.
        models: exported models of the same run, the most similar first. They are read only for checkpoints without a
            record.
        sensors: the agents' observations, if the user has given them. They take precedence over other sources.

    Raises:
        CheckpointError: the checkpoint has no policy, or its observations are unknown. The message says what is
            missing.
    """
    record = read_record(checkpoint, source)
    if sensors:
        spec, origin = BehaviorSpec(list(sensors), description.describe(checkpoint).action_spec), "as given"
    elif record is not None:
        spec, origin = record.spec, "described in the checkpoint"
    else:
        return _of_mlagents(checkpoint, source, models)
    if record is None:
        return RecoveredPolicy(load_actor(checkpoint, spec, source=source), spec, origin)
    actor = load_actor(
        checkpoint,
        spec,
        network=record.network,
        tanh_squash=record.tanh_squash,
        batch_norm=record.batch_norm,
        source=source,
    )
    return RecoveredPolicy(actor, spec, origin, record.behavior)


def _of_mlagents(checkpoint: Mapping[str, Any], source: str, models: Iterable[Path]) -> RecoveredPolicy:
    found = description.describe(checkpoint)
    for path in models:
        shapes = description.shapes_of_model(path, found)
        policy = None if shapes is None else _choose(checkpoint, found, shapes, f"as in {path}", source, path)
        if policy is not None:
            return policy
    try:
        shapes = description.shapes_of_weights(found)
        shown = ", ".join("x".join(map(str, shape)) for shape in shapes)
        policy = _choose(checkpoint, found, shapes, f"{shown}, inferred from the weights", source)
        if policy is None:
            raise CheckpointError(f"its weights do not determine which of the observations {shown} are goal signals")
    except CheckpointError as error:
        raise CheckpointError(
            f"{source} does not say what its agents observe: {error}. Put the .onnx that was exported with it into the "
            "same folder, under the same name, or pass one --observation per sensor in Unity's order, such as "
            "--observation 8 --observation 3x84x84 --observation 20x6 --observation 3:goal."
        ) from error
    return policy


def _choose(
    checkpoint: Mapping[str, Any],
    found: description.Description,
    shapes: description.Shapes,
    origin: str,
    source: str,
    model: Path | None = None,
) -> RecoveredPolicy | None:
    """Return the policy with these observation shapes, or None unless exactly one fits.

    The weights usually determine which observations are goals. If they do not, the policy that acts like ``model`` is
    chosen. This works only if the model was exported at the same step.
    """
    fitting = []
    for spec in description.possible_specs(found, shapes):
        with contextlib.suppress(CheckpointError):
            fitting.append(RecoveredPolicy(load_actor(checkpoint, spec, source=source), spec, origin))
    if len(fitting) == 1:
        return fitting[0]
    alike = [policy for policy in fitting if model is not None and _acts_as(policy, model)]
    return alike[0] if len(alike) == 1 else None


def _acts_as(policy: RecoveredPolicy, model: Path) -> bool:
    # Imported here because these modules are slow to load and not needed during a run.
    import onnx

    from trajtrainer.policies.onnx.export import check_parity
    from trajtrainer.policies.onnx.inspect import inspect_model

    if not inspect_model(model).loads:  # the model may be damaged or malicious
        return False
    try:
        check_parity(onnx.load(str(model), load_external_data=False), policy.actor, policy.spec, limited=True)
    except Exception:  # the model acts differently, or the evaluator fails with an error that depends on the operator
        return False
    return True


def load_actor(
    checkpoint: Mapping[str, Any],
    spec: BehaviorSpec,
    *,
    network: NetworkSettings | None = None,
    tanh_squash: bool | None = None,
    batch_norm: bool = False,
    source: str = "The checkpoint",
) -> Actor:
    """Load the policy of a checkpoint in ML-Agents' layout, without changing the state of any random generator.

    By default, ``network`` is inferred from the weights, and continuous actions are squashed only for SAC.

    Raises:
        CheckpointError: the checkpoint has no policy in this layout, or its observations or actions differ from
            ``spec``.
    """
    found = description.describe(checkpoint)
    wanted = (int(spec.action_spec.continuous_size), tuple(spec.action_spec.discrete_branches))
    held = (found.action_spec.continuous_size, tuple(found.action_spec.discrete_branches))
    if wanted != held:
        raise CheckpointError(
            f"{source} has a policy with {held[0]} continuous actions and the discrete branches {held[1]}, expected "
            f"{wanted[0]} and {wanted[1]}."
        )
    settings = found.settings if network is None else network
    squash = found.trainer_type == "sac" if tanh_squash is None else tanh_squash
    conditional = any(name.endswith("_continuous_distribution.log_sigma.weight") for name in checkpoint[POLICY])

    def filled() -> tuple[Actor, dict[str, torch.Tensor], str]:
        try:
            actor = Actor(spec, settings, conditional_sigma=conditional, tanh_squash=squash, batch_norm=batch_norm)
        except (UnsupportedError, RuntimeError) as error:
            raise CheckpointError(f"{source} does not match these observations. {error}") from error
        weights, reader = actor.state_dict(), Reader(checkpoint)
        for entry in module_entries("actor", mlagents_keys(actor), NetworkPlace(POLICY)):
            value = reader.value(entry, weights[entry.ours])
            if value is not None:
                weights[entry.ours] = value
        return actor, weights, reader.differences()

    # Check the shapes before allocating weights, because a damaged or malicious file may describe a network of any
    # size.
    with torch.device("meta"):
        differences = filled()[2]
    if differences:
        raise CheckpointError(
            f"{source} is a policy for agents with different observations: its first layer has {found.encoding_size} "
            f"inputs, of which {found.plain_vector_size} are from vectors without normalization. {differences}."
        )
    with seeded(0):
        actor, weights, _ = filled()
    actor.load_state_dict(weights)
    return actor
