"""Fetch a model of the hub as a run of the results folder: all of it or nothing."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from trajtrainer.core import atomic
from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.filenames import check_run_id
from trajtrainer.hub.client import Hub, HubError
from trajtrainer.hub.listing import HubFile, fetch_listing
from trajtrainer.hub.transfer import Pace, received
from trajtrainer.rundir import origin
from trajtrainer.rundir.folder import free_name
from trajtrainer.rundir.run_lock import RunLock

logger = logging.getLogger(__name__)

MOST_BYTES = 2_000_000_000


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
        HubError: the hub refuses, does not answer or is too slow, or what it sends is not what it announced or can not
            be files of a run.
        RunFolderError: there is such a run, or no room for another.
    """
    target = results / check_run_id(run_id)
    if target.exists() and not force:
        raise RunFolderError(
            f"{target} is there already. Choose another --run-id, or keep it under another name: --force."
        )
    pace = Pace(hub)
    with hub.told():
        files, commit = fetch_listing(hub, revision, pace)
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
            _fetch_all(hub, files, commit, target, pace)
        finally:
            lock.release()
    except OSError as error:
        raise RunFolderError(
            f"{hub.repository} cannot be written to {target}: {error.strerror or error}. It needs {megabytes(total)}, "
            f"there are {_free(results)}. Nothing of it was left; make room, or choose another --results-dir."
        ) from error
    return target


def _fetch_all(hub: Hub, files: Sequence[HubFile], commit: str, target: Path, pace: Pace) -> None:
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
                _fetch(hub, file, commit, path, pace)
        origin.write_origin(apart, f"{hub.url} at {commit}")
        if target.exists():
            aside = free_name(target)
            atomic.move(target, aside)
            logger.warning("The earlier run was moved to %s, complete.", aside)
        atomic.move(apart, target)
    finally:
        shutil.rmtree(apart, ignore_errors=True)


def _fetch(hub: Hub, file: HubFile, commit: str, path: Path, pace: Pace) -> None:
    url = hub.package.hf_hub_url(hub.repository, file.name, revision=commit, endpoint=hub.endpoint)
    digest, left = hashlib.sha256(), file.size
    with contextlib.closing(received(hub, url, pace)) as chunks, path.open("wb") as written:
        for chunk in chunks:
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
