"""Finds the checkpoints that the user names on the command line, without reading them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.filenames import behavior_file_name, behavior_of
from trajtrainer.core.spelling import closest
from trajtrainer.policies.folder.lookup import look_up, tried
from trajtrainer.policies.folder.run_folder import BEST, BehaviorFolder

ALL_CHECKPOINTS = "*"
"""Last part of ``RUN/*``, which stands for all checkpoints of a run."""
RANDOM, HEURISTIC = "random", "heuristic"
SCRIPTED = (RANDOM, HEURISTIC)
"""Names of untrained policies on the command line."""
_SUFFIX = ".onnx"


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


def files_of(word: str, results: Path) -> list[Path]:
    """Return the files that a word of ``find_models`` refers to; none if it names an untrained policy.

    Raises:
        CheckpointError: there is no such file.
    """
    path = Path(word)
    if word in SCRIPTED:
        return []
    if path.suffix == _SUFFIX:
        if not path.is_file():
            raise CheckpointError(f"There is no file {path}.")
        return [path]
    if path.name == ALL_CHECKPOINTS:
        return [each.checkpoint for _, saved in find_checkpoints(path.parent, results) for each in saved]
    return [each.checkpoint for each in find_policies(path, results, None)]


def find_policies(target: Path, results: Path, behavior: str | None) -> list[SavedPolicy]:
    """Return the checkpoints that ``target`` refers to, at least one.

    Args:
        target: a checkpoint, a behavior's folder, a run folder, or a run id. ``@best`` after a folder or id selects the
            best checkpoint instead of the newest.
        results: the folder in which run ids are looked up.
        behavior: return only the checkpoint of this behavior.

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
