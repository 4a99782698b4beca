"""Services that track a run in addition to TensorBoard (``tracking`` in the settings), each in a thread of its own.

Training never waits for them: summaries wait in a queue, and a service that fails is left out. Only the end of a run
waits, as long as a service makes progress. If a service does not have everything by then, that is logged, and the exit
code shows it.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trajtrainer.core import atomic
from trajtrainer.core.stats import HIDDEN_TAGS, StatsSummary, StatsWriter
from trajtrainer.plugins.tracking.services import STALLED_S, Mlflow, Service, Tracked, Trackio, Wandb
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import to_mapping

logger = logging.getLogger(__name__)

IDS_NAME = "tracking.json"
# The number of summaries that may wait. Further ones are dropped, because the service is slower than training.
_MOST_WAITING = 10_000
_QUIET_S, _AGAIN_S = 2.0, 30.0  # the end of a run logs what it waits for after the first time, then after each second
_JOIN_S = 0.5
_IDS = threading.Lock()  # several services write into one file


class TrackingWriter(StatsWriter):
    """Sends every summary to a service, from a thread that starts with the run.

    Attributes:
        missing: what the service lacks of the run; None while it has everything, or may still get it.
    """

    def __init__(self, name: str, service: Service, run: Tracked, ids: Path, *, resume: bool) -> None:
        """Start no thread yet.

        Args:
            name: of the service.
            service: receives the summaries.
            run: that is tracked.
            ids: the file that has the ids of the run in all services.
            resume: continue the run with the id in that file.
        """
        self.missing: str | None = None
        self._name = name
        self._service = service
        self._run = run
        self._ids = ids
        self._resume = resume
        self._waiting: queue.SimpleQueue[tuple[str, Mapping[str, float], int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._lost = 0
        self._doing = "open its store"
        self._moved_s = 0.0  # when the last call of the service began

    def add_settings(self, category: str, settings: Mapping[str, Any]) -> None:  # noqa: ARG002
        # The service opens while training begins. It gets the settings of the whole run, not of one behavior.
        self._begin()

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        numbers = {tag: summary.aggregated for tag, summary in values.items() if tag not in HIDDEN_TAGS}
        numbers = {tag: number for tag, number in numbers.items() if math.isfinite(number)}
        if not self._begin().is_alive():
            return
        if self._waiting.qsize() >= _MOST_WAITING:
            self._lost += 1
            return
        self._waiting.put((category, numbers, step))

    def close(self) -> None:
        """Send what is left, and wait for as long as the service makes progress."""
        if self._thread is None:
            return
        self._waiting.put(None)
        begun_s = self._moved_s = time.monotonic()
        report_s = begun_s + _QUIET_S
        while self._thread.is_alive() and time.monotonic() < self._moved_s + STALLED_S:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive() and time.monotonic() > report_s:
                left = max(0, self._waiting.qsize() - 1)
                logger.info("Waiting for %s to %s; %d more summaries are left.", self._name, self._doing, left)
                report_s = time.monotonic() + _AGAIN_S
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

    def _begin(self) -> threading.Thread:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"tracking by {self._name}", daemon=True)
                self._thread.start()
            return self._thread

    def _work(self) -> None:
        try:
            ids = _read_ids(self._ids)
            known = self._service.begin(self._run, ids.get(self._name) if self._resume else None)
            if known != ids.get(self._name):
                with _IDS:
                    atomic.write_text(self._ids, json.dumps({**_read_ids(self._ids), self._name: known}))
            while True:
                item = self._waiting.get()
                self._doing, self._moved_s = "save a summary", time.monotonic()
                if item is None:
                    break
                self._service.log(*item)
            self._doing = "end the run"
            self._service.finish()
        except Exception as error:
            self.missing = f"{type(error).__name__}: {error}"
            logger.error("%s failed, and is not used any more: %s", self._name, self.missing)
            logger.debug("Traceback of the error:", exc_info=True)


def _read_ids(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(known) for name, known in content.items()} if isinstance(content, dict) else {}


def tracking_writers(settings: RunSettings) -> list[StatsWriter]:
    """A writer for each service in the settings. A run that only acts has none."""
    tracking, folder = settings.tracking, RunFolder(settings.checkpoint_settings)
    if tracking is None or not folder.writes:
        return []
    services: dict[str, Service] = {}
    if tracking.wandb is not None:
        services["wandb"] = Wandb(tracking.wandb)
    if tracking.mlflow is not None:
        services["mlflow"] = Mlflow(tracking.mlflow)
    if tracking.trackio is not None:
        services["trackio"] = Trackio(tracking.trackio)
    checkpoints = settings.checkpoint_settings
    run = Tracked(checkpoints.run_id, to_mapping(settings), folder.logs, Path(checkpoints.results_dir))
    ids = folder.logs / IDS_NAME
    return [TrackingWriter(name, each, run, ids, resume=folder.resume) for name, each in services.items()]
