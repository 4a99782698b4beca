"""Errors that a user can cause. The command line prints only their message; ``--debug`` adds the traceback."""

from __future__ import annotations


class TrajtrainerError(Exception):
    """Anything that ends a command with one clear message and exit code 1."""


class SettingsError(TrajtrainerError):
    """The YAML file or the command line asks for something that does not exist or is invalid."""


class PluginError(SettingsError):
    """A package that adds an algorithm, an environment scheme or another part is broken. Runs without it work."""


class RunFolderError(TrajtrainerError):
    """The results folder is missing, in the way, damaged or cannot be written."""


class CheckpointError(TrajtrainerError):
    """A checkpoint is missing, damaged or not a checkpoint."""


class DemonstrationError(TrajtrainerError):
    """A recording is missing, damaged, empty or of another behavior."""


class ExportError(TrajtrainerError):
    """A policy could not be exported to ONNX."""


class EnvironmentFaultError(TrajtrainerError):
    """The environment crashed, hung, quit or never connected. Training state is saved before this is shown."""


class InvalidDataError(EnvironmentFaultError):
    """The environment sent values that no trainer can learn from (NaN, wrong sizes, garbage)."""


class OutOfMemoryError(TrajtrainerError):
    """There is not enough memory for the observations and buffers that the settings ask for."""


class UnsupportedError(TrajtrainerError):
    """A sensor, action space or trainer that this version does not train."""


def first_line(error: BaseException) -> str:
    """The type of an error and the first line of its text, for a message."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__
