"""Writers for services that track a run in addition to TensorBoard (``tracking`` in the settings).

Each service has its own thread, so training never waits for it: summaries are queued, and a service that fails is no
longer used. At the end, a run waits as long as a service makes progress. If a service still lacks data, an error is
logged and the exit code is 1.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trajtrainer.core import atomic
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.stats import HIDDEN_TAGS, StatsSummary, StatsWriter
from trajtrainer.plugins.tracking.services import SERVICES, STALLED_S, Record, Tracked
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import to_mapping

logger = logging.getLogger(__name__)

IDS_NAME = "tracking.json"
# Maximum number of queued summaries. If a service is so slow that the queue is full, further summaries are dropped.
_MOST_WAITING = 10_000
# While a run is waiting at its end, log what it is waiting for: first after _QUIET_S, then every _AGAIN_S.
_QUIET_S, _AGAIN_S = 2.0, 30.0
_IDS = threading.Lock()  # several services write to the same file


def check_tracking(settings: RunSettings) -> None:
    """Check that the packages of the services are installed.

    Raises:
        SettingsError: a package is missing. The message has one line per package.
    """
    faults = []
    for name in _configured(settings):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a plain folder has no origin: W&B creates a folder ``wandb``
            faults.append(
                f"tracking.{name} needs the package {name}, which is not installed. Install it with: pip install "
                f"'trajtrainer[{name}]'."
            )
    if faults:
        raise SettingsError("\n".join(faults))


def tracking_writers(settings: RunSettings) -> list[StatsWriter]:
    """Create a writer for each service in the settings. A run that does not train has no writers."""
    checkpoints, folder = settings.checkpoint_settings, RunFolder(settings.checkpoint_settings)
    run = Tracked(checkpoints.run_id, to_mapping(settings), folder.logs, Path(checkpoints.results_dir))
    return [
        TrackingWriter(name, partial(SERVICES[name], own, run), folder.logs / IDS_NAME, resume=folder.resume)
        for name, own in _configured(settings).items()
    ]


def _configured(settings: RunSettings) -> dict[str, Any]:
    """Return the settings of the services that track the run, by name."""
    if settings.tracking is None or settings.checkpoint_settings.inference:
        return {}
    return {name: own for name in SERVICES if (own := getattr(settings.tracking, name)) is not None}


class TrackingWriter(StatsWriter):
    """Sends every summary to a service, from a thread that starts with the first behavior.

    Args:
        name: name of the service.
        begin: starts a new record, or continues the record with the given id.
        ids: the file with the run's record ids in all services.
        resume: continue the record with the id in that file.

    Attributes:
        missing: the reason why the service lacks some of the run's data; None if it has all data or may still receive
            it.
    """

    def __init__(self, name: str, begin: Callable[[str | None], Record], ids: Path, *, resume: bool) -> None:
        self.missing: str | None = None
        self._name = name
        self._begin = begin
        self._ids = ids
        self._resume = resume
        self._waiting: queue.SimpleQueue[tuple[str, Mapping[str, float], int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lost = 0
        self._doing = "open its store"
        self._moved_s = 0.0  # when the last call to the service started

    def add_settings(self, category: str, settings: Mapping[str, Any]) -> None:  # noqa: ARG002
        # Start the service in parallel with training. It receives the settings of the whole run, not of one behavior.
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"tracking by {self._name}", daemon=True)
            self._thread.start()

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        if self.missing is not None:
            return
        if self._waiting.qsize() >= _MOST_WAITING:
            self._lost += 1
            return
        numbers = {tag: summary.aggregated for tag, summary in values.items() if tag not in HIDDEN_TAGS}
        numbers = {tag: number for tag, number in numbers.items() if math.isfinite(number)}
        self._waiting.put((category, numbers, step))

    def close(self) -> None:
        """Send the remaining summaries. Waits as long as the service makes progress."""
        if self._thread is None:
            return
        self._waiting.put(None)
        self._moved_s = time.monotonic()
        self._thread.join(_QUIET_S)
        while self._thread.is_alive() and time.monotonic() < self._moved_s + STALLED_S:
            left = max(0, self._waiting.qsize() - 1)
            logger.info("Waiting for %s to %s; %d summaries remain.", self._name, self._doing, left)
            self._thread.join(_AGAIN_S)
        if self._thread.is_alive():
            self.missing = f"it did not {self._doing} within {STALLED_S:.0f} s"
        elif self._lost and self.missing is None:
            self.missing = f"it was slower than training, so {self._lost} summaries were dropped"
        if self.missing is not None:
            logger.error(
                "%s does not have all data of this run: %s. The event files in the run's folder are complete.",
                self._name,
                self.missing,
            )

    def _work(self) -> None:
        try:
            record = self._begin(_read_ids(self._ids).get(self._name) if self._resume else None)
            with _IDS:
                atomic.write_text(self._ids, json.dumps({**_read_ids(self._ids), self._name: record.id}))
            while True:
                item = self._waiting.get()
                self._doing, self._moved_s = "save a summary", time.monotonic()
                if item is None:
                    break
                record.log(*item)
            self._doing = "end the run"
            record.finish()
        except Exception as error:
            reason = re.sub(r"://[^/@\s]*@", "://...@", f"{type(error).__name__}: {error}")  # hide passwords
            self.missing = reason
            logger.error("%s failed and is no longer used: %s", self._name, reason)
            logger.debug("Traceback of the error:", exc_info=True)


def _read_ids(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(known) for name, known in content.items()} if isinstance(content, dict) else {}
