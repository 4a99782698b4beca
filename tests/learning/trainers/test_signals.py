"""Curiosity, GAIL, RND and behavioral cloning, all at once and beside every trainer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from tests.learning.nn.specs import behavior, camera, entities, vector
from tests.learning.trainers.rig import OffPolicyRig, Rig, TrainerRig, Trajectory
from trajtrainer.core.columns import NEXT_OBSERVATIONS, Columns, sensor_name
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.minibatch import Minibatch, torch_dtype
from trajtrainer.learning.rewards.gail import GailReward
from trajtrainer.learning.rewards.signal import create_reward_signals
from trajtrainer.learning.rewards.trained import TrainedReward
from trajtrainer.policies.checkpoints.mlagents.convert import from_mlagents, to_mlagents
from trajtrainer.policies.checkpoints.state import learned_state
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import trainer_settings
from trajtrainer.testing import AlgorithmContract, random_steps, vector_spec

NETWORK = {"hidden_units": 8, "num_layers": 1, "normalize": True}
SIGNALS: dict[str, Any] = {
    "extrinsic": {},
    "curiosity": {"network_settings": NETWORK},
    "gail": {"demo_path": "x.demo", "use_actions": True, "use_vail": True, "network_settings": NETWORK},
    "rnd": {"network_settings": NETWORK},
}
CLONING = {"demo_path": "x.demo", "num_epoch": 1}
TAGS = {
    "Losses/Curiosity Forward Loss",
    "Losses/Curiosity Inverse Loss",
    "Losses/GAIL Loss",
    "Losses/GAIL KL Loss",
    "Losses/RND Loss",
    "Losses/Pretraining Loss",
    "Policy/GAIL Policy Estimate",
    "Policy/GAIL Expert Estimate",
    "Policy/GAIL Grad Mag Loss",
    "Policy/GAIL Beta",
}


@pytest.fixture(autouse=True)
def _recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is named, the recording is of as many sensors and actions as are asked for."""

    def load(_paths: list[str], *, spec: BehaviorSpec) -> Any:
        return SimpleNamespace(packed=random_steps(spec, lengths=(20, 9), seed=9))

    for module in ("learning.trainers.cloning", "learning.rewards.gail"):
        monkeypatch.setattr(f"trajtrainer.{module}.load_demonstrations", load)


class WithEverything(AlgorithmContract):
    memory: ClassVar[dict[str, int] | None] = None

    def settings(self) -> TrainerSettings:
        given = {"reward_signals": SIGNALS, "behavioral_cloning": CLONING}
        network = {"hidden_units": 8, "num_layers": 1, "memory": self.memory}
        return trainer_settings(
            {
                "trainer_type": self.trainer_type,
                "hyperparameters": dict(self.hyperparameters),
                "network_settings": network,
                **given,
            }
        )

    def test_checkpoints_have_the_networks_by_mlagents_names(self) -> None:
        one, other = self.make(seed=1), self.make(seed=2)
        self.train(one)
        checkpoint = to_mlagents({"step": 3, **learned_state(one)})
        modules = {name for name in checkpoint if name.startswith("Module:")}
        assert modules == {"Module:Curiosity", "Module:GAIL", "Module:RND-pred", "Module:RND-target"}
        like = {"step": 0, **learned_state(other)}
        taken = from_mlagents({name: part for name, part in checkpoint.items() if name != "trajtrainer"}, like)
        for name, module in learned_state(one)["rewards"].items():
            for entry, value in module.items():
                assert torch.equal(taken["rewards"][name][entry], value), f"{name}.{entry}"


class TestPPO(WithEverything):
    trainer_type = "ppo"


class TestPOCA(WithEverything):
    trainer_type = "poca"


class TestRecurrentPOCA(TestPOCA):
    memory: ClassVar = {"sequence_length": 4, "memory_size": 8}


class TestSAC(WithEverything):
    trainer_type = "sac"
    hyperparameters: ClassVar = {"batch_size": 8, "buffer_size": 64, "buffer_init_steps": 16, "steps_per_update": 8}


class TestRecurrentSAC(TestSAC):
    memory: ClassVar = TestRecurrentPOCA.memory


def rig(trainer_type: str, memory: bool) -> TrainerRig:
    network: dict[str, Any] = {"hidden_units": 8, "num_layers": 1}
    if memory:
        network["memory"] = {"sequence_length": 4, "memory_size": 8}
    pace = {"steps_per_update": 6} if trainer_type == "sac" else {}
    settings = trainer_settings(
        {
            "trainer_type": trainer_type,
            "hyperparameters": {"batch_size": 8, "buffer_size": 32, **pace},
            "network_settings": network,
            "reward_signals": SIGNALS,
            "behavioral_cloning": CLONING,
        }
    )
    return (OffPolicyRig if trainer_type == "sac" else Rig)(settings, vector_spec(4, 1, (2,)))


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("trainer_type", ["ppo", "sac"])
def test_every_statistic_is_reported(trainer_type: str, memory: bool) -> None:
    training = rig(trainer_type, memory)
    for number in range(6):
        training.put(Trajectory(7, ended=True, agent=number), Trajectory(6, agent=100 + number))
        training.trainer.advance()
    found = training.statistics()
    assert found.keys() >= TAGS
    assert {f"Policy/{name} Reward" for name in ("Extrinsic", "Curiosity", "Gail", "Rnd")} <= found.keys()
    assert all(np.isfinite(found[tag]).all() for tag in TAGS)
    gradient_steps = len(found["Losses/Policy Loss"])
    # ML-Agents clones after each update, which of SAC is each gradient step.
    assert len(found["Losses/Pretraining Loss"]) == gradient_steps


SENSORS = {
    "vectors": [vector(3), vector(2)],
    "pictures": [camera(3, 20, 20), vector(2)],
    "lists": [entities(4, 3), vector(2)],
    "goal": [vector(3), vector(2, "goal", goal=True)],
}
ACTIONS = {"continuous": (2, ()), "discrete": (0, (3, 2)), "hybrid": (1, (2,))}


def made(spec: BehaviorSpec, **changes: Any) -> list[TrainedReward]:
    """Return curiosity, GAIL and RND, ready for a policy; with changed settings, of GAIL alone where they are its."""
    own = {name: changes.pop(name) for name in ("use_vail", "use_actions") if name in changes}
    signals = {name: {**one, **changes} for name, one in SIGNALS.items() if name != "extrinsic"}
    signals["gail"] |= own
    torch.manual_seed(0)
    found = create_reward_signals(spec, trainer_settings({"reward_signals": signals}), torch.device("cpu"))
    actor = Actor(spec, NetworkSettings(hidden_units=8, num_layers=1))
    for signal in found:
        signal.prepare(actor)
    return [signal for signal in found if isinstance(signal, TrainedReward)]


def learned_from(packed: PackedSteps, mask: torch.Tensor | None = None) -> Minibatch:
    """Return the steps as a minibatch, with what follows each of them."""
    rows = {name: torch.from_numpy(one).to(torch_dtype(one.dtype)) for name, one in packed.steps.items()}
    both = [np.concatenate(pair) for pair in zip(packed.obs, packed.bootstrap.obs, strict=True)]
    for number, sensor in enumerate(both):
        rows[sensor_name(number, NEXT_OBSERVATIONS)] = torch.from_numpy(sensor[packed.following()])
    if mask is not None:
        rows["loss_mask"] = mask
    return Minibatch(Columns(rows), Columns({}))


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("sensors", SENSORS)
def test_every_sensor_and_action(sensors: str, actions: str) -> None:
    spec = behavior(SENSORS[sensors], *ACTIONS[actions])
    packed = random_steps(spec, lengths=(5, 3))
    for signal in made(spec, strength=0.001):
        for _ in range(2):
            assert all(value.isfinite() for value in signal.update(learned_from(packed)).values())
        rewards = signal.evaluate(packed)
        assert rewards.dtype == np.float32
        assert rewards.shape == (8,)
        assert np.isfinite(rewards).all()
        assert (rewards >= 0).all()
        assert rewards.std() > 0


def test_pictures_may_be_bytes_here_and_numbers_there() -> None:
    spec = behavior(SENSORS["pictures"])
    packed = random_steps(spec, lengths=(5, 3))
    pixels = np.random.default_rng(0).integers(256, size=(8, 3, 20, 20)).astype(np.uint8)
    as_bytes, as_numbers = (
        Columns({**dict(packed.steps.items()), "obs.0": each})
        for each in (pixels, pixels.astype(np.float32) / np.float32(255))
    )
    found = []
    for steps in (as_bytes, as_numbers):
        (signal,) = (one for one in made(spec) if isinstance(one, GailReward))
        minibatch = learned_from(packed)
        rows = minibatch.rows.with_columns({"obs.0": torch.from_numpy(steps["obs.0"])})
        found.append(signal.update(Minibatch(rows, Columns({}))))
    assert {tag: value.item() for tag, value in found[0].items()} == pytest.approx(
        {tag: value.item() for tag, value in found[1].items()}, rel=1e-4
    )


def test_padding_counts_nowhere() -> None:
    spec = vector_spec(4, 1, (2,))
    packed = random_steps(spec, lengths=(6,))
    padded = random_steps(spec, lengths=(9,), seed=5)
    for name, column in padded.steps.items():
        column[:6] = packed[name]
    mask = torch.tensor([1.0] * 6 + [0.0] * 3)
    for number in range(3):
        one, other = made(spec)[number], made(spec)[number]
        plain = learned_from(packed)
        after = learned_from(padded, mask)
        for sensor in range(len(spec.observation_specs)):
            name = sensor_name(sensor, NEXT_OBSERVATIONS)
            after.rows[name][:6] = plain.rows[name]
        for _ in range(2):
            assert one.update(plain) == other.update(after)


def test_what_follows_a_step_is_the_next_of_its_trajectory() -> None:
    """Curiosity is the same whether steps are in one trajectory or each in one of its own, as a replay has them."""
    spec = vector_spec(4, 1, (2,))
    packed = random_steps(spec, lengths=(5, 3))
    signal = made(spec)[0]
    signal.update(learned_from(packed))
    minibatch = learned_from(packed)
    count = len(packed)
    alone = PackedSteps(
        steps=packed.steps,
        bootstrap=Columns({"obs.0": minibatch.next_obs[0].numpy()}),
        offset=np.arange(count + 1, dtype=np.int32),
        terminated=np.zeros(count, np.bool_),
        ended=np.zeros(count, np.bool_),
        agent=np.zeros(count, np.int64),
    )
    np.testing.assert_allclose(signal.evaluate(packed), signal.evaluate(alone), rtol=1e-4, atol=1e-6)


def test_curiosity_is_limited_and_begins_with_its_first_update() -> None:
    spec = vector_spec(4)
    packed = random_steps(spec)
    signal = made(spec, strength=1000.0)[0]
    assert not signal.evaluate(packed).any()
    signal.update(learned_from(packed))
    assert signal.evaluate(packed).max() == np.float32(1e-3)


def test_the_normalizer_of_curiosity_learns() -> None:
    """ML-Agents' never does, so that ``normalize`` does nothing but limit observations to within 5 of 0."""
    spec = vector_spec(4)
    packed = random_steps(spec)
    packed.steps.obs[0][:] += 100
    signal = made(spec)[0]
    signal.update(learned_from(packed))
    mean = signal.modules()["Curiosity"].state_dict()["encoder.encoder.sensors.0.mean"]
    np.testing.assert_allclose(mean, packed.obs[0].sum(0) / (len(packed) + 1), rtol=1e-5)


def test_gails_penalty_is_on_all_sensors() -> None:
    """With the first sensor constant ML-Agents' gradient penalty has nothing to say."""
    spec = behavior([vector(3), vector(2)])
    signal = made(spec, use_vail=False, use_actions=False)[1]
    assert isinstance(signal, GailReward)
    packed = random_steps(spec)
    with torch.no_grad():
        weight = signal.discriminator.state_dict()["encoder.layers.layers.0.weight"]
        weight[:, :3] = 0
        weight[:, 3:] = 5
    before = signal.update(learned_from(packed))["Policy/GAIL Grad Mag Loss"].item()
    assert before != pytest.approx(10.0, rel=0.01)  # what a gradient of 0 costs


@pytest.mark.parametrize("squashed", [False, True])
def test_gail_sees_what_the_environment_received(squashed: bool) -> None:
    spec = vector_spec(4, 1, ())
    signal = made(spec)[1]
    assert isinstance(signal, GailReward)
    head = {"conditional_sigma": squashed, "tanh_squash": squashed}
    packed = random_steps(spec, lengths=(4,))
    packed["continuous"][:, 0] = [-1.0, -0.5, 0.5, 1.0]
    signal.imitate(packed, Actor(spec, NetworkSettings(hidden_units=8), **head))
    policy = torch.from_numpy(packed["continuous"]) * (1 if squashed else 3)
    demonstrated = signal._demonstrated
    mine = signal._actions(policy, demonstrated["discrete"], demonstrated["done"])
    theirs = signal._actions(demonstrated["continuous"], demonstrated["discrete"], demonstrated["done"])
    assert torch.equal(mine, theirs)
    beyond = signal._actions(policy * 1.5, demonstrated["discrete"], demonstrated["done"])
    assert squashed or torch.equal(beyond[[0, 3]], mine[[0, 3]])


def test_it_learns_to_tell_them_apart(tmp_path: Path) -> None:
    spec = vector_spec(4)
    signal = made(spec, use_vail=False, learning_rate=0.01)[1]
    packed = random_steps(spec, lengths=(40,), seed=3)
    packed.steps.obs[0][:] += 3
    for _ in range(40):
        found = signal.update(learned_from(packed))
    assert found["Policy/GAIL Policy Estimate"] < 0.3 < 0.7 < found["Policy/GAIL Expert Estimate"]
    assert signal.evaluate(packed).mean() < signal.evaluate(random_steps(spec, lengths=(20, 9), seed=9)).mean()
