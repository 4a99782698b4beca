"""The services of ``tracking``: functions that start or continue a service's record of a run.

The services' packages are imported when a run starts, and report errors such as a wrong login, address or name
themselves.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajtrainer.settings.tracking import MlflowSettings, TrackioSettings, WandbSettings
from trajtrainer.settings.yaml.document import leaves

# At the end of a run, stop waiting for a service if a single call takes longer than this. Creating the tables of a new
# database may take a minute on a slow disk; a request to a server that does not answer may never return.
STALLED_S = 300.0
_LONGEST_PARAMETER = 500
_NOT_MLFLOW = re.compile(r"[^\w./ -]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tracked:
    """The data of a run for the services.

    Attributes:
        name: the run id.
        settings: all of the run's settings, as plain values.
        folder: folder for the service's files.
        results: the results folder.
    """

    name: str
    settings: Mapping[str, Any]
    folder: Path
    results: Path


@dataclass(frozen=True, slots=True)
class Record:
    """A service's record of a run. Its functions are all called from the same thread.

    Attributes:
        id: the service's id of the record.
        log: sends one summary; called with the behavior, tag -> value, and the step.
        finish: reports the end of the run.
    """

    id: str
    log: Callable[[str, Mapping[str, float], int], object]
    finish: Callable[[], object]


def wandb_record(own: WandbSettings, run: Tracked, known: str | None) -> Record:
    """Start a record in Weights & Biases, or continue the record with the id ``known``."""
    import wandb

    run.folder.mkdir(parents=True, exist_ok=True)
    wandb.setup(settings=wandb.Settings(silent=True))  # otherwise, it asks for a missing key on the terminal
    made = wandb.init(
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
    behaviors: set[str] = set()

    def log(behavior: str, values: Mapping[str, float], step: int) -> None:
        # Each behavior has its own step counter, but W&B has only one per run, so define an axis for each behavior.
        axis = f"{behavior}/Step"
        if behavior not in behaviors:
            behaviors.add(behavior)
            made.define_metric(axis, hidden=True)
            made.define_metric(f"{behavior}/*", step_metric=axis)
        made.log({**{f"{behavior}/{tag}": value for tag, value in values.items()}, axis: step})

    return Record(str(made.id), log, made.finish)


def mlflow_record(own: MlflowSettings, run: Tracked, known: str | None) -> Record:
    """Start a record in MLflow, or continue ``known``. Without an address, MLflow writes to the results folder."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.utils.time import get_current_time_millis

    own_file = f"sqlite:///{(run.results / 'mlflow.db').absolute().as_posix()}"
    client = MlflowClient(own.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or own_file)
    if known is None:
        experiment = client.get_experiment_by_name(own.experiment)
        number = client.create_experiment(own.experiment) if experiment is None else experiment.experiment_id
        known = str(client.create_run(number, run_name=run.name, tags=dict(own.tags)).info.run_id)
        parameters = [
            Param(_mlflow_name(key), str(value)[:_LONGEST_PARAMETER]) for key, value in flat(run.settings).items()
        ]
        for start in range(0, len(parameters), 100):  # MLflow accepts at most 100 per request
            client.log_batch(known, params=parameters[start : start + 100])
    record = known
    client.update_run(record, status="RUNNING")

    def log(behavior: str, values: Mapping[str, float], step: int) -> None:
        now = get_current_time_millis()
        metrics = [Metric(_mlflow_name(f"{behavior}/{tag}"), value, now, step) for tag, value in values.items()]
        client.log_batch(record, metrics=metrics)

    return Record(record, log, lambda: client.set_terminated(record))


def trackio_record(own: TrackioSettings, run: Tracked, known: str | None) -> Record:
    """Start a record in Trackio, or continue the record with the name ``known``."""
    import trackio

    made = trackio.init(
        own.project, name=known or run.name, space_id=own.space_id, config=flat(run.settings),
        resume="must" if known else "never", embed=False,
    )  # fmt: skip

    def log(behavior: str, values: Mapping[str, float], step: int) -> None:
        made.log({f"{behavior}/{tag}": value for tag, value in values.items()}, step=step)

    return Record(str(made.name), log, made.finish)


SERVICES: dict[str, Callable[[Any, Tracked, str | None], Record]] = {
    "wandb": wandb_record,
    "mlflow": mlflow_record,
    "trackio": trackio_record,
}
"""Name -> function that opens a record. The settings, the package and its extra have the same name."""


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested settings to path -> value. Lists become JSON text."""
    plain = bool | int | float | str | None
    return {path: value if isinstance(value, plain) else json.dumps(value) for path, value in leaves(settings)}


def _mlflow_name(name: str) -> str:
    return _NOT_MLFLOW.sub("_", name)[:250]
