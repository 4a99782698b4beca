"""Creates trainers and their algorithms by ``trainer_type``."""

from __future__ import annotations

import logging
from collections.abc import Callable

from torch import Tensor

from trajtrainer.core.plugins import resolve
from trajtrainer.core.queues import PolicyQueue
from trajtrainer.core.stats import StatsReporter
from trajtrainer.experience.source import ExperienceSource
from trajtrainer.learning.algos.algorithm import Algorithm, LearningContext
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.init import seeded
from trajtrainer.learning.rewards.signal import create_reward_signals
from trajtrainer.learning.trainers.episodes import EpisodeRecord
from trajtrainer.learning.trainers.trainer import BehaviorTrainer, PolicyPublisher, Trainer
from trajtrainer.settings.checks import AUTO
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.network import ConditioningType
from trajtrainer.settings.trainer import TrainerSettings

logger = logging.getLogger(__name__)


def max_lead(settings: TrainerSettings) -> int:
    """Return how many rows acting may run ahead of learning if acting continues during updates."""
    return algorithm_class(settings.trainer_type).max_lead(settings)


def is_paced(settings: TrainerSettings) -> bool:
    """Return whether learning keeps pace with acting, instead of consuming a buffer of experience in each update."""
    return algorithm_class(settings.trainer_type).holds_rows


def paced_algorithms() -> list[str]:
    """Return the built-in algorithms whose learning keeps pace with acting. This imports all built-in algorithms."""
    return [name for name in ALGORITHMS.builtin if algorithm_class(name).holds_rows]


def is_automatic(settings: TrainerSettings) -> bool:
    """Return whether the algorithm makes gradient steps while the environments are busy (``auto``)."""
    return getattr(settings.hyperparameters, "steps_per_update", None) == AUTO


def algorithm_class(name: str) -> type[Algorithm]:
    """Return the algorithm for a ``trainer_type``.

    Raises:
        PluginError: a plugin's reference does not resolve to an algorithm.
    """
    with ALGORITHMS.blaming(name):
        reference = ALGORITHMS[name].algorithm
        found = None if reference is None else resolve(reference)
        if not isinstance(found, type) or not issubclass(found, Algorithm):
            raise TypeError(f"it refers to {found!r}, expected a subclass of Algorithm")
    return found


def create_algorithm(context: LearningContext) -> Algorithm:
    """Create the algorithm for a ``trainer_type``, with its networks, reward signals and demonstrations.

    Raises:
        UnsupportedError: a sensor or the action space is not supported.
        DemonstrationError: a recording cannot be read, or does not match the agents.
        PluginError: a plugin's algorithm fails.
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
        _log_sensors_treated_otherwise(context, created.actor)
        for signal in signals:
            signal.prepare(created.actor)
        if context.settings.behavioral_cloning is not None:
            # Imported here because only behaviors with cloning need it.
            from trajtrainer.learning.trainers.cloning import create_cloning

            created.cloning = create_cloning(context, created.actor, context.settings.behavioral_cloning)
    return created


def _log_sensors_treated_otherwise(context: LearningContext, actor: Actor) -> None:
    """Log goal signals that cannot condition the network, and sensors that only the critic observes."""
    encoder, specs = actor.body.encoder, context.spec.observation_specs
    goals = [actor.spec.observation_specs[number].name for number in encoder.goals]
    if (
        goals
        and not actor.body.conditioned
        and not actor.batch_norm
        and context.settings.network_settings.goal_conditioning_type is ConditioningType.HYPER
    ):
        logger.warning(
            "Behavior %r: the goal signal %s has a variable length, so it cannot condition the network and is treated "
            "as an ordinary observation, as in ML-Agents. Set goal_conditioning_type: none to avoid this warning.",
            context.behavior,
            ", ".join(map(repr, goals)),
        )
    hidden = [number for number in range(len(specs)) if number not in encoder.seen]
    if hidden:
        logger.info(
            "Behavior %r: only the critic sees %s. Unity will warn that the model has no Observation Placeholder "
            "Input for sensor component %s, but it will run. ML-Agents cannot read the checkpoints.",
            context.behavior,
            ", ".join(repr(str(specs[number].name)) for number in hidden),
            ", ".join(map(str, hidden)),
        )


def create_trainer(
    context: LearningContext,
    source: ExperienceSource,
    policies: PolicyQueue[Tensor],
    reporter: StatsReporter,
    checkpoint: Callable[[BehaviorTrainer], None],
) -> Trainer:
    """Create a trainer at step 0; see ``Trainer`` for the arguments.

    Raises:
        UnsupportedError: a sensor or the action space is not supported.
        DemonstrationError: a recording cannot be read, or does not match the agents.
    """
    algorithm = create_algorithm(context)
    return Trainer(
        context=context,
        source=source,
        algorithm=algorithm,
        publisher=PolicyPublisher(context.behavior, algorithm.actor, policies),
        episodes=EpisodeRecord(reporter),
        reporter=reporter,
        checkpoint=checkpoint,
    )
