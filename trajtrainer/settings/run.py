"""The settings of a whole run: everything a YAML file and a command line can say."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from attrs import evolve, field, frozen
from attrs.validators import optional

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.settings.actors import ActorSettings, Backend
from trajtrainer.settings.checks import (
    INTERNAL,
    OURS,
    UNDUMPED,
    Fault,
    Problem,
    closest,
    count,
    misfit,
    refuse,
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
from trajtrainer.settings.evaluation import (
    BehaviorEvaluationSettings,
    Evaluations,
    EvaluationSettings,
    evaluations,
    missing,
)
from trajtrainer.settings.tracking import TrackingSettings
from trajtrainer.settings.trainer import TrainerSettings

logger = logging.getLogger(__name__)

SEARCH_SECTION = "search"
"""A section of a configuration that is for ``trajtrainer search`` alone, and no part of a run's settings."""


@frozen
class CheckpointSettings:
    """``checkpoint_settings``: the run's name, and what becomes of earlier runs.

    Attributes:
        run_id: the run's name: its folder below ``results_dir``.
        initialize_from: a run, or ``RUN@best``, from whose weights this one starts, at step 0.
        load_model: deprecated: ``resume``.
        resume: go on with the run of this name where it stopped.
        force: use a name that has data already; the earlier run is kept as ``RUN_ID.old``.
        train_model: deprecated, means nothing.
        inference: only act with the trained policy; nothing is written.
        results_dir: the folder that has those of all runs.
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
    """``torch_settings``: where networks are trained.

    Attributes:
        device: ``cpu``, ``cuda``, ``cuda:1``; none takes ``cuda`` where there is one. ``cpu`` is often faster for small
            networks, whose every call costs a GPU more than the sum itself.
    """

    device: str | None = None


def _deterministic(trainer: TrainerSettings) -> TrainerSettings:
    return evolve(trainer, network_settings=evolve(trainer.network_settings, deterministic=True))


@frozen
class RunSettings:
    """A whole run.

    Attributes:
        default_settings: what a behavior gets that ``behaviors`` does not name, and what lies under those that it
            names.
        behaviors: name (without ``?team=``) -> settings of the behavior, which go before ``default_settings``.
        env_settings: which environment there is.
        engine_settings: what Unity's engine is told.
        environment_parameters: name of a parameter -> a number, a sampler or a curriculum.
        evaluation: when behaviors are evaluated while they train. Not in ML-Agents.
        tracking: services that follow the run. Not in ML-Agents.
        actors: how many act, and where; left out: the learner's own loop does. Not in ML-Agents.
        checkpoint_settings: the run's name, and what becomes of earlier runs.
        torch_settings: where networks are trained.
        debug: log in detail, show the players' own output and tracebacks.
        deterministic: every behavior takes the most likely action: ``network_settings.deterministic`` of all.
        behaviors_required: a behavior that neither ``behaviors`` nor ``default_settings`` covers is an error, not a
            warning. So it is when there was a configuration file. Not part of the file, nor of equality.
        inference_episodes: episodes of each behavior that end inference; None for inference without end. Not part of
            the file, nor of equality.
        missing_recordings: recordings that the file names and that are not there, or not of the right kind. Whatever
            starts a run reports them together with everything else that it lacks. Not part of the file, nor of
            equality.
    """

    default_settings: TrainerSettings | None = None
    behaviors: dict[str, TrainerSettings] = field(factory=dict)
    env_settings: EnvironmentSettings = field(factory=EnvironmentSettings)
    engine_settings: EngineSettings = field(factory=EngineSettings)
    environment_parameters: dict[str, EnvironmentParameterSettings] | None = None
    evaluation: EvaluationSettings | None = field(default=None, metadata=OURS)
    actors: ActorSettings | None = field(default=None, metadata=OURS)
    tracking: TrackingSettings | None = field(default=None, metadata=OURS)
    checkpoint_settings: CheckpointSettings = field(factory=CheckpointSettings)
    torch_settings: TorchSettings = field(factory=TorchSettings)
    debug: bool = False
    # Written into the settings of all behaviors, those that ``for_behavior`` hands out included, which is what a dump
    # shows: ML-Agents knows no such key at the top.
    deterministic: bool = field(default=False, eq=False, metadata=UNDUMPED)
    behaviors_required: bool = field(default=False, eq=False, metadata=INTERNAL)
    inference_episodes: int | None = field(default=None, eq=False, metadata=INTERNAL, validator=optional(count))
    missing_recordings: tuple[Problem, ...] = field(default=(), eq=False, metadata=INTERNAL)

    def __attrs_post_init__(self) -> None:
        refuse(self._faults())
        if self.deterministic:
            set_field = object.__setattr__  # the class is frozen; this is still its construction
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
                    yield misfit(path, criteria.measure.value, expected, ("behaviors",))

    @property
    def acts_elsewhere(self) -> bool:
        """Return whether acting is not in the learner's loop."""
        return self.actors is not None and self.actors.backend is not Backend.INLINE

    @property
    def envs_of_actor(self) -> int:
        """Return the environments of each actor."""
        own = None if self.actors is None else self.actors.envs
        return self.env_settings.num_envs if own is None else own

    @property
    def num_players(self) -> int:
        """Return the environments of all actors together."""
        return self.envs_of_actor * (1 if self.actors is None else self.actors.count)

    @property
    def num_ports(self) -> int:
        """Return the ports that all environments of the run take together, those of evaluations included."""
        evaluations = (self.evaluation or EvaluationSettings()).num_envs if self.has_evaluations else 0
        return self.num_players + evaluations

    @property
    def is_offline(self) -> bool:
        """Return whether all behaviors that are listed are learned from data sets, and there is one."""
        return bool(self.behaviors) and all(each.is_offline for each in self.behaviors.values())

    def _faults_of_actors(self) -> Iterator[Fault]:
        env, players = self.env_settings, self.num_players
        if self.actors is None:
            return
        if players > 1 and env.is_editor:
            expected = f"one actor with one environment, {env.why_one}"
            yield misfit(("actors", "count"), self.actors.count, expected, ("env_settings", "env_path"))
        if env.env_path is not None and env.base_port + players - 1 > LARGEST_PORT:
            expected = f"at most {LARGEST_PORT - players + 1}, as the environments of all actors need a port each"
            yield misfit(("env_settings", "base_port"), env.base_port, expected, ("actors",), ("env_settings",))

    def _faults_of_evaluations(self) -> Iterator[Fault]:
        places: dict[tuple[str, ...], BehaviorEvaluationSettings | None]
        places = {("behaviors", name): behavior.evaluation for name, behavior in self.behaviors.items()}
        if self.default_settings is not None:
            places["default_settings",] = self.default_settings.evaluation
        found = [fault for path, own in places.items() for fault in missing(self.evaluation, own, *path)]
        found += () if places else missing(self.evaluation, None)
        yield from {fault.path: fault for fault in found}.values()  # several behaviors may lack the same of the run
        given, env = self.evaluation, self.env_settings
        if given is not None:
            path = ("evaluation", "wrappers")
            yield from wrapper_faults(given.wrappers, env.env_path, path, ("env_settings", "env_path"))
        if given is None or found:
            return
        if (given.interval, given.episodes) == (None, None) and not any(map(self.evaluations_of, self._trainers())):
            yield Fault(("evaluation",), "has neither interval nor episodes, expected both, here or in a behavior")
        if given.num_envs > 1 and env.is_editor:
            path = ("env_settings", "env_path")
            yield misfit(("evaluation", "num_envs"), given.num_envs, f"1, {env.why_one}", path)

    def _trainers(self) -> list[TrainerSettings]:
        return [*self.behaviors.values(), *([] if self.default_settings is None else [self.default_settings])]

    def evaluations_of(self, behavior: TrainerSettings) -> Evaluations | None:
        """Return when and how a behavior with these settings is evaluated while it trains; None if it is not."""
        found = evaluations(self.evaluation, behavior.evaluation)
        return evolve(found, deterministic=True) if found is not None and self.deterministic else found

    @property
    def has_evaluations(self) -> bool:
        """Return whether any behavior may be evaluated while it trains, one that is not listed included."""
        return any(self.evaluations_of(each) is not None for each in [*self._trainers(), TrainerSettings()])

    def for_behavior(self, name: str) -> TrainerSettings:
        """Return the settings of behavior ``name``, without ``?team=`` (docs/mlagents-behavior.md#precedence).

        Raises:
            SettingsError: there was a configuration file, and it covers no such behavior.
        """
        if name in self.behaviors:
            return self.behaviors[name]
        if self.default_settings is not None:
            return self.default_settings
        if self.behaviors_required:
            raise SettingsError(self._not_listed(name))
        logger.warning("Behavior %r is in no configuration: it is trained with the default PPO settings.", name)
        return _deterministic(TrainerSettings()) if self.deterministic else TrainerSettings()

    def _not_listed(self, name: str) -> str:
        listed = ", ".join(self.behaviors) or "none"
        return (
            f"The environment has a behavior {name!r}, which the configuration does not list (listed: {listed}"
            f"{closest(name, self.behaviors)}). Add {name!r} under 'behaviors', or a 'default_settings' section, which "
            "serves all behaviors that are not listed."
        )

    def presuming(self, order: RawImageOrder) -> RunSettings:
        """Return settings in which raw images that do not show their order have this one."""
        return evolve(self, env_settings=evolve(self.env_settings, presumed_raw_image_order=order))

    def with_seed(self, seed: int) -> RunSettings:
        """Return the run with its seed settled: ``env_settings.seed`` and that of every sampler without one (1.6)."""
        parameters = self.environment_parameters
        return evolve(
            self,
            env_settings=evolve(self.env_settings, seed=seed),
            environment_parameters=None if parameters is None else seeded(parameters, seed),
        )
