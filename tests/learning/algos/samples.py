"""Networks and rows for the tests of twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tests.learning.algos.minibatches import minibatch_of
from tests.learning.nn.specs import behavior, network, vector
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray
from trajtrainer.core.timers import Timers
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.ppo.ppo import PPO
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import SharedCritic, ValueNetwork
from trajtrainer.learning.nn.init import seeded
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.multi_agent import GroupCritic
from trajtrainer.learning.nn.normalization import batch_statistics
from trajtrainer.learning.rewards.signal import ExtrinsicReward
from trajtrainer.settings.components import RewardSignalSettings
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

T = TypeVar("T")

ROWS = 40
LENGTH = 4  # of a sequence
SIGNALS = ("extrinsic", "rnd")
SPECS = {
    "continuous": behavior([vector(4), vector(3, "other")], 2),
    "one branch": behavior([vector(7)], 0, (3,)),
    "branches": behavior([vector(7)], 0, (3, 2)),
    "hybrid": behavior([vector(7)], 3, (2, 4)),
}
SAC = {"conditional_sigma": True, "tanh_squash": True}

# Learning


def make(spec: BehaviorSpec, settings: NetworkSettings, **hyper: Any) -> tuple[Actor, ValueNetwork, PPO]:
    """Make networks whose normalizers have seen something."""
    with seeded(3):
        actor, critic = Actor(spec, settings), ValueNetwork(spec, settings, SIGNALS)
    for body in (actor.body, critic.body):
        body.update_normalization(observations(spec))
    trainer = TrainerSettings(hyperparameters=PPOHyperparameters(**hyper), network_settings=settings)
    return actor, critic, learner(spec, actor, critic, trainer)


def learner(
    spec: BehaviorSpec,
    actor: Actor,
    critic: ValueNetwork | SharedCritic | GroupCritic,
    settings: TrainerSettings,
    kind: type[PPO] = PPO,
) -> PPO:
    """Make a learner of minibatches: its buffer has no room."""
    context = LearningContext(
        behavior="B",
        spec=spec,
        settings=settings,
        obs_dtypes=[np.dtype(np.float32)] * len(spec.observation_specs),
        seed=0,
        device=torch.device("cpu"),
        training=False,
        timers=Timers(),
        is_stopping=lambda: False,
    )
    signals = [ExtrinsicReward(spec, RewardSignalSettings(), context.device) for _ in critic.signals]
    return kind(context, {"actor": actor, "critic": critic}, signals)


def without_closed_form(make: Callable[[], T]) -> T:
    """Make learners that differentiate by autograd, whatever their networks."""
    with mock.patch("trajtrainer.learning.algos.ppo.closed_form._HAND_WRITTEN_BELOW", 0):
        return make()


def observations(spec: BehaviorSpec) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(2.0 + torch.randn(ROWS, *sensor.shape, generator=generator) for sensor in spec.observation_specs)


def minibatch(spec: BehaviorSpec, memory_size: int = 0) -> Minibatch:
    """Make rows of which about half leave the clipping ranges, some with forbidden actions; with a memory, sequences of
    which some end in padding."""
    generator = torch.Generator().manual_seed(2)
    branches = spec.action_spec.discrete_branches
    mask = torch.rand(ROWS, sum(branches), generator=generator) < 0.3
    taken, start = [], 0
    for size in branches:
        mask[:, start] = False
        taken.append(torch.where(mask[:, start + 1], 0, torch.randint(2, (ROWS,), generator=generator)))
        start += size
    columns = spec.action_spec.continuous_size + len(branches)
    return minibatch_of(
        obs=observations(spec),
        mask=mask,
        continuous=torch.randn(ROWS, spec.action_spec.continuous_size, generator=generator),
        discrete=torch.stack(taken, 1) if taken else torch.zeros(ROWS, 0, dtype=torch.int64),
        log_prob=-1.2 + 0.5 * torch.randn(ROWS, columns, generator=generator),
        returns=torch.randn(ROWS, len(SIGNALS), generator=generator).t(),
        old_values=0.3 * torch.randn(ROWS, len(SIGNALS), generator=generator).t(),
        advantage=torch.randn(ROWS, generator=generator),
        **(_sequences(memory_size, generator) if memory_size else {}),
    )


def _sequences(memory_size: int, generator: torch.Generator) -> dict[str, Any]:
    mask = torch.ones(ROWS // LENGTH, LENGTH)
    mask[1, 1:] = mask[4, 3:] = 0
    memory, critic_memory = torch.randn(2, ROWS // LENGTH, memory_size, generator=generator)
    return {
        "memory": memory,
        "critic_memory": critic_memory,
        "loss_mask": mask.flatten(),
        "sequence_length": LENGTH,
    }


# Acting


@dataclass
class Inputs:
    obs: tuple[FloatArray, ...]
    mask: BoolArray
    memory: FloatArray


def make_actor(
    continuous: int = 2,
    branches: tuple[int, ...] = (),
    *,
    seed: int = 0,
    sac: bool = False,
    batch_norm: bool = False,
    **settings: Any,
) -> Actor:
    """Make an actor whose normalizers have seen something and whose head's outputs are not all about zero."""
    spec = behavior([vector(4), vector(3, "other")], continuous, branches)
    with seeded(seed):
        actor = Actor(spec, network(**settings), **(SAC if sac else {}), batch_norm=batch_norm)
        with batch_statistics(actor):
            for _ in range(100 if batch_norm else 0):  # that running statistics are nothing special
                actor.body([3.0 + 2.0 * torch.randn(50, *one.shape) for one in spec.observation_specs])
        actor.update_normalization([3.0 + 2.0 * torch.randn(50, *one.shape) for one in spec.observation_specs])
        with torch.no_grad():
            for parameter in actor.head.parameters():
                parameter.add_(torch.randn(parameter.shape))
    return actor


def inputs(actor: Actor, *, agents: int = 30, seed: int = 0) -> Inputs:
    """Make observations wide enough that some of the normalized ones are clipped; a third of the actions forbidden, of
    each branch at least one allowed."""
    rng = np.random.default_rng(seed)
    masks = [rng.random((agents, size)) < 1 / 3 for size in actor.head.branches]
    for one in masks:
        one[np.arange(agents), rng.integers(one.shape[1], size=agents)] = False
    return Inputs(
        obs=tuple((8.0 * rng.normal(size=(agents, size))).astype(np.float32) for size in (4, 3)),
        mask=np.concatenate([np.zeros((agents, 0), bool), *masks], 1),
        memory=rng.normal(size=(agents, actor.memory_size)).astype(np.float32),
    )


@torch.no_grad()
def decided(actor: Actor, given: Inputs, generator: torch.Generator | None) -> dict[str, Tensor]:
    """Return what the actor's distribution decides by this generator, or its likeliest actions."""
    distribution, memory = actor.distribution(
        [torch.from_numpy(one) for one in given.obs], torch.from_numpy(given.mask), torch.from_numpy(given.memory)
    )
    expected = distribution.deterministic() if generator is None else distribution.sample(generator)
    if generator is None and actor.head.tanh_squash:
        # As a draw, whose log_prob is exact; that of any other action suffers from the inverse of tanh.
        expected = expected._replace(continuous=distribution.continuous_from_noise(torch.zeros_like(distribution.mu)))
    return {
        "discrete": expected.discrete.to(torch.int32),
        "continuous": expected.continuous,
        "env_continuous": distribution.to_env(expected.continuous),
        "log_prob": distribution.log_prob(*expected),
        "entropy": distribution.entropy(),
        "memory": memory,
    }


def check(actions: ActionBatch, actor: Actor, given: Inputs, generator: torch.Generator | None) -> None:
    """Raise unless the actions are those that the actor's distribution decides."""
    for what, expected in decided(actor, given, generator).items():
        found = torch.from_numpy(getattr(actions, what))
        torch.testing.assert_close({what: found}, {what: expected}, rtol=1e-5, atol=1e-5)
