"""Checks and creates the statistics writers of a run: the rows of ``STATS_WRITERS`` that the settings use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from trajtrainer.core.errors import SettingsError, TrajtrainerError
from trajtrainer.core.plugins import Reference, resolve
from trajtrainer.core.stats import STATS_WRITERS, StatsSummary, StatsWriter, StatsWriterRow
from trajtrainer.run.user_calls import OneCall, UserCalls
from trajtrainer.settings.run import RunSettings

logger = logging.getLogger(__name__)


def checks(settings: RunSettings) -> Iterator[Callable[[RunSettings], object]]:
    """Yield the checks to run before the run starts. Each may raise ``SettingsError``."""
    yield _check_sections
    for name in STATS_WRITERS:
        row = STATS_WRITERS.get(name)
        if row is not None and row.check is not None and _is_wanted(row, settings):
            yield partial(_check, name, row.check)


def followers(settings: RunSettings, calls: UserCalls) -> list[StatsWriter]:
    """Create the statistics writers of a run.

    If a plugin package fails, the error is logged and its writer is left out.

    Args:
        settings: settings of the run.
        calls: keeps track of calls to user code.

    Raises:
        SettingsError: metrics cannot be served.
    """
    writers: list[StatsWriter] = []
    for name in STATS_WRITERS:
        try:
            row = STATS_WRITERS[name]
            if not _is_wanted(row, settings):
                continue
            with STATS_WRITERS.blaming(name):
                made = resolve(row.create)(settings)
                found = list(made) if isinstance(made, (list, tuple)) else [made]
                wrong = [item for item in found if not isinstance(item, StatsWriter)]
                if wrong:
                    raise TypeError(f"it returned {wrong[0]!r}, expected a StatsWriter or a list of them")
        except TrajtrainerError as error:
            if name in STATS_WRITERS.builtin:
                raise
            logger.error("%s The run continues without this writer.", error)
            logger.debug("Traceback of the error:", exc_info=True)
            continue
        writers += [GuardedWriter(each.name or name, each, calls) for each in found] if row.guarded else found
    return writers


def _is_wanted(row: StatsWriterRow, settings: RunSettings) -> bool:
    return row.section is None or getattr(settings, row.section) is not None


def _check(name: str, check: Reference, settings: RunSettings) -> None:
    with STATS_WRITERS.blaming(name):
        resolve(check)(settings)


def _check_sections(settings: RunSettings) -> None:
    """Check that there is a row for each statistics writer in the settings.

    Builds without some plugins lack their rows.

    Raises:
        SettingsError: some sections have no row; the message has one line per section.
    """
    read = {row.section for row in STATS_WRITERS.builtin.values()}
    sections = [field.name for field in attrs.fields(RunSettings) if field.metadata.get("followed")]
    faults = [
        f"{name}: this installation of trajtrainer lacks the part that reads this section. Install trajtrainer again, "
        "or remove the section."
        for name in sections
        if getattr(settings, name) is not None and name not in read
    ]
    if faults:
        raise SettingsError("\n".join(faults))


class GuardedWriter(StatsWriter):
    """Wraps a plugin's writer. After its first exception, which is logged, the writer is no longer called.

    Args:
        name: name of the writer.
        writer: the writer to wrap.
        calls: keeps track of calls to user code.
    """

    def __init__(self, name: str, writer: StatsWriter, calls: UserCalls | None = None) -> None:
        self.name = name
        self._writer: StatsWriter | None = writer
        self._num_calls = 0  # name of the current call
        self._calls = UserCalls() if calls is None else calls

    @property
    def missing(self) -> str | None:  # type: ignore[override]
        return None if self._writer is None else self._writer.missing

    def follow(self, state: Callable[[], str]) -> None:
        self._call("follow", lambda writer: writer.follow(state))

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        self._call("write_stats", lambda writer: writer.write_stats(category, values, step))

    def add_hyperparameters(self, category: str, text: str) -> None:
        self._call("add_hyperparameters", lambda writer: writer.add_hyperparameters(category, text))

    def add_settings(self, category: str, settings: Mapping[str, Any]) -> None:
        self._call("add_settings", lambda writer: writer.add_settings(category, settings))

    def resume(self, category: str, step: int) -> None:
        self._call("resume", lambda writer: writer.resume(category, step))

    def close(self) -> None:
        if not self._num_calls:  # Otherwise, another thread is stuck in the writer.
            self._call("close", lambda writer: writer.close())

    def _call(self, name: str, method: Callable[[StatsWriter], None]) -> None:
        if self._writer is None:
            return
        self._num_calls += 1
        try:
            with self._calls.outside(OneCall(f"The call {name}() of the statistics writer {self.name!r}")):
                method(self._writer)
        except Exception:
            self._writer = None
            logger.exception("The statistics writer %r failed and is no longer used.", self.name)
        finally:
            self._num_calls -= 1
