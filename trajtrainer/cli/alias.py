"""``trajtrainer alias``: creates a command ``mlagents-learn``, for scripts that call it."""

import argparse
import os
import sysconfig
from pathlib import Path

from trajtrainer.core.errors import RunFolderError

NAME = "mlagents-learn"
# Installers write the name of the called module into every launcher (in .exe files, it is in an embedded archive).
_OURS = b"trajtrainer.cli.main"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--remove", action="store_true", help=f"remove the command {NAME}")


def run(arguments: argparse.Namespace) -> int:
    """Create or remove the command, and print its path.

    Raises:
        RunFolderError: the command belongs to ML-Agents, or cannot be written.
    """
    folder = Path(sysconfig.get_path("scripts"))
    ending = ".exe" if os.name == "nt" else ""
    print((remove if arguments.remove else write)(folder, ending))
    return 0


def write(folder: Path, ending: str = "") -> str:
    """Create the command by copying the ``trajtrainer`` launcher, and return the text to print.

    Both launchers call the same function. It runs ``learn`` if the program has the name of the alias.

    Args:
        folder: the folder with the commands of the Python environment.
        ending: the file extension of executables.

    Raises:
        RunFolderError: see ``run``.
    """
    ours, other = folder / f"trajtrainer{ending}", folder / f"{NAME}{ending}"
    _check_is_own(other)
    try:
        content = ours.read_bytes()
    except FileNotFoundError:
        raise RunFolderError(
            f"There is no {ours} to copy. Install trajtrainer into this Python environment: pip install trajtrainer."
        ) from None
    try:
        other.write_bytes(content)
        other.chmod(ours.stat().st_mode)
    except OSError as error:
        raise RunFolderError(f"{other} cannot be written: {error.strerror or error}.") from error
    return f"{other} now runs 'trajtrainer learn'. To remove it: trajtrainer alias --remove."


def remove(folder: Path, ending: str = "") -> str:
    """Remove the command, and return the text to print. Arguments and errors are the same as for ``write``."""
    other = folder / f"{NAME}{ending}"
    if not other.exists():
        return f"{other} does not exist."
    _check_is_own(other)
    try:
        other.unlink()
    except OSError as error:
        raise RunFolderError(f"{other} cannot be removed: {error.strerror or error}.") from error
    return f"Removed {other}."


def _check_is_own(path: Path) -> None:
    try:
        foreign = path.is_symlink() or (path.exists() and _OURS not in path.read_bytes())
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}. It was not changed.") from error
    if foreign:
        raise RunFolderError(
            f"{path} does not belong to trajtrainer; ML-Agents seems to be installed here. It was not changed. "
            "Uninstall ML-Agents (pip uninstall mlagents), or use a Python environment without it."
        )
