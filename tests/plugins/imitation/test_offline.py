"""What the offline trainers learn from, and that they learn it."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.learning.algos.recorded import recording
from tests.learning.nn.specs import behavior, camera, entities, network, vector
from tests.plugins.imitation.learners import learn, learner
from trajtrainer.core.errors import SettingsError
from trajtrainer.experience.recordings.demonstrations import load_demonstrations
from trajtrainer.learning.nn.distribution import ENV_CLIP
from trajtrainer.plugins.imitation import iql as losses
from trajtrainer.plugins.imitation.offline import DatasetRows, Offline, Shuffled, TrajectoryParts, held_out
from trajtrainer.plugins.imitation.settings import PolicyKind

CPU = torch.device("cpu")
HYBRID = behavior([vector(4), vector(2, "other")], 2, (3, 2))


def test_every_step_once_per_epoch_whatever_the_batch() -> None:
    stream = Shuffled(10, seed=4)
    numbers = [*stream(0, 7), *stream(7, 13), *stream(13, 40)]
    assert [Counter(numbers[i : i + 10]) == Counter(range(10)) for i in range(0, 40, 10)] == [True] * 4
    assert numbers[:10] != numbers[10:20]
    # A function of the place: whoever begins anywhere sees the same.
    assert list(Shuffled(10, seed=4)(23, 31)) == numbers[23:31]
    assert list(Shuffled(10, seed=5)(0, 40)) != numbers


@pytest.mark.parametrize("length", [1, 4])
def test_rows_are_steps_with_what_followed(length: int) -> None:
    packed = recording(HYBRID, [5, 1, 8])
    rewards = np.arange(14, dtype=np.float32)
    rows = DatasetRows(
        packed,
        TrajectoryParts(np.array([0, 6]), np.array([5, 14])),
        sequence_length=length,
        device=CPU,
        more={"rewards": rewards},
    )
    starts = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13] if length == 1 else [0, 4, 6, 10]
    assert (rows.num_steps, rows.num_sequences) == (13, len(starts))
    (batch,) = rows.minibatches(np.arange(len(starts)), 1)
    expected = [step for start in starts for step in _sequence(start, 5 if start < 5 else 14, length)]
    steps = np.array([step for step, _ in expected])
    real = np.array([is_real for _, is_real in expected])
    for name in ("mask", "continuous", "discrete", "obs.0", "obs.1"):
        assert np.array_equal(batch[name].numpy(), packed[name][steps])
    assert np.array_equal(batch["rewards"].numpy(), rewards[steps])
    for sensor in range(2):
        following = [
            packed.bootstrap.obs[sensor][{4: 0, 13: 2}[step]] if step in (4, 13) else packed.obs[sensor][step + 1]
            for step in steps
        ]
        assert np.array_equal(batch.next_obs[sensor].numpy(), following)
    mask = batch.loss_mask
    assert real.all() if mask is None else np.array_equal(mask.numpy() > 0, real)


def _sequence(start: int, end: int, length: int) -> list[tuple[int, bool]]:
    return [(min(step, end - 1), step < end) for step in range(start, start + length)]


def test_whole_episodes_are_held_out_or_their_ends() -> None:
    packed = recording(HYBRID, [10] * 20)
    learned, apart = held_out(packed, 0.25, seed=1)
    assert len(apart.start) == 5
    assert sorted([*learned.start, *apart.start]) == list(range(0, 200, 10))
    assert np.array_equal(apart.stop, apart.start + 10)
    assert len(held_out(packed, 0.0, seed=1)[1].start) == 0
    assert len(held_out(packed, 0.26, seed=1)[1].start) == 6
    learned, apart = held_out(recording(HYBRID, [20, 9]), 0.1, seed=1)
    assert (learned.start.tolist(), learned.stop.tolist()) == ([0, 20], [18, 28])
    assert (apart.start.tolist(), apart.stop.tolist()) == ([18, 28], [20, 29])
    with pytest.raises(SettingsError, match=r"validation_fraction 0.9 leaves none of the data set's 1 steps"):
        learner("bc", HYBRID, recording(HYBRID, [1]), hyper={"validation_fraction": 0.9})


def test_normalizers_see_what_is_learned_from() -> None:
    packed = recording(HYBRID, [10] * 20)
    made = learner("iql", HYBRID, packed, net=network(normalize=True), hyper={"validation_fraction": 0.25})
    learned, _ = held_out(packed, 0.25, made.context.draws_seed)
    rows = np.concatenate([np.arange(start, stop) for start, stop in zip(*learned, strict=True)])
    expected = np.concatenate([np.zeros((1, 4)), packed.obs[0][rows]]).mean(0)
    made.update(0, lambda _: None)
    for one in (made.actor, made.networks["q1"], made.networks["value"], made.networks["target_q2"]):
        np.testing.assert_allclose(one.body.encoder.sensors[0].mean.numpy(), expected, atol=1e-6)  # type: ignore


def test_losses_of_iql_by_their_definitions() -> None:
    advantage = torch.tensor([-2.0, 1.0, 3.0])
    mask = torch.tensor([1.0, 1.0, 0.0])
    assert float(losses.value_loss(advantage, 0.9, None)) == pytest.approx((0.1 * 4 + 0.9 * 1 + 0.9 * 9) / 3)
    assert float(losses.value_loss(advantage, 0.9, mask)) == pytest.approx((0.1 * 4 + 0.9 * 1) / 2)
    weight = losses.advantage_weight(advantage, 2.0, 100.0)
    assert weight.tolist() == pytest.approx([math.exp(-4), math.exp(2), 100.0])
    log_likelihood = torch.tensor([-1.0, -2.0, -3.0])
    assert float(losses.policy_loss(log_likelihood, weight, mask)) == pytest.approx(
        (math.exp(-4) + 2 * math.exp(2)) / 2
    )
    q = torch.tensor([[1.0, 2.0], [3.0, 3.0]])
    assert losses.q_losses(q, torch.tensor([0.0, 4.0]), None).tolist() == pytest.approx([2.5, 5.0])


def test_an_end_for_good_has_no_future_and_an_interrupted_one_has() -> None:
    packed = recording(HYBRID, [4, 4, 4])
    made = learner("iql", HYBRID, packed)
    more: Any = made._rows._more
    assert np.flatnonzero(more["discount"] == 0).tolist() == [3, 7]
    assert more["rewards"] == pytest.approx(packed["reward"])


CLONED = {
    "continuous": (behavior([vector(3)], 2), network(hidden=32, normalize=True), {}),
    "squashed": (behavior([vector(3)], 2), network(hidden=32), {"policy": PolicyKind.SAC}),
    "hybrid": (behavior([vector(3)], 1, (3,)), network(hidden=32), {}),
    "memory": (behavior([vector(3)], 0, (3,)), network(hidden=32, memory=16), {}),
    "picture": (behavior([camera(1, 4, 4), vector(3)], 0, (3,)), network(hidden=16, encoder="fully_connected"), {}),
    "list": (behavior([entities(2, 2), vector(3)], 0, (3,)), network(hidden=16), {}),
}


@pytest.mark.parametrize(("kind", "name"), [*(("bc", name) for name in CLONED), ("iql", "hybrid"), ("iql", "memory")])
def test_what_was_done_is_learned(kind: str, name: str) -> None:
    """An expert whose actions are a simple function of the last sensor is imitated, on episodes never seen."""
    spec, net, hyper = CLONED[name]
    packed = recording(spec, [12] * 40)
    seen = packed.obs[-1]
    packed["mask"][:] = False
    packed["continuous"][:] = 0.8 * np.tanh(seen[:, : packed["continuous"].shape[1]])
    if packed["discrete"].shape[1]:
        packed["discrete"][:, 0] = seen.argmax(1)
    packed["reward"][:] = 0.0
    made = learner(
        kind,
        spec,
        packed,
        net=net,
        hyper={"batch_size": 64, "learning_rate": 5e-3, "validation_fraction": 0.1, **hyper},
        summary_freq=50,
        max_steps=100,
    )
    before = made.validate()
    found = learn(made, 100)
    assert found["Losses/Validation Loss"][0] < before["Losses/Validation Loss"] - 0.3
    if "Policy/Validation Error" in found:
        assert found["Policy/Validation Error"][0] < 0.02 < before["Policy/Validation Error"]
    if "Policy/Validation Accuracy" in found:
        assert found["Policy/Validation Accuracy"][0] > 0.8 > before["Policy/Validation Accuracy"]
    assert found["Policy/Epoch"][0] == pytest.approx(100 * made._per_batch / made._rows.num_sequences)


def test_iql_prefers_what_paid() -> None:
    """Of two actions that were done equally often, the policy takes the one with the higher return, one step later."""
    spec = behavior([vector(2)], 0, (2,))
    packed = recording(spec, [2] * 400)
    packed["mask"][:] = False
    action = packed["discrete"][::2, 0]
    packed["obs.0"][::2], packed["obs.0"][1::2, 0] = (1.0, 0.0), 0.0
    packed["obs.0"][1::2, 1] = np.where(action == 1, 1.0, -1.0)
    packed["reward"][:] = 0.0
    packed["reward"][1::2] = packed["obs.0"][1::2, 1]
    hyper = {"batch_size": 64, "learning_rate": 3e-3, "tau": 0.05}
    iql, bc = (learner(kind, spec, packed, hyper=hyper if kind == "iql" else {}) for kind in ("iql", "bc"))
    chances = []
    for made in (iql, bc):
        learn(made, 300)
        with torch.no_grad():
            probs = made.actor((torch.tensor([[1.0, 0.0]]),), torch.zeros(1, 2, dtype=torch.bool))[0].probs
        chances.append(float(probs[0, 1]))
    assert chances[0] > 0.9
    assert 0.35 < chances[1] < 0.65


def test_a_standard_deviation_has_a_floor() -> None:
    spec = behavior([vector(2)], 1)
    packed = recording(spec, [10] * 10)
    packed["continuous"][:] = 0.5
    made = learner("bc", spec, packed, hyper={"learning_rate": 0.1, "min_std": 0.1, "batch_size": 32})
    learn(made, 160)
    assert made.actor.head.log_sigma is not None
    assert float(made.actor.head.log_sigma.exp().detach()) == pytest.approx(0.1 * ENV_CLIP)


def test_an_update_ends_where_something_is_due() -> None:
    spec = behavior([vector(2)], 1)
    made = learner(
        "bc",
        spec,
        recording(spec, [10] * 4),
        summary_freq=10,
        checkpoint_interval=14,
        max_steps=29,
        hyper={"batch_size": 4},
    )
    ends = []
    while made.gradient_steps < 29:
        made.update(made.gradient_steps, lambda _: None)
        ends.append(made.gradient_steps)
    assert ends == [10, 14, 20, 28, 29]


@pytest.mark.parametrize(("name", "tag"), [("ExpertBasic", "Accuracy"), ("ExpertTennis", "Error")])
def test_real_recordings_are_cloned_and_their_held_out_steps_predicted(shared_data: Path, name: str, tag: str) -> None:
    demonstrations = load_demonstrations([shared_data / "demos" / f"{name}.demo"])
    made = learner(
        "bc",
        demonstrations.spec,
        demonstrations.packed,
        net=network(hidden=32, normalize=True),
        hyper={"batch_size": 64, "learning_rate": 3e-3, "validation_fraction": 0.2},
    )
    learn(made, 200)
    found = made.validate()[f"Policy/Validation {tag}"]
    if tag == "Accuracy":
        assert found == 1.0
    else:
        assert found < 0.5 * demonstrations.packed["continuous"].var(0).mean()


@pytest.mark.parametrize("kind", ["bc", "iql"])
def test_a_saved_state_is_taken_over(kind: str) -> None:
    def sample() -> Offline:
        return learner(kind, HYBRID, recording(HYBRID, [30, 50, 20]), hyper={"batch_size": 16, "weight_decay": 0.01})

    made = sample()
    for batch in made._rows.minibatches(made._shuffled(0, 32), 2):
        made.gradient_step(batch, 0)
    states = made.optimizer_states()
    fresh = sample()
    fresh.load_optimizer_states(states)
    for name, state in fresh.optimizer_states().items():
        torch.testing.assert_close(state["state"], states[name]["state"], rtol=0, atol=0)
