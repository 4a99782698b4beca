"""Behavioral cloning against ML-Agents' golden losses, gradients and weights, and what is done differently."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.experience.packing import packed_steps
from tests.learning.algos import mlagents
from tests.learning.trainers.rig import vector_spec
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.experience.trajectory import PackedSteps, offsets
from trajtrainer.learning.algos.cloning import TAG, BehavioralCloning, cloning_loss
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.mlagents import CheckpointLayout, mlagents_keys
from trajtrainer.learning.rewards.demonstrations import DemonstrationRows
from trajtrainer.policies.checkpoints.mlagents.convert import from_mlagents
from trajtrainer.settings.network import MemorySettings, NetworkSettings
from trajtrainer.settings.trainer import BehavioralCloningSettings

CPU = torch.device("cpu")
CASES = [
    "continuous_3dball",
    "continuous_3dball_lstm",
    "discrete_basic",
    "discrete_basic_samples_per_update",
    "hybrid_synthetic",
]


def recorded(spec: BehaviorSpec, obs: list[Any], lengths: tuple[int, ...] | None = None, **columns: Any) -> PackedSteps:
    """Steps as a recording has them: continuous actions as the environment received them."""
    action, n = spec.action_spec, len(obs[0])
    given: dict[str, Any] = {
        "mask": np.zeros((n, sum(action.discrete_branches)), np.bool_),
        "continuous": np.zeros((n, action.continuous_size), np.float32),
        "discrete": np.zeros((n, action.discrete_size), np.int32),
    }
    lengths = lengths or (n,)
    ends = {"terminated": np.ones(len(lengths), np.bool_), "ended": np.ones(len(lengths), np.bool_)}
    return packed_steps(
        obs=tuple(obs),
        bootstrap_obs=tuple(sensor[: len(lengths)] for sensor in obs),
        offset=offsets(np.array(lengths)),
        agent=np.arange(len(lengths)),
        **(given | ends | columns),
    )


class Golden:
    """One golden case: a policy of ML-Agents and our cloning of its demonstrations."""

    def __init__(self, folder: Path) -> None:
        case = self.case = mlagents.Case.read(folder)
        config = case.json["config"]
        network = mlagents.network_settings({"hidden_units": 16, "num_layers": 2} | config["network_settings"])
        self.length = 1 if network.memory is None else network.memory.sequence_length
        self.actor = Actor(case.spec, network)
        modules = {"actor": self.actor}
        like = {
            "step": 0,
            "modules": {name: one.state_dict() for name, one in modules.items()},
            "keys": {name: mlagents_keys(one) for name, one in modules.items()},
            "layout": CheckpointLayout(),
            "optimizers": {},
        }
        self.actor.load_state_dict(from_mlagents(case.checkpoint("start"), like)["modules"]["actor"])
        obs = [case.arrays[f"demo_obs__{i}"] for i in range(len(case.spec.observation_specs))]
        columns = {}
        if case.spec.action_spec.continuous_size:
            # In ML-Agents the raw action imitates what the environment received; here what leads to it does.
            columns["continuous"] = case.arrays["demo_continuous_action"] / np.float32(3.0)
        if case.spec.action_spec.discrete_size:
            columns["discrete"] = case.arrays["demo_discrete_action"].astype(np.int32)
        rows = DemonstrationRows(recorded(case.spec, obs, **columns), self.actor.head, self.length, CPU)
        hyper = PPOHyperparameters(
            learning_rate=case.json["policy_learning_rate"], batch_size=case.json["default_batch_size"]
        )
        given = {"demo_path": "x", **case.json["behavioral_cloning"]}
        self.cloning = BehavioralCloning(self.actor, rows, BehavioralCloningSettings(**given), hyper, seed=0)
        self.rows = rows

    def draw(self, prefix: str) -> None:
        """Use ML-Agents' random numbers and its order from now on."""
        names = [name for name in self.case.arrays if name.startswith(prefix)]
        noises = iter(self.case.arrays[name] for name in sorted(names, key=_number) if name.endswith("randn_like"))
        self.cloning._normal = (  # type: ignore[method-assign]
            lambda like: torch.tensor(next(noises)) if like.shape[1] else like
        )
        minibatches = [self.case.arrays[name] for name in sorted(names, key=_number) if name.endswith("_rows")]
        per_epoch = len(minibatches) // self.cloning._epochs
        orders = iter(
            np.concatenate(minibatches[start : start + per_epoch])[:: self.length] // self.length
            for start in range(0, len(minibatches), max(1, per_epoch))
        )
        self.cloning._epoch_order = lambda: torch.tensor(next(orders), dtype=torch.int64)  # type: ignore[method-assign]

    def ours(self, prefix: str) -> dict[str, Tensor]:
        """ML-Agents' weights or gradients under our names."""
        keys = mlagents_keys(self.actor)
        return {
            ours: torch.tensor(np.concatenate([self.case.arrays[prefix + name] for name in key.names]))
            for ours, key in keys.items()
            if all(prefix + name in self.case.arrays for name in key.names)
        }

    def assert_weights(self, prefix: str) -> None:
        expected = self.ours(prefix)
        assert len(expected) == len(self.actor.state_dict())
        for name, value in self.actor.state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5, msg=name)


def _number(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("_") if part.isdigit())


@pytest.mark.parametrize("name", CASES)
def test_golden(shared_data: Path, name: str) -> None:
    golden = Golden(shared_data / "golden" / "bc" / name)
    arrays, cloning = golden.case.arrays, golden.cloning
    golden.draw("one_batch_draw")
    first = next(golden.rows.minibatches(torch.arange(golden.rows.num_sequences), cloning._batch_size))
    loss = cloning.gradient_step(first)
    assert loss.item() == pytest.approx(float(arrays["one_batch_loss"]), rel=2e-5)
    expected = golden.ours("one_batch_gradient_Policy/")
    for parameter_name, parameter in golden.actor.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[parameter_name], rtol=1e-5, atol=1e-5, msg=parameter_name)
    golden.assert_weights("one_batch_after_")
    step = 0  # ML-Agents' learning rate is that of the update before
    for number, update in enumerate(golden.case.json["updates"], start=1):
        golden.draw(f"update_{number}_")
        assert cloning.update(step)[TAG] == pytest.approx(update["loss"], rel=2e-5)
        step = golden.case.json["step_at_update"][number - 1]
    golden.assert_weights("after_two_updates_")


def policy(spec: BehaviorSpec, memory: bool = False, **head: bool) -> Actor:
    torch.manual_seed(3)
    settings = NetworkSettings(
        hidden_units=8, num_layers=1, memory=MemorySettings(sequence_length=4, memory_size=8) if memory else None
    )
    return Actor(spec, settings, **head)


def demonstrations(spec: BehaviorSpec, lengths: tuple[int, ...], seed: int = 0) -> PackedSteps:
    """Episodes whose actions follow from what is seen."""
    random, n, action = np.random.default_rng(seed), sum(lengths), spec.action_spec
    obs = random.uniform(-1, 1, (n, *spec.observation_specs[0].shape)).astype(np.float32)
    return recorded(
        spec,
        [obs],
        lengths,
        continuous=np.tanh(obs[:, : action.continuous_size] - obs[:, -1:]).astype(np.float32),
        discrete=(obs[:, : action.discrete_size] > 0).astype(np.int32),
    )


@pytest.mark.parametrize("squashed", [False, True])
def test_the_environment_receives_what_was_demonstrated(squashed: bool) -> None:
    """ML-Agents' PPO policies do a third of it, as the environment gets a third of their raw actions."""
    spec = vector_spec(4, 1)
    actor = policy(spec, conditional_sigma=squashed, tanh_squash=squashed)
    obs = np.ones((64, 4), np.float32)
    packed = recorded(spec, [obs], continuous=np.full((64, 1), 0.75, np.float32))
    rows = DemonstrationRows(packed, actor.head, 1, CPU)
    settings = BehavioralCloningSettings(demo_path="x", num_epoch=250)
    BehavioralCloning(actor, rows, settings, PPOHyperparameters(batch_size=32, learning_rate=0.01), 0).update(0)
    distribution, _ = actor([torch.ones(1, 4)], torch.zeros(1, 0, dtype=torch.bool))
    assert distribution.to_env(distribution.deterministic().continuous).item() == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize(("continuous", "branches"), [(2, ()), (0, (2, 2)), (1, (2,))])
@pytest.mark.parametrize("memory", [False, True])
def test_every_kind_of_action_is_learned(continuous: int, branches: tuple[int, ...], memory: bool) -> None:
    spec = vector_spec(4, continuous, branches)
    actor = policy(spec, memory)
    rows = DemonstrationRows(demonstrations(spec, (30, 7, 1, 26)), actor.head, 4 if memory else 1, CPU)
    hyper = PPOHyperparameters(batch_size=16, learning_rate=0.01)
    cloning = BehavioralCloning(actor, rows, BehavioralCloningSettings(demo_path="x", num_epoch=20), hyper, seed=1)
    losses = [cloning.update(step)[TAG] for step in range(4)]
    assert losses[-1] < 0.5 * losses[0]


def test_padding_counts_nowhere() -> None:
    """Each sequence begins with an empty memory; the mean is over the recorded steps."""
    spec, lengths = vector_spec(4, 1, (2,)), (4, 3, 1)
    actor, packed = policy(spec, memory=True), demonstrations(spec, (4, 3, 1))
    (padded,) = DemonstrationRows(packed, actor.head, 4, CPU).minibatches(torch.arange(3), 12)
    assert padded.loss_mask is not None
    assert padded.loss_mask.tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0]
    total = torch.zeros(())
    for number, length in enumerate(lengths):
        alone = DemonstrationRows(packed.trajectories(number, number + 1), actor.head, length, CPU)
        (minibatch,) = alone.minibatches(torch.arange(1), length)
        assert minibatch.loss_mask is None
        total = total + length * cloning_loss(actor, minibatch)
    torch.testing.assert_close(cloning_loss(actor, padded), total / 8)


def test_recorded_masks_are_respected() -> None:
    """ML-Agents lets the policy think of all actions."""
    spec = vector_spec(4, 0, (3,))
    actor = policy(spec)
    obs = np.zeros((4, 4), np.float32)
    for forbidden, loss in (([False, True, True], 0.0), ([False, False, True], np.log(2)), ([False] * 3, np.log(3))):
        mask = np.tile(forbidden, (4, 1))
        rows = DemonstrationRows(recorded(spec, [obs], mask=mask), actor.head, 1, CPU)
        (minibatch,) = rows.minibatches(torch.arange(4), 4)
        assert cloning_loss(actor, minibatch).item() == pytest.approx(loss, abs=1e-5)


def cloned(steps: int = 0, **settings: Any) -> tuple[BehavioralCloning, Mapping[str, Tensor]]:
    spec = vector_spec(4, 1, (2,))
    actor = policy(spec)
    rows = DemonstrationRows(demonstrations(spec, (20,)), actor.head, 1, CPU)
    given = BehavioralCloningSettings(demo_path="x", steps=steps, **settings)
    return BehavioralCloning(actor, rows, given, PPOHyperparameters(batch_size=8), seed=5), actor.state_dict()


def test_it_ends_with_its_steps() -> None:
    cloning, weights = cloned(steps=100)
    before = {name: value.clone() for name, value in weights.items()}
    assert cloning.update(100) == {TAG: 0.0}
    assert all(torch.equal(value, before[name]) for name, value in weights.items())
    assert cloning.update(99)[TAG] > 0
    assert cloning._optimizer.param_groups[0]["lr"] == pytest.approx(3e-6, rel=1e-3)


def test_a_run_that_shall_end_is_not_held_up() -> None:
    cloning, _ = cloned()
    asked = iter([False, True])
    assert cloning.update(0, lambda steps: takewhile(lambda _: not next(asked), steps))[TAG] > 0


@pytest.mark.parametrize(
    ("settings", "minibatches"),
    [
        ({}, 6),
        ({"num_epoch": 1}, 2),
        ({"samples_per_update": 9}, 3),
        ({"samples_per_update": 2}, 3),
        ({"batch_size": 30}, 3),
    ],
)
def test_how_much_is_learned_at_once(settings: dict[str, Any], minibatches: int) -> None:
    cloning, _ = cloned(**settings)
    assert len(list(cloning._minibatches())) == minibatches


def test_it_goes_on_from_its_state() -> None:
    (one, ours), (other, theirs) = cloned(), cloned()
    one.update(0)
    for name, value in ours.items():
        theirs[name].copy_(value)
    other.load_state(one.state())
    for name, generator in other.generators().items():
        generator.set_state(one.generators()[name].get_state())
    assert one.update(1) == other.update(1)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
