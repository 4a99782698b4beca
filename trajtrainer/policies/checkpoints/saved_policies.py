"""Finds and exports the policies of saved checkpoints: in a run, a behavior's folder, or a single file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.filenames import behavior_file_name, behavior_of
from trajtrainer.core.spec import BehaviorSpec, ObservationSpec
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.mlagents.convert import STEP, STEP_ENTRY
from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
from trajtrainer.policies.folder.lookup import look_up, tried
from trajtrainer.policies.folder.run_folder import BEST, BehaviorFolder
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.settings.checks import closest

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


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """A checkpoint to export.

    Attributes:
        name: name of the behavior's folder.
        checkpoint: path of the checkpoint.
        exported: the default path for the exported ``.onnx`` file.
        models: paths of exported models from the same run, the most similar first. They may not exist.
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


def find_policies(target: Path, results: Path, behavior: str | None) -> list[SavedPolicy]:
    """Return the checkpoints that ``target`` refers to (see ``export_saved``), at least one.

    Raises:
        CheckpointError: there is no checkpoint, or none of this behavior.
    """
    word = target
    target = look_up(word, results)
    best = target.name.endswith(BEST) and not target.exists()
    if best:
        word = word.with_name(word.name.removesuffix(BEST))
        target = look_up(word, results)
    if target.is_file():
        return [_saved(_behavior_folder(target.parent), target)]
    if not target.is_dir():
        raise CheckpointError(
            f"There is no file or folder {target}, and no run with this name in {results}. Pass a .pt file, the folder "
            f"of a run, or a run id (with --results-dir if the runs are elsewhere). {tried(word, results)}"
        )
    own = _of_folder(target, best=best)
    # A folder without checkpoints of its own is a run folder, which is searched for behaviors.
    folders = [] if own is not None else [path for path in sorted(target.iterdir()) if path.is_dir()]
    policies = [own, *(_of_folder(path, best=best) for path in folders)]
    found = {policy.name: policy for policy in policies if policy is not None}
    if not found:
        what = "best model" if best else "checkpoint"
        raise CheckpointError(
            f"There is no {what} in {target}, nor in the folders of its behaviors. {tried(word, results)}"
        )
    if behavior is None:
        return list(found.values())
    name = behavior_file_name(behavior)
    if name not in found:
        raise CheckpointError(
            f"There is no checkpoint of behavior {behavior!r} in {target}, only of {', '.join(found)}"
            f"{closest(behavior, found) or '.'}"
        )
    return [found[name]]


def find_checkpoints(target: Path, results: Path) -> list[tuple[int, list[SavedPolicy]]]:
    """Return all numbered checkpoints of a run or of one of its behaviors, as (step, policies at that step).

    Each behavior counts its own steps. The returned steps are those of the first behavior in alphabetical order,
    combined with the nearest checkpoints of the other behaviors.

    Raises:
        CheckpointError: there are no numbered checkpoints.
    """
    word = target
    target = look_up(word, results)
    if not target.is_dir():
        raise CheckpointError(f"There is no folder {target}, and no run with this name in {results}.")
    own = [_behavior_folder(target), *(_behavior_folder(path) for path in sorted(target.iterdir()) if path.is_dir())]
    steps = {folder: found for folder in own if (found := folder.steps_on_disk())}
    if not steps:
        raise CheckpointError(
            f"There is no checkpoint with a step in its name in {target}, nor in its folders. {tried(word, results)}"
        )

    def nearest(folder: BehaviorFolder, step: int) -> SavedPolicy:
        found = min(steps[folder], key=lambda other: abs(other - step))
        return _saved(folder, folder.numbered(found, ".pt"))

    return [(step, [nearest(folder, step) for folder in steps]) for step in next(iter(steps.values()))]


def _of_folder(path: Path, *, best: bool) -> SavedPolicy | None:
    """Return the newest checkpoint in a behavior's folder (or its best model), or None if it does not exist."""
    folder = _behavior_folder(path)
    if best:
        return _saved(folder, folder.best_checkpoint) if folder.best_checkpoint.is_file() else None
    newest = [folder.checkpoint, *(folder.numbered(step, ".pt") for step in folder.steps_on_disk()[-1:])]
    checkpoint = next((file for file in newest if file.is_file()), None)
    return None if checkpoint is None else _saved(folder, checkpoint, folder.exported)


def _behavior_folder(path: Path) -> BehaviorFolder:
    # The path "." has no name, so it is resolved. Other paths are not, so that a symlink keeps its own name.
    name = path.name or path.resolve().name
    return BehaviorFolder(behavior_of(name), name, path)


def _saved(folder: BehaviorFolder, checkpoint: Path, exported: Path | None = None) -> SavedPolicy:
    """Return a checkpoint with its candidate models: of the same step, of the run's end, then of other steps."""
    own = checkpoint.with_suffix(_SUFFIX)
    numbered = [folder.numbered(step, _SUFFIX) for step in reversed(folder.steps_on_disk())]
    models = tuple(dict.fromkeys([own, folder.exported, *numbered]))
    return SavedPolicy(folder.name, checkpoint, own if exported is None else exported, models)
