"""The output and log of a run.

Lines as log scrapers know them from ML-Agents, above the live view if there is one, and everything, with times, in
``run_logs/trainer.log``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from trajtrainer.core.printable import printable, with_safe_arguments
from trajtrainer.core.version import __version__
from trajtrainer.rundir.status import COMPATIBLE_MLAGENTS_VERSION, installed_version
from trajtrainer.unity.behaviors import API_VERSION

_PACKAGE = "trajtrainer"
_FORMAT = "[%(levelname)s] %(message)s"
_DEBUG_FORMAT = "%(asctime)s %(levelname)s [%(filename)s:%(lineno)d] %(message)s"
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
_FILE_BYTES = 5_000_000
_OLD_FILES = 3


class _Formatter(logging.Formatter):
    """Every line that leaves the log, to the console or to a file.

    Names come from the wire: they neither steer the terminal nor forge lines of the log.
    """

    def __init__(self, *, debug: bool) -> None:
        super().__init__(_DEBUG_FORMAT if debug else _FORMAT, _TIME_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(with_safe_arguments(record)))


class ConsoleHandler(logging.Handler):
    """Writes each record to what ``sys.stdout`` is at that moment, or to ``sink`` while one is set.

    Attributes:
        quiet: warnings and errors only.
        threshold: the lowest level that is shown.
        sink: takes a line without its end; the live view sets it, to print above itself.
        unread: writing failed, so nobody sees anything any more (a closed pipe); training goes on.
        early: what was said before there was a log file, which takes it over; None from then on.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__()
        self.quiet = quiet
        self.sink: Callable[[str], None] | None = None
        self.unread = False
        self.early: list[logging.LogRecord] | None = []
        self.show(debug=False)

    def show(self, *, debug: bool) -> None:
        """Choose what is shown: with ``debug`` everything, with time and place; otherwise ``[LEVEL] message``."""
        # Not the handler's own level, below which it would not even hear of what is for the file.
        self.threshold = logging.WARNING if self.quiet else logging.DEBUG if debug else logging.INFO
        self.setFormatter(_Formatter(debug=debug))

    def say(self, text: str) -> None:
        """Write text that is no log line, unless the console is quiet."""
        if self.quiet:
            return
        try:
            _write(text)
        except OSError:
            self.unread = True

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, or keep it until the console is there."""
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
    """Writes every record to a file of bounded size. Without a file, or on a full disk, the run goes on.

    The file is open only while a line is written, so that it may be moved, deleted or rotated at any time, on Windows,
    too; its folder is made again.
    """

    def __init__(self, path: Path, console: ConsoleHandler | None = None) -> None:
        """Open the file.

        Args:
            path: of the file; lines are appended.
            console: hears of a file that cannot be written; and if nobody reads it any more, the file says so.
        """
        super().__init__(
            path, maxBytes=_FILE_BYTES, backupCount=_OLD_FILES, encoding="utf-8", errors="backslashreplace", delay=True
        )
        self.setFormatter(_Formatter(debug=True))
        self._console = console
        self._told_unread = False
        self._failing = False

    def tell(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Write a line that is for the file alone."""
        self.handle(_record(level, text, error))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; tell the console once when that fails."""
        failed, self._failing = self._failing, False
        super().emit(record)
        if self._failing and not failed and self._console is not None:
            # Past the logger, which would come back here. The console never waits for this handler's lock.
            self._console.handle(_record(logging.WARNING, f"The log {self.baseFilename} cannot be written."))
        self._close_stream()
        if self._console is not None and self._console.unread and not self._told_unread:
            self._told_unread = True
            self.tell(logging.WARNING, "Nobody reads stdout any more (a closed pipe?). The run goes on.")

    def handleError(self, record: logging.LogRecord) -> None:
        """Note that the file cannot be written."""
        if isinstance(sys.exc_info()[1], OSError):
            self._failing = True
        else:
            super().handleError(record)

    def doRollover(self) -> None:
        """Begin the next file."""
        with contextlib.suppress(OSError):  # on Windows another program may have it open: it grows until that ends
            super().doRollover()

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def _close_stream(self) -> None:
        stream, self.stream = self.stream, None  # opened again by the next record
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


@contextlib.contextmanager
def log_file(path: Path | None, console: ConsoleHandler | None) -> Iterator[None]:
    """Write everything that is logged to ``path``, too, and what was said before; None leaves no file.

    An error that ends this is written with its traceback.
    """
    early = [] if console is None or console.early is None else console.early
    if console is not None:
        console.early = None
    if path is None:
        yield
        return
    file = LogFile(path, console)
    file.tell(logging.INFO, f"{banner()}\n  Command: {shell_line(sys.argv)}")
    for record in early:
        file.handle(record)
    logger = logging.getLogger(_PACKAGE)
    logger.addHandler(file)
    try:
        yield
    except Exception as error:
        file.tell(logging.ERROR, f"The run ends: {error}", error)
        raise
    finally:
        logger.removeHandler(file)
        file.close()


@contextlib.contextmanager
def console_logging(*, debug: bool, quiet: bool = False) -> Iterator[ConsoleHandler]:
    """Send the log of this package (and of plugins that log below its name) to stdout, and undo that at the end.

    Args:
        debug: DEBUG level with time and place; otherwise INFO as ``[LEVEL] message``.
        quiet: warnings and errors only.
    """
    handler = ConsoleHandler(quiet=quiet)
    handler.show(debug=debug)
    logger = logging.getLogger(_PACKAGE)
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.DEBUG)  # the log file has everything; the console's handler chooses
    logger.propagate = False  # a root handler of an embedding program would repeat every line
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        handler.close()


def shell_line(words: Sequence[str | Path]) -> str:
    """Return words as a line that can be pasted into the system's shell."""
    texts = [str(word) for word in words]
    return subprocess.list2cmdline(texts) if os.name == "nt" else shlex.join(texts)


def _record(level: int, text: str, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(_PACKAGE, level, __file__, 0, text, (), exc_info)


def banner() -> str:
    """Return what is printed first: which program, and the versions that a bug report needs."""
    python = ".".join(str(part) for part in sys.version_info[:3])
    return (
        f"trajtrainer {__version__}\n"
        " Version information:\n"
        f"  ml-agents: {COMPATIBLE_MLAGENTS_VERSION} (compatible),\n"
        f"  ml-agents-envs: {installed_version('mlagents-envs')},\n"
        f"  Communicator API: {API_VERSION},\n"
        f"  PyTorch: {installed_version('torch')},\n"
        f"  Python: {python}"
    )


def _write(line: str) -> None:
    stream = sys.stdout
    if stream is None:  # pythonw
        return
    try:
        stream.write(line + "\n")
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
