"""Services that track a run in addition to TensorBoard (``tracking`` in the settings), each in a thread of its own.

Training never waits for them: summaries wait in a queue, and a service that fails is left out. Only the end of a run
waits, as long as a service makes progress. If a service does not have everything by then, that is logged, and the exit
code shows it.
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
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trajtrainer.core import atomic
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.stats import StatsSummary, StatsWriter
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.run.writers import HIDDEN_TAGS
from trajtrainer.settings.checks import closest
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.tracking import MlflowSettings, TrackingSettings, TrackioSettings, WandbMode, WandbSettings
from trajtrainer.settings.yaml.convert import to_mapping
from trajtrainer.settings.yaml.document import leaves

logger = logging.getLogger(__name__)

IDS_NAME = "tracking.json"
# The number of summaries that may wait. Further ones are dropped, because the service is slower than training.
_MOST_WAITING = 10_000
# The end of a run waits until a single call of a service takes longer than this. Creating the tables of a new database
# may take a minute on a slow disk; sending something to a server that does not answer may take forever.
_STALLED_S = 300.0
_QUIET_S, _AGAIN_S = 2.0, 30.0  # the end of a run logs what it waits for after the first time, then after each second
_JOIN_S = 0.5
_LONGEST_PARAMETER = 500
_IDS = threading.Lock()  # several services write into one file
_NOT_MLFLOW = re.compile(r"[^\w./ -]", re.ASCII)

# What ``check_tracking`` knows of MLflow.
_SERVERS = ("http", "https", "databricks", "databricks-uc", "uc")
# MLflow's databases, each with the package that SQLAlchemy uses unless the URI names another one.
_DATABASES = {"sqlite": "sqlite3", "postgresql": "psycopg2", "mysql": "MySQLdb", "mssql": "pyodbc"}
_WITHOUT_FILE_STORE = (3, 13)  # the release of MLflow that began to refuse it
_SQLITE_HEAD = b"SQLite format 3\0"
_ABSOLUTE = re.compile(r"[A-Za-z]:[\\/]")


def check_tracking(settings: RunSettings) -> None:
    """Check that the configured services can track a run. Contacts no server.

    Raises:
        SettingsError: has a line for each service that cannot.
    """
    tracking = settings.tracking
    if tracking is None or settings.checkpoint_settings.inference:
        return
    faults = [fault for name in ("wandb", "mlflow", "trackio") if (fault := _fault(name, tracking)) is not None]
    if faults:
        raise SettingsError("\n".join(faults))


def mlflow_uri(settings: MlflowSettings, results: Path) -> str:
    """Where MLflow keeps its runs: as set, as the environment says, or in a file in the results folder."""
    own_file = f"sqlite:///{(results / 'mlflow.db').absolute().as_posix()}"
    return settings.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or own_file


def _fault(name: str, tracking: TrackingSettings) -> str | None:
    """What keeps a service from tracking a run; None if nothing does, or it is not configured."""
    if getattr(tracking, name) is None:
        return None
    if not _is_installed(name):
        return (
            f"tracking.{name} needs the package {name}, which is not installed. Install it with: pip install "
            f"'trajtrainer[{name}]'."
        )
    if name == "wandb":
        wandb = tracking.wandb
        if wandb is not None and wandb.mode is WandbMode.ONLINE and not _is_logged_in_at_wandb():
            return (
                "tracking.wandb: you are not logged in to Weights & Biases. Run 'wandb login', set WANDB_API_KEY, or "
                "use mode: offline."
            )
    if name == "mlflow":
        given = tracking.mlflow.tracking_uri if tracking.mlflow is not None else None
        uri = given or os.environ.get("MLFLOW_TRACKING_URI")
        problem = None if uri is None else _problem_of_uri(uri)
        if problem is not None:
            shown = re.sub(r"://[^/@]*@", "://...@", str(uri))  # without a password
            where = "tracking.mlflow.tracking_uri" if given else "MLFLOW_TRACKING_URI (tracking.mlflow)"
            return f"{where}: {shown!r} {problem}"
    if name == "trackio":
        trackio = tracking.trackio
        if trackio is not None and trackio.space_id is not None and not _has_hub_token():
            return (
                "tracking.trackio.space_id: a Space needs a token for the Hugging Face Hub. Run 'hf auth login', set "
                "HF_TOKEN, or remove space_id to keep everything on this machine."
            )
    return None


def _problem_of_uri(uri: str) -> str | None:
    """Why MLflow cannot use a tracking URI; None if no reason is found."""
    scheme = uri.partition(":")[0] if ":" in uri and not _ABSOLUTE.match(uri) else ""
    if uri == "databricks":
        return None
    if scheme in ("", "file"):
        if os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1"):
            return None
        try:
            release = tuple(int(part) for part in re.findall(r"\d+", version("mlflow"))[:2])
        except PackageNotFoundError:  # Another package, such as mlflow-skinny, provides the module.
            return None
        if release < _WITHOUT_FILE_STORE:
            return None
        return (
            "is a folder of files, which MLflow does not support since release 3.13. Use 'sqlite:///mlflow.db' or the "
            "address of a server, convert an older folder with 'mlflow migrate-filestore', or set "
            "MLFLOW_ALLOW_FILE_STORE=true."
        )
    database, _, driver = scheme.partition("+")
    if database in _DATABASES:
        package = driver or _DATABASES[database]
        if database == "sqlite":
            return _problem_of_sqlite(uri)
        if not _is_installed(package):
            return f"needs the package {package}, which is not installed. Install it, or name another driver."
        return None
    plugins = {entry.name for entry in entry_points(group="mlflow.tracking_store")}
    if scheme in _SERVERS or scheme in plugins:
        return None
    known = sorted({*_SERVERS, *_DATABASES, *plugins})
    return f"has the scheme {scheme!r}, which MLflow does not know{closest(scheme, known)} Known: {', '.join(known)}."


def _problem_of_sqlite(uri: str) -> str | None:
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///(.+?)(?:\?.*)?", uri)
    if match is None:
        return "does not name a file; expected sqlite:///FILE, or with an absolute path sqlite:////FOLDER/FILE."
    path = Path(match[1])
    try:
        if path.is_dir():
            return "is a folder; expected a file."
        if not path.parent.is_dir():
            return f"cannot be opened: the folder {path.parent} does not exist. Create it."
        if not path.exists():
            return None if os.access(path.parent, os.W_OK) else f"cannot be created: {path.parent} is not writable."
        if not os.access(path, os.W_OK):
            return "cannot be written: you do not have permission."
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_HEAD))
    except OSError as error:
        return f"cannot be opened: {error.strerror or error}."
    return None if head in (b"", _SQLITE_HEAD) else "is not an SQLite database. Choose another file."


def _is_installed(package: str) -> bool:
    """Whether a package can be imported. A folder of its name does not count: W&B creates one in the working folder."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _is_logged_in_at_wandb() -> bool:
    """Whether W&B will find a key. Otherwise it would ask for one during training."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    files = [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    for file in filter(None, files):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if server in netrc.netrc(Path(file).expanduser()).hosts:
                return True
    return False


def _has_hub_token() -> bool:
    """Whether the package for the Hub, which Trackio requires, finds a token."""
    try:
        from huggingface_hub import get_token
    except ImportError:
        return False
    return get_token() is not None


@dataclass(frozen=True, slots=True)
class Tracked:
    """A run, as a service sees it.

    Attributes:
        name: its run id.
        settings: all of them, as plain values.
        folder: for files of the service.
        results: the results folder.
    """

    name: str
    settings: Mapping[str, Any]
    folder: Path
    results: Path


class Service(ABC):
    """A service that tracks runs. All its methods are called from the same thread."""

    @abstractmethod
    def begin(self, run: Tracked, known: str | None) -> str:
        """Start a run, or continue the one whose id in the service is ``known``. Returns the id."""

    @abstractmethod
    def log(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        """Send one summary."""

    @abstractmethod
    def finish(self) -> None:
        """Send that the run has ended."""


class Wandb(Service):
    """Weights & Biases."""

    def __init__(self, settings: WandbSettings) -> None:
        self._settings = settings
        self._behaviors: set[str] = set()

    def begin(self, run: Tracked, known: str | None) -> str:
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
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, init_timeout=_STALLED_S),
        )
        return str(self._run.id)

    def log(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        # Each behavior counts its own steps, but W&B has only one step per run, so each behavior gets an axis.
        axis = f"{behavior}/Step"
        if behavior not in self._behaviors:
            self._behaviors.add(behavior)
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric(f"{behavior}/*", step_metric=axis)
        self._run.log({**{f"{behavior}/{tag}": value for tag, value in values.items()}, axis: step})

    def finish(self) -> None:
        self._run.finish()


class Mlflow(Service):
    """MLflow."""

    def __init__(self, settings: MlflowSettings) -> None:
        self._settings = settings

    def begin(self, run: Tracked, known: str | None) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(mlflow_uri(self._settings, run.results))
        if known is None:
            name = self._settings.experiment
            experiment = self._client.get_experiment_by_name(name)
            number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
            made = self._client.create_run(number, run_name=run.name, tags=dict(self._settings.tags))
            known = str(made.info.run_id)
            parameters = [
                Param(_mlflow_name(key), str(value)[:_LONGEST_PARAMETER]) for key, value in flat(run.settings).items()
            ]
            for start in range(0, len(parameters), 100):  # MLflow accepts no more at once.
                self._client.log_batch(known, params=parameters[start : start + 100])
        self._id = known
        self._client.update_run(self._id, status="RUNNING")
        return self._id

    def log(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        now = get_current_time_millis()
        metrics = [Metric(_mlflow_name(f"{behavior}/{tag}"), value, now, step) for tag, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self) -> None:
        self._client.set_terminated(self._id)


class Trackio(Service):
    """Trackio."""

    def __init__(self, settings: TrackioSettings) -> None:
        self._settings = settings

    def begin(self, run: Tracked, known: str | None) -> str:
        import trackio

        own = self._settings
        resume = "must" if known else "never"
        self._run = trackio.init(
            own.project, name=known or run.name, space_id=own.space_id, config=flat(run.settings), resume=resume,
            embed=False,
        )  # fmt: skip
        return str(self._run.name)

    def log(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        self._run.log({f"{behavior}/{tag}": value for tag, value in values.items()}, step=step)

    def finish(self) -> None:
        self._run.finish()


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
        while self._thread.is_alive() and time.monotonic() < self._moved_s + _STALLED_S:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive() and time.monotonic() > report_s:
                left = max(0, self._waiting.qsize() - 1)
                logger.info("Waiting for %s to %s; %d more summaries are left.", self._name, self._doing, left)
                report_s = time.monotonic() + _AGAIN_S
        if self._thread.is_alive():
            self.missing = f"it did not {self._doing} within {_STALLED_S:.0f} s"
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


def tracking_writers(settings: RunSettings, folder: RunFolder) -> list[StatsWriter]:
    """A writer for each service in the settings."""
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


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of nested settings by their paths; lists become text."""
    plain = bool | int | float | str | None
    return {path: value if isinstance(value, plain) else json.dumps(value) for path, value in leaves(settings)}


def _mlflow_name(name: str) -> str:
    return _NOT_MLFLOW.sub("_", name)[:250]
