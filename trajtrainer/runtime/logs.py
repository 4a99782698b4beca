"""What a run prints: lines as log scrapers know them from the peer (reference 1.13), above the live view if there
is one."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

from trajtrainer.runtime.status import COMPATIBLE_MLAGENTS_VERSION, installed_version
from trajtrainer.version import __version__

_PACKAGE = "trajtrainer"
_FORMAT = "[%(levelname)s] %(message)s"
_DEBUG_FORMAT = "%(asctime)s %(levelname)s [%(filename)s:%(lineno)d] %(message)s"
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
# Names come from the wire: their control characters must not steer the terminal.
_CONTROL = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """``text`` with control characters other than line end and tab made harmless."""
    return text.translate(_CONTROL)


class ConsoleHandler(logging.Handler):
    """Writes each record to what ``sys.stdout`` is at that moment, or to ``sink`` while one is set.

    Attributes:
        sink: takes a line without its end; the live view sets it, to print above itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sink: Callable[[str], None] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            (self.sink or _write)(printable(self.format(record)))
        except OSError:
            pass  # nobody reads any more (a closed pipe); training goes on
        except Exception:
            self.handleError(record)


@contextlib.contextmanager
def console_logging(*, debug: bool) -> Iterator[ConsoleHandler]:
    """Sends the log of this package (and of plugins that log below its name) to stdout, and undoes that at the end.

    Args:
        debug: DEBUG level with time and place; otherwise INFO as ``[LEVEL] message``.
    """
    handler = ConsoleHandler()
    handler.setFormatter(logging.Formatter(_DEBUG_FORMAT if debug else _FORMAT, _TIME_FORMAT))
    logger = logging.getLogger(_PACKAGE)
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    logger.propagate = False  # a root handler of an embedding program would repeat every line
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        handler.close()


def banner(protocol_version: str) -> str:
    """What is printed first: which program, and the versions that a bug report needs."""
    python = ".".join(str(part) for part in sys.version_info[:3])
    return (
        f"trajtrainer {__version__}\n"
        " Version information:\n"
        f"  ml-agents: {COMPATIBLE_MLAGENTS_VERSION} (compatible),\n"
        f"  ml-agents-envs: {installed_version('mlagents-envs')},\n"
        f"  Communicator API: {protocol_version},\n"
        f"  PyTorch: {installed_version('torch')},\n"
        f"  Python: {python}\n"
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
