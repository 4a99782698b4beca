"""The gradient that is written out against autograd's, and what stacking leaves as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from attrs import evolve

from tests.nn.specs import behavior, camera, network, vector
from trajtrainer.algos.minibatch import Minibatch
from trajtrainer.algos.ppo import PPO, Coefficients
from trajtrainer.algos.stacked_networks import StackedNetworks, can_stack, stacking_pays
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.critic import Critic, SharedCritic
from trajtrainer.nn.init import seeded
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import PPOHyperparameters, TrainerSettings
from trajtrainer.spec import BehaviorSpec

ROWS = 40
LENGTH = 4  # of a sequence
SIGNALS = ("extrinsic", "rnd")
SPECS = {
    "continuous": behavior([vector(4), vector(3, "other")], 2),
    "one branch": behavior([vector(7)], 0, (3,)),
    "branches": behavior([vector(7)], 0, (3, 2)),
    "hybrid": behavior([vector(7)], 3, (2, 4)),
}


def make(
    spec: BehaviorSpec, settings: NetworkSettings, signals: tuple[str, ...] = SIGNALS, **hyper: Any
) -> tuple[Actor, Critic, PPO]:
    with seeded(3):
        actor, critic = Actor(spec, settings), Critic(spec, settings, signals)
    for body in (actor.body, critic.body):
        body.update_normalization(observations(spec))
    trainer = TrainerSettings(hyperparameters=PPOHyperparameters(**hyper), network_settings=settings)
    return actor, critic, PPO(actor, critic, trainer)


def observations(spec: BehaviorSpec) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(2.0 + torch.randn(ROWS, *sensor.shape, generator=generator) for sensor in spec.observation_specs)


def minibatch(spec: BehaviorSpec, signals: int = len(SIGNALS), memory_size: int = 0) -> Minibatch:
    """Rows of which about half leave the clipping ranges, some with forbidden actions; with a memory, sequences of
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
    return Minibatch(
        obs=observations(spec),
        mask=mask,
        continuous=torch.randn(ROWS, spec.action_spec.continuous_size, generator=generator),
        discrete=torch.stack(taken, 1) if taken else torch.zeros(ROWS, 0, dtype=torch.int64),
        log_prob=-1.2 + 0.5 * torch.randn(ROWS, columns, generator=generator),
        returns=torch.randn(ROWS, signals, generator=generator).t(),
        old_values=0.3 * torch.randn(ROWS, signals, generator=generator).t(),
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


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("value_clipping", [False, True])
@pytest.mark.parametrize("memory", [None, 6])
def test_the_gradient_is_autograds(name: str, layers: int, value_clipping: bool, memory: int | None) -> None:
    spec = SPECS[name]
    settings = network(layers=layers, normalize=True, memory=memory)
    actor, critic, ppo = make(spec, settings, value_clipping=value_clipping)
    if actor.head.log_sigma is not None:
        with torch.no_grad():
            # So small a deviation that the constant which keeps divisions finite counts. It magnifies the rounding of
            # the mean, of which a memory makes more.
            smallest = -6.0 if memory is None else -2.0
            actor.head.log_sigma.copy_(torch.tensor([[smallest, 0.5, 0.0]])[:, : actor.head.continuous_size])
    batch = minibatch(spec, memory_size=memory or 0)
    coefficients = Coefficients(learning_rate=0.0, epsilon=0.2, beta=0.3)
    if actor.head.continuous_size:
        with torch.no_grad():
            distribution, _ = actor.distribution(batch.obs, batch.mask, batch.memory, batch.sequence_length)
            batch.continuous.copy_(distribution.sample(torch.Generator().manual_seed(4)).continuous)
            batch.log_prob.add_(distribution.log_prob(batch.continuous, batch.discrete) + 1.2)
    loss, expected = ppo.loss(batch, coefficients, diagnostics=True)
    loss.backward()  # type: ignore[no-untyped-call]
    found = ppo.update(batch, coefficients)
    assert ppo._stack is not None
    flat = ppo._stack.flat.grad
    assert flat is not None
    for piece, (tag, parameter) in zip(
        ppo._stack.pieces, [*actor.named_parameters(), *critic.named_parameters()], strict=True
    ):
        assert parameter.grad is not None
        difference = (piece.view(flat) - parameter.grad).abs().max()
        assert difference <= 1e-7 + 1e-5 * parameter.grad.abs().max(), tag
    for tag, value in expected.items():
        torch.testing.assert_close(found[tag], value, rtol=1e-5, atol=1e-6)


def test_a_branch_without_allowed_actions_moves_nothing() -> None:
    spec = SPECS["one branch"]
    actor, _, ppo = make(spec, network())
    batch = minibatch(spec)
    batch.mask.fill_(True)
    loss, _ = ppo.loss(batch, ppo.coefficients(0))
    loss.backward()  # type: ignore[no-untyped-call]
    ppo.update(batch, ppo.coefficients(0))
    assert ppo._stack is not None
    flat = ppo._stack.flat.grad
    assert flat is not None
    for piece, parameter in zip(ppo._stack.pieces, actor.parameters(), strict=False):
        torch.testing.assert_close(piece.view(flat), parameter.grad, rtol=1e-4, atol=1e-6)


def test_the_modules_go_on_working() -> None:
    spec = SPECS["hybrid"]
    with seeded(0):
        actor, critic = Actor(spec, network()), Critic(spec, network(), SIGNALS)
    weights = {name: value.clone() for name, value in actor.state_dict().items()}
    batch = minibatch(spec)
    with torch.no_grad():
        before = actor.distribution(batch.obs, batch.mask)[0], critic(batch.obs)[0]
        stack = StackedNetworks(actor, critic)
        after = actor.distribution(batch.obs, batch.mask)[0], critic(batch.obs)[0]
        outputs = stack(stack.encoded(batch.obs))
    assert all(torch.equal(weights[name], value) for name, value in actor.state_dict().items())
    assert torch.equal(before[0].mu, after[0].mu)
    assert torch.equal(before[1], after[1])
    mu, logits = torch.from_numpy(outputs.policy[:, :3]), torch.from_numpy(outputs.policy[:, 3:])
    torch.testing.assert_close(mu, before[0].mu)
    torch.testing.assert_close(logits[~batch.mask], before[0].masked_logits[~batch.mask])
    torch.testing.assert_close(torch.from_numpy(outputs.values.T), before[1])
    # Loaded weights reach the stack, and a copy of a module is independent of it.
    independent = copy.deepcopy(actor)
    actor.load_state_dict({name: torch.zeros_like(value) for name, value in actor.state_dict().items()})
    assert not stack(stack.encoded(batch.obs)).policy.any()
    assert any(parameter.any() for parameter in independent.parameters())


def test_the_parameters_are_what_they_were_in_number_and_order() -> None:
    actor, critic, ppo = make(SPECS["hybrid"], network())
    assert ppo._stack is not None
    assert ppo._stack.flat.numel() == sum(p.numel() for p in [*actor.parameters(), *critic.parameters()])
    for number, piece in enumerate(ppo._stack.pieces):
        piece.view(ppo._stack.flat).fill_(number)
    for number, parameter in enumerate([*actor.parameters(), *critic.parameters()]):
        assert bool((parameter == number).all())


@pytest.mark.parametrize(("batch_size", "memory", "pays"), [(64, None, True), (1024, None, False), (300, 256, False)])
def test_it_pays_where_there_is_little_arithmetic(batch_size: int, memory: int | None, pays: bool) -> None:
    settings = network(hidden=128, layers=3, memory=memory)
    assert stacking_pays(Actor(SPECS["hybrid"], settings), batch_size) is pays
    assert (make(SPECS["hybrid"], settings, batch_size=batch_size)[2]._stack is not None) is pays


def test_which_networks_are_stacked() -> None:
    spec, pictures = SPECS["hybrid"], behavior([camera(3, 20, 20)], 2)

    def stackable(spec: BehaviorSpec, settings: NetworkSettings) -> bool:
        return can_stack(Actor(spec, settings), Critic(spec, settings, SIGNALS))

    assert stackable(spec, network(normalize=True))
    assert stackable(spec, network(memory=8))
    assert not stackable(pictures, network())
    assert not stackable(behavior([vector(3), vector(2, "goal", goal=True)], 2), network())
    actor = Actor(spec, evolve(network()))
    assert not can_stack(actor, SharedCritic(actor, SIGNALS))
