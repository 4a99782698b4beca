"""Bring a run to the hub, as ``mlagents-push-to-hf`` lays it out: its folder, ``config.json`` and a model card."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from trajtrainer.commands.hub.card import card
from trajtrainer.commands.hub.cleaning import Places, clean_checkpoint, clean_events, clean_onnx, paths_in
from trajtrainer.commands.hub.client import Hub
from trajtrainer.core.errors import RunFolderError
from trajtrainer.report.pictures import draw
from trajtrainer.report.runs import group_runs, load_runs
from trajtrainer.rundir.event_file import PREFIX
from trajtrainer.rundir.folder import CHECKPOINT_NAME

logger = logging.getLogger(__name__)

CURVES = "curves.png"
_SHOWN = ("Environment/Cumulative Reward", "Evaluation/Cumulative Reward", "Self-play/ELO")
_LARGEST_TEXT = 1 << 23
_STATUS = "run_logs/training_status.json"
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
        operations = [add(path_in_repo=name, path_or_fileobj=_plain(part)) for name, part in parcel.files.items()]
        with hub.told():
            hub.api.create_repo(hub.repository, private=private or None, exist_ok=True)
            hub.api.create_commit(hub.repository, operations, commit_message=message)
    return hub.url


def _plain(part: Path | bytes) -> str | bytes:
    return part if isinstance(part, bytes) else str(part)


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
    settings, status = _settings(run / "configuration.yaml"), _json(_text(run / _STATUS))
    own = (str(run.absolute()), str(run.resolve()), str(Path.home()), str(Path.cwd()))
    places = Places([*own, *paths_in(settings), *paths_in(status)])
    parcel = Parcel(settings=places.in_value(settings), status=places.in_value(status))
    for number, path in enumerate(_files(run)):
        try:
            cleaned = _clean(path, scratch / f"{number}{path.suffix}", places)
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


def _clean(path: Path, target: Path, places: Places) -> Path | None:
    """Return the file as it goes to the hub: itself, or a copy at ``target``; None if it does not go."""
    if path.name.startswith(PREFIX):
        return clean_events(path, target, places)
    return (clean_onnx if path.suffix == ".onnx" else clean_checkpoint)(path, target, places)


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


def _text(path: Path) -> str:
    try:
        if path.stat().st_size <= _LARGEST_TEXT:
            return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}.") from error
    logger.warning("%s is missing or too large and left out.", path)
    return ""


def _settings(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise RunFolderError(f"{path} is damaged: {error}.") from error
    return content if isinstance(content, dict) else {}


def _json(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text or "{}")
    except ValueError:
        content = {}
    return content if isinstance(content, dict) else {}


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
