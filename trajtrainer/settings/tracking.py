"""``tracking``: services that follow a run besides TensorBoard. Not in ML-Agents."""

from __future__ import annotations

import enum

from attrs import field, frozen

from trajtrainer.settings.checks import OURS, satisfies

_a_name = satisfies(bool, "a name")


class WandbMode(enum.Enum):
    """When Weights & Biases gets the data."""

    ONLINE = "online"
    OFFLINE = "offline"


@frozen
class WandbSettings:
    """``tracking.wandb``: Weights & Biases.

    Attributes:
        project: project in which the run is listed.
        entity: user or team; left out: the user who is logged in.
        group: runs that belong together.
        tags: labels of the run.
        mode: ``offline`` keeps everything in the run's folder, for ``wandb sync``.
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
        tracking_uri: a server, or a file such as ``sqlite:///mlflow.db``; left out, that of MLFLOW_TRACKING_URI, or
            ``mlflow.db`` in the results folder.
        experiment: experiment in which the run is listed.
        tags: labels of the run.
    """

    tracking_uri: str | None = None
    experiment: str = field(default="trajtrainer", validator=_a_name)
    tags: dict[str, str] = field(factory=dict)


@frozen
class TrackioSettings:
    """``tracking.trackio``: Trackio, which keeps everything on this machine.

    Attributes:
        project: project in which the run is listed.
        space_id: a Space of the Hugging Face hub that shows the run to other people; left out, nothing leaves this
            machine.
    """

    project: str = field(default="trajtrainer", validator=_a_name)
    space_id: str | None = None


@frozen
class TrackingSettings:
    """``tracking``: the services that follow a run, each if it is there.

    Attributes:
        wandb: Weights & Biases.
        mlflow: MLflow.
        trackio: Trackio.
    """

    wandb: WandbSettings | None = field(default=None, metadata=OURS)
    mlflow: MlflowSettings | None = field(default=None, metadata=OURS)
    trackio: TrackioSettings | None = field(default=None, metadata=OURS)
