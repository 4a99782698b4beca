"""Safe file names for names from the network, the command line or a file."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import BinaryIO
from urllib.parse import unquote

from trajtrainer.core.errors import RunFolderError

EVENT_FILE_PREFIX = "events.out.tfevents."  # TensorBoard's
# Leaves room for "-<step>.onnx" and the suffix of temporary files within the 255 bytes that file systems allow.
_MAX_BYTES = 180
_FORBIDDEN = frozenset('<>:"/\\|?*')
# Windows also reserves these names with a superscript digit, or with spaces before the dot.
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[\d¹²³]) *(\..*)?", re.IGNORECASE)
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_ESCAPES = re.compile(rf"(?:{_ESCAPE.pattern})+")
# Files and folders in a run's folder that do not belong to a behavior.
_TAKEN = frozenset({"run_logs", "configuration.yaml"})


def behavior_file_name(behavior: str) -> str:
    """Return the name of a behavior's folder, which is also the stem of its files.

    Names that are safe on all systems stay unchanged. In other names, unsafe characters are replaced with ``%XX``
    (``Team/Red`` becomes ``Team%2FRed``), so that two behaviors never share a folder.

    Raises:
        RunFolderError: the name is empty or too long for a file name.
    """
    if not behavior:
        raise RunFolderError("The environment has a behavior without a name. Give it a name in Unity.")
    name = behavior
    if _ESCAPE.search(name) or any(not _plain(character) for character in name):
        name = "".join(
            character if _plain(character) and character != "%" else _escaped(character) for character in name
        )
    if name[0] in ". " or name.lower() in _TAKEN or _WINDOWS_DEVICE.fullmatch(name):
        name = _escaped(name[0]) + name[1:]
    if name[-1] in ". ":  # Windows drops trailing dots and spaces
        name = name[:-1] + _escaped(name[-1])
    if name.lower().endswith(".onnx"):  # an exported model of another behavior may have this name
        name = name[:-5] + "%2E" + name[-4:]
    if len(name.encode("utf-8", "surrogatepass")) > _MAX_BYTES:
        raise RunFolderError(
            f"The behavior name {behavior[:60]!r}... is too long for a file name ({len(name)} characters, at most "
            f"{_MAX_BYTES} bytes). Give the behavior a shorter name in Unity."
        )
    return name


def behavior_of(file_name: str) -> str:
    """Invert ``behavior_file_name``. Names that it cannot have returned, such as ``100%FFx``, are left unchanged."""
    return unquote(file_name, errors="surrogatepass") if has_valid_escapes(file_name) else file_name


def has_valid_escapes(file_name: str) -> bool:
    """Return whether all ``%XX`` escapes in a name decode to text, as in the results of ``behavior_file_name``."""
    try:
        unquote(file_name, errors="surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def exported_name(file_name: str) -> str:
    """Return the stem of the model for Unity, in which ``_`` replaces the escapes of ``behavior_file_name``.

    For example, ``ALE%2FPong-v5`` becomes ``ALE_Pong-v5``. Two behaviors may have the same stem.
    """
    return _ESCAPES.sub("_", file_name)


def check_run_id(run_id: str, option: str = "--run-id", *, windows: bool = os.name == "nt") -> str:
    """Check a run id and return it unchanged. ``/`` creates nested folders.

    Raises:
        RunFolderError: the id is empty or absolute, points outside the results folder, or is not a valid folder name.
    """
    for part in run_id.split("/"):
        problem = why_unfit(part, windows=windows)
        if problem:
            raise RunFolderError(
                f"{option} {run_id!r} cannot be the name of a run: it contains {problem}. Use a plain name, such as "
                "'ppo-1' or 'tests/ppo-1' (letters, digits, '-', '_', '.'); --results-dir chooses another folder."
            )
    return run_id


def why_unfit(part: str, *, windows: bool) -> str | None:
    """Return what is wrong with this part of a path as a file name, for a message; None if it is valid."""
    forbidden = _FORBIDDEN if windows else frozenset("\\")
    if part in ("", ".", ".."):
        return f"{part!r} as the name of a folder"
    for character in part:
        if character in forbidden or not character.isprintable():
            return repr(character)
    if _WINDOWS_DEVICE.fullmatch(part) or part[-1] in ". ":
        return f"{part!r}, which Windows does not allow"
    if len(part.encode()) > _MAX_BYTES:
        return f"a name of more than {_MAX_BYTES} bytes"
    return None


def _plain(character: str) -> bool:
    return character.isprintable() and character not in _FORBIDDEN


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    Unlike this function, ``open`` blocks on a named pipe until another program writes to it, and accepts devices, which
    may never reach the end of the file.

    Raises:
        OSError: the file does not exist, or is not a regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "it is a pipe or a device; use a file on disk", os.fspath(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
