"""The parts of a run that all its behaviours share."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from trajtrainer.actors.statistics import ActorReport
from trajtrainer.core.stats import StatsWriter
from trajtrainer.core.timers import EARLIER, Timers, add_trees, number_of
from trajtrainer.core.version import __version__
from trajtrainer.demos.demonstrations import Demonstrations
from trajtrainer.run.curriculum import Curriculum
from trajtrainer.run.hooks import Hooks
from trajtrainer.run.progress import RewardHistory
from trajtrainer.run.signals import StopRequest
from trajtrainer.run.tracking import TrackingWriter, tracking_writers
from trajtrainer.run.user_calls import UserCalls
from trajtrainer.run.writers import ConsoleWriter, Gauge, GaugeWriter, TensorboardWriter, plugin_writers
from trajtrainer.rundir.folder import RunFolder
from trajtrainer.rundir.status import COMPATIBLE_MLAGENTS_VERSION, TrainingStatus, installed_version
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import dump
from trajtrainer.trainers.self_play import TeamRotation
from trajtrainer.unity.behaviors import API_VERSION


@dataclass(frozen=True, slots=True)
class Run:
    """The parts that a run has once.

    Attributes:
        settings: its own, the seed settled.
        folder: its files.
        status: ``training_status.json``.
        curriculum: the lessons of the environment's parameters.
        gauges: the newest value of each statistic, for ``timers.json``.
        rewards: the mean reward of each summary, for the live view.
        writers: of statistics, these two among them.
        timers: of everything.
        device: of the networks.
        stop: asks for the end.
        teams: of the behaviours with self-play.
        hooks: functions of the user, told what happens.
        datasets: name -> what this behaviour is learnt from, of those that need no environment.
        actor_report: what the actors have done, where they are not in the loop.
        earlier: time spent by the sessions before this one, of a run that is resumed.
        calls: of the user's code.
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
    teams: TeamRotation = field(default_factory=TeamRotation)
    hooks: Hooks = field(default_factory=Hooks)
    datasets: Mapping[str, Demonstrations] = field(default_factory=dict)
    actor_report: ActorReport = field(default_factory=ActorReport)
    earlier: Mapping[str, Any] | None = None
    calls: UserCalls = field(default_factory=UserCalls)

    @property
    def is_training(self) -> bool:
        """Return whether trainers learn; with ``--inference`` they only count."""
        return not self.settings.checkpoint_settings.inference

    @property
    def acts_elsewhere(self) -> bool:
        """Return whether actors have threads, processes or machines of their own."""
        return self.settings.acts_elsewhere and not self.is_offline

    @property
    def actors_elsewhere(self) -> tuple[int, int] | None:
        """Return the number of actors outside the loop and their ``max_policy_lag``; None with the actor in it."""
        actors = self.settings.actors
        return (actors.count, actors.max_policy_lag) if actors is not None and self.acts_elsewhere else None

    @property
    def acting_device(self) -> torch.device:
        """Return the device on which policies act: elsewhere it is the processor."""
        return torch.device("cpu") if self.acts_elsewhere else self.device

    @property
    def is_offline(self) -> bool:
        """Return whether everything is learnt from data sets, so that no environment is started."""
        return self.is_training and self.settings.is_offline

    def begin(self) -> None:
        """Take possession of the folder: up to here a run that this one overwrites is whole in its place."""
        with self.timers("run_training.setup"):
            self.folder.begin()
            self.write_files()
            self.status.save()

    def write_files(self) -> None:
        """Write ``configuration.yaml`` and ``timers.json``. May be called from any thread."""
        self.folder.write_configuration(dump(self.settings))
        self.write_timers()

    def write_timers(self) -> None:
        """Write ``timers.json`` as everything is by now."""
        self.folder.write_timers(self._timers_json())

    def refresh_timers(self) -> None:
        """Write ``timers.json`` for those who watch the run: without waiting for the disk."""
        self.folder.refresh_timers(self._timers_json())

    def _timers_json(self) -> str:
        return timers_json(
            self.timers, self.gauges.gauges, sys.argv, API_VERSION, self.actor_report.rows(), self.earlier
        )

    @property
    def is_tracked(self) -> bool:
        """Return whether all services of ``tracking`` have everything, as far as is known by now."""
        return not any(isinstance(writer, TrackingWriter) and writer.missing is not None for writer in self.writers)

    def close_writers(self) -> None:
        """Close the writers, which write what is pending."""
        for writer in self.writers:
            writer.close()


def make_run(
    settings: RunSettings,
    folder: RunFolder,
    device: torch.device,
    timers: Timers,
    stop: StopRequest,
    hooks: Hooks,
    datasets: Mapping[str, Demonstrations],
) -> Run:
    """Make the parts of a run; one that is resumed has the status and the lessons of its folder.

    Raises:
        SettingsError: the run was saved in a lesson that the settings do not have.
    """
    status = (
        TrainingStatus.load(folder.status, writes=folder.writes)
        if folder.resume
        else TrainingStatus(folder.status if folder.writes else None)
    )
    curriculum = Curriculum(settings.environment_parameters, settings.env_settings.seed)
    curriculum.restore(status.lessons())
    gauges, rewards, calls = GaugeWriter(), RewardHistory(), UserCalls()
    writers: list[StatsWriter] = [ConsoleWriter(), gauges, rewards]
    if folder.writes:
        writers.append(TensorboardWriter(lambda behavior: folder.behavior(behavior).path))
        writers += tracking_writers(settings, folder)
    writers += plugin_writers(settings, calls)
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
        hooks=hooks,
        datasets=datasets,
        earlier=earlier_sessions(folder.read_timers()) if folder.resume else None,
        calls=calls,
    )


TIMER_FORMAT_VERSION = "0.1.0"


def timers_json(
    timers: Timers,
    gauges: Mapping[str, Gauge],
    arguments: Sequence[str],
    protocol_version: str,
    actors: Sequence[Mapping[str, Any]] = (),
    earlier: Mapping[str, Any] | None = None,
) -> str:
    """Return the content of the file, as of now.

    Args:
        timers: the run's.
        gauges: ``GaugeWriter.gauges``.
        arguments: the command line, program included.
        protocol_version: of the wire.
        actors: what each of them has done, where they are not in the loop.
        earlier: ``earlier_sessions`` of a resumed run.
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
    """Return what the ``timers.json`` of a run that is about to resume says about all its sessions so far, added up.

    None if the file is damaged.
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
