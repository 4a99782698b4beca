"""Trainers and their algorithms, by the names of ``trainer_type``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from torch import Tensor

from trajtrainer.algos.algorithm import Algorithm, LearningContext
from trajtrainer.algos.cloning import DEFAULT_EPOCHS, BehavioralCloning
from trajtrainer.algos.sac.settings import SACHyperparameters
from trajtrainer.core.errors import DemonstrationError, UnsupportedError
from trajtrainer.core.plugins import resolve
from trajtrainer.core.queues import PolicyQueue
from trajtrainer.core.stats import StatsReporter
from trajtrainer.data.source import ExperienceSource
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.demos.demo_file import check_header, demo_paths
from trajtrainer.demos.demonstrations import load_demonstrations
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.init import derived_seeds, seeded
from trajtrainer.rewards.demonstrations import DemonstrationRows
from trajtrainer.rewards.signal import create_reward_signals
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.demonstrations import missing, other_type
from trajtrainer.settings.network import ConditioningType
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.trainers.clock import Clock
from trajtrainer.trainers.episodes import EpisodeRecord
from trajtrainer.trainers.offline import OfflineTrainer
from trajtrainer.trainers.trainer import PolicyPublisher, Trainer

# Gradient steps of cloning per gradient step of SAC from which on they take nearly all the time.
_MANY_STEPS = 10

logger = logging.getLogger(__name__)


def check_demonstrations(behaviors: Mapping[str, TrainerSettings]) -> None:
    """Look whether recordings are there, and of use to their trainers, before anything is started.

    Args:
        behaviors: name -> settings.

    Raises:
        DemonstrationError: names everything that is missing, of all behaviors.
        UnsupportedError: a trainer does not imitate beside its training.
    """
    faults = []
    for name, settings in behaviors.items():
        of_batches = getattr(settings.hyperparameters, "demonstrations", None)
        if of_batches is not None:
            try:
                load_demonstrations([of_batches.demo_path], max_steps=1)
            except DemonstrationError as error:
                faults.append(f"Behavior {name!r}, demo_path: {error}")
        cloning = settings.behavioral_cloning
        if cloning is not None and not algorithm_class(settings.trainer_type).clones:
            raise UnsupportedError(
                f"Behavior {name!r}: trainer_type {settings.trainer_type} has no use for behavioral_cloning. Leave the "
                "section out."
            )
        for section in (cloning, *settings.reward_signals.values()):
            path = getattr(section, "demo_path", None)
            if path is None:
                continue
            fault = missing(path) or other_type(path)
            if fault:
                faults.append(f"Behavior {name!r}, demo_path: {fault}.")
                continue
            for recording in demo_paths([path]):
                try:
                    check_header(recording)
                except DemonstrationError as error:
                    faults.append(f"Behavior {name!r}, demo_path: {error}")
    if faults:
        raise DemonstrationError("\n".join(faults))


def max_lead(settings: TrainerSettings) -> int:
    """How many rows acting may be ahead of learning, where it goes on meanwhile."""
    return algorithm_class(settings.trainer_type).max_lead(settings)


def is_paced(settings: TrainerSettings) -> bool:
    """Whether learning keeps pace with acting, instead of using up a buffer of experience at each update."""
    return algorithm_class(settings.trainer_type).holds_rows


def algorithm_class(name: str) -> type[Algorithm]:
    """The algorithm of this ``trainer_type``, which is built.

    Raises:
        PluginError: it is of a package, and is none.
    """
    with ALGORITHMS.blaming(name):
        reference = ALGORITHMS[name].algorithm
        found = None if reference is None else resolve(reference)
        if not isinstance(found, type) or not issubclass(found, Algorithm):
            raise TypeError(f"it leads to {found!r}, expected a subclass of Algorithm")
    return found


def create_algorithm(context: LearningContext) -> Algorithm:
    """The algorithm that ``trainer_type`` names, with its networks, reward signals and demonstrations.

    Raises:
        UnsupportedError: a sensor, or an action space, is not built yet.
        DemonstrationError: a recording cannot be read, or is of other agents.
        PluginError: it is of a package, and fails.
    """
    name = context.settings.trainer_type
    algorithm = algorithm_class(name)
    with seeded(context.weights_seed):
        with ALGORITHMS.blaming(name):
            networks = algorithm.make_networks(context)
        signals = create_reward_signals(context.spec, context.settings, context.device)
    for network in networks.values():
        network.to(context.device)
    with ALGORITHMS.blaming(name):
        created = algorithm(context, networks, signals)
    if context.training:
        _warn_of_goals(context, created.actor)
        _tell_of_critic_only(context, created.actor)
        for signal in signals:
            signal.prepare(created.actor)
        created.cloning = _cloning(context, created.actor)
    return created


def _warn_of_goals(context: LearningContext, actor: Actor) -> None:
    goals = [actor.spec.observation_specs[number].name for number in actor.body.encoder.goals]
    if (
        goals
        and not actor.body.conditioned
        and not actor.batch_norm
        and context.settings.network_settings.goal_conditioning_type is ConditioningType.HYPER
    ):
        logger.warning(
            "Behavior %r: the goal signal %s has a variable length and cannot condition the network. It is an ordinary "
            "observation, as in ML-Agents. goal_conditioning_type: none says the same without this warning.",
            context.behavior,
            ", ".join(map(repr, goals)),
        )


def _tell_of_critic_only(context: LearningContext, actor: Actor) -> None:
    encoder, specs = actor.body.encoder, context.spec.observation_specs
    hidden = [number for number in range(len(specs)) if number not in encoder.seen]
    if hidden:
        logger.info(
            "Behavior %r: the critic alone sees %s. Unity will warn that the model has no Observation Placeholder "
            "Input for sensor component %s, and run it all the same. ML-Agents cannot read the checkpoints.",
            context.behavior,
            ", ".join(repr(str(specs[number].name)) for number in hidden),
            ", ".join(map(str, hidden)),
        )


def _cloning(context: LearningContext, actor: Actor) -> BehavioralCloning | None:
    settings, memory = context.settings.behavioral_cloning, context.settings.network_settings.memory
    if settings is None:
        return None
    packed = load_demonstrations([settings.demo_path], spec=context.spec).packed
    rows = DemonstrationRows(packed, actor.head, 1 if memory is None else memory.sequence_length, context.device)
    seed = derived_seeds(context.seed, f"{context.behavior} cloning")[1]
    hyper = context.settings.hyperparameters
    cloning = BehavioralCloning(actor, rows, settings, hyper, seed)
    if isinstance(hyper, SACHyperparameters) and cloning.steps_per_update > _MANY_STEPS:
        logger.warning(
            "Behavior %r: with each of its gradient steps %s makes %d more to clone %d recorded steps. "
            "behavioral_cloning: samples_per_update: %d makes it %d.",
            context.behavior,
            context.settings.trainer_type.upper(),
            cloning.steps_per_update,
            len(rows),
            settings.batch_size or hyper.batch_size,
            settings.num_epoch or DEFAULT_EPOCHS,
        )
    return cloning


def create_trainer(
    context: LearningContext,
    source: ExperienceSource,
    policies: PolicyQueue[Tensor],
    reporter: StatsReporter,
    checkpoint: Callable[[Trainer], None],
) -> Trainer:
    """A trainer at step 0, composed of its parts; see ``Trainer`` for the arguments.

    Raises:
        UnsupportedError: a sensor, or an action space, is not built yet.
        DemonstrationError: a recording cannot be read, or is of other agents.
    """
    algorithm = create_algorithm(context)
    return Trainer(
        context=context,
        source=source,
        algorithm=algorithm,
        publisher=PolicyPublisher(context.behavior, algorithm.actor, policies),
        clock=Clock(context.settings, training=context.training),
        episodes=EpisodeRecord(reporter),
        reporter=reporter,
        checkpoint=checkpoint,
    )


def create_offline_trainer(
    context: LearningContext,
    dataset: PackedSteps,
    policies: PolicyQueue[Tensor],
    reporter: StatsReporter,
    checkpoint: Callable[[OfflineTrainer], None],
) -> OfflineTrainer:
    """A trainer at step 0 whose algorithm has the data set.

    Raises:
        UnsupportedError: a sensor, or an action space, is not built yet.
        SettingsError: nothing of the data set is left to learn from.
    """
    algorithm = create_algorithm(context)
    publisher = PolicyPublisher(context.behavior, algorithm.actor, policies)
    trainer = OfflineTrainer(context, algorithm, publisher, reporter, checkpoint)
    trainer.give(dataset)
    return trainer
