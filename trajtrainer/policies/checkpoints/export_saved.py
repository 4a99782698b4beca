"""Exports the policies of saved checkpoints: in a run, a behavior's folder, or a single file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.filenames import behavior_of
from trajtrainer.core.spec import BehaviorSpec, ObservationSpec
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.mlagents.convert import STEP, STEP_ENTRY
from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
from trajtrainer.policies.folder.lookup import look_up
from trajtrainer.policies.folder.saved_policies import find_policies
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.export import export_policy

logger = logging.getLogger(__name__)

_SUFFIX = ".onnx"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a policy. ``run`` is None for a checkpoint outside a run folder."""

    behavior: str
    run: str | None
    step: int


Writer = Callable[[Actor, BehaviorSpec, Path, Origin], None]
"""Function that writes a policy to a file, as ONNX or source code."""


def write_onnx(
    actor: Actor,
    spec: BehaviorSpec,
    path: Path,
    origin: Origin,  # noqa: ARG001
    *,
    opset: int = contract.DEFAULT_OPSET,
) -> None:
    """Write a policy for Unity; see ``export_policy``."""
    export_policy(actor, spec, path, opset=opset)


def export_saved(
    target: Path,
    *,
    results: Path,
    behavior: str | None = None,
    sensors: Sequence[ObservationSpec] = (),
    write: Writer,
    suffix: str = _SUFFIX,
    output: Path | None = None,
) -> list[Path]:
    """Export the policies of one or more checkpoints, and return the paths of the written files.

    Args:
        target: a checkpoint, a behavior's folder, a run folder, or a run id. ``@best`` after a folder or id selects
            the best checkpoint instead of the newest.
        results: the folder in which run ids are looked up.
        behavior: export only this behavior of a run.
        sensors: the agents' observations, for checkpoints that do not describe them.
        write: writes a single policy.
        suffix: suffix of the exported files.
        output: the file to write, or a folder. By default, a run's policies are written to ``<Behavior>`` with the
            suffix in the run folder, and a single checkpoint is exported next to itself with the suffix changed.

    Raises:
        CheckpointError: there is nothing to export, or a checkpoint cannot be read or lacks needed information.
        ExportError: a policy cannot be exported or written.
    """
    if target.suffix == _SUFFIX and look_up(target, results).is_file():
        raise CheckpointError(f"{target} is an exported model. Pass the run or checkpoint (.pt) that it comes from.")
    policies = find_policies(target, results, behavior)
    names_a_file = output is not None and output.suffix == Path(f"_{suffix}").suffix and not output.is_dir()
    if names_a_file and len(policies) > 1:
        raise CheckpointError(
            f"{target} has the behaviors {', '.join(policy.name for policy in policies)}, which cannot all be written "
            f"to the file {output}. Select one with --behavior, or pass a folder as --output."
        )
    written = []
    for policy in policies:
        if policy.checkpoint.suffix == _SUFFIX:
            raise CheckpointError(
                f"{policy.checkpoint} is an exported model. Pass the run or checkpoint (.pt) that it comes from."
            )
        checkpoint = read_checkpoint(policy.checkpoint)
        recovered = recover_policy(checkpoint, source=str(policy.checkpoint), models=policy.models, sensors=sensors)
        path = policy.exported.with_suffix(suffix)
        if output is not None:
            folder = output.parent if names_a_file else output
            path = output if names_a_file else output / path.name
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointError(f"The folder {folder} cannot be created: {error.strerror or error}.") from error
        run = policy.checkpoint.resolve().parent.parent
        is_run = (run / "run_logs").is_dir() or (run / "configuration.yaml").is_file()
        step = int(checkpoint[STEP][STEP_ENTRY]) if STEP in checkpoint else 0
        origin = Origin(recovered.behavior or behavior_of(policy.name), run.name if is_run else None, step)
        write(recovered.actor, recovered.spec, path, origin)
        logger.info("Exported %s to %s (observations %s).", policy.checkpoint, path, recovered.origin)
        written.append(path)
    return written
