"""The settings of a whole run, as given by a YAML file and the command line."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from attrs import evolve, field, frozen
from attrs.validators import optional

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spelling import closest
from trajtrainer.settings.actors import INLINE, ActorSettings
from trajtrainer.settings.checks import (
    INTERNAL,
    OURS,
    UNDUMPED,
    Fault,
    Problem,
    count,
    mismatch,
    raise_faults,
    satisfies,
)
from trajtrainer.settings.environment import (
    LARGEST_PORT,
    EngineSettings,
    EnvironmentParameterSettings,
    EnvironmentSettings,
    Measure,
    seeded,
    wrapper_faults,
)
from trajtrainer.settings.evaluation import Evaluations, EvaluationSettings, evaluations, missing
from trajtrainer.settings.monitoring import MonitoringSettings
from trajtrainer.settings.tracking import TrackingSettings
from trajtrainer.settings.trainer import TrainerSettings

logger = logging.getLogger(__name__)

_FOLLOWED = {**OURS, "followed": True}
"""Metadata of a section that only one of the ``STATS_WRITERS`` reads."""
SEARCH_SECTION = "search"
"""Section of a configuration that only ``trajtrainer search`` uses; it is not part of a run's settings."""


@frozen
class CheckpointSettings:
    """``checkpoint_settings``: the name and folder of the run, and its relation to earlier runs.

    Attributes:
        run_id: name of the run, which is also the name of its folder in ``results_dir``.
        initialize_from: run (or ``RUN@best`` for its best model) whose weights this run starts with, at step 0.
        load_model: deprecated; use ``resume``.
        resume: continue the run with this ``run_id`` from its last checkpoint.
        force: start a new run even if the ``run_id`` already has data; the earlier run is kept as ``RUN_ID.old``.
        train_model: deprecated; has no effect.
        inference: run the trained policy without training it or writing any files.
        results_dir: folder that contains the folders of all runs.
    """

    run_id: str = field(default="ppo", validator=satisfies(bool, "a name"))
    initialize_from: str | None = None
    load_model: bool = False
    resume: bool = False
    force: bool = False
    train_model: bool = False
    inference: bool = False
    results_dir: str = field(default="results", validator=satisfies(bool, "a folder"))


@frozen
class TorchSettings:
    """``torch_settings``: the device that networks are trained on.

    Attributes:
        device: PyTorch device, such as ``cpu``, ``cuda`` or ``cuda:1``. Defaults to ``cuda`` if there is a GPU. ``cpu``
            is often faster for small networks, for which launching a GPU kernel takes longer than the computation.
    """

    device: str | None = None


def _deterministic(trainer: TrainerSettings) -> TrainerSettings:
    return evolve(trainer, network_settings=evolve(trainer.network_settings, deterministic=True))


@frozen
class RunSettings:
    """Settings of a whole run.

    Attributes:
        default_settings: settings for behaviors that are not listed in ``behaviors``, and defaults for those that are.
        behaviors: settings of each behavior, by its name (without ``?team=``). They override ``default_settings``.
        env_settings: the environment to train in, and the handling of its failures.
        engine_settings: settings of the Unity engine.
        environment_parameters: value of each environment parameter, by its name: a number, a sampler or a curriculum.
        evaluation: evaluation of behaviors during training. Not in ML-Agents.
        tracking: experiment trackers that record the run. Not in ML-Agents.
        monitoring: publication of metrics for Prometheus. Not in ML-Agents.
        actors: number of actors, and where they run. By default, the learner's own loop acts. Not in ML-Agents.
        checkpoint_settings: the name and folder of the run, and its relation to earlier runs.
        torch_settings: the device that networks are trained on.
        debug: print debug messages, the players' own output, and tracebacks.
        deterministic: let all behaviors take the most likely actions, by setting ``network_settings.deterministic`` for
            each of them.
        behaviors_required: raise an error, instead of logging a warning, for a behavior that is covered by neither
            ``behaviors`` nor ``default_settings``. True if there is a configuration file. Not part of the file, and
            ignored in comparisons.
        inference_episodes: number of episodes per behavior after which inference ends; None for endless inference. Not
            part of the file, and ignored in comparisons.
        missing_recordings: recordings named in the file that do not exist or have the wrong type. They are reported at
            the start of a run, together with everything else that is missing. Not part of the file, and ignored in
            comparisons.
    """

    default_settings: TrainerSettings | None = None
    behaviors: dict[str, TrainerSettings] = field(factory=dict)
    env_settings: EnvironmentSettings = field(factory=EnvironmentSettings)
    engine_settings: EngineSettings = field(factory=EngineSettings)
    environment_parameters: dict[str, EnvironmentParameterSettings] | None = None
    evaluation: EvaluationSettings | None = field(default=None, metadata=OURS)
    actors: ActorSettings | None = field(default=None, metadata=OURS)
    tracking: TrackingSettings | None = field(default=None, metadata=_FOLLOWED)
    monitoring: MonitoringSettings | None = field(default=None, metadata=_FOLLOWED)
    checkpoint_settings: CheckpointSettings = field(factory=CheckpointSettings)
    torch_settings: TorchSettings = field(factory=TorchSettings)
    debug: bool = False
    # Copied into the settings of all behaviors, including those that ``for_behavior`` creates. A dump contains it only
    # there, because ML-Agents does not have this key at the top level.
    deterministic: bool = field(default=False, eq=False, metadata=UNDUMPED)
    behaviors_required: bool = field(default=False, eq=False, metadata=INTERNAL)
    inference_episodes: int | None = field(default=None, eq=False, metadata=INTERNAL, validator=optional(count))
    missing_recordings: tuple[Problem, ...] = field(default=(), eq=False, metadata=INTERNAL)

    def __attrs_post_init__(self) -> None:
        raise_faults(self._faults())
        if self.deterministic:
            set_field = object.__setattr__  # the class is frozen
            set_field(self, "behaviors", {name: _deterministic(each) for name, each in self.behaviors.items()})
            if self.default_settings is not None:
                set_field(self, "default_settings", _deterministic(self.default_settings))

    def _faults(self) -> Iterator[Fault]:
        yield from self._faults_of_evaluations()
        yield from self._faults_of_actors()
        for name, parameter in (self.environment_parameters or {}).items():
            for index, lesson in enumerate(parameter.curriculum):
                criteria = lesson.completion_criteria
                if criteria is None or criteria.measure is not Measure.ELO:
                    continue
                behavior = self.behaviors.get(criteria.behavior, self.default_settings)
                if behavior is None or behavior.self_play is None:
                    path = ("environment_parameters", name, "curriculum", str(index), "completion_criteria", "measure")
                    expected = f"reward or progress, as behavior {criteria.behavior!r} has no self_play"
                    yield mismatch(path, criteria.measure.value, expected)

    @property
    def acts_elsewhere(self) -> bool:
        """True if actors run outside of the learner's loop."""
        return self.actors is not None and self.actors.backend != INLINE

    @property
    def envs_of_actor(self) -> int:
        """Number of environments per actor."""
        own = None if self.actors is None else self.actors.envs
        return self.env_settings.num_envs if own is None else own

    @property
    def num_players(self) -> int:
        """Total number of environments of all actors."""
        return self.envs_of_actor * (1 if self.actors is None else self.actors.count)

    @property
    def num_ports(self) -> int:
        """Number of ports that all environments of the run need, including those of evaluations."""
        evaluations = (self.evaluation or EvaluationSettings()).num_envs if self.has_evaluations else 0
        return self.num_players + evaluations

    @property
    def is_offline(self) -> bool:
        """True if at least one behavior is listed, and all listed behaviors learn from data sets."""
        return bool(self.behaviors) and all(each.is_offline for each in self.behaviors.values())

    def _faults_of_actors(self) -> Iterator[Fault]:
        env, players = self.env_settings, self.num_players
        if self.actors is None:
            return
        if players > 1 and env.is_editor:
            expected = f"one actor with one environment, {env.why_one}"
            yield mismatch(("actors", "count"), self.actors.count, expected)
        if env.env_path is not None and env.base_port + players - 1 > LARGEST_PORT:
            expected = f"at most {LARGEST_PORT - players + 1}, as the environments of all actors need a port each"
            yield mismatch(("env_settings", "base_port"), env.base_port, expected)

    def _faults_of_evaluations(self) -> Iterator[Fault]:
        trainers = self._trainers()
        found = [fault for path, own in trainers.items() for fault in missing(self.evaluation, own.evaluation, *path)]
        found += () if trainers else missing(self.evaluation, None)
        # Remove duplicates, because several behaviors may report the same missing setting of the run.
        yield from {fault.path: fault for fault in found}.values()
        given, env = self.evaluation, self.env_settings
        if given is not None:
            yield from wrapper_faults(given.wrappers, env.env_path, "evaluation", "wrappers")
        if given is None or found:
            return
        if (given.interval, given.episodes) == (None, None) and not any(map(self.evaluations_of, trainers.values())):
            yield Fault(("evaluation",), "has neither interval nor episodes; expected both, here or in a behavior")
        if given.num_envs > 1 and env.is_editor:
            yield mismatch(("evaluation", "num_envs"), given.num_envs, f"1, {env.why_one}")

    def _trainers(self) -> dict[tuple[str, ...], TrainerSettings]:
        trainers: dict[tuple[str, ...], TrainerSettings]
        trainers = {("behaviors", name): behavior for name, behavior in self.behaviors.items()}
        if self.default_settings is not None:
            trainers["default_settings",] = self.default_settings
        return trainers

    def evaluations_of(self, behavior: TrainerSettings) -> Evaluations | None:
        """Return when and how a behavior with these settings is evaluated during training; None if it is not."""
        found = evaluations(self.evaluation, behavior.evaluation)
        return evolve(found, deterministic=True) if found is not None and self.deterministic else found

    @property
    def has_evaluations(self) -> bool:
        """True if any behavior may be evaluated during training, including behaviors that are not listed."""
        return any(self.evaluations_of(each) is not None for each in [*self._trainers().values(), TrainerSettings()])

    def for_behavior(self, name: str) -> TrainerSettings:
        """Return the settings of a behavior (docs/explanation/mlagents-behavior.md#precedence).

        Args:
            name: name of the behavior, without ``?team=``.

        Raises:
            SettingsError: there is a configuration file that does not cover this behavior.
        """
        if name in self.behaviors:
            return self.behaviors[name]
        if self.default_settings is not None:
            return self.default_settings
        if self.behaviors_required:
            listed = ", ".join(self.behaviors) or "none"
            raise SettingsError(
                f"The environment has a behavior {name!r}, which the configuration does not list (listed: {listed}"
                f"{closest(name, self.behaviors)}). Add {name!r} under 'behaviors', or add a 'default_settings' "
                "section for all behaviors that are not listed."
            )
        logger.warning("Behavior %r has no configuration. It is trained with the default PPO settings.", name)
        return _deterministic(TrainerSettings()) if self.deterministic else TrainerSettings()

    def presuming(self, order: RawImageOrder) -> RunSettings:
        """Return a copy that assumes this order for raw images whose order cannot be detected."""
        return evolve(self, env_settings=evolve(self.env_settings, presumed_raw_image_order=order))

    def with_seed(self, seed: int) -> RunSettings:
        """Return a copy with this seed for the run and for samplers without a seed (see ``environment.seeded``)."""
        parameters = self.environment_parameters
        return evolve(
            self,
            env_settings=evolve(self.env_settings, seed=seed),
            environment_parameters=None if parameters is None else seeded(parameters, seed),
        )
