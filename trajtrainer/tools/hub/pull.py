"""Download a model from the hub as a run in the results folder: all of it or nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trajtrainer.core import atomic
from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.filenames import check_run_id, has_valid_escapes, why_unfit
from trajtrainer.core.printable import one_line
from trajtrainer.policies.folder import status
from trajtrainer.policies.folder.notes import discard_notes, move_with_notes
from trajtrainer.policies.folder.run_folder import free_name
from trajtrainer.policies.folder.run_lock import RunLock, check_no_one_trains, lock_file
from trajtrainer.tools.hub.client import Hub, HubError, StallDetector, received

logger = logging.getLogger(__name__)

MOST_BYTES = 2_000_000_000

_MOST_FILES = 5_000
_LONGEST_LISTING = 1 << 25
_MOST_FAULTS = 5  # in a message
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# A folder in which git runs programs. "git~1" is the short form of its name on Windows.
_OF_GIT = re.compile(r"\.git|git~\d+", re.IGNORECASE)


def pull(
    hub: Hub,
    results: Path,
    run_id: str,
    *,
    revision: str | None = None,
    most_bytes: int = MOST_BYTES,
    force: bool = False,
) -> Path:
    """Download a model and return its folder, ``results/<run_id>``.

    Args:
        hub: the model.
        results: the results folder; nothing is written outside of it.
        run_id: the name to give the run.
        revision: a branch, tag or commit; None for the newest commit.
        most_bytes: a larger model is refused.
        force: keep an existing run under another name, instead of refusing.

    Raises:
        HubError: the hub refuses, does not respond or is too slow, or it sends something that it did not announce or
            that cannot be the files of a run.
        RunFolderError: such a run exists or is training, or there is no space for another.
    """
    target = results / check_run_id(run_id)
    check_no_one_trains(target)
    if target.exists() and not force:
        raise RunFolderError(
            f"{target} exists already. Choose another --run-id, or keep the old run under another name with --force."
        )
    pace = StallDetector(hub)
    with hub.translating_errors():
        files, commit = fetch_listing(hub, revision, pace)
    total = sum(file.size for file in files)
    if total > most_bytes:
        raise HubError(
            f"{hub.repository} has {megabytes(total)}, more than {megabytes(most_bytes)}. Nothing was downloaded; "
            "--max-size allows more."
        )
    logger.info("Downloading %d files, %s, from %s.", len(files), megabytes(total), hub.url)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = RunLock(lock_file(target), target)
        lock.acquire()
        # Everything arrives in a folder next to the target, which then takes its place.
        apart = target.with_name(f".{target.name}.pull-{secrets.token_hex(4)}")
        try:
            for left in target.parent.glob(f".{target.name}.pull-*"):  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            apart.mkdir()
            for file in files:
                path = apart.joinpath(*file.name.split("/"))
                path.parent.mkdir(parents=True, exist_ok=True)
                with hub.translating_errors():
                    _fetch(hub, file, commit, path, pace)
            status.write_origin(apart, f"{hub.url} at {commit}")
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
        disk = results
        while not disk.exists():
            disk = disk.absolute().parent
        raise RunFolderError(
            f"{hub.repository} cannot be written to {target}: {error.strerror or error}. It needs {megabytes(total)}, "
            f"{megabytes(shutil.disk_usage(disk).free)} are free. Nothing of it was kept; free some space, or choose "
            "another --results-dir."
        ) from error
    return target


def _fetch(hub: Hub, file: HubFile, commit: str, path: Path, pace: StallDetector) -> None:
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
        what = "more than" if left < 0 else "less than" if left else "something other than"
        raise HubError(f"The hub at {hub.endpoint} sent {what} it announced for {file.name}. Try again later.")


def megabytes(size: int) -> str:
    """Format a size."""
    return f"{size / 1e6:,.1f} MB"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a model.

    Attributes:
        name: its path in the repository; it was checked that it leads nowhere else.
        size: in bytes, as announced.
        sha256: of a large file; None for others.
    """

    name: str
    size: int
    sha256: str | None


def fetch_listing(hub: Hub, revision: str | None, pace: StallDetector) -> tuple[list[HubFile], str]:
    """The files of a model, and the commit that has them.

    Args:
        hub: the model.
        revision: a branch, tag or commit; None for the newest commit.
        pace: of the transfer.

    Raises:
        HubError: the listing is damaged or too long, there are no files or too many, or a name is unfit for a file.
        Exception: the package's own errors if the hub refuses or does not respond.
    """
    url = f"{hub.endpoint}/api/models/{hub.repository}"
    if revision is not None:
        url += f"/revision/{quote(revision, safe='')}"
    body = bytearray()
    for chunk in received(hub, url, pace, {"blobs": True}):
        body += chunk
        if len(body) > _LONGEST_LISTING:
            raise HubError(f"The hub at {hub.endpoint} lists more files of {hub.repository} than a run can have.")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HubError(f"The list of files of {hub.repository} is not JSON: {type(error).__name__}.") from error
    commit = content.get("sha") if isinstance(content, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise HubError(f"The list of files of {hub.repository} has no commit: found {_shown(commit)} as 'sha'.")
    siblings = content.get("siblings") or []
    if not isinstance(siblings, list):
        raise HubError(f"The list of files of {hub.repository} is not a list: found {_shown(siblings)} as 'siblings'.")
    return listed(hub, siblings), commit


def listed(hub: Hub, siblings: Sequence[Any]) -> list[HubFile]:
    """The files that belong to a run: hidden ones do not.

    Raises:
        HubError: there are none or too many, or some cannot be downloaded; the message says which ones and why.
    """
    if len(siblings) > _MOST_FILES:
        raise HubError(f"{hub.repository} has {len(siblings)} files, expected a run with at most {_MOST_FILES}.")
    faults = [fault for number, entry in enumerate(siblings, 1) for fault in _faults(number, entry)]
    files: list[HubFile] = []
    for entry in [] if faults else siblings:
        name, size, lfs = entry["rfilename"], entry.get("size"), entry.get("lfs") or {}
        if name.lower() != status.FILE and not any(part.startswith(".") for part in name.split("/")):
            files.append(HubFile(name, lfs.get("size", 0) if size is None else size, lfs.get("sha256")))
    # Names that Windows or macOS cannot tell apart, and files that are also a folder of another file.
    names: dict[str, str] = {}
    folders = set()
    for file in files:
        folded = unicodedata.normalize("NFC", file.name).casefold()
        if folded in names:
            faults.append(f"{one_line(names[folded])!r} and {one_line(file.name)!r}, whose names differ only in case")
        names[folded] = file.name
        parts = folded.split("/")
        folders |= {"/".join(parts[:end]) for end in range(1, len(parts))}
    both = sorted(folders & names.keys())
    faults += [f"{one_line(names[each])!r} is both a file and a folder" for each in both]
    if faults:
        more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
        raise HubError(
            f"{hub.repository} cannot be downloaded, and nothing of it was: {'; '.join(faults[:_MOST_FAULTS])}{more}. "
            "Please tell its owner."
        )
    if not files:
        raise HubError(f"{hub.repository} has no files. Check that it is the right model: {hub.url}.")
    return files


def _faults(number: int, entry: Any) -> Iterator[str]:
    name = entry.get("rfilename") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        yield f"file {number} of the list has the name {_shown(name)}, expected text"
        return
    for part in name.split("/"):
        problem = "the folder of git" if _OF_GIT.fullmatch(part) else why_unfit(part, windows=True)
        if problem is None and not has_valid_escapes(part):
            problem = "escapes (%XX) that are not UTF-8"
        if problem:
            yield f"a file {one_line(name)[:200]!r}, whose name contains {one_line(problem)}"
            break
    lfs = entry.get("lfs")
    if lfs is not None and not isinstance(lfs, dict):
        yield f"{one_line(name)!r} has as 'lfs' {_shown(lfs)}, expected an object"
        return
    for size in (entry.get("size"), (lfs or {}).get("size")):
        if size is not None and (type(size) is not int or not 0 <= size < 1 << 63):
            yield f"{one_line(name)!r} has the size {_shown(size)}, expected a number of bytes"
    sha256 = (lfs or {}).get("sha256")
    if sha256 is not None and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        yield f"{one_line(name)!r} has the checksum {_shown(sha256)}, expected 64 digits"


def _shown(value: Any) -> str:
    return one_line(repr(value))[:100]
