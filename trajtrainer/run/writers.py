"""Statistics writers for TensorBoard, the console and the gauges in ``timers.json``, and sources of rates.

Thread-safe, because several trainer threads may use them.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.local_paths import without_folders
from trajtrainer.core.metrics import of_summary
from trajtrainer.core.stats import HIDDEN_TAGS, IS_TRAINING, StatsSummary, StatsWriter
from trajtrainer.core.steps import Aggregation
from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.event_file import EventFile
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.run.logs import fields
from trajtrainer.settings.run import RunSettings

logger = logging.getLogger(__name__)

CUMULATIVE_REWARD = "Environment/Cumulative Reward"
EVALUATION_REWARD = "Evaluation/Cumulative Reward"
GROUP_REWARD = "Environment/Group Cumulative Reward"
ELO = "Self-play/ELO"
# Used in the console line, but not written to TensorBoard.
EPOCH = "Policy/Epoch"
_LEARNED = {"Epoch": EPOCH, "Policy Loss": "Losses/Policy Loss", "Validation Loss": "Losses/Validation Loss"}


_QUOTED = re.compile(r"(?<=')[^',][^']*(?=')")


class TensorboardWriter(StatsWriter):
    """Writes one event file per behavior, with ML-Agents' tags. It is flushed to disk after every summary."""

    def __init__(self, folder_of: Callable[[str], Path]) -> None:
        """Create the writer. Files are opened when needed.

        Args:
            folder_of: returns the folder of a behavior, given its name.
        """
        self._folder_of = folder_of
        self._files: dict[str, EventFile] = {}
        self._with_settings: set[str] = set()
        self._lock = threading.Lock()
        self._failing = False

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        messages = []
        for tag, summary in values.items():
            if tag in HIDDEN_TAGS or not len(summary.values):
                continue
            messages.append(event_file.scalar(tag, summary.aggregated))
            if summary.aggregation is Aggregation.HISTOGRAM:
                numbers = np.asarray(summary.values, np.float64)
                numbers = numbers[np.isfinite(numbers)]
                if len(numbers):
                    messages.append(event_file.histogram(f"{tag}_hist", numbers))
        self._write(category, messages, step)

    def add_hyperparameters(self, category: str, text: str) -> None:
        # Remove folders from paths, because users share event files. The console shows the full paths.
        lines = (line.partition(":\t") for line in text.split("\n"))
        # Handle each quoted string in a list separately, because paths may contain spaces.
        quoted = [
            (key, sign, _QUOTED.sub(lambda found: without_folders(found[0]), value)) for key, sign, value in lines
        ]
        text = "\n".join(f"{key}{sign}{without_folders(value)}" for key, sign, value in quoted)
        self._write(category, [event_file.text("Hyperparameters", text)], 0)

    def add_settings(self, category: str, settings: Mapping[str, Any]) -> None:
        # for the HPARAMS tab
        self._with_settings.add(category)
        self._write(category, [event_file.hparams_begin(without_folders(settings))], 0)

    def resume(self, category: str, step: int) -> None:

        def open_file() -> None:
            self._file(category, step)

        with self._lock:
            self._guarded(open_file)

    def close(self) -> None:
        with self._lock:
            for category, file in self._files.items():
                if category in self._with_settings:
                    file.add([event_file.hparams_end()], 0)
                self._guarded(file.close)
            self._files.clear()

    def _write(self, category: str, messages: list[Any], step: int) -> None:
        def write() -> None:
            file = self._file(category)
            file.add(messages, step)
            file.flush()

        with self._lock:
            self._guarded(write)

    def _file(self, category: str, resumed_at: int | None = None) -> EventFile:
        file = self._files.get(category)
        if file is None:
            file = self._files[category] = EventFile(self._folder_of(category), resumed_at)
        return file

    def _guarded(self, write: Callable[[], None]) -> None:
        """Keep the run alive if the disk is full. Pending data is written as soon as there is space again."""
        try:
            write()
            self._failing = False
        except (OSError, RunFolderError) as error:
            if not self._failing:
                logger.error("TensorBoard data could not be written, and is kept until there is space: %s.", error)
            self._failing = True


def tensorboard_writers(settings: RunSettings) -> list[StatsWriter]:
    """Create the writer of event files. A run that does not train has no writer."""
    folder = RunFolder(settings.checkpoint_settings)
    return [TensorboardWriter(lambda behavior: folder.behavior(behavior).path)] if folder.writes else []


class ConsoleWriter(StatsWriter):
    """Logs one line per summary, in ML-Agents' wording. Hyperparameters are long, so only the log file has them."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        if EVALUATION_REWARD not in values:  # Evaluations are logged separately.
            elapsed_s = time.monotonic() - self._started
            numbers = of_summary(values, step)
            extra = fields("summary", behavior=category, elapsed_seconds=elapsed_s, **numbers)
            logger.info("%s", summary_line(category, values, step, elapsed_s), extra=extra)

    def add_hyperparameters(self, category: str, text: str) -> None:
        lines = text.splitlines()
        logger.debug("Hyperparameters for behavior name %s: " + "\n%s" * len(lines), category, *lines)


def summary_line(category: str, values: Mapping[str, StatsSummary], step: int, elapsed_s: float) -> str:
    """Return a summary line in the format that log scrapers expect.

    For example ``3DBall. Step: 1000. Time Elapsed: 1.289 s. Mean Reward: 1.639. Std of Reward: 0.728. Training.``
    """
    training = IS_TRAINING in values and values[IS_TRAINING].aggregated > 0
    pieces = [category, f"Step: {step}", f"Time Elapsed: {elapsed_s:0.3f} s"]
    reward = values.get(CUMULATIVE_REWARD)
    if reward is None and EPOCH in values:
        pieces += [f"{word}: {values[tag].mean:0.4f}" for word, tag in _LEARNED.items() if tag in values]
    elif reward is None:
        pieces.append("No episode was completed since last summary")
    else:
        pieces.append(f"Mean Reward: {reward.mean:0.3f}")
        if GROUP_REWARD in values:
            pieces.append(f"Mean Group Reward: {values[GROUP_REWARD].mean:0.3f}")
        else:
            pieces.append(f"Std of Reward: {reward.std:0.3f}")
    pieces.append("Training" if training else "Not Training")
    if reward is not None and ELO in values:
        pieces.append(f"ELO: {values[ELO].mean:0.3f}")
    return ". ".join(pieces) + "."


@dataclass(slots=True)
class Gauge:
    """A number over all summaries so far: its newest value, its extremes, and how often it was set."""

    value: float
    min: float
    max: float
    count: int = 1

    def update(self, value: float) -> None:
        self.value = value
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        self.count += 1


class GaugeWriter(StatsWriter):
    """Collects the gauges of ``timers.json``: ``<behavior>.<tag>.mean`` and ``.sum`` of every summary."""

    def __init__(self) -> None:
        self.gauges: dict[str, Gauge] = {}
        self._lock = threading.Lock()

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:  # noqa: ARG002
        with self._lock:
            for tag, summary in values.items():
                name = f"{category}.{tag}".replace("/", ".").replace(" ", "")
                for kind, value in (("mean", summary.mean), ("sum", summary.sum)):
                    if not math.isfinite(value):  # JSON cannot represent it.
                        continue
                    gauge = self.gauges.get(f"{name}.{kind}")
                    if gauge is None:
                        self.gauges[f"{name}.{kind}"] = Gauge(value, value, value)
                    else:
                        gauge.update(value)


class Throughput:
    """A source of statistics: the rates of counters between two summaries of one behavior."""

    def __init__(self, counters: dict[str, Callable[[], int]]) -> None:
        """Start counting.

        Args:
            counters: tag -> function that returns a count that only grows.
        """
        self._counters = counters
        self._time = time.perf_counter()
        self._counts = {tag: counter() for tag, counter in counters.items()}

    def __call__(self) -> dict[str, float]:
        """Return the counts per second since the last call, by tag."""
        now = time.perf_counter()
        elapsed, self._time = max(now - self._time, 1e-9), now
        rates = {}
        for tag, counter in self._counters.items():
            count = counter()
            rates[tag] = (count - self._counts[tag]) / elapsed
            self._counts[tag] = count
        return rates


class UpdatesPerStep:
    """A source of statistics: gradient steps per agent step between two summaries of one behavior."""

    def __init__(self, gradient_steps: Callable[[], int], agent_steps: Callable[[], int]) -> None:
        self._counters = gradient_steps, agent_steps
        self._counts = [counter() for counter in self._counters]

    def __call__(self) -> dict[str, float]:
        before, self._counts = self._counts, [counter() for counter in self._counters]
        updates, steps = (now - then for now, then in zip(self._counts, before, strict=True))
        return {"Perf/Optimizer Steps per Agent Step": updates / steps} if steps else {}


def hyperparameters_text(settings: Mapping[str, Any]) -> str:
    """Format a behavior's settings (as dumped to YAML) as the indented tree that the log and TensorBoard show."""
    return _tree(settings, 0)


def _tree(value: object, depth: int) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    lines = (f"\t{'  ' * depth}{key}:\t{_tree(entry, depth + 1)}" for key, entry in value.items())
    return ("\n" if depth else "") + "\n".join(lines)
