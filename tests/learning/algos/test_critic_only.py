"""A critic that sees sensors that the policy does not (``network_settings.critic_only``)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from tests.learning.algos.sac_mlagents import make_sac, modules
from tests.learning.algos.test_sac_twins import WAYS, sac_and_batch
from tests.learning.nn.specs import behavior, camera, entities, network, vector
from tests.learning.trainers.rig import TrainerRig, checkpoint_of, restore, same, weights
from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.algos.algorithm import Algorithm
from trajtrainer.learning.algos.poca.settings import POCAHyperparameters
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.body import critic_only_sensors
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.init import seeded
from trajtrainer.learning.nn.multi_agent import GroupCritic
from trajtrainer.learning.nn.normalization import Normalizer
from trajtrainer.learning.rewards.curiosity import CuriosityReward
from trajtrainer.learning.rewards.gail import Discriminator, differentiate, discriminate, gradient_penalty
from trajtrainer.learning.rewards.rnd import RndReward
from trajtrainer.learning.rewards.settings import CuriositySettings, RndSettings
from trajtrainer.learning.rewards.signal import create_reward_signals
from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.settings.components import Hyperparameters, RewardSignalSettings
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import dump, load
from trajtrainer.testing import random_steps

SPEC = behavior([vector(4, "Eyes"), vector(3, "Truth"), vector(2, "Legs")], 2, (3,))
PICTURED = behavior([vector(4, "Eyes"), camera(3, 20, 20, "Truth"), entities(3, 2, "Things")], 2, (3,))
HIDDEN = 1
KINDS: dict[str, tuple[str, Hyperparameters]] = {
    "ppo": ("ppo", PPOHyperparameters(batch_size=8, buffer_size=100)),
    "poca": ("poca", POCAHyperparameters(batch_size=8, buffer_size=100)),
    "sac": ("sac", SACHyperparameters(batch_size=8, buffer_size=200, steps_per_update=8)),
    "twins": ("sac", SACHyperparameters(batch_size=8, buffer_size=200, steps_per_update=8, value_network=False)),
}
CASES = [
    *((name, SPEC, memory) for name in KINDS for memory in (None, 8)),
    *((name, PICTURED, None) for name in KINDS),
]


def rig_of(name: str, spec: BehaviorSpec = SPEC, memory: int | None = None, **more: Any) -> TrainerRig:
    trainer_type, hyper = KINDS[name]
    settings = TrainerSettings(
        trainer_type=trainer_type,
        hyperparameters=hyper,
        network_settings=network(normalize=True, critic_only=["Truth"], memory=memory),
        time_horizon=8,
        **more,
    )
    return TrainerRig(settings, spec)


def learned(rig: TrainerRig, seed: int = 0) -> PackedSteps:
    """Let the algorithm learn from random steps, which are returned."""
    algorithm = rig.trainer.algorithm
    packed = random_steps(
        rig.spec,
        lengths=(8,) * 15,
        seed=seed,
        groups=algorithm.needs_groups,
        memory_size=algorithm.actor.memory_size,
    )
    rewards: FloatArray = np.ones((len(algorithm.signals), len(packed)), np.float32)
    algorithm.add(packed, rewards)
    before = algorithm.gradient_steps
    algorithm.update(120 * (seed + 1), lambda _: None)
    assert algorithm.gradient_steps > before
    return packed


def random_obs(spec: BehaviorSpec, rows: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.rand(rows, *sensor.shape, generator=generator) for sensor in spec.observation_specs]


def changed(obs: list[Tensor], sensor: int) -> list[Tensor]:
    return [one + 0.5 * (number == sensor) for number, one in enumerate(obs)]


def critics_of(algorithm: Algorithm) -> list[ValueNetwork | GroupCritic]:
    found = [each for each in algorithm.networks.values() if isinstance(each, ValueNetwork | GroupCritic)]
    assert len(found) == len(algorithm.networks) - 1
    return found


def values(critic: ValueNetwork | GroupCritic, obs: list[Tensor]) -> Tensor:
    if isinstance(critic, GroupCritic):
        return critic.body.values(obs, torch.arange(len(obs[0]))[:, None])
    found: Tensor = critic(obs, actions=torch.zeros(len(obs[0]), 2) if critic.body.action_size else None)[0]
    return found


def test_sensors_are_named_or_numbered() -> None:
    named: list[list[str | int]] = [["Truth"], [1], ["Truth", 1]]
    for given in named:
        assert critic_only_sensors(SPEC.observation_specs, NetworkSettings(critic_only=given)) == {1}
    assert critic_only_sensors(SPEC.observation_specs, NetworkSettings(critic_only=[2, "Eyes"])) == {0, 2}
    text = "behaviors: {A: {network_settings: {critic_only: [Truth, 2, '2']}}}"
    settings = load(text, "a.yaml")
    assert settings.behaviors["A"].network_settings.critic_only == ["Truth", 2, "2"]
    assert load(dump(settings), "again.yaml") == settings


def test_all_sensors_that_do_not_exist_are_named_at_once() -> None:
    with pytest.raises(UnsupportedError, match=r"no sensor 'Trut', 3\. Its sensors are 0 'Eyes', 1 'Truth', 2 'Legs'"):
        critic_only_sensors(SPEC.observation_specs, NetworkSettings(critic_only=["Trut", 1, 3]))
    with pytest.raises(UnsupportedError, match="the policy would see none"):
        TrainerRig(TrainerSettings(network_settings=NetworkSettings(critic_only=[0, 1, 2])), SPEC)


@pytest.mark.parametrize(("name", "spec", "memory"), CASES)
def test_the_critics_alone_see_it(
    name: str, spec: BehaviorSpec, memory: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig = rig_of(name, spec, memory)
    assert "only the critic sees 'Truth'. Unity will warn" in caplog.text
    assert "sensor component 1, " in caplog.text
    assert "ML-Agents cannot read the checkpoints" in caplog.text
    learned(rig)
    obs, mask = random_obs(spec), torch.zeros(5, 3, dtype=torch.bool)
    actor = rig.trainer.actor
    for sensor in range(3):
        before, after = (actor.distribution(given, mask)[0] for given in (obs, changed(obs, sensor)))
        assert torch.equal(before.probs, after.probs) == (sensor == HIDDEN)
    for critic in critics_of(rig.trainer.algorithm):
        for sensor in range(3):
            assert not torch.equal(values(critic, obs), values(critic, changed(obs, sensor)))


@pytest.mark.parametrize("name", KINDS)
def test_whoever_sees_a_sensor_normalizes_it(name: str) -> None:
    rig = rig_of(name)
    packed = learned(rig)
    assert [*rig.trainer.actor.body.encoder.normalizers()] == [0, 2]
    for each in (rig.trainer.actor, *critics_of(rig.trainer.algorithm)):
        for number, normalizer in each.body.encoder.normalizers().items():
            expected = Normalizer(normalizer.mean.shape[0])
            expected.update(torch.from_numpy(packed.obs[number]))
            assert torch.equal(normalizer.mean, expected.mean)
            assert torch.equal(normalizer.variance, expected.variance)
    for critic in critics_of(rig.trainer.algorithm):
        assert [*critic.body.encoder.normalizers()] == [0, 1, 2]


@pytest.mark.parametrize("memory", [0, 8])
def test_acting_in_few_calls_leaves_it_out(memory: int) -> None:
    settings = network(normalize=True, critic_only=[HIDDEN], memory=memory or None)
    with seeded(3):
        actor = Actor(SPEC, settings)
    actor.update_normalization(random_obs(SPEC))
    obs, mask = random_obs(SPEC, 7), torch.zeros(7, 3, dtype=torch.bool)
    policy = ActorPolicy(actor, seed=0, deterministic=True)
    acted = policy.act([one.numpy() for one in obs], mask.numpy(), np.zeros((7, memory), np.float32))
    expected = actor.distribution(obs, mask)[0].deterministic()
    np.testing.assert_allclose(acted.continuous, expected.continuous.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(acted.discrete, expected.discrete.numpy())


@pytest.mark.parametrize("value_network", [True, False])
def test_sac_learns_the_same_with_its_critics_side_by_side(value_network: bool) -> None:
    name, signals, _ = WAYS[0]
    _, batch = sac_and_batch("hybrid", signals)
    spec = behavior([vector(5, "Eyes"), vector(2, "Truth")], 3, (2, 4))
    batch = batch.with_rows({"obs.0": batch.obs[0][:, :5], "obs.1": batch.obs[0][:, 5:]})
    batch = batch.with_rows({"next_obs.0": batch.next_obs[0][:, :5], "next_obs.1": batch.next_obs[0][:, 5:]})
    settings = TrainerSettings(
        trainer_type="sac",
        hyperparameters=SACHyperparameters(value_network=value_network),
        network_settings=network(critic_only=["Truth"]),
    )
    found = []
    for stacked in (True, False):
        torch.manual_seed(1)
        sac = make_sac(spec, settings, stacked=stacked)
        for _ in range(3):
            sac.gradient_step(batch, 1e-2)
        found.append({key: value for each in modules(sac).values() for key, value in each.state_dict().items()})
        assert sac.actor.body.encoder.seen == (0,), name
    for key, value in found[0].items():
        torch.testing.assert_close(value, found[1][key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_goes_on_as_if_nothing_had_been(name: str) -> None:
    first, second = rig_of(name), rig_of(name)
    learned(first)
    restore(second.trainer, checkpoint_of(first.trainer), reset_step=False)
    assert same(weights(first.trainer), weights(second.trainer))
    if name in ("ppo", "poca"):  # the replay is not part of a checkpoint
        learned(first, 1)
        learned(second, 1)
        assert same(weights(first.trainer), weights(second.trainer))


@pytest.mark.parametrize(("spec", "read"), [(SPEC, {"obs_0", "obs_2"}), (PICTURED, {"obs_0", "obs_2"})])
def test_an_export_keeps_the_numbers_of_the_sensors(spec: BehaviorSpec, read: set[str], tmp_path: Path) -> None:
    rig = rig_of("ppo", spec)
    learned(rig)
    recovered = recover_policy(checkpoint_of(rig.trainer), source="checkpoint.pt")
    assert recovered.actor.body.encoder.seen == (0, 2)
    export_policy(recovered.actor, recovered.spec, tmp_path / "policy.onnx")  # compares them
    inputs = {value.name for value in onnx.load(str(tmp_path / "policy.onnx")).graph.input}
    assert inputs == read | {"action_masks"}


def test_networks_of_reward_signals_see_what_the_policy_sees() -> None:
    settings = TrainerSettings(
        network_settings=network(critic_only=["Truth"]),
        reward_signals={"extrinsic": RewardSignalSettings(), "curiosity": CuriositySettings(), "rnd": RndSettings()},
    )
    _, curiosity, rnd = create_reward_signals(SPEC, settings, torch.device("cpu"))
    assert isinstance(curiosity, CuriosityReward)
    assert isinstance(rnd, RndReward)
    for encoder in (curiosity.network.encoder, rnd.predictor, rnd.target):
        assert encoder.encoder.seen == (0, 2)


def test_gail_penalizes_no_sensor_that_it_does_not_see() -> None:
    discriminator = Discriminator(SPEC, network(normalize=True, critic_only=[1]), use_actions=False, use_vail=False)
    policy, demonstrated, between = ([one + 0.3 * number for one in random_obs(SPEC)] for number in range(3))
    discriminator.encoder.update_normalization(policy)
    by_hand, penalty = differentiate(discriminator, policy, demonstrated, between)
    gradients = [parameter.grad for parameter in discriminator.parameters()]
    discriminator.zero_grad()
    found = discriminate(discriminator, policy, demonstrated, torch.zeros_like)
    slope = gradient_penalty(discriminator, between, torch.zeros_like)
    (found.loss + slope).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(by_hand.loss, found.loss)
    torch.testing.assert_close(penalty, slope)
    for by_twin, parameter in zip(gradients, discriminator.parameters(), strict=True):
        torch.testing.assert_close(by_twin, parameter.grad, rtol=1e-4, atol=1e-5)
