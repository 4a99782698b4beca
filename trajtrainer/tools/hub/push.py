"""Upload a run to the hub in the layout of ``mlagents-push-to-hf``: its folder, ``config.json`` and a model card."""

import json
import logging
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.filenames import EVENT_FILE_PREFIX
from trajtrainer.core.local_paths import is_absolute, without_folders
from trajtrainer.core.printable import one_line
from trajtrainer.core.version import __version__
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.event_reader import EventRecordReader
from trajtrainer.policies.folder.run_folder import CHECKPOINT_NAME
from trajtrainer.policies.folder.saved_run import SavedRun
from trajtrainer.tools.groups import group_runs, load_runs
from trajtrainer.tools.hub.client import Hub
from trajtrainer.tools.pictures import plot

logger = logging.getLogger(__name__)

CURVES = "curves.png"
_SHOWN = ("Environment/Cumulative Reward", "Evaluation/Cumulative Reward", "Self-play/ELO")
_BEST = re.compile(r"best(-model)?(-\d+)?\.(pt|onnx)")


def push(
    hub: Hub,
    run: Path,
    *,
    private: bool = False,
    message: str = "Push to Hub",
    evaluation: Mapping[str, Any] | None = None,
) -> str:
    """Upload a run and return its URL.

    Args:
        hub: the model; it is created if it does not exist.
        run: folder of the run.
        private: make a new model private.
        message: commit message.
        evaluation: the output of ``trajtrainer evaluate --json``.

    Raises:
        HubError: the hub refuses or does not respond.
        RunFolderError: the run has no model yet, or one of its files cannot be read.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        pack(run, hub.repository, folder, evaluation)
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        logger.info("Pushing %d files, %.1f MB, to %s.", len(sizes), sum(sizes) / 1e6, hub.url)
        with hub.translating_errors():
            hub.api.create_repo(hub.repository, private=private or None, exist_ok=True)
            hub.api.upload_folder(repo_id=hub.repository, folder_path=folder, commit_message=message)
    return hub.url


def pack(run: Path, repository: str, folder: Path, evaluation: Mapping[str, Any] | None = None) -> None:
    """Fill an empty folder with the files of a run that Unity, ``--resume`` and readers of the model card need.

    Logs stay on this machine. Absolute paths in the settings and the status are replaced with their last part. Other
    files contain absolute paths only if an earlier version wrote them. Such files are left out, except for event files,
    which are copied without the records that contain paths.

    Args:
        run: folder of the run.
        repository: "owner/name".
        folder: folder to copy to.
        evaluation: the output of ``trajtrainer evaluate --json``.

    Raises:
        RunFolderError: the run has no model yet, or one of its files cannot be read.
    """
    saved = SavedRun(ContainedFolder(run))
    if saved.problems:  # without these files, the card would be wrong
        raise RunFolderError(" ".join(saved.problems))
    settings, status = without_folders(saved.configuration.nested), without_folders(saved.status)
    known = {*_paths_in([str(run.absolute()), str(run.resolve()), saved.configuration.nested, saved.status])}
    if Path.home().name:
        known.add(f"{Path.home()}{os.sep}")
    places = {place.encode() for each in known for place in (each, each.replace("\\", r"\\"))}
    models = []
    for path in _files(run):
        try:
            content = path.read_bytes()
            # The name of an event file contains the name of this machine: prefix, time, host, process, number.
            private = rf"({re.escape(EVENT_FILE_PREFIX)}\d+)\..*(\.\d+\.\d+)"
            name = re.sub(private, r"\1\2", path.relative_to(run).as_posix())
            if any(place in content for place in places):
                if not path.name.startswith(EVENT_FILE_PREFIX):
                    logger.warning("%s contains an absolute path of this machine, so it is not uploaded.", path)
                    continue
                content = _without(places, content, path)
            folder.joinpath(name).parent.mkdir(exist_ok=True)
            folder.joinpath(name).write_bytes(content)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be copied for the upload: {error.strerror or error}.") from error
        if path.parent == run:
            models.append(name)
    if not models:
        raise RunFolderError(
            f"{run} has no model (.onnx) yet. Wait for its first checkpoint, or export one: trajtrainer export {run}."
        )
    has_curves = _plot_curves(run, folder / CURVES)
    folder.joinpath("run_logs").mkdir()
    for name, text in {
        "configuration.yaml": yaml.safe_dump(settings, sort_keys=False),
        "config.json": json.dumps(settings),
        "run_logs/training_status.json": json.dumps(status, indent=4),
        "README.md": card(repository, settings, status, evaluation, models, CURVES if has_curves else None),
    }.items():
        folder.joinpath(name).write_text(text, encoding="utf-8")


def _without(places: Collection[bytes], content: bytes, path: Path) -> bytes:
    """Return the records of an event file that contain none of these paths."""
    reader, begin, kept = EventRecordReader(path), 0, []
    with path.open("rb") as file:
        for _ in reader.records(file):
            record, begin = content[begin : reader.offset], reader.offset
            if not any(place in record for place in places):
                kept.append(record)
    return b"".join(kept)


def _paths_in(value: Any) -> Iterator[str]:
    """Yield the absolute paths in plain data, except those with a single part, such as ``/tmp``."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _paths_in(inner)
    elif isinstance(value, str):
        for text in (value, value.partition("=")[2]):
            if is_absolute(text) and len(re.findall(r"[/\\]+[^/\\]", text)) > 1:
                yield text


def _files(run: Path) -> Iterator[Path]:
    """Yield the models, checkpoints and event files to upload. Skip symbolic links, which may point outside the run."""
    yield from (path for path in sorted(run.glob("*.onnx")) if _is_plain(path))
    for folder in sorted(path for path in run.iterdir() if path.is_dir() and not path.is_symlink()):
        numbered = re.compile(re.escape(folder.name) + r"-(\d{1,18})\.(pt|onnx)")
        found = {path: numbered.fullmatch(path.name) for path in sorted(folder.iterdir()) if _is_plain(path)}
        newest = max((int(match[1]) for match in found.values() if match), default=None)
        for path, match in found.items():
            is_events = path.name.startswith(EVENT_FILE_PREFIX)
            wanted = path.name == CHECKPOINT_NAME or is_events or _BEST.fullmatch(path.name)
            if wanted or (match and int(match[1]) == newest):
                yield path


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _plot_curves(run: Path, path: Path) -> bool:
    """Plot the rewards; return False if there is nothing to plot or matplotlib is not installed."""
    try:
        groups = group_runs(load_runs([str(run)], run.parent))
        (saved,) = groups[0].runs
        charts = [(name, tag) for name, tags in saved.behaviors.items() for tag in _SHOWN if tag in tags]
        if charts:
            plot(groups, charts, path)
        return bool(charts)
    except ImportError:
        logger.info("The model card has no curves. To add them: pip install 'trajtrainer[hub]'.")
    except RunFolderError as error:
        logger.warning("The model card has no curves: %s", error)
    return False


def card(
    repository: str,
    settings: Mapping[str, Any],
    status: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
    models: Sequence[str],
    curves: str | None,
) -> str:
    """Return the model card, ``README.md``, which the hub shows and uses to find the model among ML-Agents models.

    Args:
        repository: "owner/name".
        settings: ``configuration.yaml``.
        status: ``training_status.json``.
        evaluation: the output of ``trajtrainer evaluate --json``.
        models: file names of the policies for Unity.
        curves: file name of the plot, if there is one.
    """
    behaviors: Mapping[str, Any] = settings.get("behaviors") or {}
    names = list(behaviors) or [name.removesuffix(".onnx") for name in models]
    trainers = list(dict.fromkeys(str(each.get("trainer_type", "")) for each in behaviors.values())) or ["ppo"]
    results = _results(names, status, evaluation)
    imported_from = {str((status.get(name) or {}).get("imported_from") or "") for name in names} - {""}
    origin = "Trained with" if behaviors else "Exported with"  # without settings, the trainer is unknown
    if imported_from:
        origin = f"Trained with {_cell(' and '.join(sorted(imported_from)))}, and imported with"
    task = "reinforcement-learning"
    entries = []
    for each in results:
        value = f"{each.mean:.2f}" + ("" if each.std is None else f" +/- {each.std:.2f}")
        metric = {"type": "mean_reward", "value": value, "name": f"{each.measure} ({each.over})", "verified": False}
        dataset = {"name": each.behavior, "type": each.behavior}
        entries.append({"task": {"type": task, "name": task}, "dataset": dataset, "metrics": [metric]})
    head = {
        "library_name": "ml-agents",
        "pipeline_tag": task,
        # The hub's ML-Agents page and its browser games find models by these tags.
        "tags": [*names, f"deep-{task}", task, *(f"ML-Agents-{name}" for name in names), "trajtrainer"],
        "model-index": [{"name": trainers[0], "results": entries}],
    }
    templates = PackageLoader("trajtrainer.tools.hub")
    environment = Environment(  # noqa: S701 - Markdown, which `cell` escapes
        loader=templates, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    link = str.maketrans({"%": "%25", " ": "%20", ")": "%29"})
    environment.filters.update(cell=_cell, link=lambda name: name.translate(link), code=_code)
    metadata = status.get("metadata") or {}
    text = environment.get_template("card.md").render(
        head=yaml.safe_dump(head, sort_keys=False),
        trainers=trainers,
        names=names,
        origin=origin,
        results=results,
        curves=curves,
        models=models,
        repository=repository,
        run_id=repository.rpartition("/")[2],
        configuration=yaml.safe_dump({"behaviors": dict(behaviors)}, sort_keys=False).rstrip(),
        versions={
            "trajtrainer": __version__,
            "file format of ML-Agents": metadata.get("mlagents_version", "unknown"),
            "torch": metadata.get("torch_version", version("torch")),
            "Python": platform.python_version(),
        },
    )
    return f"{text}\n"


class _Result(NamedTuple):
    """One row of the card's results: what was measured, and over which episodes."""

    behavior: str
    measure: str
    mean: float
    std: float | None
    over: str


def _results(names: Sequence[str], status: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> list[_Result]:
    found = []
    first: Mapping[str, Any] = next(iter((evaluation or {}).get("results", [])), {})
    evaluated: Mapping[str, Any] = first.get("behaviors", {})
    for name in names:
        of_run = status.get(name) or {}
        own, best = evaluated.get(name), of_run.get("best") or {}
        if own and own.get("mean") is not None:
            over = f"{own.get('episodes')} episodes, evaluated"
            found.append(_Result(name, "mean reward", own["mean"], own.get("std"), over))
        final, training = of_run.get("final_checkpoint") or {}, of_run.get("training") or {}
        if training.get("reward") is not None:
            at = "all" if training.get("steps") is None else f"summary of step {training['steps']}"
            over = f"{at}, {training.get('episodes')} episodes"
            found.append(_Result(name, "last mean return of training", training["reward"], None, over))
        elif final.get("reward") is not None:  # a run that was trained by ML-Agents or version 0.1.0
            over = f"step {final.get('steps')}, episodes since the last update"
            found.append(_Result(name, "last reward of training", final["reward"], None, over))
        if best.get("reward") is not None:
            measure = best.get("measure") or f"by {best.get('by')}"
            found.append(_Result(name, "best model", best["reward"], None, f"step {best.get('steps')}, {measure}"))
    return found


def _cell(text: str) -> str:
    """Escape text so that it cannot end a table cell or a line, or be interpreted as markup."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in one_line(text))


def _code(text: str, language: str = "") -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
