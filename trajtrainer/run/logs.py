"""The console output and the log file of a run.

The console shows the same lines as ML-Agents, because log scrapers parse them. They appear above the live view, if
there is one. ``run_logs/trainer.log`` contains all lines, with timestamps. With ``--log-format json``, the console
shows one JSON object per line instead (docs/operate/monitoring.md#log-lines-as-json).
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from trajtrainer.core.printable import printable, with_safe_arguments
from trajtrainer.core.version import API_VERSION, __version__
from trajtrainer.policies.folder.status import COMPATIBLE_MLAGENTS_VERSION, installed_version

_PACKAGE = "trajtrainer"
_FORMAT = "[%(levelname)s] %(message)s"
_DEBUG_FORMAT = "%(asctime)s %(levelname)s [%(filename)s:%(lineno)d] %(message)s"
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
_FIELDS = "fields"  # attribute of log records
_FILE_BYTES = 5_000_000
_OLD_FILES = 3


class _Formatter(logging.Formatter):
    """Formats log lines for the console and for files.

    They may contain names from other programs, which must not be able to control the terminal or forge log lines.
    """

    def __init__(self, *, debug: bool) -> None:
        super().__init__(_DEBUG_FORMAT if debug else _FORMAT, _TIME_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(with_safe_arguments(record)))


class _JsonFormatter(logging.Formatter):
    """Formats each record as a JSON object on one line, which includes the keys added by ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, Any] = getattr(record, _FIELDS, {})
        content = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname,
            "message": record.getMessage(),
            **{name: value for name, value in fields.items() if not isinstance(value, float) or math.isfinite(value)},
            "logger": record.name,
        }
        if record.exc_info and record.exc_info[0] is not None:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content, allow_nan=False)


def fields(event: str, **values: Any) -> dict[str, Any]:
    """Return the ``extra`` argument of a log call, which adds values to its JSON object. Text lines do not change."""
    return {_FIELDS: {"event": event, **values}}


class ConsoleHandler(logging.Handler):
    """Writes each record to the current ``sys.stdout``, or to ``sink`` while one is set.

    Attributes:
        quiet: True to show only warnings and errors.
        as_json: True to write only JSON objects, one per line.
        threshold: the lowest level that is shown.
        sink: receives each line without its line break. The live view sets it to print lines above itself.
        unread: True after writing has failed, such as on a closed pipe. Training continues without console output.
        early: records collected before the log file is opened, which are then written to it; None after that.
    """

    def __init__(self, *, quiet: bool = False, as_json: bool = False) -> None:
        super().__init__()
        self.quiet = quiet
        self.as_json = as_json
        self.sink: Callable[[str], None] | None = None
        self.unread = False
        self.early: list[logging.LogRecord] | None = []
        self.show(debug=False)

    def show(self, *, debug: bool) -> None:
        """Show all lines with time and source location if ``debug``; otherwise INFO and above without them."""
        # Do not set the handler's own level: it must still receive early records for the log file.
        self.threshold = logging.WARNING if self.quiet else logging.DEBUG if debug else logging.INFO
        self.setFormatter(_JsonFormatter() if self.as_json else _Formatter(debug=debug))

    def say(self, text: str) -> None:
        """Print text that is not a log line, unless the console is quiet."""
        if self.quiet:
            return
        try:
            _write(self.format(_record(logging.INFO, text)) if self.as_json else text)
        except OSError:
            self.unread = True

    def emit(self, record: logging.LogRecord) -> None:
        if self.early is not None:
            self.early.append(record)
        if record.levelno < self.threshold:
            return
        try:
            (self.sink or _write)(self.format(record))
        except OSError:
            self.unread = True
        except Exception:
            self.handleError(record)


class LogFile(RotatingFileHandler):
    """Writes every record to a file of limited size.

    The run continues if writing fails, for example because the disk is full.

    The file is only open while a line is written, so it may be moved, deleted or rotated at any time, even on Windows.
    If the folder has been deleted, it is created again.
    """

    def __init__(self, path: Path, console: ConsoleHandler | None = None) -> None:
        """Create the handler. Nothing is written yet.

        Args:
            path: path of the file; lines are appended to it.
            console: shows a warning if the file cannot be written. If the console fails, a line in the file says so.
        """
        super().__init__(
            path, maxBytes=_FILE_BYTES, backupCount=_OLD_FILES, encoding="utf-8", errors="backslashreplace", delay=True
        )
        self.setFormatter(_Formatter(debug=True))
        self._console = console
        self._has_noted_unread = False
        self._failing = False

    def write_only_here(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Write a line to the file but not to the console."""
        self.handle(_record(level, text, error))

    def emit(self, record: logging.LogRecord) -> None:
        failed, self._failing = self._failing, False
        super().emit(record)
        if self._failing and not failed and self._console is not None:
            # Not through the logger, which would call this handler again. No deadlock: the console never waits for this
            # lock.
            self._console.handle(_record(logging.WARNING, f"The log file {self.baseFilename} cannot be written."))
        stream, self.stream = self.stream, None  # The next record opens it again.
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
        if self._console is not None and self._console.unread and not self._has_noted_unread:
            self._has_noted_unread = True
            self.write_only_here(
                logging.WARNING, "The console output is no longer read (closed pipe?). The run continues."
            )

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], OSError):
            self._failing = True
        else:
            super().handleError(record)

    def doRollover(self) -> None:
        # On Windows, rotating fails while another program has the file open, so the file keeps growing.
        with contextlib.suppress(OSError):
            super().doRollover()

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()


@contextlib.contextmanager
def log_file(path: Path | None, console: ConsoleHandler | None) -> Iterator[None]:
    """Also write the log to ``path``, including earlier records. If ``path`` is None, no file is written.

    If an error ends the ``with`` block, its traceback is written, too.
    """
    early = [] if console is None or console.early is None else console.early
    if console is not None:
        console.early = None
    if path is None:
        yield
        return
    file = LogFile(path, console)
    file.write_only_here(logging.INFO, f"{banner()}\n  Command: {shell_line(sys.argv)}")
    for record in early:
        file.handle(record)
    logger = logging.getLogger(_PACKAGE)
    logger.addHandler(file)
    try:
        yield
    except Exception as error:
        file.write_only_here(logging.ERROR, f"The run ends: {error}", error)
        raise
    finally:
        logger.removeHandler(file)
        file.close()


@contextlib.contextmanager
def console_logging(*, debug: bool, quiet: bool = False, as_json: bool = False) -> Iterator[ConsoleHandler]:
    """Write the log of this package to stdout inside the ``with`` block, including plugins that use child loggers.

    Args:
        debug: show all lines with time and source location; otherwise ``[LEVEL] message`` for INFO and above.
        quiet: show warnings and errors only.
        as_json: write JSON objects.
    """
    handler = ConsoleHandler(quiet=quiet, as_json=as_json)
    handler.show(debug=debug)
    logger = logging.getLogger(_PACKAGE)
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.DEBUG)  # The log file contains all lines; the console handler filters them.
    logger.propagate = False  # Otherwise, a root handler of the surrounding program would repeat every line.
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        handler.close()


def shell_line(words: Sequence[str | Path]) -> str:
    """Join words into a command line for the system's shell, quoted as needed."""
    texts = [str(word) for word in words]
    return subprocess.list2cmdline(texts) if os.name == "nt" else shlex.join(texts)


def _record(level: int, text: str, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(_PACKAGE, level, __file__, 0, text, (), exc_info)


def banner() -> str:
    """Return the first lines of a run's output: the program and the versions to include in bug reports.

    The lines start like those of ML-Agents, because some tools parse them.
    """
    python = ".".join(str(part) for part in sys.version_info[:3])
    return (
        f"trajtrainer {__version__}\n"
        " Version information:\n"
        f"  ml-agents: {COMPATIBLE_MLAGENTS_VERSION} (trajtrainer replaces this version),\n"
        f"  ml-agents-envs: {installed_version('mlagents-envs')} (only its base classes are used),\n"
        f"  Communicator API: {API_VERSION},\n"
        f"  PyTorch: {installed_version('torch')},\n"
        f"  Python: {python}"
    )


def _write(line: str) -> None:
    stream = sys.stdout
    if stream is None:  # pythonw has no stdout
        return
    try:
        stream.write(line + "\n")
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
