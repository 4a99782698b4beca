"""The messages that tell the Editor about a training, for its statistics of use.

No names are among it. See docs/mlagents-behavior.md#side-channels.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.version import __version__
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.unity.proto.communicator_pb2 import TrainingBehaviorInitialized, TrainingEnvironmentInitialized
from trajtrainer.unity.side_channels import TrainingAnalyticsChannel


class RunAnalytics(TrainingAnalyticsChannel):
    """Tells about a run, and about each behaviour once, when it is announced: its trainer starts then.

    Args:
        run: settings. ``torch_settings.device`` is what is told as the device.
    """

    def __init__(self, run: RunSettings) -> None:
        super().__init__()
        self._run = run
        self._told: set[str] = set()
        self.environment_initialized(_environment(run))

    def announce(self, behavior_ids: Iterable[str]) -> None:
        """Tell about those that were not told about before. Teams are one behaviour."""
        for behavior_id in behavior_ids:
            name = BehaviorId.parse(behavior_id).name
            if name not in self._told:
                self._told.add(name)
                settings = _settings(self._run, name)
                if settings is not None:
                    self.behavior_initialized(_behavior(name, settings, self._run))


def _settings(run: RunSettings, name: str) -> TrainerSettings | None:
    """Return the settings like ``RunSettings.for_behavior``, which complains, and once per run is enough.

    None if the run ends over it.
    """
    listed = run.behaviors.get(name, run.default_settings)
    return TrainerSettings() if listed is None and not run.behaviors_required else listed


def _environment(run: RunSettings) -> TrainingEnvironmentInitialized:
    return TrainingEnvironmentInitialized(
        mlagents_version=f"trajtrainer {__version__}",
        mlagents_envs_version=_version("mlagents-envs"),
        python_version=".".join(map(str, sys.version_info[:3])),
        torch_version=_version("torch"),
        torch_device_type=(run.torch_settings.device or "Unknown").partition(":")[0],
        num_envs=run.env_settings.num_envs,
        num_environment_parameters=len(run.environment_parameters or {}),
    )


def _version(package: str) -> str:
    """Return a package's version without importing it: worker processes do without torch."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "Unknown"


def _behavior(name: str, settings: TrainerSettings, run: RunSettings) -> TrainingBehaviorInitialized:
    network, signals = settings.network_settings, settings.reward_signals
    return TrainingBehaviorInitialized(
        behavior_name=name,
        trainer_type=settings.trainer_type,
        extrinsic_reward_enabled="extrinsic" in signals,
        gail_reward_enabled="gail" in signals,
        curiosity_reward_enabled="curiosity" in signals,
        rnd_reward_enabled="rnd" in signals,
        behavioral_cloning_enabled=settings.behavioral_cloning is not None,
        recurrent_enabled=network.memory is not None,
        visual_encoder=network.vis_encode_type,
        num_network_layers=network.num_layers,
        num_network_hidden_units=network.hidden_units,
        trainer_threaded=settings.threaded,
        self_play_enabled=settings.self_play is not None,
        curriculum_enabled=_decides_lessons(name, run),
    )


def _decides_lessons(name: str, run: RunSettings) -> bool:
    """Return whether any lesson ends by this behaviour's progress."""
    return any(
        lesson.completion_criteria is not None and lesson.completion_criteria.behavior == name
        for parameter in (run.environment_parameters or {}).values()
        for lesson in parameter.curriculum
    )
