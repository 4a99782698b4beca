"""The policy of any checkpoint, ours or of ML-Agents, ready to be exported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajtrainer.checkpoints.mlagents.actor import load_actor
from trajtrainer.checkpoints.mlagents.description import Description, describe
from trajtrainer.checkpoints.mlagents.layout import EXTRA
from trajtrainer.checkpoints.policy_record import PolicyRecord
from trajtrainer.checkpoints.spec_recovery import Shapes, possible_specs, shapes_of_model, shapes_of_weights
from trajtrainer.core.errors import CheckpointError, ExportError
from trajtrainer.core.spec import BehaviorSpec, ObservationSpec
from trajtrainer.nn.actor import Actor

RECORD = "policy"
"""Entry of our ``extra`` that holds a ``PolicyRecord``."""


@dataclass(frozen=True, slots=True)
class RecoveredPolicy:
    """A policy and where the shapes of its observations come from, in words.

    Attributes:
        actor: with the checkpoint's weights.
        spec: what its agents see and do.
        origin: completes "observations ...".
        behavior: name, where the checkpoint tells it.
    """

    actor: Actor
    spec: BehaviorSpec
    origin: str
    behavior: str | None = None


def recover_policy(
    checkpoint: Mapping[str, Any], *, source: str, models: Iterable[Path] = (), sensors: Sequence[ObservationSpec] = ()
) -> RecoveredPolicy:
    """Return the policy of a checkpoint.

    Args:
        checkpoint: what ``read_checkpoint`` gave.
        source: the file's name, for messages.
        models: exported models of the same run, the most alike first; read only for checkpoints that do not describe
            their policy themselves.
        sensors: what the agents see, if the user says so; that goes before everything else.

    Raises:
        CheckpointError: it holds no policy, or does not tell what its agents see; the message says what is missing.
    """
    record = read_record(checkpoint, source)
    if sensors:
        spec = BehaviorSpec(list(sensors), describe(checkpoint).action_spec)
        network, squash = (record.network, record.tanh_squash) if record else (None, None)
        actor = load_actor(checkpoint, spec, network=network, tanh_squash=squash, source=source)
        return RecoveredPolicy(actor, spec, "as given", record.behavior if record else None)
    if record is not None:
        actor = load_actor(
            checkpoint, record.spec, network=record.network, tanh_squash=record.tanh_squash, source=source
        )
        return RecoveredPolicy(actor, record.spec, "described in the checkpoint", record.behavior)
    found = describe(checkpoint)
    for path in models:
        shapes = shapes_of_model(path, found)
        policy = None if shapes is None else _choose(checkpoint, found, shapes, f"as in {path}", source, path)
        if policy is not None:
            return policy
    return _from_weights(checkpoint, found, source)


def read_record(checkpoint: Mapping[str, Any], source: str) -> PolicyRecord | None:
    """Return the description of the policy that a checkpoint of ours holds; None in others.

    Raises:
        CheckpointError: it is damaged.
    """
    extra = checkpoint.get(EXTRA)
    if not isinstance(extra, Mapping) or RECORD not in extra:
        return None
    return PolicyRecord.from_plain(extra[RECORD], source)


def _from_weights(checkpoint: Mapping[str, Any], found: Description, source: str) -> RecoveredPolicy:
    try:
        shapes = shapes_of_weights(found)
        shown = ", ".join(map(_shown, shapes))
        policy = _choose(checkpoint, found, shapes, f"{shown}, as far as the weights tell", source)
        if policy is None:
            raise CheckpointError(f"its weights do not tell which of the observations {shown} are goal signals")
    except CheckpointError as error:
        raise CheckpointError(
            f"{source} does not say what its agents observe: {error}. Put the .onnx that was exported with it beside "
            "it under the same name, or give one --observation for each sensor in Unity's order, such as "
            "--observation 8 --observation 3x84x84 --observation 20x6 --observation 3:goal."
        ) from error
    return policy


def _choose(
    checkpoint: Mapping[str, Any],
    found: Description,
    shapes: Shapes,
    origin: str,
    source: str,
    model: Path | None = None,
) -> RecoveredPolicy | None:
    """Return the policy that sees these shapes.

    Which of them are goals is decided by the weights, or else by what the model does, which is then of the same step.
    None if there is no such policy, or no way to tell.
    """
    fitting = []
    for spec in possible_specs(found, shapes):
        try:
            fitting.append(RecoveredPolicy(load_actor(checkpoint, spec, source=source), spec, origin))
        except CheckpointError:
            continue
    if len(fitting) == 1:
        return fitting[0]
    alike = [policy for policy in fitting if model is not None and _acts_as(policy, model)]
    return alike[0] if len(alike) == 1 else None


def _acts_as(policy: RecoveredPolicy, model: Path) -> bool:
    # Late: onnx takes long to import, and no run needs it for this.
    import onnx

    from trajtrainer.export.inspect import inspect_model
    from trajtrainer.export.parity import check_parity

    if not inspect_model(model).loads:  # the model may be damaged or hostile
        return False
    try:
        check_parity(onnx.load(str(model), load_external_data=False), policy.actor, policy.spec)
    except ExportError:
        return False
    except Exception:  # whatever the evaluator stumbles over; its type depends on the operator
        return False
    return True


def _shown(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
