"""Errors that users can cause. The command line prints only their message; ``--debug`` adds the traceback."""

from __future__ import annotations


class TrajtrainerError(Exception):
    """Base class of errors that end a command with a short message and exit code 1."""


class SettingsError(TrajtrainerError):
    """The YAML file or the command line contains an invalid setting."""


class PluginError(SettingsError):
    """An installed plugin package is broken. Runs that do not use it still work."""


class RunFolderError(TrajtrainerError):
    """The folder of a run is missing, damaged or not writable, or its name is invalid or taken."""


class CheckpointError(TrajtrainerError):
    """A checkpoint is missing or damaged, or the file is not a checkpoint."""


class DemonstrationError(TrajtrainerError):
    """A recording is missing, damaged or empty, or belongs to another behavior."""


class ExportError(TrajtrainerError):
    """A policy could not be exported to ONNX."""


class EnvironmentFaultError(TrajtrainerError):
    """The environment crashed, hung, quit or never connected. Training state is saved before the error is shown."""


class InvalidDataError(EnvironmentFaultError):
    """The environment sent invalid data, such as NaN or arrays of the wrong size."""


class OutOfMemoryError(TrajtrainerError):
    """There is not enough memory for the observations and buffers with these settings."""


class UnsupportedError(TrajtrainerError):
    """A sensor, action space or trainer type is not supported by this version."""


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its text, for use in a message."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__
