"""Reward signals against ML-Agents' golden rewards, losses and weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.algos import mlagents
from tests.algos.minibatches import minibatch_of
from tests.data.packing import packed_steps, with_columns
from trajtrainer.algos.minibatch import Minibatch
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.errors import UnsupportedError
from trajtrainer.nn.mlagents import mlagents_keys
from trajtrainer.rewards.extrinsic import ExtrinsicReward
from trajtrainer.rewards.factory import create_reward_signals
from trajtrainer.rewards.rnd import RndReward
from trajtrainer.settings.rewards import (
    CuriositySettings,
    GailSettings,
    RewardSignalSettings,
    RndSettings,
)
from trajtrainer.settings.trainer import TrainerSettings

CPU = torch.device("cpu")


def _packed(obs: list[NDArray[np.float32]], **columns: Any) -> PackedSteps:
    n = len(obs[0])
    nothing: dict[str, Any] = {
        name: np.zeros((n, 0), np.float32) for name in ("mask", "continuous", "discrete", "log_prob", "memory")
    }
    nothing |= {name: np.zeros(n, np.float32) for name in ("reward", "group_reward")}
    nothing |= {name: np.zeros(n, np.int32) for name in ("group", "version", "done", "interrupted")}
    nothing |= {name: np.zeros(1, np.bool_) for name in ("terminated", "ended")}
    nothing |= {"agent": np.zeros(1, np.int64), "offset": np.array([0, n], np.int32)}
    bootstrap = {"bootstrap_obs": tuple(o[:1] for o in obs), "bootstrap_memory": np.zeros((1, 0), np.float32)}
    return packed_steps(obs=tuple(obs), **(nothing | bootstrap | columns))


def _minibatch(obs: list[NDArray[np.float32]], loss_mask: Tensor | None = None) -> Minibatch:
    n = len(obs[0])
    empty, row = torch.zeros(n, 0), torch.zeros(1, n)
    return minibatch_of(
        obs=tuple(torch.tensor(o) for o in obs),
        mask=empty.bool(),
        continuous=empty,
        discrete=empty.long(),
        log_prob=empty,
        returns=row,
        old_values=row,
        advantage=row[0],
        loss_mask=loss_mask,
    )


class Golden:
    def __init__(self, folder: Path, name: str) -> None:
        self.json = json.loads((folder / f"{name}.json").read_text())
        self.arrays: Mapping[str, Any] = np.load(folder / f"{name}.npz")
        spec = mlagents.behavior_spec(self.json["behavior_spec"])
        self.obs = [self.arrays[f"batch_obs__{i}"] for i in range(len(spec.observation_specs))]
        settings = mlagents.rnd_settings(self.json["settings"])
        self.signal = RndReward(spec, settings, CPU)
        assert (self.signal.gamma, self.signal.strength) == (self.json["gamma"], self.json["strength"])
        for key, network in self.signal.modules().items():
            network.load_state_dict(self._under_our_names(key, "before_"))

    def _under_our_names(self, key: str, prefix: str) -> dict[str, Tensor]:
        network = self.signal.modules()[key]
        start = f"{prefix}Module:{key}/"
        names = {ours: start + key.names[0] for ours, key in mlagents_keys(network).items()}
        return {ours: torch.tensor(self.arrays[name]) for ours, name in names.items() if name in self.arrays}

    def assert_weights(self, prefix: str) -> None:
        for key, network in self.signal.modules().items():
            for name, expected in self._under_our_names(key, prefix).items():
                torch.testing.assert_close(network.state_dict()[name], expected, rtol=1e-5, atol=1e-5, msg=name)

    def assert_gradients(self) -> None:
        expected = self._under_our_names("RND-pred", "gradient_")
        for name, parameter in self.signal.predictor.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", ["rnd", "rnd_normalize"])
def test_golden_rnd(shared_data: Path, name: str) -> None:
    golden = Golden(shared_data / "golden" / "rewards", name)
    signal, packed = golden.signal, _packed(golden.obs)
    np.testing.assert_allclose(signal.evaluate(packed), golden.arrays["rewards_before"], rtol=1e-5, atol=1e-5)
    for number, expected in enumerate(golden.json["statistics"], start=1):
        found = signal.update(_minibatch(golden.obs))
        assert {tag: value.item() for tag, value in found.items()} == pytest.approx(expected, rel=2e-5)
        if number == 1:
            golden.assert_gradients()
            golden.assert_weights("after_1_")
        rewards = golden.arrays[f"rewards_after_{number}"]
        np.testing.assert_allclose(signal.evaluate(packed), rewards, rtol=1e-5, atol=1e-5)


def test_golden_extrinsic(shared_data: Path) -> None:
    arrays = np.load(shared_data / "golden" / "rewards" / "extrinsic.npz")
    own = arrays["batch_environment_rewards"]
    packed = _packed([np.zeros((len(own), 1), np.float32)], reward=own, group_reward=arrays["batch_group_reward"])
    signal = ExtrinsicReward(mlagents_spec(), RewardSignalSettings(strength=0.7), CPU)
    np.testing.assert_array_equal(signal.evaluate(packed), arrays["rewards_ppo_sac"])
    of_mates = np.nansum(arrays["batch_groupmate_reward"], 1, dtype=np.float64).astype(np.float32)
    with_mates = with_columns(packed, groupmate_reward=of_mates)
    np.testing.assert_allclose(signal.evaluate(with_mates), arrays["rewards_poca"], rtol=1e-6)
    alone = with_columns(packed, group_reward=np.zeros_like(own))
    np.testing.assert_array_equal(signal.evaluate(alone), own)


def test_padding_changes_nothing(shared_data: Path) -> None:
    losses = []
    for padding in (0, 5):
        golden = Golden(shared_data / "golden" / "rewards", "rnd_normalize")
        obs = [np.concatenate([o, np.full((padding, *o.shape[1:]), 1e3, np.float32)]) for o in golden.obs]
        mask = torch.cat([torch.ones(len(golden.obs[0])), torch.zeros(padding)])
        losses.append([golden.signal.update(_minibatch(obs, mask))["Losses/RND Loss"].item() for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_optimizer_goes_on_from_its_state(shared_data: Path) -> None:
    first, second = (Golden(shared_data / "golden" / "rewards", "rnd") for _ in range(2))
    minibatch = _minibatch(first.obs)
    first.signal.update(minibatch)
    for key, network in second.signal.modules().items():
        network.load_state_dict(first.signal.modules()[key].state_dict())
    state = first.signal.optimizer_state()
    assert state is not None
    second.signal.load_optimizer_state(state)
    assert first.signal.update(minibatch) == second.signal.update(minibatch)
    for ours, theirs in zip(first.signal.predictor.parameters(), second.signal.predictor.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def mlagents_spec() -> Any:
    data = {
        "observation_specs": [{"name": "v", "shape": [3], "dimension_property": [1], "observation_type": 0}],
        "action_spec": {"continuous_size": 1, "discrete_branches": []},
    }
    return mlagents.behavior_spec(data)


def test_encoding_size_is_the_width() -> None:
    signal = RndReward(mlagents_spec(), RndSettings(encoding_size=7), CPU)
    assert signal.predictor.encoding_size == 7


def test_signals_keep_the_order_of_the_settings() -> None:
    kinds = {"rnd": RndSettings(), "extrinsic": RewardSignalSettings()}
    signals = create_reward_signals("B", mlagents_spec(), TrainerSettings(reward_signals=kinds), CPU)
    assert [signal.name for signal in signals] == ["rnd", "extrinsic"]
    assert [signal.ignore_done for signal in signals] == [True, False]


def test_unbuilt_signals_are_refused_by_name() -> None:
    settings = TrainerSettings(
        reward_signals={
            "extrinsic": RewardSignalSettings(),
            "curiosity": CuriositySettings(),
            "gail": GailSettings(demo_path="x"),
        }
    )
    with pytest.raises(UnsupportedError, match=r"'Ball'.*'curiosity' is not built yet"):
        create_reward_signals("Ball", mlagents_spec(), settings, CPU)
