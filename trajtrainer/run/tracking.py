"""Services that follow a run beside TensorBoard (``tracking`` in the settings): each has a thread of its own.

Training does not wait for any of them: what is to be told waits in a queue, and a service that fails is left out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import netrc
import os
import queue
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trajtrainer.errors import SettingsError
from trajtrainer.run.writers import HIDDEN_TAGS
from trajtrainer.rundir import atomic
from trajtrainer.rundir.folder import RunFolder
from trajtrainer.settings.convert import to_mapping
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.tracking import MlflowSettings, TrackioSettings, WandbMode, WandbSettings
from trajtrainer.stats import StatsSummary, StatsWriter

logger = logging.getLogger(__name__)

IDS_NAME = "tracking.json"
# Summaries that wait to be told; those of a service that is slower than training are left out beyond that.
_MOST_WAITING = 10_000
# So long the end of a run waits for what is still to be told.
_FINISH_S = 20.0
_LONGEST_PARAMETER = 500
_IDS = threading.Lock()  # several services write into one file
_NOT_MLFLOW = re.compile(r"[^\w./ -]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tracked:
    """A run, for a service.

    Attributes:
        name: its run id.
        settings: all of them, as plain values.
        folder: where a service may keep files.
        results: the results folder.
    """

    name: str
    settings: Mapping[str, Any]
    folder: Path
    results: Path


class Service(ABC):
    """A service that follows runs. Its methods are called from one thread."""

    @abstractmethod
    def begin(self, run: Tracked, known: str | None) -> str:
        """Begin, or go on with the run that the service knows as ``known``. Return what it knows it as."""

    @abstractmethod
    def log(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        """Tell of one summary."""

    @abstractmethod
    def finish(self) -> None:
        """Tell that the run has ended."""


class Wandb(Service):
    """Weights & Biases."""

    def __init__(self, settings: WandbSettings) -> None:
        self._settings = settings
        self._behaviors: set[str] = set()

    def begin(self, run: Tracked, known: str | None) -> str:
        """See ``Service``."""
        import wandb

        own = self._settings
        run.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=own.project,
            entity=own.entity,
            group=own.group,
            tags=own.tags,
            mode=own.mode.value,
            name=run.name,
            id=known,
            resume="allow" if known else None,
            config=dict(run.settings),
            dir=str(run.folder),
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        return str(self._run.id)

    def log(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        """See ``Service``. Behaviors have steps of their own, which W&B's one count of steps cannot tell."""
        axis = f"{behavior}/Step"
        if behavior not in self._behaviors:
            self._behaviors.add(behavior)
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric(f"{behavior}/*", step_metric=axis)
        self._run.log({**{f"{behavior}/{tag}": value for tag, value in values.items()}, axis: step})

    def finish(self) -> None:
        """See ``Service``."""
        self._run.finish()


class Mlflow(Service):
    """MLflow."""

    def __init__(self, settings: MlflowSettings) -> None:
        self._settings = settings

    def begin(self, run: Tracked, known: str | None) -> str:
        """See ``Service``."""
        from mlflow import MlflowClient

        own_file = f"sqlite:///{(run.results / 'mlflow.db').absolute().as_posix()}"
        self._client = MlflowClient(self._settings.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or own_file)
        self._id = known or self._create(run)
        self._client.update_run(self._id, status="RUNNING")
        return self._id

    def log(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        """See ``Service``."""
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        now = get_current_time_millis()
        metrics = [Metric(_mlflow_name(f"{behavior}/{tag}"), value, now, step) for tag, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self) -> None:
        """See ``Service``."""
        self._client.set_terminated(self._id)

    def _create(self, run: Tracked) -> str:
        from mlflow.entities import Param

        name = self._settings.experiment
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        made: str = self._client.create_run(number, run_name=run.name, tags=dict(self._settings.tags)).info.run_id
        parameters = [
            Param(_mlflow_name(key), str(value)[:_LONGEST_PARAMETER]) for key, value in flat(run.settings).items()
        ]
        for start in range(0, len(parameters), 100):  # MLflow takes no more at once
            self._client.log_batch(made, params=parameters[start : start + 100])
        return made


class Trackio(Service):
    """Trackio."""

    def __init__(self, settings: TrackioSettings) -> None:
        self._settings = settings

    def begin(self, run: Tracked, known: str | None) -> str:
        """See ``Service``."""
        import trackio

        own = self._settings
        resume = "must" if known else "never"
        self._run = trackio.init(
            own.project, name=known or run.name, space_id=own.space_id, config=flat(run.settings), resume=resume,
            embed=False,
        )  # fmt: skip
        return str(self._run.name)

    def log(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        """See ``Service``."""
        self._run.log({f"{behavior}/{tag}": value for tag, value in values.items()}, step=step)

    def finish(self) -> None:
        """See ``Service``."""
        self._run.finish()


class TrackingWriter(StatsWriter):
    """Hands every summary to a service, in a thread that begins with the first.

    Args:
        name: of the service.
        service: that follows the run.
        run: that is followed.
        ids: the file in which it stands what services know the run as.
        resume: go on with the run that the service knows.
    """

    def __init__(self, name: str, service: Service, run: Tracked, ids: Path, *, resume: bool) -> None:
        self._name = name
        self._service = service
        self._run = run
        self._ids = ids
        self._resume = resume
        self._waiting: queue.SimpleQueue[tuple[str, Mapping[str, float], int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._lost = 0

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        """See ``StatsWriter``."""
        numbers = {tag: summary.aggregated for tag, summary in values.items() if tag not in HIDDEN_TAGS}
        numbers = {tag: number for tag, number in numbers.items() if math.isfinite(number)}
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"tracking by {self._name}", daemon=True)
                self._thread.start()
        if not self._thread.is_alive():
            return
        if self._waiting.qsize() >= _MOST_WAITING:
            self._lost += 1
            return
        self._waiting.put((category, numbers, step))

    def close(self) -> None:
        """See ``StatsWriter``."""
        if self._thread is None:
            return
        self._waiting.put(None)
        self._thread.join(_FINISH_S)
        if self._thread.is_alive():
            logger.warning("%s has not taken everything within %.0f s; the rest is left out.", self._name, _FINISH_S)
        if self._lost:
            logger.warning("%s was slower than training: %d summaries were left out.", self._name, self._lost)

    def _work(self) -> None:
        try:
            ids = _read_ids(self._ids)
            known = self._service.begin(self._run, ids.get(self._name) if self._resume else None)
            if known != ids.get(self._name):
                with _IDS:
                    atomic.write_text(self._ids, json.dumps({**_read_ids(self._ids), self._name: known}))
            while (item := self._waiting.get()) is not None:
                self._service.log(*item)
            self._service.finish()
        except Exception as error:
            logger.error("%s failed and is left out from here on: %s: %s", self._name, type(error).__name__, error)
            logger.debug("Where that comes from:", exc_info=True)


def _read_ids(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(known) for name, known in content.items()} if isinstance(content, dict) else {}


def check_tracking(settings: RunSettings) -> None:
    """Look whether the services that are asked for can follow a run.

    Raises:
        SettingsError: a package is not installed, or nobody is logged in.
    """
    tracking = settings.tracking
    if tracking is None or settings.checkpoint_settings.inference:
        return
    for name in ("wandb", "mlflow", "trackio"):
        if getattr(tracking, name) is not None and not _is_installed(name):
            raise SettingsError(
                f"tracking.{name} needs the package {name}, which is not installed. Install it with: pip install "
                f"'trajtrainer[{name}]'."
            )
    if tracking.wandb is not None and tracking.wandb.mode is WandbMode.ONLINE and not _is_logged_in_at_wandb():
        raise SettingsError(
            "tracking.wandb: nobody is logged in at Weights & Biases. Run 'wandb login', put a key into "
            "WANDB_API_KEY, or write mode: offline."
        )


def _is_installed(package: str) -> bool:
    """Return whether a package can be imported. A folder of its name is none: W&B makes one where a program runs."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _is_logged_in_at_wandb() -> bool:
    """Return whether W&B would find a key; if not, it would ask for one in the midst of the training."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    files = [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    for file in filter(None, files):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if server in netrc.netrc(Path(file).expanduser()).hosts:
                return True
    return False


def tracking_writers(settings: RunSettings, folder: RunFolder) -> list[StatsWriter]:
    """Return a writer for each service that is asked for."""
    tracking = settings.tracking
    if tracking is None:
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


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return nested mappings as one, "behaviors.Ball.max_steps" -> value; lists as text."""
    if isinstance(value, Mapping) and value:
        parts = (flat(inner, f"{path}.{key}" if path else str(key)) for key, inner in value.items())
        return {key: inner for part in parts for key, inner in part.items()}
    return {path: value if isinstance(value, bool | int | float | str | None) else json.dumps(value)}


def _mlflow_name(name: str) -> str:
    return _NOT_MLFLOW.sub("_", name)[:250]
