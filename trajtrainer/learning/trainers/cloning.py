"""Sets up behavioral cloning alongside another algorithm."""

from __future__ import annotations

import logging

from trajtrainer.core.seeds import derived_seeds
from trajtrainer.experience.recordings.demonstrations import load_demonstrations
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.cloning import DEFAULT_EPOCHS, BehavioralCloning
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.rewards.demonstrations import DemonstrationRows
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.trainer import BehavioralCloningSettings

# With more cloning steps than this per gradient step of an off-policy algorithm, cloning takes nearly all the time.
_MANY_STEPS = 10

logger = logging.getLogger(__name__)


def create_cloning(context: LearningContext, actor: Actor, settings: BehavioralCloningSettings) -> BehavioralCloning:
    """Create a ``BehavioralCloning`` that uses a behavior's demonstrations.

    Raises:
        DemonstrationError: a recording cannot be read, or does not match the agents.
    """
    memory = context.settings.network_settings.memory
    packed = load_demonstrations([settings.demo_path], spec=context.spec).packed
    rows = DemonstrationRows(packed, actor.head, 1 if memory is None else memory.sequence_length, context.device)
    seed = derived_seeds(context.seed, f"{context.behavior} cloning")[1]
    hyper = context.settings.hyperparameters
    cloning = BehavioralCloning(actor, rows, settings, hyper, seed)
    if ALGORITHMS[context.settings.trainer_type].replays and cloning.steps_per_update > _MANY_STEPS:
        logger.warning(
            "Behavior %r: behavioral cloning adds %d gradient steps on %d recorded steps to each gradient step of %s. "
            "To speed up training, set samples_per_update: %d in behavioral_cloning, which reduces them to %d.",
            context.behavior,
            cloning.steps_per_update,
            len(rows),
            context.settings.trainer_type.upper(),
            settings.batch_size or hyper.batch_size,
            settings.num_epoch or DEFAULT_EPOCHS,
        )
    return cloning
