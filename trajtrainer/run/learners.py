"""Creates the learner of a behavior: its trainer, the acting policy, and the pacing between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve
from torch import Tensor

from trajtrainer.core.errors import DemonstrationError, OutOfMemoryError, SettingsError, UnsupportedError, first_line
from trajtrainer.core.queues import PolicyQueue
from trajtrainer.core.seeds import derived_seeds
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.stats import StatsReporter
from trajtrainer.envs.select import episode_limit
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.trainers.episodes import ArrivedEpisodes, EpisodeRecord
from trajtrainer.learning.trainers.factory import create_trainer
from trajtrainer.learning.trainers.trainer import BehaviorTrainer, Trainer
from trajtrainer.run.actors.link import Learner
from trajtrainer.run.actors.pacing import Pacing
from trajtrainer.run.coupling import Coupling
from trajtrainer.run.experts import make_expert
from trajtrainer.run.run import Run
from trajtrainer.settings.trainer import TrainerSettings

if TYPE_CHECKING:
    from trajtrainer.experience.recordings.demonstrations import Demonstrations
    from trajtrainer.run.actors.messages import NewBehavior

Checkpoint = Callable[[BehaviorTrainer], None]
"""A function that saves a checkpoint when one is due."""


def make_learner(
    run: Run, messages: Callable[[], int], found: NewBehavior, checkpoint: Checkpoint
) -> tuple[Learner, Trainer]:
    """Create the learner of a new behavior. For ``messages``, see ``LearningContext``.

    Raises:
        SettingsError: the configuration has no settings for the behavior.
        UnsupportedError: no network supports its sensors or actions.
        CheckpointError: an opponent's checkpoint cannot be used.
        OutOfMemoryError: there is not enough memory for the networks or the buffer.
    """
    name = found.behavior_id.name
    settings = run.settings.for_behavior(name)
    if run.acts_elsewhere:
        settings = evolve(settings, threaded=False)  # acting and learning already overlap
    if run.is_training and settings.is_offline:
        raise SettingsError(
            f"The environment has a behavior {name!r} that is not listed under 'behaviors', and 'default_settings' "
            f"would train it from a data set (trainer_type {settings.trainer_type}). List it under 'behaviors', with "
            "its own dataset or another trainer_type."
        )
    coupling = Coupling.of(settings, elsewhere=run.actors_elsewhere, is_training=run.is_training)
    policies: PolicyQueue[Tensor] = PolicyQueue()
    context = replace(
        _context(run, name, settings, found.spec, found.obs_dtypes),
        expert=make_expert(run.settings, name, settings, found.spec) if run.is_training else None,
        max_policy_lag=coupling.max_policy_lag,
        messages=messages,
    )
    reporter = StatsReporter(name, run.writers)
    with _blaming(name):
        trainer = create_trainer(context, coupling.source(), policies, reporter, checkpoint)
    trainer.episodes.set_reward_buffer_size(run.curriculum.reward_buffer_length(name))
    policy = _policy(run, trainer)
    self_play = None
    if settings.self_play is not None and run.is_training:
        # Lazy import: only behaviors with self-play need it.
        from trajtrainer.learning.trainers.self_play import SelfPlay
        from trajtrainer.run.opponents import players_of_files

        self_play = SelfPlay(
            settings.self_play,
            run.teams,
            behavior=name,
            seed=context.seed,
            policy=policy,
            policies=policies,
            reporter=reporter,
            step=lambda: trainer.collected,
            files=players_of_files(run.settings, context, policy.memory_size),
        )
    recorded = ArrivedEpisodes(run.curriculum.reward_buffer_length(name) if run.curriculum.measures(name) else 0)
    pacing = coupling.pacing(trainer, self_play)
    return Learner(trainer, policy, policies, self_play, pacing, coupling.lead, recorded), trainer


def make_offline_learner(
    run: Run, name: str, dataset: Demonstrations, checkpoint: Checkpoint
) -> tuple[Learner, EpisodeRecord]:
    """Create the learner of a behavior that learns from a data set, and an episode record. See ``make_learner``.

    If there are agents of this behavior in the environment, they act with its policy, but it does not learn from them.
    """
    # Lazy import: only runs with data sets need it.
    from trajtrainer.learning.trainers.offline import create_offline_trainer

    settings = evolve(run.settings.for_behavior(name), threaded=False)  # no acting that could overlap with learning
    obs_dtypes = [column.dtype for column in dataset.packed.obs]
    context = replace(
        _context(run, name, settings, dataset.spec, obs_dtypes),
        expert=make_expert(run.settings, name, settings, dataset.spec),
    )
    policies: PolicyQueue[Tensor] = PolicyQueue()
    reporter = StatsReporter(name, run.writers)
    with _blaming(name):
        trainer = create_offline_trainer(context, dataset.packed, policies, reporter, checkpoint)
    return Learner(trainer, _policy(run, trainer), policies, None, Pacing(name), lead=0), EpisodeRecord(reporter)


def _context(
    run: Run, name: str, settings: TrainerSettings, spec: BehaviorSpec, obs_dtypes: Sequence[np.dtype[Any]]
) -> LearningContext:
    evaluations = run.settings.evaluations_of(settings) if run.is_training else None
    return LearningContext(
        behavior=name,
        spec=spec,
        settings=settings,
        obs_dtypes=obs_dtypes,
        seed=run.settings.env_settings.seed,
        device=run.device,
        training=run.is_training,
        timers=run.timers,
        is_stopping=lambda: run.stop.requested,
        episode_limit=episode_limit(run.settings.env_settings),
        evaluation_interval=None if evaluations is None else evaluations.interval,
    )


def _policy(run: Run, trainer: BehaviorTrainer) -> ActorPolicy:
    context = trainer.context
    return ActorPolicy(
        trainer.actor,
        seed=derived_seeds(context.seed, f"{context.behavior} acting")[0],
        deterministic=context.settings.network_settings.deterministic,
        evenly_first=context.settings.acts_evenly_first and run.is_training,
        device=run.acting_device,
    )


@contextlib.contextmanager
def _blaming(behavior: str) -> Iterator[None]:
    """Add the behavior's name to error messages, and explain failed memory allocations."""
    try:
        yield
    except (UnsupportedError, DemonstrationError) as error:
        raise type(error)(f"Behavior {behavior!r}: {error}") from error
    except (MemoryError, RuntimeError) as error:
        # torch has no special exception class for this on the CPU
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        raise OutOfMemoryError(
            f"There is not enough memory for the networks and the buffer of behavior {behavior!r} "
            f"({first_line(error)}). Reduce the size of its observations (especially of images), buffer_size, or "
            "hidden_units."
        ) from error
