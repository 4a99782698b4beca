"""Fetch a model of the hub as a run of the results folder: all of it or nothing."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajtrainer.errors import RunFolderError
from trajtrainer.hub.client import Hub, HubError
from trajtrainer.printable import one_line
from trajtrainer.rundir import atomic, origin
from trajtrainer.rundir.filenames import check_run_id, why_unfit
from trajtrainer.rundir.folder import free_name
from trajtrainer.rundir.run_lock import RunLock

logger = logging.getLogger(__name__)

TIMEOUT_S = 30.0
MOST_BYTES = 2_000_000_000
_MOST_FILES = 5_000
_CHUNK = 1 << 20
_LEFT_OUT = (".gitattributes", ".gitignore", origin.FILE)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a model.

    Attributes:
        name: its path in the repository, of which it is known that it stays inside.
        size: in bytes, as announced.
        sha256: of a large file; None of others.
    """

    name: str
    size: int
    sha256: str | None


def pull(
    hub: Hub,
    results: Path,
    run_id: str,
    *,
    revision: str | None = None,
    most_bytes: int = MOST_BYTES,
    force: bool = False,
) -> Path:
    """Fetch a model and return its folder, ``results/<run_id>``.

    Args:
        hub: the model.
        results: the results folder; nothing is written outside of it.
        run_id: the name of the run to be.
        revision: a branch, tag or commit; None for the newest state.
        most_bytes: so large it may be.
        force: keep what is there under another name; otherwise it is refused.

    Raises:
        HubError: the hub refuses or does not answer, or what it sends is not what it announced.
        RunFolderError: there is such a run, no room for another, or a name that leads elsewhere.
    """
    target = results / check_run_id(run_id)
    if target.exists() and not force:
        raise RunFolderError(
            f"{target} is there already. Choose another --run-id, or keep it under another name: --force."
        )
    with hub.told():
        info = hub.api.model_info(hub.repository, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
    files = listed(hub, info.siblings or [])
    total = sum(file.size for file in files)
    if total > most_bytes:
        raise HubError(
            f"{hub.repository} has {megabytes(total)}, more than {megabytes(most_bytes)}. Nothing was fetched; "
            "--max-size allows more."
        )
    logger.info("Fetching %d files, %s, of %s.", len(files), megabytes(total), hub.url)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = RunLock(target.with_name(f".{target.name}.lock"), target)
        lock.acquire()
        try:
            _fetch_all(hub, files, info.sha, target)
        finally:
            lock.release()
    except OSError as error:
        raise RunFolderError(
            f"{hub.repository} cannot be written to {target}: {error.strerror or error}. It needs {megabytes(total)}, "
            f"there are {_free(results)}. Nothing of it was left; make room, or choose another --results-dir."
        ) from error
    return target


def listed(hub: Hub, siblings: Sequence[Any]) -> list[HubFile]:
    """Return the files that a model has.

    Raises:
        HubError: there are none, or too many.
        RunFolderError: a name would not stay in the run's folder, or not be a file's name everywhere.
    """
    files = []
    for entry in siblings:
        name = entry.rfilename
        if name.lower() in _LEFT_OUT:
            continue
        problem = next(filter(None, (why_unfit(part, windows=True) for part in name.split("/"))), None)
        if problem:
            raise RunFolderError(
                f"{hub.repository} has a file {one_line(name)!r}, whose name contains {one_line(problem)}. Nothing was "
                "fetched. Tell its owner to rename it."
            )
        files.append(HubFile(name, max(0, entry.size or 0), entry.lfs.sha256 if entry.lfs else None))
    if not files:
        raise HubError(f"{hub.repository} has no files. Look whether it is the right model: {hub.url}.")
    if len(files) > _MOST_FILES:
        raise HubError(f"{hub.repository} has {len(files)} files, expected a run with at most {_MOST_FILES}.")
    lower = [file.name.lower() for file in files]
    if len(set(lower)) < len(lower):
        raise RunFolderError(
            f"{hub.repository} has files whose names differ in case only; they cannot lie in one folder."
        )
    return files


def _fetch_all(hub: Hub, files: Sequence[HubFile], commit: str, target: Path) -> None:
    """Fetch into a folder beside the target, which then takes its place."""
    for left in target.parent.glob(f".{target.name}.pull-*"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    apart = target.with_name(f".{target.name}.pull-{secrets.token_hex(4)}")
    try:
        apart.mkdir()
        for file in files:
            path = apart.joinpath(*file.name.split("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            with hub.told():
                _fetch(hub, file, commit, path)
        origin.write_origin(apart, f"{hub.url} at {commit}")
        if target.exists():
            aside = free_name(target)
            atomic.move(target, aside)
            logger.warning("The earlier run was moved to %s, complete.", aside)
        atomic.move(apart, target)
    finally:
        shutil.rmtree(apart, ignore_errors=True)


def _fetch(hub: Hub, file: HubFile, commit: str, path: Path) -> None:
    url = hub.package.hf_hub_url(hub.repository, file.name, revision=commit, endpoint=hub.endpoint)
    digest, left = hashlib.sha256(), file.size
    session = hub.package.utils.get_session()
    with (
        session.stream("GET", url, headers=hub.headers(), timeout=TIMEOUT_S, follow_redirects=True) as answer,
        path.open("wb") as written,
    ):
        if answer.status_code >= 400:
            answer.read()
        hub.package.utils.hf_raise_for_status(answer)
        for chunk in answer.iter_bytes(_CHUNK):
            left -= len(chunk)
            if left < 0:
                break
            digest.update(chunk)
            written.write(chunk)
        written.flush()
        os.fsync(written.fileno())
    if left or (file.sha256 and digest.hexdigest() != file.sha256):
        what = "more" if left < 0 else "less" if left else "something else"
        raise HubError(f"The hub at {hub.endpoint} sent {what} than it announced of {file.name}. Try again later.")


def megabytes(size: int) -> str:
    """Return a size in words."""
    return f"{size / 1e6:,.1f} MB"


def _free(folder: Path) -> str:
    while not folder.exists():
        folder = folder.absolute().parent
    return megabytes(shutil.disk_usage(folder).free)
