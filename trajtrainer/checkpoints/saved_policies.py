"""Exports the policies of saved checkpoints: of a run folder, of a behaviour's folder or of a single file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trajtrainer.checkpoints.file import read_checkpoint
from trajtrainer.checkpoints.recovered_policy import recover_policy
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.filenames import behavior_file_name, behavior_of
from trajtrainer.core.spec import ObservationSpec
from trajtrainer.export.contract import DEFAULT_OPSET
from trajtrainer.export.onnx import export_policy
from trajtrainer.rundir.folder import BEST, BehaviorFolder
from trajtrainer.settings.checks import closest

logger = logging.getLogger(__name__)

_SUFFIX = ".onnx"


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """A checkpoint to export.

    Attributes:
        name: of the behaviour's files.
        checkpoint: the ``.pt``.
        exported: where its ``.onnx`` goes unless the user says otherwise.
        models: exported models of the same run that may be there, the most alike first.
    """

    name: str
    checkpoint: Path
    exported: Path
    models: tuple[Path, ...]


def export_saved(
    target: Path,
    *,
    results: Path,
    behavior: str | None = None,
    sensors: Sequence[ObservationSpec] = (),
    opset: int = DEFAULT_OPSET,
    output: Path | None = None,
) -> list[Path]:
    """Write the ``.onnx`` of one or more checkpoints.

    Args:
        target: a checkpoint, a behaviour's folder, a run's folder, or a run id; ``@best`` behind a folder or id means
            the best checkpoint instead of the newest.
        results: the folder where run ids are looked for.
        behavior: export only this one of a run.
        sensors: what the agents observe, for checkpoints that do not say it.
        opset: of the ONNX operators.
        output: the file to write, or a folder. By default ``<Behavior>.onnx`` in the run's folder, or the file beside
            a single checkpoint under the same name.

    Returns:
        The files written.

    Raises:
        CheckpointError: nothing to export there, a checkpoint that cannot be read, or one that does not say enough.
        ExportError: a policy that cannot be exported or written.
    """
    policies = find_policies(target, results, behavior)
    if output is not None and len(policies) > 1 and output.suffix == _SUFFIX:
        raise CheckpointError(
            f"{target} has the behaviors {', '.join(policy.name for policy in policies)}, which cannot all be written "
            f"to {output}. Choose one with --behavior, or give a folder as --output."
        )
    written = []
    for policy in policies:
        recovered = recover_policy(
            read_checkpoint(policy.checkpoint), source=str(policy.checkpoint), models=policy.models, sensors=sensors
        )
        path = policy.exported if output is None else _place(output, policy)
        export_policy(recovered.actor, recovered.spec, path, opset=opset)
        logger.info("Exported %s to %s (observations %s).", policy.checkpoint, path, recovered.origin)
        written.append(path)
    return written


def find_policies(target: Path, results: Path, behavior: str | None) -> list[SavedPolicy]:
    """Return the checkpoints that ``target`` means; see :func:`export_saved`. At least one.

    Behind a folder or a run id ``@best`` means the best models instead of the newest.

    Raises:
        CheckpointError: there are none, or none of this behaviour.
    """
    target = _in_results(target, results)
    best = target.name.endswith(BEST) and not target.exists()
    if best:
        target = _in_results(target.with_name(target.name.removesuffix(BEST)), results)
    if target.is_file():
        return [_of_file(target)]
    if not target.is_dir():
        raise CheckpointError(
            f"There is no checkpoint, no folder {target}, and no run of this name in {results}. "
            "Give a .pt file, the folder of a run, or a run id with --results-dir."
        )
    own = _of_folder(target, best=best)
    found = {own.name: own} if own is not None else dict(_of_run(target, best=best))
    if not found:
        what = "best model" if best else "checkpoint"
        raise CheckpointError(f"There is no {what} in {target}, nor in the folders of behaviors in it.")
    if behavior is None:
        return list(found.values())
    name = behavior_file_name(behavior)
    if name not in found:
        raise CheckpointError(
            f"There is no checkpoint of the behavior {behavior!r} in {target}{closest(behavior, found)}; "
            f"behaviors with checkpoints: {', '.join(found)}."
        )
    return [found[name]]


def find_checkpoints(target: Path, results: Path) -> list[tuple[int, list[SavedPolicy]]]:
    """Return all numbered checkpoints of a run or of one of its behaviors: step -> the policies of that step.

    Behaviors of one run count their own steps and have no checkpoints of the same ones. The steps are those of the
    first behavior, in the order of the names, and of each other one it is the checkpoint with the nearest step.

    Raises:
        CheckpointError: there are none.
    """
    target = _in_results(target, results)
    if not target.is_dir():
        raise CheckpointError(f"There is no folder {target}, and no run of this name in {results}.")
    own = [_behavior_folder(target), *(_behavior_folder(path) for path in sorted(target.iterdir()) if path.is_dir())]
    steps = {folder: found for folder in own if (found := folder.steps_on_disk())}
    if not steps:
        raise CheckpointError(f"There is no checkpoint with a step in its name in {target}, nor in the folders in it.")
    return [
        (step, [_of_step(folder, _nearest(steps[folder], step)) for folder in steps])
        for step in next(iter(steps.values()))
    ]


def _nearest(steps: Sequence[int], step: int) -> int:
    return min(steps, key=lambda other: abs(other - step))


def _of_step(folder: BehaviorFolder, step: int) -> SavedPolicy:
    checkpoint = folder.numbered(step, ".pt")
    return SavedPolicy(folder.name, checkpoint, checkpoint.with_suffix(_SUFFIX), _models(folder, checkpoint))


def _in_results(target: Path, results: Path) -> Path:
    """Return the folder of a run whose id was given, or the path as it is."""
    if not target.exists() and not target.is_absolute() and (results / target).is_dir():
        return results / target
    return target


def _of_run(folder: Path, *, best: bool) -> Iterator[tuple[str, SavedPolicy]]:
    for path in sorted(folder.iterdir()):
        policy = _of_folder(path, best=best) if path.is_dir() else None
        if policy is not None:
            yield policy.name, policy


def _of_folder(path: Path, *, best: bool) -> SavedPolicy | None:
    """Return the newest checkpoint in a behaviour's folder, or its best model; None if it holds none."""
    folder = _behavior_folder(path)
    if best:
        return _of_file(folder.best_checkpoint) if folder.best_checkpoint.is_file() else None
    steps = folder.steps_on_disk()
    if folder.checkpoint.is_file():
        checkpoint = folder.checkpoint
    elif steps:
        checkpoint = folder.numbered(steps[-1], ".pt")
    else:
        return None
    return SavedPolicy(folder.name, checkpoint, folder.exported, _models(folder, checkpoint))


def _of_file(path: Path) -> SavedPolicy:
    folder = _behavior_folder(path.parent)
    return SavedPolicy(folder.name, path, path.with_suffix(_SUFFIX), _models(folder, path))


def _behavior_folder(path: Path) -> BehaviorFolder:
    # "." has no name; a link keeps its own.
    name = path.name or path.resolve().name
    return BehaviorFolder(behavior_of(name), name, path)


def _models(folder: BehaviorFolder, checkpoint: Path) -> tuple[Path, ...]:
    """Return the models of the same step, then of the end of the run, then of the other checkpoints, newest first."""
    numbered = [folder.numbered(step, _SUFFIX) for step in reversed(folder.steps_on_disk())]
    return tuple(dict.fromkeys([checkpoint.with_suffix(_SUFFIX), folder.exported, *numbered]))


def _place(output: Path, policy: SavedPolicy) -> Path:
    names_a_file = output.suffix == _SUFFIX and not output.is_dir()
    folder = output.parent if names_a_file else output
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"The folder {folder} cannot be made: {error.strerror or error}.") from error
    return output if names_a_file else output / policy.exported.name
