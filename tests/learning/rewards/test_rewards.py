"""Reward signals against ML-Agents' golden rewards, losses and weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.experience.packing import packed_steps, with_columns
from tests.learning.algos import mlagents
from tests.learning.algos.minibatches import minibatch_of
from trajtrainer.core.columns import Columns, sensor_name
from trajtrainer.core.plugins import resolve
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.mlagents import mlagents_keys
from trajtrainer.learning.rewards.curiosity import CuriosityReward
from trajtrainer.learning.rewards.gail import GailReward
from trajtrainer.learning.rewards.rnd import RndReward
from trajtrainer.learning.rewards.settings import CuriositySettings, GailSettings, RndSettings
from trajtrainer.learning.rewards.signal import ExtrinsicReward, create_reward_signals
from trajtrainer.learning.rewards.trained import TrainedReward
from trajtrainer.settings.components import REWARD_SIGNALS, RewardSignalSettings
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


def _minibatch(obs: list[NDArray[np.float32]], loss_mask: Tensor | None = None, **columns: Any) -> Minibatch:
    n = len(obs[0])
    empty, row = torch.zeros(n, 0), torch.zeros(1, n)
    given = {"mask": empty.bool(), "continuous": empty, "discrete": empty.long(), **columns}
    return minibatch_of(
        obs=tuple(torch.tensor(o) for o in obs),
        log_prob=empty,
        returns=row,
        old_values=row,
        advantage=row[0],
        loss_mask=loss_mask,
        **given,
    )


SETTINGS: dict[str, Callable[..., RewardSignalSettings]] = {
    "rnd": RndSettings,
    "curiosity": CuriositySettings,
    "gail": GailSettings,
}


class Golden:
    """A signal with ML-Agents' weights, and what ML-Agents made of the same rows."""

    def __init__(self, folder: Path, name: str) -> None:
        self.json = json.loads((folder / f"{name}.json").read_text())
        self.arrays: Mapping[str, Any] = mlagents.arrays(folder / f"{name}.npz")
        self.spec = mlagents.behavior_spec(self.json["behavior_spec"])
        data = self.json["settings"]
        given = {**data, "network_settings": mlagents.network_settings(data["network_settings"])}
        kind = self.json["signal"]
        settings = SETTINGS[kind](**given, **({"demo_path": "x"} if kind == "gail" else {}))
        signal = resolve(REWARD_SIGNALS[kind].create)(self.spec, settings, CPU)
        assert isinstance(signal, TrainedReward)
        self.signal = signal
        assert (signal.gamma, signal.strength) == (self.json["gamma"], self.json["strength"])
        assert signal.ignore_done == self.json["ignore_done"]
        for key, network in signal.modules().items():
            network.load_state_dict(self.ours(key, "before_"))

    def rows(self, prefix: str) -> dict[str, Any]:
        """Columns of the batch, or of what was drawn of the demonstrations."""
        found = {n.removeprefix(prefix): self.arrays[n] for n in self.arrays if n.startswith(prefix)}
        sensors = range(len(self.spec.observation_specs))
        n, nothing = len(found["obs__0"]), np.zeros((len(found["obs__0"]), 0), np.float32)
        return {
            "obs": [found[f"obs__{i}"] for i in sensors],
            "next_obs": [found.get(f"next_obs__{i}") for i in sensors],
            "continuous": found.get("continuous_action", nothing),
            "discrete": found.get("discrete_action", nothing).astype(np.int32),
            "done": found["done"].astype(np.bool_),
            "real": found.get("masks", np.ones(n, np.float32)),
        }

    @property
    def packed(self) -> PackedSteps:
        """Every row of the batch as a trajectory."""
        rows = self.rows("batch_")
        del rows["real"]
        obs, after = rows.pop("obs"), rows.pop("next_obs")
        n = len(obs[0])
        ends = {name: np.zeros(n, np.bool_) for name in ("terminated", "ended")}
        more = {
            "agent": np.zeros(n, np.int64),
            "offset": np.arange(n + 1, dtype=np.int32),
            "bootstrap_obs": tuple(after),
        }
        return _packed(obs, **rows, **more, **ends)

    @property
    def minibatch(self) -> Minibatch:
        rows = self.rows("batch_")
        tensors = {name: torch.tensor(rows[name]) for name in ("continuous", "discrete", "done")}
        after = [torch.tensor(sensor) for sensor in rows["next_obs"]]
        mask = None if rows["real"].all() else torch.tensor(rows["real"])
        tensors["discrete"] = tensors["discrete"].long()
        return _minibatch(rows["obs"], mask, next_obs=after, **tensors)

    def ours(self, key: str, prefix: str) -> dict[str, Tensor]:
        """What ML-Agents has of a network, under our names."""
        start = f"{prefix}Module:{key}/"
        names = {ours: start + key.names[0] for ours, key in mlagents_keys(self.signal.modules()[key]).items()}
        return {ours: torch.tensor(self.arrays[name]) for ours, name in names.items() if name in self.arrays}

    def assert_weights(self, prefix: str) -> None:
        for key, network in self.signal.modules().items():
            expected = self.ours(key, prefix)
            assert expected
            for name, value in expected.items():
                torch.testing.assert_close(network.state_dict()[name], value, rtol=1e-5, atol=1e-5, msg=name)

    def assert_gradients(self) -> None:
        for key, network in self.signal.modules().items():
            expected = self.ours(key, "gradient_")
            for name, parameter in network.named_parameters():
                if parameter.requires_grad:
                    torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-5, msg=name)

    def assert_rewards(self, name: str) -> None:
        np.testing.assert_allclose(self.signal.evaluate(self.packed), self.arrays[name], rtol=1e-5, atol=1e-5)

    def assert_all(self, before_update: Callable[[int], None] = lambda _: None) -> None:
        """Evaluate, update, evaluate, update, evaluate: all as ML-Agents."""
        self.assert_rewards("rewards_before")
        for number, expected in enumerate(self.json["statistics"], start=1):
            before_update(number)
            found = self.signal.update(self.minibatch)
            assert {tag: value.item() for tag, value in found.items()} == pytest.approx(expected, rel=2e-5)
            if number == 1:
                self.assert_gradients()
                self.assert_weights("after_1_")
            self.assert_rewards(f"rewards_after_{number}")


@pytest.mark.parametrize("name", ["rnd", "rnd_normalize"])
def test_golden_rnd(shared_data: Path, name: str) -> None:
    Golden(shared_data / "golden" / "rewards", name).assert_all()


@pytest.mark.parametrize("name", ["curiosity_continuous", "curiosity_discrete_padded", "curiosity_hybrid"])
def test_golden_curiosity(shared_data: Path, name: str) -> None:
    golden = Golden(shared_data / "golden" / "rewards", name)
    assert isinstance(golden.signal, CuriosityReward)
    golden.signal._normalize = False  # ML-Agents' normalizer never learns
    golden.assert_all()


GAIL = [
    "gail",
    "gail_normalize",
    "gail_use_actions",
    "gail_use_actions_discrete",
    "gail_vail",
    "gail_vail_use_actions_hybrid",
]


@pytest.mark.parametrize("name", GAIL)
def test_golden_gail(shared_data: Path, name: str) -> None:
    golden = Golden(shared_data / "golden" / "rewards", name)
    signal = golden.signal
    assert isinstance(signal, GailReward)
    # With more than one sensor or actions ML-Agents' penalty is another, which only autograd has here.
    signal.by_hand &= not signal._use_actions

    def draw(number: int) -> None:
        """Let the signal have ML-Agents' random numbers."""
        rows, start = golden.rows(f"update_{number}_expert_"), f"update_{number}_draw_"
        tensors = {name: torch.tensor(rows[name]) for name in ("continuous", "discrete", "done")}
        sensors = {sensor_name(i): torch.tensor(sensor) for i, sensor in enumerate(rows["obs"])}
        signal._demonstrated = Columns({**sensors, **tensors})
        signal._numbers = torch.arange  # type: ignore[method-assign, assignment]
        names = sorted((n for n in golden.arrays if n.startswith(start)), key=lambda n: int(n.split("_")[3]))
        uniform = [torch.tensor(golden.arrays[n]) for n in names if n.endswith("_rand")]
        normal = [torch.tensor(golden.arrays[n]) for n in names if n.endswith("randn_like")]
        if signal._use_actions:  # actions and ends are one tensor here
            uniform[-2:] = [torch.cat(uniform[-2:], 1)]
        if normal:  # of the policy's and the demonstrated rows together
            normal[:2] = [torch.cat(normal[:2])]
        uniforms, normals = iter(uniform), iter(normal)
        signal._uniform = lambda like: next(uniforms)  # type: ignore[method-assign]
        signal._normal = lambda like: next(normals)  # type: ignore[method-assign]
        signal._penalized = lambda inputs: inputs[:1]  # type: ignore[method-assign]

    golden.assert_all(draw)


def test_golden_extrinsic(shared_data: Path) -> None:
    arrays = mlagents.arrays(shared_data / "golden" / "rewards" / "extrinsic.npz")
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
        obs = [np.concatenate([o, np.full((padding, *o.shape[1:]), 1e3, np.float32)]) for o in golden.packed.obs]
        mask = torch.cat([torch.ones(len(golden.packed)), torch.zeros(padding)])
        losses.append([golden.signal.update(_minibatch(obs, mask))["Losses/RND Loss"].item() for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


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
    signals = create_reward_signals(mlagents_spec(), TrainerSettings(reward_signals=kinds), CPU)
    assert [signal.name for signal in signals] == ["rnd", "extrinsic"]
    assert [signal.ignore_done for signal in signals] == [True, False]
