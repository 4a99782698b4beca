"""Trainers and their algorithms, by the names of ``trainer_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from trajtrainer.algos.algorithm import Algorithm, LearningContext
from trajtrainer.algos.ppo.learner import PPOLearner
from trajtrainer.algos.sac.learner import SACLearner
from trajtrainer.data.source import ExperienceSource
from trajtrainer.errors import UnsupportedError
from trajtrainer.nn.init import seeded
from trajtrainer.queues import PolicyQueue
from trajtrainer.rewards.factory import create_reward_signals
from trajtrainer.settings.convert import trainer_mapping
from trajtrainer.settings.support import unsupported
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.stats import StatsReporter
from trajtrainer.trainers.clock import Clock
from trajtrainer.trainers.episodes import EpisodeRecord
from trajtrainer.trainers.publisher import PolicyPublisher
from trajtrainer.trainers.trainer import Trainer

ALGORITHMS: dict[str, type[Algorithm]] = {"ppo": PPOLearner, "sac": SACLearner}


def check_supported(behaviors: Mapping[str, TrainerSettings]) -> None:
    """Refuses what is valid in a YAML file but not built yet, before anything is started.

    Args:
        behaviors: name -> settings.

    Raises:
        UnsupportedError: names everything that is missing, of all behaviours.
    """
    faults = [
        f"Behavior {name!r}: {fault.message}."
        for name, one in behaviors.items()
        for fault in unsupported(trainer_mapping(one))
    ]
    if faults:
        raise UnsupportedError("\n".join(faults))


def max_lead(settings: TrainerSettings) -> int:
    """Return how many steps acting may be ahead of a trainer that has a thread of its own."""
    return ALGORITHMS[settings.trainer_type].max_lead(settings)


def create_algorithm(context: LearningContext) -> Algorithm:
    """Return the algorithm that ``trainer_type`` names, with its networks and reward signals.

    Raises:
        UnsupportedError: something the settings ask for, or a sensor, is not built yet.
    """
    check_supported({context.behavior: context.settings})
    algorithm = ALGORITHMS[context.settings.trainer_type]
    with seeded(context.weights_seed):
        networks = algorithm.make_networks(context)
        signals = create_reward_signals(context.behavior, context.spec, context.settings, context.device)
    for network in networks.values():
        network.to(context.device)
    return algorithm(context, networks, signals)


def create_trainer(
    context: LearningContext,
    source: ExperienceSource,
    policies: PolicyQueue[Tensor],
    reporter: StatsReporter,
    checkpoint: Callable[[Trainer], None],
) -> Trainer:
    """Return a trainer at step 0, composed of its parts; see ``Trainer`` for the arguments.

    Raises:
        UnsupportedError: something the settings ask for, or a sensor, is not built yet.
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
