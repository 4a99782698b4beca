"""The files of a model, as the hub lists them: checked before the first one is fetched."""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from trajtrainer.core.filenames import why_unfit
from trajtrainer.core.printable import one_line
from trajtrainer.hub.client import Hub, HubError
from trajtrainer.hub.transfer import Pace, received
from trajtrainer.rundir import origin

logger = logging.getLogger(__name__)

_MOST_FILES = 5_000
_LONGEST_LISTING = 1 << 25
_MOST_FAULTS = 5  # in a message
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# A folder in which git runs programs. "git~1" is the short form of its name on Windows.
_OF_GIT = re.compile(r"\.git|git~\d+", re.IGNORECASE)


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


def fetch_listing(hub: Hub, revision: str | None, pace: Pace) -> tuple[list[HubFile], str]:
    """Return the files of a model and the commit that has them.

    Args:
        hub: the model.
        revision: a branch, tag or commit; None for the newest state.
        pace: of the transfer.

    Raises:
        HubError: the listing is damaged or too long, there are no files or too many, or a name is not fit for a file.
        Exception: whatever the package for the hub raises where the hub refuses or does not answer.
    """
    url = f"{hub.endpoint}/api/models/{hub.repository}"
    if revision is not None:
        url += f"/revision/{quote(revision, safe='')}"
    body = bytearray()
    for chunk in received(hub, url, pace, {"blobs": True}):
        body += chunk
        if len(body) > _LONGEST_LISTING:
            raise HubError(f"The hub at {hub.endpoint} lists more of {hub.repository} than a run can have.")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HubError(f"The list of files of {hub.repository} is no JSON: {type(error).__name__}.") from error
    commit = content.get("sha") if isinstance(content, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise HubError(f"The list of files of {hub.repository} has no commit: found {_shown(commit)} as 'sha'.")
    siblings = content.get("siblings") or []
    if not isinstance(siblings, list):
        raise HubError(f"The list of files of {hub.repository} is none: found {_shown(siblings)} as 'siblings'.")
    return listed(hub, siblings), commit


def listed(hub: Hub, siblings: Sequence[Any]) -> list[HubFile]:
    """Return the files that belong to a run: hidden ones do not.

    Raises:
        HubError: there are none or too many, or some cannot be fetched; the message says which ones and why.
    """
    if len(siblings) > _MOST_FILES:
        raise HubError(f"{hub.repository} has {len(siblings)} files, expected a run with at most {_MOST_FILES}.")
    faults = [fault for number, entry in enumerate(siblings, 1) for fault in _faults(number, entry)]
    files = [] if faults else [_file(entry) for entry in siblings if not _is_left_out(entry["rfilename"])]
    faults += _collisions(files)
    if faults:
        more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
        raise HubError(
            f"{hub.repository} cannot be fetched, nothing of it was: {'; '.join(faults[:_MOST_FAULTS])}{more}. Tell "
            "its owner."
        )
    if not files:
        raise HubError(f"{hub.repository} has no files. Look whether it is the right model: {hub.url}.")
    return files


def _file(entry: dict[str, Any]) -> HubFile:
    lfs = entry.get("lfs") or {}
    size = entry.get("size")
    return HubFile(entry["rfilename"], lfs.get("size", 0) if size is None else size, lfs.get("sha256"))


def _is_left_out(name: str) -> bool:
    return name.lower() == origin.FILE or any(part.startswith(".") for part in name.split("/"))


def _faults(number: int, entry: Any) -> Iterator[str]:
    """Yield what is wrong with an entry."""
    name = entry.get("rfilename") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        yield f"file {number} of the list has the name {_shown(name)}, expected a text"
        return
    for part in name.split("/"):
        problem = "the folder of git" if _OF_GIT.fullmatch(part) else why_unfit(part, windows=True)
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


def _collisions(files: Sequence[HubFile]) -> Iterator[str]:
    """Yield names that are one on Windows or macOS, and files that are a folder of another one."""
    names: dict[str, str] = {}
    folders = set()
    for file in files:
        folded = unicodedata.normalize("NFC", file.name).casefold()
        if folded in names:
            yield f"{one_line(names[folded])!r} and {one_line(file.name)!r}, whose names differ in case only"
        names[folded] = file.name
        parts = folded.split("/")
        folders |= {"/".join(parts[:end]) for end in range(1, len(parts))}
    yield from (f"{one_line(names[both])!r} is a file and a folder" for both in sorted(folders & names.keys()))


def _shown(value: Any) -> str:
    return one_line(repr(value))[:100]
