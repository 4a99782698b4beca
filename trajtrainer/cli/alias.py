"""``trajtrainer alias``: a command ``mlagents-learn`` for scripts that call it."""

from __future__ import annotations

import argparse
import os
import sysconfig
from pathlib import Path

from trajtrainer.core.errors import RunFolderError

NAME = "mlagents-learn"
# Every launcher that an installer writes names the function that it calls, those of Windows (.exe) in an archive.
_OURS = b"trajtrainer.cli.main"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--remove", action="store_true", help=f"take the command {NAME} away again")


def run(arguments: argparse.Namespace) -> int:
    """Write or remove the command and say where.

    Raises:
        RunFolderError: the command is ML-Agents' own, or it cannot be written.
    """
    folder = Path(sysconfig.get_path("scripts"))
    ending = ".exe" if os.name == "nt" else ""
    print((remove if arguments.remove else write)(folder, ending))
    return 0


def write(folder: Path, ending: str = "") -> str:
    """Write the command beside ours, as a copy of its launcher, and return what to say.

    The launcher calls the same function, which tells by the name it was called by that it is to learn.

    Args:
        folder: of the environment's commands.
        ending: of programs.

    Raises:
        RunFolderError: see ``run``.
    """
    ours, other = folder / f"trajtrainer{ending}", folder / f"{NAME}{ending}"
    _refuse_foreign(other)
    try:
        content = ours.read_bytes()
    except FileNotFoundError:
        raise RunFolderError(
            f"There is no {ours}, beside which the command belongs. Install trajtrainer into this environment: pip "
            "install trajtrainer."
        ) from None
    try:
        other.write_bytes(content)
        other.chmod(ours.stat().st_mode)
    except OSError as error:
        raise RunFolderError(f"{other} cannot be written: {error.strerror or error}.") from error
    return f"{other} is 'trajtrainer learn' from now on; 'trajtrainer alias --remove' takes it away."


def remove(folder: Path, ending: str = "") -> str:
    """Remove the command and return what to say. Arguments and errors as ``write``."""
    other = folder / f"{NAME}{ending}"
    if not other.exists():
        return f"There is no {other}."
    _refuse_foreign(other)
    try:
        other.unlink()
    except OSError as error:
        raise RunFolderError(f"{other} cannot be removed: {error.strerror or error}.") from error
    return f"Removed {other}."


def _refuse_foreign(path: Path) -> None:
    try:
        foreign = path.is_symlink() or (path.exists() and _OURS not in path.read_bytes())
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}. It is left as it is.") from error
    if foreign:
        raise RunFolderError(
            f"{path} is not of trajtrainer: ML-Agents is installed here, it seems. It is left as it is; uninstall "
            "ML-Agents (pip uninstall mlagents) or use an environment without it."
        )
