"""A student learns its teacher's distribution, from fewer sensors if need be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal, kl_divergence

from tests.learning.algos.recorded import recording
from tests.learning.nn.specs import behavior, camera, network, vector
from tests.plugins.imitation.learners import learn, learner
from tests.policies.onnx.test_onnx import random_actor
from trajtrainer.core.columns import TEACHER_MEAN, TEACHER_PROBS, TEACHER_STD, Columns
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.spec import BehaviorSpec, with_sensors
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.plugins.imitation.distillation import as_seen, labels, moments
from trajtrainer.plugins.imitation.offline import divergence
from trajtrainer.plugins.imitation.settings import PolicyKind

HYBRID = behavior([vector(4, "a"), vector(3, "b")], 2, (3, 2))
CONTINUOUS = behavior([vector(4)], 2)


def teacher(spec: BehaviorSpec, certainty: float = 1.0, **options: Any) -> ActorPolicy:
    """A policy of random weights, the last of which are multiplied."""
    actor = random_actor(spec, **options)
    for layer in (actor.head.mu, actor.head.discrete):
        if layer is not None:
            layer.weight.data *= certainty
    return ActorPolicy(actor, seed=1)


def states(policy: ActorPolicy, spec: BehaviorSpec, rows: int) -> Any:
    generator = torch.Generator().manual_seed(3)
    obs = [torch.randn(rows, *sensor.shape, generator=generator).numpy() for sensor in spec.observation_specs]
    return policy.distribution(obs, np.zeros((rows, 0), bool), np.zeros((rows, 0), np.float32))[0]


@pytest.mark.parametrize("teacher_is_sac", [False, True])
@pytest.mark.parametrize("student_is_sac", [False, True])
def test_moments_are_those_of_the_actions_as_the_student_would_draw_them(
    teacher_is_sac: bool, student_is_sac: bool
) -> None:
    distribution = states(teacher(CONTINUOUS, sac=teacher_is_sac, clip_actions=2.0), CONTINUOUS, 5)
    student = random_actor(CONTINUOUS, sac=student_is_sac, clip_actions=1.0)
    mean, std = moments(distribution, student)

    noise = torch.randn(100_000, 1, 2, generator=torch.Generator().manual_seed(4))
    drawn = distribution.continuous_from_noise(noise)
    if teacher_is_sac and student_is_sac:
        drawn = drawn.clamp(-0.999999, 0.999999).atanh()
    elif student_is_sac:
        drawn = (drawn / 2.0).clamp(-0.964, 0.964).atanh()
    elif not teacher_is_sac:
        drawn = drawn / 2.0  # not clipped: the student clips as its teacher does
    torch.testing.assert_close(mean, drawn.mean(0), atol=0.03, rtol=0)
    torch.testing.assert_close(std, drawn.std(0), atol=0.03, rtol=0.03)


def test_the_divergence_is_that_of_each_action_and_branch_under_the_mask() -> None:
    packed = recording(HYBRID, [12])
    student = random_actor(HYBRID, seed=9)
    found = labels(teacher(HYBRID), packed, {}, student)
    columns = {**dict(packed.steps.items()), **found}
    batch = Minibatch(Columns({name: torch.from_numpy(column) for name, column in columns.items()}), Columns({}))
    distribution, _ = student(batch.obs, batch["mask"])

    expected = kl_divergence(
        Normal(batch[TEACHER_MEAN], batch[TEACHER_STD]), Normal(distribution.mu, distribution.sigma)
    ).sum(1)
    for probs, logits in zip(batch[TEACHER_PROBS].split_with_sizes([3, 2], 1), distribution.logits, strict=True):
        expected = expected + kl_divergence(Categorical(probs), Categorical(logits=logits))
    torch.testing.assert_close(divergence(distribution, batch), expected, rtol=1e-4, atol=1e-5)
    assert (expected > 0.001).all()
    assert batch[TEACHER_PROBS][batch["mask"]].max() == 0

    same = labels(ActorPolicy(student, seed=1), packed, {}, student)
    batch = batch.with_rows({name: torch.from_numpy(column) for name, column in same.items()})
    assert divergence(distribution, batch).abs().max() < 1e-5


def test_a_teacher_with_a_memory_is_asked_through_episodes_that_the_horizon_cuts() -> None:
    spec = behavior([vector(4)], 1, (3,))
    packed = recording(spec, [3, 2, 4, 1])
    packed.agent[:] = [7, 8, 7, 8]
    packed.ended[:] = [False, True, True, False]
    policy = teacher(spec, memory=8)
    memories: dict[int, Any] = {}
    found = labels(policy, packed, memories, random_actor(spec))

    rows = [0, 1, 2, 5, 6, 7, 8]  # one episode of agent 7
    memory = np.zeros((1, 8), np.float32)
    for row in rows:
        obs = [column[row : row + 1] for column in packed.obs]
        distribution, memory = policy.distribution(obs, packed["mask"][row : row + 1], memory)
        np.testing.assert_allclose(found[TEACHER_MEAN][row], distribution.mu[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[TEACHER_PROBS][row], distribution.probs[0], rtol=1e-5, atol=1e-6)
        assert found["discrete"][row] == distribution.deterministic().discrete[0]
    assert memories.keys() == {8}


STUDENTS: dict[str, tuple[BehaviorSpec, dict[str, Any], dict[str, Any], Any]] = {
    "smaller": (HYBRID, {"hidden": 32}, {}, network(hidden=8, layers=1, normalize=True)),
    "squashed, of a clipped teacher": (CONTINUOUS, {}, {"policy": PolicyKind.SAC}, network(hidden=16)),
    "clipped, of a squashed teacher": (CONTINUOUS, {"sac": True}, {}, network(hidden=16)),
    "with a memory": (behavior([vector(3)], 0, (3,)), {}, {}, network(hidden=16, memory=16)),
    "of a teacher with a memory": (behavior([vector(3)], 0, (3,)), {"memory": 8}, {}, network(memory=16)),
    "of pictures": (
        behavior([camera(1, 4, 4)], 0, (3,)),
        {"encoder": "fully_connected"},
        {},
        network(hidden=8, encoder="fully_connected"),
    ),
}


@pytest.mark.parametrize("name", STUDENTS)
def test_a_student_comes_close_to_its_teacher_on_episodes_never_seen(name: str) -> None:
    spec, options, hyper, net = STUDENTS[name]
    policy = teacher(spec, certainty=8.0, **options)
    hyper = {"batch_size": 64, "learning_rate": 0.01, "validation_fraction": 0.25, **hyper}
    made = learner("bc", spec, recording(spec, [12] * 200), net=net, hyper=hyper, expert=policy)
    before = made.validate()["Losses/Validation Loss"]

    learn(made, 500)

    assert made.validate()["Losses/Validation Loss"] < 0.35 * before


def test_a_teacher_of_recorded_episodes_begins_each_with_an_empty_memory() -> None:
    spec = behavior([vector(3)], 0, (3,))
    packed = recording(spec, [6, 6])
    for name in ("obs.0", "mask"):
        packed[name][6:] = packed[name][:6]
    packed.agent[:] = 0  # of one file
    packed.ended[:] = False
    made = learner("bc", spec, packed, expert=teacher(spec, memory=8), hyper={"batch_size": 4})
    (batch,) = made._rows.minibatches(np.arange(12), 1)
    assert torch.equal(batch[TEACHER_PROBS][:6], batch[TEACHER_PROBS][6:])


def test_a_student_sees_less_than_its_teacher() -> None:
    packed = recording(HYBRID, [10] * 8)
    made = learner("bc", HYBRID, packed, hyper={"student_sensors": ["b"]}, expert=teacher(HYBRID))
    assert [sensor.name for sensor in made.actor.spec.observation_specs] == ["b"]
    (batch,) = made._rows.minibatches(np.arange(80), 1)
    assert len(batch.obs) == 1
    assert np.array_equal(batch.obs[0].numpy(), packed.obs[1])
    made.update(0, lambda _: None)

    # It acts where all sensors are, by the one that it sees.
    policy = ActorPolicy(made.actor, seed=1, deterministic=True)
    alone = ActorPolicy(made.actor, seed=1, deterministic=True)
    alone.actor.sees = None
    memory = np.zeros((80, 0), np.float32)
    both, one = policy.act(packed.obs, packed["mask"], memory), alone.act(packed.obs[1:], packed["mask"], memory)
    assert np.array_equal(both.continuous, one.continuous)
    assert np.array_equal(both.discrete, one.discrete)


def test_sensors_stay_in_the_order_of_the_agents() -> None:
    spec = behavior([vector(2, "a"), vector(3, "b"), vector(4, "c")], 1)
    packed = recording(spec, [5])
    made = learner("bc", spec, packed, hyper={"student_sensors": ["c", "a"], "batch_size": 4})
    assert made.actor.sees == (0, 2)
    seen = as_seen(packed, made.actor)
    assert [column.shape[1] for column in (*seen.obs, *seen.bootstrap.obs)] == [2, 4, 2, 4]
    assert with_sensors(spec, (0, 2)).observation_specs == made.actor.spec.observation_specs
    with pytest.raises(
        SettingsError, match=r"no sensor is called 'd', 'e'. The sensors are 'a' \(2,\), 'b' \(3,\), 'c'"
    ):
        learner("bc", spec, packed, hyper={"student_sensors": ["e", "d", "a"]})


def test_an_actor_of_all_sensors_chooses_none() -> None:
    assert Actor(HYBRID, network()).sees is None
