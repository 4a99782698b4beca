"""``tracking``: experiment trackers that record a run in addition to TensorBoard. Not in ML-Agents."""

from __future__ import annotations

import enum

from attrs import field, frozen

from trajtrainer.settings.checks import OURS, satisfies

_a_name = satisfies(bool, "a name")


class WandbMode(enum.Enum):
    """``tracking.wandb.mode``: send data to Weights & Biases during the run, or store it locally."""

    ONLINE = "online"
    OFFLINE = "offline"


@frozen
class WandbSettings:
    """``tracking.wandb``: Weights & Biases.

    Attributes:
        project: project that the run is added to.
        entity: user or team that owns the run. Defaults to the user who is logged in.
        group: group of runs that the run is part of, for example all seeds of an experiment.
        tags: tags of the run.
        mode: ``online`` sends data during the run; ``offline`` writes it to the run's folder, to be uploaded with
            ``wandb sync``.
    """

    project: str = field(default="trajtrainer", validator=_a_name)
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(factory=list)
    mode: WandbMode = WandbMode.ONLINE


@frozen
class MlflowSettings:
    """``tracking.mlflow``: MLflow.

    Attributes:
        tracking_uri: URI of a tracking server, or of a file such as ``sqlite:///mlflow.db``. Defaults to the
            environment variable ``MLFLOW_TRACKING_URI``, or to ``mlflow.db`` in the results folder if that is not set.
        experiment: experiment that the run is added to.
        tags: tags of the run.
    """

    tracking_uri: str | None = None
    experiment: str = field(default="trajtrainer", validator=_a_name)
    tags: dict[str, str] = field(factory=dict)


@frozen
class TrackioSettings:
    """``tracking.trackio``: Trackio, which stores data on this machine by default.

    Attributes:
        project: project that the run is added to.
        space_id: Hugging Face Space on which to publish the run. Without it, no data leaves this machine.
    """

    project: str = field(default="trajtrainer", validator=_a_name)
    space_id: str | None = None


@frozen
class TrackingSettings:
    """``tracking``: experiment trackers that record a run. Each one is used only if its section is present.

    Attributes:
        wandb: record the run with Weights & Biases.
        mlflow: record the run with MLflow.
        trackio: record the run with Trackio.
    """

    wandb: WandbSettings | None = field(default=None, metadata=OURS)
    mlflow: MlflowSettings | None = field(default=None, metadata=OURS)
    trackio: TrackioSettings | None = field(default=None, metadata=OURS)
