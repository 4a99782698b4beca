"""Which way of differentiating is chosen, and what each leaves as it was. What they compute: ``test_parity``."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from attrs import evolve

from tests.learning.algos.samples import SIGNALS, SPECS, learner, make, minibatch
from tests.learning.nn.specs import behavior, camera, entities, network, vector
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.learning.algos.poca.poca import POCA
from trajtrainer.learning.algos.poca.settings import POCAHyperparameters
from trajtrainer.learning.algos.ppo.ppo import PPO, Loss
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import SharedCritic, ValueNetwork
from trajtrainer.learning.nn.fast import two_cores
from trajtrainer.learning.nn.fast.adam import part_of
from trajtrainer.learning.nn.fast.batched_networks import BatchedNetworks
from trajtrainer.learning.nn.fast.two_cores import HalvedGroups, TwoThreads, group_encoding, multiply_adds
from trajtrainer.learning.nn.init import seeded
from trajtrainer.learning.nn.multi_agent import GroupCritic
from trajtrainer.settings.network import MemorySettings, NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

PICTURES = behavior([camera(3, 20, 20)], 2)
TINY = behavior([camera(1, 4, 4)], 2)


def way(spec: BehaviorSpec, settings: NetworkSettings, batch_size: int = 64, *, shared: bool = False) -> str:
    """Return which way of learning is chosen."""
    actor = Actor(spec, settings)
    critic = SharedCritic(actor, SIGNALS) if shared else ValueNetwork(spec, settings, SIGNALS)
    hyper = PPOHyperparameters(batch_size=batch_size, shared_critic=shared)
    ppo = learner(spec, actor, critic, TrainerSettings(hyperparameters=hyper, network_settings=settings))
    if ppo.closed_form is not None:
        return "closed form"
    return "in turn" if ppo._threads is None else "side by side"


@pytest.mark.parametrize(
    ("batch_size", "memory", "expected"),
    [(64, None, "closed form"), (1024, None, "side by side"), (300, 256, "side by side")],
)
def test_mlps_by_their_arithmetic(batch_size: int, memory: int | None, expected: str) -> None:
    assert way(SPECS["hybrid"], network(hidden=128, layers=3, memory=memory), batch_size) == expected


@pytest.mark.parametrize(("length", "expected"), [(32, "closed form"), (64, "side by side")])
def test_memories_by_the_length_of_sequences(length: int, expected: str) -> None:
    settings = evolve(network(hidden=128), memory=MemorySettings(sequence_length=length, memory_size=128))
    assert way(SPECS["hybrid"], settings) == expected


def test_other_networks() -> None:
    goal = behavior([vector(3), vector(2, "goal", goal=True)], 2)
    assert way(SPECS["hybrid"], network(normalize=True, memory=8)) == "closed form"
    assert way(PICTURES, network(hidden=64), 128) == "side by side"
    assert way(PICTURES, network(hidden=64), 128, shared=True) == "in turn"
    assert way(SPECS["hybrid"], network(), shared=True) == "in turn"
    assert way(behavior([entities(4, 6)], 2), network()) == "side by side"
    assert way(goal, network(hidden=16), 32) == "in turn"
    assert way(goal, network(hidden=128), 32) == "side by side"
    assert way(TINY, network(encoder="fully_connected"), 32) == "in turn"


@pytest.mark.parametrize(("hidden", "halved"), [(64, False), (256, True)])
def test_the_critic_of_large_groups_takes_both_cores(hidden: int, halved: bool) -> None:
    spec, settings = SPECS["hybrid"], network(hidden=hidden)
    critic = GroupCritic(spec, settings, SIGNALS)
    hyper = POCAHyperparameters(batch_size=256)
    trainer = TrainerSettings(trainer_type="poca", hyperparameters=hyper, network_settings=settings)
    poca = learner(spec, Actor(spec, settings), critic, trainer, POCA)
    assert isinstance(group_encoding(critic, 256), HalvedGroups) == halved
    assert poca.closed_form is None
    assert (poca._threads is None) == halved


def test_large_networks_for_pictures_that_policy_and_values_share_take_both_cores() -> None:
    spec, vectors = behavior([camera(4, 84, 84)], 0, (6,)), behavior([vector(500)], 2)
    settings = network(hidden=512, encoder="nature_cnn")

    def is_halved(spec: BehaviorSpec, settings: NetworkSettings, rows: int = 256, *, shared: bool = True) -> bool:
        actor = Actor(spec, settings)
        critic = SharedCritic(actor, SIGNALS) if shared else ValueNetwork(spec, settings, SIGNALS)
        hyper = PPOHyperparameters(batch_size=rows, shared_critic=shared)
        trainer = TrainerSettings(hyperparameters=hyper, network_settings=settings)
        return learner(spec, actor, critic, trainer)._encode_pictures is not None

    assert is_halved(spec, settings)
    assert not is_halved(spec, settings, shared=False), "they have a core each"
    assert not is_halved(spec, network(hidden=512, encoder="nature_cnn", memory=8))
    assert not is_halved(spec, network(hidden=64, encoder="simple"), 64)
    assert not is_halved(vectors, network(hidden=512))


def test_the_choice_is_by_numbers_that_do_not_depend_on_the_machine() -> None:
    # 7 -> 16 -> 16, twice as often for twice the rows.
    assert multiply_adds(Actor(SPECS["hybrid"], network()).body, 10) == 10 * (7 * 16 + 16 * 16)
    assert {way(PICTURES, network(hidden=64), 128) for _ in range(3)} == {"side by side"}


def test_a_branch_without_allowed_actions_moves_nothing() -> None:
    spec = SPECS["one branch"]
    actor, _, ppo = make(spec, network())
    batch = minibatch(spec)
    batch["mask"].fill_(True)
    loss, _ = ppo.loss(batch, ppo.schedule(0))
    loss.backward()  # type: ignore[no-untyped-call]
    ppo.gradient_step(batch, ppo.schedule(0))
    (flat,) = ppo.leaves
    assert flat.grad is not None
    for parameter in actor.parameters():
        torch.testing.assert_close(part_of(flat.grad, flat, parameter), parameter.grad, rtol=1e-4, atol=1e-6)


def test_the_modules_go_on_working() -> None:
    spec = SPECS["hybrid"]
    with seeded(0):
        actor, critic = Actor(spec, network()), ValueNetwork(spec, network(), SIGNALS)
    weights = {name: value.clone() for name, value in actor.state_dict().items()}
    batch = minibatch(spec)
    with torch.no_grad():
        before = actor.distribution(batch.obs, batch["mask"])[0], critic(batch.obs)[0]
        stack = BatchedNetworks(actor, critic)
        after = actor.distribution(batch.obs, batch["mask"])[0], critic(batch.obs)[0]
        outputs = stack(stack.encoded(batch.obs))
    assert all(torch.equal(weights[name], value) for name, value in actor.state_dict().items())
    assert torch.equal(before[0].mu, after[0].mu)
    assert torch.equal(before[1], after[1])
    mu, logits = torch.from_numpy(outputs.policy[:, :3]), torch.from_numpy(outputs.policy[:, 3:])
    torch.testing.assert_close(mu, before[0].mu)
    torch.testing.assert_close(logits[~batch["mask"]], before[0].masked_logits[~batch["mask"]])
    torch.testing.assert_close(torch.from_numpy(outputs.values.T), before[1])
    # Loaded weights reach the stack, and a copy of a module is independent of it.
    independent = copy.deepcopy(actor)
    actor.load_state_dict({name: torch.zeros_like(value) for name, value in actor.state_dict().items()})
    assert not stack(stack.encoded(batch.obs)).policy.any()
    assert any(parameter.any() for parameter in independent.parameters())


def test_the_parameters_are_what_they_were_in_number_and_order() -> None:
    actor, critic, ppo = make(SPECS["hybrid"], network())
    (flat,) = ppo.leaves
    assert flat.numel() == sum(p.numel() for p in [*actor.parameters(), *critic.parameters()])
    for number, parameter in enumerate(ppo._parameters):
        part_of(flat, flat, parameter).fill_(number)
    for number, parameter in enumerate([*actor.parameters(), *critic.parameters()]):
        assert bool((parameter == number).all())


@pytest.mark.parametrize("cores", [1, 2])
def test_results_come_in_the_order_of_the_arguments(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_cores, "usable_cores", lambda: cores)
    found = TwoThreads().run(lambda number: (number, threading.current_thread()), [(1,), (2,)])
    assert [number for number, _ in found] == [1, 2]
    assert len({thread for _, thread in found}) == cores


@pytest.mark.parametrize("wrong", [0, 1])
def test_errors_come_through(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_cores, "usable_cores", lambda: 2)

    def divide(number: int) -> float:
        return 1 / number

    arguments = [(1,), (1,)]
    arguments[wrong] = (0,)
    threads = TwoThreads()
    with pytest.raises(ZeroDivisionError):
        threads.run(divide, arguments)
    assert threads.run(divide, [(1,), (2,)]) == [1.0, 0.5]


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2)])
def test_actor_and_critic_learn_at_the_same_time(cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_cores, "usable_cores", lambda: cores)
    actor, critic, ppo = make(PICTURES, network(hidden=64), batch_size=128)
    assert ppo.closed_form is None
    names: set[str] = set()
    for network_ in (actor, critic):
        network_.body.encoder.register_forward_hook(lambda *_: names.add(threading.current_thread().name))
    found = ppo.gradient_step(minibatch(PICTURES), ppo.schedule(0))
    assert found.keys() >= {"Losses/Policy Loss", "Losses/Value Loss", "Policy/Gradient Norm"}
    assert len(names) == threads


class Doubled(PPO):
    """With a loss of its own."""

    def value_loss(self, *arguments: Any) -> Loss:
        loss, statistics = super().value_loss(*arguments)
        return 2.0 * loss, statistics


def test_losses_of_a_subclass_are_learned_by_autograd() -> None:
    spec, settings = SPECS["hybrid"], network()
    first = {}
    for kind in (PPO, Doubled):
        with seeded(0):
            actor, critic = Actor(spec, settings), ValueNetwork(spec, settings, SIGNALS)
        ppo = learner(spec, actor, critic, TrainerSettings(network_settings=settings), kind)
        assert (ppo.closed_form is None) == (kind is Doubled)
        ppo.gradient_step(minibatch(spec), ppo.schedule(0))
        moments = ppo.optimizer_states()["adam"]["state"]
        first[kind] = [moments[number]["exp_avg"] for number in range(len(moments))][-len(list(critic.parameters())) :]
    for plain, doubled in zip(first[PPO], first[Doubled], strict=True):
        torch.testing.assert_close(doubled, 2.0 * plain, rtol=1e-4, atol=1e-7)


def test_a_behavior_without_actions_is_not_an_mlp_to_differentiate_by_hand() -> None:
    assert way(behavior([vector(3)], 0), network()) == "in turn"
