"""Download a model from the hub as a run in the results folder, either completely or not at all."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajtrainer.core import atomic
from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.filenames import check_run_id, has_valid_escapes, why_unfit
from trajtrainer.core.printable import one_line
from trajtrainer.policies.folder import status
from trajtrainer.policies.folder.notes import discard_notes, move_with_notes
from trajtrainer.policies.folder.run_folder import free_name
from trajtrainer.policies.folder.run_lock import RunLock, check_no_one_trains, lock_file
from trajtrainer.tools.hub.client import Hub, HubError

logger = logging.getLogger(__name__)

_MOST_FILES = 5_000
_MOST_FAULTS = 5  # maximum number of problems listed in an error message
_TIMEOUT_S = 30.0
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Git can run programs from a .git folder. "git~1" is its short name on Windows.
_OF_GIT = re.compile(r"\.git|git~\d+", re.IGNORECASE)


def pull(
    hub: Hub, results: Path, run_id: str, *, revision: str | None = None, most_bytes: int, force: bool = False
) -> Path:
    """Download a model and return its folder, ``results/<run_id>``.

    Args:
        hub: the model.
        results: the results folder; nothing is written outside of it.
        run_id: the name to give the run.
        revision: a branch, tag or commit; None for the newest commit.
        most_bytes: maximum size of the model.
        force: keep an existing run under another name, instead of refusing.

    Raises:
        HubError: the hub refuses or does not respond, or it sends files that it did not announce or that cannot belong
            to a run.
        RunFolderError: a run with this id exists or is training, or there is not enough disk space.
    """
    target = results / check_run_id(run_id)
    check_no_one_trains(target)
    if target.exists() and not force:
        raise RunFolderError(
            f"{target} already exists. Choose another --run-id, or keep the old run under another name with --force."
        )
    with hub.translating_errors():
        model = hub.api.model_info(hub.repository, revision=revision, timeout=_TIMEOUT_S, files_metadata=True)
        if not _COMMIT.fullmatch(model.sha or ""):
            raise HubError(f"The hub at {hub.endpoint} did not name a commit of {hub.repository}: found {model.sha!r}.")
        files = run_files(hub, model.siblings or [])
    total = sum(file.size for file in files)
    if total > most_bytes:
        raise HubError(
            f"{hub.repository} is {_megabytes(total)}, larger than {_megabytes(most_bytes)}. Nothing was downloaded; "
            "increase --max-size to allow this."
        )
    logger.info("Downloading %d files, %s, from %s.", len(files), _megabytes(total), hub.url)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = RunLock(lock_file(target), target)
        lock.acquire()
        # Everything is downloaded to a folder next to the target, which then replaces the target.
        apart = target.with_name(f".{target.name}.pull-{secrets.token_hex(4)}")
        try:
            for left in target.parent.glob(f".{target.name}.pull-*"):  # left over from a killed process
                shutil.rmtree(left, ignore_errors=True)
            _download(hub, model.sha, files, apart, total)
            status.write_origin(apart, f"{hub.url} at {model.sha}")
            if target.exists():
                aside = free_name(target)
                move_with_notes(target, aside)
                logger.warning("The earlier run was moved to %s.", aside)
            discard_notes(target)
            atomic.move(apart, target)
        finally:
            shutil.rmtree(apart, ignore_errors=True)
            lock.release()
    except OSError as error:
        raise RunFolderError(
            f"{hub.repository} cannot be written to {target}: {error.strerror or error}. It needs {_megabytes(total)}. "
            "Nothing was kept; free some space, or choose another --results-dir."
        ) from error
    return target


def _download(hub: Hub, commit: str, files: Sequence[Any], folder: Path, total: int) -> None:
    """Download exactly these files, and check that each one matches what the hub announced."""
    from huggingface_hub.utils import tqdm

    class Meter(tqdm):  # type: ignore[misc]
        """A hidden progress bar that stops a download of more data than announced."""

        received = 0.0

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self.received += n or 0
            if self.received > total + len(files):  # huggingface_hub also counts files here
                raise HubError(f"The hub at {hub.endpoint} sent more than it announced. Try again later.")

    with hub.translating_errors():
        hub.api.snapshot_download(
            hub.repository,
            revision=commit,
            local_dir=folder,
            cache_dir=folder / ".cache",
            allow_patterns=[glob.escape(file.rfilename) for file in files],
            tqdm_class=Meter,
        )
    shutil.rmtree(folder / ".cache")  # must not become part of the run, so errors are raised
    for file in files:
        with folder.joinpath(*file.rfilename.split("/")).open("r+b") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
            if written.tell() != file.size or (file.lfs and digest != file.lfs.sha256):
                raise HubError(
                    f"The hub at {hub.endpoint} sent something different from what it announced for "
                    f"{file.rfilename}. Try again later."
                )
            os.fsync(written.fileno())


def run_files(hub: Hub, listed: Sequence[Any]) -> list[Any]:
    """Return the files that belong to a run, without hidden files.

    Args:
        hub: the model.
        listed: the files of the model (``huggingface_hub.hf_api.RepoSibling``).

    Raises:
        HubError: there are no files or too many, or some cannot be downloaded; the message says which ones and why.
    """
    if len(listed) > _MOST_FILES:
        raise HubError(f"{hub.repository} has {len(listed)} files, expected a run with at most {_MOST_FILES}.")
    faults, files = [], []
    # Windows and macOS treat some different names as equal, and no file may also be the folder of another file.
    names: dict[str, str] = {}
    folders = set()
    for file in listed:
        name, shown, parts = file.rfilename, one_line(file.rfilename)[:200], file.rfilename.split("/")
        problems = [why_unfit(part, windows=True) or _why_unsafe(part) for part in parts]
        faults += [f"a file {shown!r}, whose name contains {one_line(each)}" for each in problems if each][:1]
        if type(file.size) is not int or file.size < 0:
            faults.append(f"{shown!r} has the size {file.size!r}, expected a number of bytes")
        if name.lower() == status.FILE or any(part.startswith(".") for part in parts):
            continue
        files.append(file)
        folded = unicodedata.normalize("NFC", name).casefold()
        if folded in names:
            faults.append(f"{one_line(names[folded])!r} and {shown!r}, whose names differ only in case")
        names[folded] = name
        folders |= {folded[: match.start()] for match in re.finditer("/", folded)}
    faults += [f"{one_line(names[each])!r} is both a file and a folder" for each in sorted(folders & names.keys())]
    if faults:
        more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
        raise HubError(
            f"{hub.repository} cannot be downloaded: {'; '.join(faults[:_MOST_FAULTS])}{more}. Nothing was downloaded. "
            "Please report this to its owner."
        )
    if not files:
        raise HubError(f"{hub.repository} has no files. Check that it is the right model: {hub.url}.")
    return files


def _why_unsafe(part: str) -> str:
    if _OF_GIT.fullmatch(part):
        return "a Git folder"
    return "" if has_valid_escapes(part) else "escapes (%XX) that are not UTF-8"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
