"""``tracking``: services that follow a run beside TensorBoard. Not in ML-Agents (docs/sharing.md#tracking)."""

from __future__ import annotations

import enum

from attrs import field, frozen

from trajtrainer.settings.checks import satisfies


class WandbMode(enum.Enum):
    """Where Weights & Biases gets what is tracked."""

    ONLINE = "online"
    OFFLINE = "offline"


_a_name = satisfies(bool, "a name")


@frozen
class WandbSettings:
    """``tracking.wandb``: Weights & Biases.

    Attributes:
        project: where the run is listed.
        entity: user or team; left out, that of who is logged in.
        group: runs that belong together.
        tags: of the run.
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
        experiment: where the run is listed.
        tags: of the run.
    """

    tracking_uri: str | None = None
    experiment: str = field(default="trajtrainer", validator=_a_name)
    tags: dict[str, str] = field(factory=dict)


@frozen
class TrackioSettings:
    """``tracking.trackio``: Trackio, which keeps everything on this machine.

    Attributes:
        project: where the run is listed.
        space_id: a Space of the Hugging Face hub that shows it to others; left out, nothing leaves this machine.
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

    wandb: WandbSettings | None = None
    mlflow: MlflowSettings | None = None
    trackio: TrackioSettings | None = None
