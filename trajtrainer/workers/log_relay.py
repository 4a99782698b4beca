"""The log of a process, sent to the one that has started it, which knows where it should appear."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from trajtrainer.core.printable import with_safe_arguments
from trajtrainer.workers import messages

_PACKAGE = "trajtrainer"


class _LogForwarder(logging.Handler):
    """Sends log records to the parent, which knows where they should appear."""

    def __init__(self, post: Callable[[bytes, object], None]) -> None:
        super().__init__()
        self._post = post

    def emit(self, record: logging.LogRecord) -> None:
        record = with_safe_arguments(record)
        text = self.format(record)
        fields = {**record.__dict__, "msg": text, "message": text, "args": None, "exc_info": None, "exc_text": None}
        with contextlib.suppress(Exception):
            self._post(messages.LOG, fields)


def forward_log(post: Callable[[bytes, object], None], level: int) -> None:
    """Send what this package logs, from a level on, to the parent alone, by ``post``, which any thread may call."""
    logger = logging.getLogger(_PACKAGE)
    logger.setLevel(level)
    logger.propagate = False
    logger.handlers = [_LogForwarder(post)]


def relay_log(fields: dict[str, Any], whose: str, least: int = logging.WARNING) -> None:
    """Log a record of another process here, as ``forward_log`` sent it; of level ``least`` and more with ``whose``."""
    if fields["levelno"] >= least:
        fields["msg"] = f"{whose}: {fields['msg']}"
    record = logging.makeLogRecord(fields)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
