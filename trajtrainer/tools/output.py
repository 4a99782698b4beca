"""Checks on output files that the user chooses."""

from pathlib import Path

from trajtrainer.core.errors import SettingsError


def check_target(output: Path, *, overwrite: bool) -> None:
    """Check that a file may be written.

    Raises:
        SettingsError: the file already exists, or its folder does not.
    """
    if output.is_dir() or not output.parent.is_dir():
        found = "is a folder" if output.is_dir() else f"is in the folder {output.parent}, which does not exist"
        raise SettingsError(f"{output} {found}. Specify a file in an existing folder with -o FILE.")
    if output.exists() and not overwrite:
        raise SettingsError(
            f"{output} already exists. Choose another name with -o FILE, or replace it with --overwrite."
        )
