"""The services of ``tracking``, each behind the same three methods. Their packages are imported when a run begins."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajtrainer.settings.tracking import MlflowSettings, TrackioSettings, WandbSettings
from trajtrainer.settings.yaml.document import leaves

# The end of a run waits until a single call of a service takes longer than this. Creating the tables of a new database
# may take a minute on a slow disk; sending something to a server that does not answer may take forever.
STALLED_S = 300.0
_LONGEST_PARAMETER = 500
_NOT_MLFLOW = re.compile(r"[^\w./ -]", re.ASCII)


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
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, init_timeout=STALLED_S),
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


def mlflow_uri(settings: MlflowSettings, results: Path) -> str:
    """Where MLflow keeps its runs: as set, as the environment says, or in a file in the results folder."""
    own_file = f"sqlite:///{(results / 'mlflow.db').absolute().as_posix()}"
    return settings.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or own_file


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of nested settings by their paths; lists become text."""
    plain = bool | int | float | str | None
    return {path: value if isinstance(value, plain) else json.dumps(value) for path, value in leaves(settings)}


def _mlflow_name(name: str) -> str:
    return _NOT_MLFLOW.sub("_", name)[:250]
