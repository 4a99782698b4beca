"""Bring a run to the hub, as ``mlagents-push-to-hf`` lays it out: its folder, ``config.json`` and a model card."""

from __future__ import annotations

import json
import logging
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from trajtrainer.commands.hub.cleaning import Places, clean_checkpoint, clean_events, clean_onnx, paths_in
from trajtrainer.commands.hub.client import Hub
from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.printable import one_line
from trajtrainer.core.version import __version__
from trajtrainer.report.groups import group_runs, load_runs
from trajtrainer.report.pictures import draw
from trajtrainer.rundir.contained_folder import ContainedFolder
from trajtrainer.rundir.event_file import PREFIX
from trajtrainer.rundir.folder import CHECKPOINT_NAME
from trajtrainer.rundir.saved_run import SavedRun

logger = logging.getLogger(__name__)

CURVES = "curves.png"
_SHOWN = ("Environment/Cumulative Reward", "Evaluation/Cumulative Reward", "Self-play/ELO")
_STATUS = "run_logs/training_status.json"
_CLEAN = {".onnx": clean_onnx, ".pt": clean_checkpoint}
_BEST = re.compile(r"best(-model)?(-\d+)?\.(pt|onnx)")


@dataclass(slots=True)
class Parcel:
    """What goes to the hub.

    Attributes:
        files: name in the repository -> the file, or its content.
        settings: ``configuration.yaml``.
        status: ``training_status.json``.
    """

    files: dict[str, Path | bytes] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)


def push(
    hub: Hub,
    run: Path,
    *,
    private: bool = False,
    message: str = "Push to Hub",
    evaluation: Mapping[str, Any] | None = None,
) -> str:
    """Bring a run to the hub and return where it is.

    Args:
        hub: the model; it is made where there is none.
        run: its folder.
        private: make a new one that nobody else sees.
        message: of the commit.
        evaluation: what ``trajtrainer evaluate --json`` wrote.

    Raises:
        HubError: the hub refuses or does not answer.
        RunFolderError: there is no run, or it has no model yet.
    """
    with TemporaryDirectory() as scratch:
        parcel = pack(run, hub.repository, Path(scratch), evaluation)
        total = sum(len(part) if isinstance(part, bytes) else part.stat().st_size for part in parcel.files.values())
        logger.info("Pushing %d files, %.1f MB, to %s.", len(parcel.files), total / 1e6, hub.url)
        add = hub.package.CommitOperationAdd
        operations = [
            add(path_in_repo=name, path_or_fileobj=part if isinstance(part, bytes) else str(part))
            for name, part in parcel.files.items()
        ]
        with hub.told():
            hub.api.create_repo(hub.repository, private=private or None, exist_ok=True)
            hub.api.create_commit(hub.repository, operations, commit_message=message)
    return hub.url


def pack(run: Path, repository: str, scratch: Path, evaluation: Mapping[str, Any] | None = None) -> Parcel:
    """Return what of a run goes to the hub: what Unity, ``--resume`` and a reader need.

    Logs stay on this machine. Of its absolute paths, only the last part goes (``places``).

    Args:
        run: its folder.
        repository: "owner/name".
        scratch: an empty folder, for copies of files that have such paths. It has to last as long as the parcel.
        evaluation: what ``trajtrainer evaluate --json`` wrote.

    Raises:
        RunFolderError: there is no run, it has no model yet, or a file of it cannot be read.
    """
    if not run.is_dir():
        raise RunFolderError(f"There is no run {run}. Expected a run id below --results-dir, or a run's folder.")
    saved = SavedRun(ContainedFolder(run))
    settings, status = saved.configuration.nested, saved.status
    if saved.problems:  # a card without them would say something else
        raise RunFolderError(" ".join(saved.problems))
    own = (str(run.absolute()), str(run.resolve()), str(Path.home()), str(Path.cwd()))
    places = Places([*own, *paths_in(settings), *paths_in(status)])
    parcel = Parcel(settings=places.in_value(settings), status=places.in_value(status))
    for number, path in enumerate(_files(run)):
        clean = clean_events if path.name.startswith(PREFIX) else _CLEAN[path.suffix]
        try:
            cleaned = clean(path, scratch / f"{number}{path.suffix}", places)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be copied to be pushed: {error.strerror or error}.") from error
        if cleaned is not None:
            parcel.files[_without_host(path.relative_to(run).as_posix())] = cleaned
    if not any(name.endswith(".onnx") for name in parcel.files):
        raise RunFolderError(
            f"{run} has no model (.onnx) yet. Wait for its first checkpoint, or export one: trajtrainer export {run}."
        )
    parcel.files["configuration.yaml"] = yaml.safe_dump(parcel.settings, sort_keys=False).encode()
    parcel.files["config.json"] = json.dumps(parcel.settings).encode()
    parcel.files[_STATUS] = json.dumps(parcel.status, indent=4).encode()
    curves = _curves(run)
    if curves is not None:
        parcel.files[CURVES] = curves
    models = [name for name in parcel.files if name.endswith(".onnx") and "/" not in name]
    parcel.files["README.md"] = card(
        repository, parcel.settings, parcel.status, evaluation, models, CURVES if curves else None
    ).encode()
    return parcel


def _files(run: Path) -> Iterator[Path]:
    """Yield the models, checkpoints and event files that go. A link is left out: it may lead anywhere."""
    yield from (path for path in sorted(run.glob("*.onnx")) if _is_plain(path))
    for folder in sorted(path for path in run.iterdir() if path.is_dir() and not path.is_symlink()):
        numbered = re.compile(re.escape(folder.name) + r"-(\d{1,18})\.(pt|onnx)")
        found = {path: numbered.fullmatch(path.name) for path in sorted(folder.iterdir()) if _is_plain(path)}
        newest = max((int(match[1]) for match in found.values() if match), default=None)
        for path, match in found.items():
            wanted = path.name == CHECKPOINT_NAME or path.name.startswith(PREFIX) or _BEST.fullmatch(path.name)
            if wanted or (match and int(match[1]) == newest):
                yield path


def _without_host(name: str) -> str:
    """Return the name of a file as it is, but for an event file's, which has this machine's name in it."""
    folder, prefix, rest = name.partition(PREFIX)
    parts = rest.split(".")
    return f"{folder}{prefix}{parts[0]}.{'.'.join(parts[-2:])}" if prefix and len(parts) > 2 else name


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _curves(run: Path) -> bytes | None:
    """Return a picture of the rewards; None where nothing can be drawn."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        logger.info("The model card goes without curves; with: pip install 'trajtrainer[hub]' it has some.")
        return None
    try:
        groups = group_runs(load_runs([str(run)], run.parent))
    except RunFolderError as error:
        logger.warning("The model card goes without curves: %s", error)
        return None
    (saved,) = groups[0].runs
    charts = [(name, tag) for name, tags in saved.behaviors.items() for tag in _SHOWN if tag in tags]
    if not charts:
        return None
    with TemporaryDirectory() as folder:
        path = Path(folder) / CURVES
        draw(groups, charts, path)
        return path.read_bytes()


def card(
    repository: str,
    settings: Mapping[str, Any],
    status: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
    models: Sequence[str],
    curves: str | None,
) -> str:
    """Return ``README.md``.

    Args:
        repository: "owner/name".
        settings: ``configuration.yaml``.
        status: ``training_status.json``.
        evaluation: what ``trajtrainer evaluate --json`` wrote.
        models: names of the policies for Unity.
        curves: name of the picture, if there is one.
    """
    behaviors: Mapping[str, Any] = settings.get("behaviors") or {}
    names = list(behaviors) or [name.removesuffix(".onnx") for name in models]
    trainers = list(dict.fromkeys(str(each.get("trainer_type", "")) for each in behaviors.values())) or ["ppo"]
    results = _results(names, status, evaluation)
    head = {
        "library_name": "ml-agents",
        "pipeline_tag": "reinforcement-learning",
        # The hub's page of ML-Agents and its games in the browser look for these.
        "tags": [
            *names,
            "deep-reinforcement-learning",
            "reinforcement-learning",
            *(f"ML-Agents-{name}" for name in names),
            "trajtrainer",
        ],
        "model-index": [{"name": trainers[0], "results": [_index_entry(result) for result in results]}],
    }
    environment = Environment(  # noqa: S701 - Markdown, which `cell` escapes
        loader=PackageLoader("trajtrainer.commands.hub"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(cell=_cell, link=_link, code=_code)
    metadata = status.get("metadata") or {}
    text = environment.get_template("card.md").render(
        head=yaml.safe_dump(head, sort_keys=False),
        trainers=trainers,
        names=names,
        origin=_origin(names, behaviors, status),
        results=results,
        curves=curves,
        models=models,
        repository=repository,
        run_id=repository.rpartition("/")[2],
        configuration=yaml.safe_dump({"behaviors": dict(behaviors)}, sort_keys=False).rstrip(),
        versions={
            "trajtrainer": __version__,
            "files as of ML-Agents": metadata.get("mlagents_version", "unknown"),
            "torch": metadata.get("torch_version", version("torch")),
            "Python": platform.python_version(),
        },
    )
    return f"{text}\n"


def _origin(names: Sequence[str], behaviors: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Return where the policies are from, up to the name of this package."""
    trainers = {str((status.get(name) or {}).get("imported_from") or "") for name in names} - {""}
    if trainers:
        return f"Trained with {_cell(' and '.join(sorted(trainers)))}, and imported with"
    return "Trained with" if behaviors else "Exported with"  # without settings nothing says who trained it


class _Result(NamedTuple):
    """One line of the card's results: what was measured, and over which episodes."""

    behavior: str
    measure: str
    mean: float
    std: float | None
    over: str


def _results(names: Sequence[str], status: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> list[_Result]:
    found = []
    evaluated: Mapping[str, Any] = {}
    for result in (evaluation or {}).get("results", [])[:1]:
        evaluated = result.get("behaviors", {})
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
        elif final.get("reward") is not None:  # of a run that ML-Agents or 0.1.0 trained
            over = f"step {final.get('steps')}, episodes since the last update"
            found.append(_Result(name, "last reward of training", final["reward"], None, over))
        if best.get("reward") is not None:
            measure = best.get("measure") or f"by {best.get('by')}"
            found.append(_Result(name, "best model", best["reward"], None, f"step {best.get('steps')}, {measure}"))
    return found


def _index_entry(result: _Result) -> dict[str, Any]:
    value = f"{result.mean:.2f}" + ("" if result.std is None else f" +/- {result.std:.2f}")
    name = f"{result.measure} ({result.over})"
    return {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": result.behavior, "type": result.behavior},
        "metrics": [{"type": "mean_reward", "value": value, "name": name, "verified": False}],
    }


def _cell(text: str) -> str:
    """Return text that neither ends a cell or line nor is taken for markup."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in one_line(text))


def _link(name: str) -> str:
    return name.replace("%", "%25").replace(" ", "%20").replace(")", "%29")


def _code(text: str, language: str = "") -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
