"""The objects that all behaviors of a run share, and the content of ``timers.json``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from trajtrainer.core.stats import StatsWriter
from trajtrainer.core.timers import EARLIER, Timers, add_trees, number_of
from trajtrainer.core.version import API_VERSION, __version__
from trajtrainer.learning.trainers.self_play import TeamRotation
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.policies.folder.status import COMPATIBLE_MLAGENTS_VERSION, TrainingStatus, installed_version
from trajtrainer.run.actors.statistics import ActorReport
from trajtrainer.run.curriculum import Curriculum
from trajtrainer.run.followers import followers
from trajtrainer.run.hooks import Hooks
from trajtrainer.run.progress import RewardHistory
from trajtrainer.run.signals import StopRequest
from trajtrainer.run.usage import ResourceUsage
from trajtrainer.run.user_calls import UserCalls
from trajtrainer.run.writers import ConsoleWriter, Gauge, GaugeWriter
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import dump

if TYPE_CHECKING:
    from trajtrainer.experience.recordings.demonstrations import Demonstrations

TIMER_FORMAT_VERSION = "0.1.0"


@dataclass(frozen=True, slots=True)
class Run:
    """The objects that all behaviors of a run share.

    Attributes:
        settings: settings of the run; if they had no seed, a random one has been filled in.
        folder: the run folder.
        status: the content of ``training_status.json``.
        curriculum: the lessons of the environment parameters.
        gauges: the newest value of each statistic, for ``timers.json``.
        rewards: the mean reward of each summary, for the live view.
        writers: all statistics writers: ``gauges``, ``rewards``, the console, and those of ``followers``.
        timers: timers of everything that the run does.
        device: device of the networks.
        stop: the stop request.
        usage: a source of resource usage statistics, which all behaviors share.
        teams: the teams of the behaviors with self-play.
        hooks: the user's callbacks.
        datasets: behavior name -> data set, for the behaviors that learn from one.
        actor_report: statistics of the actors, if they run outside the loop.
        earlier: timers of earlier sessions, if the run is resumed.
        calls: keeps track of calls to user code.
    """

    settings: RunSettings
    folder: RunFolder
    status: TrainingStatus
    curriculum: Curriculum
    gauges: GaugeWriter
    rewards: RewardHistory
    writers: Sequence[StatsWriter]
    timers: Timers
    device: torch.device
    stop: StopRequest
    usage: ResourceUsage
    teams: TeamRotation = field(default_factory=TeamRotation)
    hooks: Hooks = field(default_factory=Hooks)
    datasets: Mapping[str, Demonstrations] = field(default_factory=dict)
    actor_report: ActorReport = field(default_factory=ActorReport)
    earlier: Mapping[str, Any] | None = None
    calls: UserCalls = field(default_factory=UserCalls)

    @property
    def is_training(self) -> bool:
        """True if trainers learn. With ``--inference`` they only count steps."""
        return not self.settings.checkpoint_settings.inference

    @property
    def acts_elsewhere(self) -> bool:
        """True if actors run in their own threads or processes, or on other machines."""
        return self.settings.acts_elsewhere and not self.is_offline

    @property
    def actors_elsewhere(self) -> tuple[int, int] | None:
        """The number of actors outside the loop and their ``max_policy_lag``; None if the actor is in the loop."""
        actors = self.settings.actors
        return (actors.count, actors.max_policy_lag) if actors is not None and self.acts_elsewhere else None

    @property
    def acting_device(self) -> torch.device:
        """The device that policies act on. Outside the loop, it is always the CPU."""
        return torch.device("cpu") if self.acts_elsewhere else self.device

    @property
    def is_offline(self) -> bool:
        """True if all behaviors learn from data sets, so that training needs no environment."""
        return self.is_training and self.settings.is_offline

    def begin(self) -> None:
        """Start writing to the run folder. If the folder holds an earlier run to overwrite, it is intact until then."""
        with self.timers("run_training.setup"):
            self.folder.begin()
            self.write_files()
            self.status.save()

    def write_files(self) -> None:
        """Write ``configuration.yaml`` and ``timers.json``. Can be called from any thread."""
        self.folder.write_configuration(dump(self.settings))
        self.write_timers()

    def write_timers(self) -> None:
        self.folder.write_timers(self._timers_json())

    def refresh_timers(self) -> None:
        """Write ``timers.json`` for pages that show the run. Unlike ``write_timers``, this does not call fsync."""
        self.folder.refresh_timers(self._timers_json())

    def _timers_json(self) -> str:
        return timers_json(
            self.timers, self.gauges.gauges, sys.argv, API_VERSION, self.actor_report.rows(), self.earlier
        )

    @property
    def is_complete(self) -> bool:
        """True unless a statistics writer is known to have lost data."""
        return all(writer.missing is None for writer in self.writers)

    def close_writers(self) -> None:
        """Flush and close the writers."""
        for writer in self.writers:
            writer.close()


def make_run(
    settings: RunSettings,
    folder: RunFolder,
    status: TrainingStatus,
    device: torch.device,
    timers: Timers,
    stop: StopRequest,
    hooks: Hooks,
    datasets: Mapping[str, Demonstrations],
) -> Run:
    """Create the shared objects of a run. If it is resumed, the status and lessons are loaded from its folder.

    Raises:
        SettingsError: the settings lack a lesson that the saved run had reached, or metrics cannot be served.
    """
    curriculum = Curriculum(settings.environment_parameters, settings.env_settings.seed)
    curriculum.restore(status.lessons())
    gauges, rewards, calls = GaugeWriter(), RewardHistory(), UserCalls()
    writers: list[StatsWriter] = [ConsoleWriter(), gauges, rewards, *followers(settings, calls)]
    return Run(
        settings,
        folder,
        status,
        curriculum,
        gauges,
        rewards,
        writers,
        timers,
        device,
        stop,
        ResourceUsage(device),
        hooks=hooks,
        datasets=datasets,
        earlier=earlier_sessions(folder.read_timers()) if folder.resume else None,
        calls=calls,
    )


def timers_json(
    timers: Timers,
    gauges: Mapping[str, Gauge],
    arguments: Sequence[str],
    protocol_version: str,
    actors: Sequence[Mapping[str, Any]] = (),
    earlier: Mapping[str, Any] | None = None,
) -> str:
    """Return the current content of ``timers.json``.

    Args:
        timers: timers of the run.
        gauges: ``GaugeWriter.gauges``.
        arguments: the command line, including the program.
        protocol_version: version of the communication protocol.
        actors: statistics of each actor, if the actors run outside the loop.
        earlier: result of ``earlier_sessions``, if the run is resumed.
    """
    metadata = {
        "timer_format_version": TIMER_FORMAT_VERSION,
        "start_time_seconds": str(int(timers.start)),
        "python_version": sys.version,
        "command_line_arguments": " ".join(arguments),
        "mlagents_version": COMPATIBLE_MLAGENTS_VERSION,
        "mlagents_envs_version": installed_version("mlagents-envs"),
        "communication_protocol_version": protocol_version,
        "pytorch_version": installed_version("torch"),
        "numpy_version": installed_version("numpy"),
        "trajtrainer_version": __version__,
        "end_time_seconds": str(int(time.time())),
    }
    content = {
        "name": "root",
        "gauges": {name: asdict(gauge) for name, gauge in dict(gauges).items()},
        "metadata": metadata,
        **({"actors": [*actors]} if actors else {}),
        **timers.to_dict(),
        **({EARLIER: earlier} if earlier else {}),
    }
    return json.dumps(content, indent=4)


def earlier_sessions(text: str) -> dict[str, Any] | None:
    """Add up the timers of all earlier sessions of a resumed run.

    Args:
        text: content of ``timers.json`` as the last session wrote it.

    Returns:
        The value for the ``earlier`` argument of ``timers_json``; None if the file is damaged.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    earlier = content.get(EARLIER)
    earlier = earlier if isinstance(earlier, dict) else {}
    metadata = content.get("metadata")
    start = metadata.get("start_time_seconds") if isinstance(metadata, dict) else None
    return {
        "sessions": int(number_of(earlier.get("sessions"))) + 1,
        "start_time_seconds": earlier.get("start_time_seconds", start),
        **add_trees(content, earlier),
    }
