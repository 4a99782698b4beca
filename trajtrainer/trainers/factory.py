"""Trainers and their algorithms, by the names of ``trainer_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from trajtrainer.algos.algorithm import Algorithm, LearningContext
from trajtrainer.data.source import ExperienceSource
from trajtrainer.errors import UnsupportedError
from trajtrainer.nn.init import seeded
from trajtrainer.plugins import resolve
from trajtrainer.queues import PolicyQueue
from trajtrainer.rewards.factory import create_reward_signals
from trajtrainer.settings.convert import trainer_mapping
from trajtrainer.settings.support import unsupported
from trajtrainer.settings.trainer import ALGORITHMS, TrainerSettings
from trajtrainer.stats import StatsReporter
from trajtrainer.trainers.clock import Clock
from trajtrainer.trainers.episodes import EpisodeRecord
from trajtrainer.trainers.publisher import PolicyPublisher
from trajtrainer.trainers.trainer import Trainer


def check_supported(behaviors: Mapping[str, TrainerSettings]) -> None:
    """Refuse what is valid in a YAML file but not built yet, before anything is started.

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
    return algorithm_class(settings.trainer_type).max_lead(settings)


def needs_groups(settings: TrainerSettings) -> bool:
    """Return whether the trainer learns from the groupmates of each step."""
    return algorithm_class(settings.trainer_type).needs_groups


def algorithm_class(name: str) -> type[Algorithm]:
    """Return the algorithm of this ``trainer_type``, which is built.

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
    """Return the algorithm that ``trainer_type`` names, with its networks and reward signals.

    Raises:
        UnsupportedError: something the settings ask for, or a sensor, is not built yet.
        PluginError: it is of a package, and fails.
    """
    check_supported({context.behavior: context.settings})
    name = context.settings.trainer_type
    algorithm = algorithm_class(name)
    with seeded(context.weights_seed):
        with ALGORITHMS.blaming(name):
            networks = algorithm.make_networks(context)
        signals = create_reward_signals(context.behavior, context.spec, context.settings, context.device)
    for network in networks.values():
        network.to(context.device)
    with ALGORITHMS.blaming(name):
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
