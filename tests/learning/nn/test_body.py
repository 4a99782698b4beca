"""Attention, goal conditioning, actions and normalization in the body; initial weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tests.learning.nn.specs import behavior, camera, entities, network, vector
from trajtrainer.core.spec import ObservationSpec
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.attention import EMBEDDING, EntityEmbedding
from trajtrainer.learning.nn.body import NetworkBody
from trajtrainer.learning.nn.conditioning import FewRows, HyperBody, HyperLayer, Mlp
from trajtrainer.learning.nn.critic import SharedCritic, ValueNetwork
from trajtrainer.learning.nn.init import seeded
from trajtrainer.settings.network import ConditioningType


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# attention


@torch.no_grad()
def test_entities_have_no_order() -> None:
    body = NetworkBody([vector(4), entities(6, 3)], network())
    own, seen = noise(5, 4), noise(5, 6, 3, seed=1)
    first, _ = body([own, seen])
    second, _ = body([own, seen[:, [3, 1, 5, 0, 2, 4]]])
    torch.testing.assert_close(first, second)


@torch.no_grad()
def test_padding_does_not_count() -> None:
    long, short = NetworkBody([entities(6, 3)], network()), NetworkBody([entities(2, 3)], network())
    short.load_state_dict(long.state_dict())
    seen = noise(5, 2, 3)
    padded = torch.cat((seen, torch.full((5, 4, 3), 0.05)), 1)  # sum of squares 0.0075
    torch.testing.assert_close(long([padded])[0], short([seen])[0])
    present = torch.cat((seen, torch.full((5, 4, 3), 0.06)), 1)  # sum of squares 0.0108
    assert not torch.allclose(long([present])[0], short([seen])[0])


@torch.no_grad()
def test_nothing_but_padding_is_zeros() -> None:
    body = NetworkBody([vector(4), entities(6, 3)], network())
    encoding, _ = body.encoder([noise(5, 4), torch.zeros(5, 6, 3)])
    assert torch.equal(encoding[:, 4:], torch.zeros(5, EMBEDDING))
    assert bool(torch.isfinite(body([noise(5, 4), torch.zeros(5, 6, 3)])[0]).all())


@torch.no_grad()
def test_attention_stands_last_whatever_the_order_of_sensors() -> None:
    body = NetworkBody([entities(6, 3), vector(4), entities(2, 5, "others"), vector(2, "more")], network())
    own, more = noise(5, 4), noise(5, 2, seed=1)
    encoding, _ = body.encoder([noise(5, 6, 3), own, noise(5, 2, 5), more])
    assert encoding.shape == (5, 6 + EMBEDDING)
    assert torch.equal(encoding[:, :6], torch.cat((own, more), 1))


@torch.no_grad()
def test_an_entity_is_embedded_behind_the_agent_itself() -> None:
    embedding = EntityEmbedding(3, 4, 8)
    own, seen = noise(5, 4), noise(5, 6, 3)
    both = torch.cat((own.unsqueeze(1).expand(5, 6, 4), seen), 2)
    torch.testing.assert_close(embedding(seen, own), nn.functional.silu(embedding.linear(both)))


# goals


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_goal_changes_the_weights(layers: int) -> None:
    spec = [vector(5), vector(3, "goal", goal=True)]
    body = NetworkBody(spec, network(layers=layers))
    assert body.conditioned
    assert isinstance(body.layers, HyperBody)
    assert len(body.layers.plain) == layers - 1
    out, _ = body([noise(4, 5), torch.eye(3)[[0, 1, 2, 0]]])
    assert out.shape == (4, 16)
    # One row alone gives the same as in a batch with other goals.
    alone, _ = body([noise(4, 5)[1:2], torch.eye(3)[1:2]])
    torch.testing.assert_close(alone, out[1:2])


@pytest.mark.parametrize("goals", [1, 2, 8, 9, 20])
def test_samples_with_the_same_goal_share_its_weights(goals: int) -> None:
    """Results and gradients are those of each sample alone, however many goals there are."""
    layer = HyperLayer(5, 3, 7)
    x = noise(20, 5).requires_grad_()
    goal = noise(goals, 3, seed=1)[torch.arange(20) % goals]
    together = layer(x, goal)
    together.square().sum().backward()
    gradients = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    alone = torch.cat([layer(x[i : i + 1], goal[i : i + 1]) for i in range(20)])
    alone.square().sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(together, alone)
    for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_few_rows_have_the_gradients_of_a_linear_layer(count: int) -> None:
    given = [noise(count, 6, seed=1), noise(40, 6, seed=2), noise(40, seed=3)]
    found = []
    for linear in (FewRows.apply, nn.functional.linear):
        rows, weight, bias = leaves = [one.clone().requires_grad_() for one in given]
        out = linear(rows, weight, bias)
        out.sin().sum().backward()
        found.append([out, *(leaf.grad for leaf in leaves)])
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


def test_gradients_reach_a_learned_goal() -> None:
    layer = HyperLayer(5, 3, 7)
    goal = torch.zeros(4, 3, requires_grad=True)
    layer(noise(4, 5), goal).sum().backward()
    assert goal.grad is not None
    assert bool(goal.grad.any())


def test_no_hyper_layers_without_a_goal_or_when_switched_off() -> None:
    assert isinstance(NetworkBody([vector(5)], network()).layers, Mlp)
    goal = [vector(5), vector(3, goal=True)]
    assert isinstance(NetworkBody(goal, network(conditioning=ConditioningType.NONE)).layers, Mlp)


@torch.no_grad()
@pytest.mark.parametrize("others", [[], [vector(3)], [camera(3, 20, 20)]], ids=["alone", "vector", "picture"])
def test_goals_of_variable_length_are_ordinary_observations(others: list[ObservationSpec]) -> None:
    """As in ML-Agents: the same network, with the same names, as if the goal was none."""
    bodies = []
    for goal in (True, False):
        torch.manual_seed(1)
        bodies.append(NetworkBody([*others, entities(4, 2, "goals", goal=goal)], network()))
    conditioned, plain = bodies
    assert isinstance(conditioned.layers, Mlp)
    found, expected = conditioned.state_dict(), plain.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@torch.no_grad()
def test_a_picture_as_goal_is_encoded_once() -> None:
    body = NetworkBody([vector(5), camera(1, 20, 20, goal=True)], network())
    calls = []
    body.encoder.sensors[1].register_forward_hook(lambda *_: calls.append(1))
    body([noise(2, 5), noise(2, 1, 20, 20)])
    assert len(calls) == 1


# shapes


@torch.no_grad()
def test_everything_together_with_memory_and_shared_critic() -> None:
    spec = behavior(
        [entities(4, 3), camera(3, 20, 20), vector(3, "goal", goal=True), vector(5), camera(1, 24, 20, "second")],
        2,
        (3, 2),
    )
    settings = network(normalize=True, memory=12)
    actor = Actor(spec, settings)
    obs = [noise(6, 4, 3), noise(6, 3, 20, 20), noise(6, 3), noise(6, 5), noise(6, 1, 24, 20)]
    critics = (SharedCritic(actor, ["extrinsic", "rnd"]), ValueNetwork(spec, settings, ["extrinsic", "rnd"]))
    actor.update_normalization(obs)
    mask = torch.zeros(6, 5, dtype=torch.bool)
    distribution, memory = actor.distribution(obs, mask, None, 3)
    assert actor.body.encoding_size == 6
    assert memory.shape == (2, 12)
    assert distribution.mu.shape == (6, 2)
    for critic in critics:
        values, memory = critic(obs, None, 3)
        assert values.shape == (2, 6)
        assert memory.shape == (2, 12)


@torch.no_grad()
def test_actions_are_appended() -> None:
    q = ValueNetwork(behavior([vector(4)], 2), network(), ["extrinsic"], action_size=2, outputs=5)
    values, _ = q([noise(3, 4)], actions=noise(3, 2))
    assert values.shape == (1, 3, 5)
    other, _ = q([noise(3, 4)], actions=noise(3, 2, seed=1))
    assert not torch.equal(values, other)


def test_normalizers_are_copied_to_another_body() -> None:
    spec = [vector(3), entities(2, 4), vector(2, "second")]
    source, target = NetworkBody(spec, network(normalize=True)), NetworkBody(spec, network(normalize=True))
    source.update_normalization([noise(9, 3), noise(9, 2, 4), noise(9, 2)])
    target.copy_normalization(source)
    assert list(target.encoder.normalizers()) == [0, 2]
    for i, normalizer in target.encoder.normalizers().items():
        assert int(normalizer.steps) == 10
        assert torch.equal(normalizer.mean, source.encoder.normalizers()[i].mean)


def test_the_shared_critic_owns_its_heads_alone() -> None:
    actor = Actor(behavior([vector(4)]), network())
    critic = SharedCritic(actor, ["extrinsic"])
    assert set(critic.state_dict()) == {"heads.linears.extrinsic.weight", "heads.linears.extrinsic.bias"}
    assert not {id(p) for p in actor.parameters()} & {id(p) for p in critic.parameters()}
    critic([noise(3, 4)])[0].sum().backward()
    assert all(p.grad is not None for p in actor.body.parameters())


# initial weights


@torch.no_grad()
def check_normal(weight: Tensor, std: float) -> None:
    assert abs(float(weight.mean())) < 0.1 * std
    assert float(weight.std()) == pytest.approx(std, rel=0.1)


def linears(module: nn.Module) -> dict[str, nn.Linear]:
    return {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear)}


@torch.no_grad()
def test_initial_weights_of_a_policy() -> None:
    with seeded(1):
        actor = Actor(
            behavior([vector(64)], 64, (40, 24)), network(hidden=128), conditional_sigma=True, tanh_squash=True
        )
        critic = ValueNetwork(behavior([vector(64)]), network(hidden=128), ["extrinsic", "rnd"], outputs=100)
    found = linears(actor)
    check_normal(found["body.layers.layers.0"].weight, 1 / 8)
    check_normal(found["body.layers.layers.1"].weight, 1 / math.sqrt(128))
    check_normal(found["head.mu"].weight, 0.2 / math.sqrt(128))
    check_normal(found["head.log_sigma_layer"].weight, 0.2 / math.sqrt(128))
    check_normal(found["head.discrete"].weight, 0.1 / math.sqrt(128))
    bound = math.sqrt(6 / 228)
    for head in linears(critic.heads).values():
        assert bound * 0.98 < float(head.weight.abs().max()) <= bound
    for module in (actor, critic):
        for layer in linears(module).values():
            assert not bool(layer.bias.any())
    assert Actor(behavior([vector(4)]), network()).head.log_sigma is not None


def test_the_learned_log_sigma_starts_at_zero() -> None:
    log_sigma = Actor(behavior([vector(4)], 3), network()).head.log_sigma
    assert log_sigma is not None
    assert log_sigma.tolist() == [[0.0, 0.0, 0.0]]


@torch.no_grad()
def test_initial_weights_of_special_layers() -> None:
    with seeded(2):
        spec = [entities(4, 30), vector(50), camera(3, 40, 40), vector(64, "goal", goal=True)]
        body = NetworkBody(spec, network(hidden=64, memory=128))
    found = linears(body)
    for name in ("encoder.sensors.0.linear", "encoder.own.linear", "encoder.attention.query", "encoder.attention.out"):
        check_normal(found[name].weight, math.sqrt(0.125 / 128))
    dense = found["encoder.sensors.2.dense"]
    check_normal(dense.weight, 1.41 / math.sqrt(dense.in_features))
    assert isinstance(body.layers, HyperBody)
    bound = math.sqrt(1 / (64 * 64))
    weights = body.layers.hyper.weights.weight
    assert bound * 0.99 < float(weights.abs().max()) <= bound
    assert not bool(body.layers.hyper.bias.any())
    assert body.memory is not None
    lstm = body.memory.lstm
    bound = math.sqrt(6 / (64 + 64))
    for name in ("weight_ih_l0", "weight_hh_l0"):
        for gate in getattr(lstm, name).split(64):
            assert bound * 0.95 < float(gate.abs().max()) <= bound
    for name in ("bias_ih_l0", "bias_hh_l0"):
        assert getattr(lstm, name).tolist() == [0.0] * 64 + [1.0] * 64 + [0.0] * 128


def test_seeded_networks_are_repeatable_and_leave_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    states = []
    for _ in range(2):
        with seeded(3):
            states.append(Actor(behavior([vector(4)]), network(memory=8)).state_dict())
    assert torch.equal(before, torch.get_rng_state())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])
