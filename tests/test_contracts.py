"""The contracts that authors inherit hold for what is built in and for the sample package, and notice faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.envs.python.gymnasium_samples import CountingEnv
from tests.packages import Install
from trajtrainer.core.steps import EnvironmentEvent, FloatArray
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.python.gymnasium_environment import GymnasiumEnvironment
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.ppo.ppo import PPO
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.settings.components import (
    ALGORITHMS,
    REWARD_SIGNALS,
    AlgorithmRow,
    RewardSignalRow,
    RewardSignalSettings,
)
from trajtrainer.testing import AlgorithmContract, EnvironmentContract, RewardSignalContract


class TestExtrinsic(RewardSignalContract):
    name = "extrinsic"
    row = REWARD_SIGNALS.builtin["extrinsic"]


class TestRnd(RewardSignalContract):
    name = "rnd"
    row = REWARD_SIGNALS.builtin["rnd"]


class TestPPO(AlgorithmContract):
    trainer_type = "ppo"


class TestPOCA(AlgorithmContract):
    trainer_type = "poca"


class TestSAC(AlgorithmContract):
    trainer_type = "sac"
    hyperparameters = dict(batch_size=8, buffer_size=64, buffer_init_steps=16, steps_per_update=8)  # noqa: C408, RUF012


class TestGymnasium(EnvironmentContract):
    def make(self) -> Environment:
        return GymnasiumEnvironment([CountingEnv(), CountingEnv()], seed=3)


class TestSampleSignal(RewardSignalContract):
    name = "effort"

    @pytest.fixture(autouse=True)
    def _installed(self, install: Install) -> None:
        install()
        type(self).row = REWARD_SIGNALS["effort"]


class TestSampleAlgorithm(AlgorithmContract):
    trainer_type = "reinforce"

    @pytest.fixture(autouse=True)
    def _installed(self, install: Install) -> None:
        install()


class Odd(RewardSignal):
    """Breaks one promise at a time."""

    def __init__(self, fault: str, settings: RewardSignalSettings) -> None:
        super().__init__("even" if fault == "name" else "odd", gamma=settings.gamma, strength=settings.strength)
        self.fault = fault
        self.layer = nn.Linear(3, 1)
        self.optimizer = torch.optim.Adam(self.layer.parameters())

    def evaluate(self, packed: PackedSteps) -> FloatArray:
        reward: Any = self.layer(torch.from_numpy(packed.obs[0])).detach().numpy()[:, 0]
        if self.fault == "changes":
            packed["reward"][:] = 0
        if self.fault == "not finite":
            reward = reward / 0 * 0
        return reward.astype(np.float64) if self.fault == "dtype" else reward  # type: ignore[no-any-return]

    def update(self, minibatch: Minibatch) -> dict[str, Tensor]:
        loss = self.layer(minibatch.obs[0]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"Losses/Odd": loss if self.fault == "gradient" else loss.detach()}

    def modules(self) -> dict[str, nn.Module]:
        return {} if self.fault == "forgets" else {"odd": self.layer}

    def optimizer_state(self) -> dict[str, Any] | None:
        return None if self.fault == "forgets Adam" else self.optimizer.state_dict()

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def failures(contract: Any, **arguments: Any) -> set[str]:
    """Run every test of a contract, and return those that fail."""
    failed = set()
    for name in dir(contract):
        if name.startswith("test_"):
            test = getattr(contract, name)
            wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
            try:
                with np.errstate(all="ignore"):
                    test(**{each: value for each, value in arguments.items() if each in wanted})
            except AssertionError:
                failed.add(name)
    return failed


@pytest.mark.parametrize(
    ("fault", "noticed_by"),
    [
        ("none", set()),
        ("name", {"test_it_has_its_name_and_settings"}),
        ("dtype", {"test_it_rewards_each_step_and_changes_none"}),
        ("not finite", {"test_it_rewards_each_step_and_changes_none"}),
        ("changes", {"test_it_rewards_each_step_and_changes_none"}),
        ("gradient", {"test_its_statistics_are_finite_and_without_gradient"}),
        ("forgets", {"test_a_restored_signal_goes_on_alike"}),
        ("forgets Adam", {"test_a_restored_signal_goes_on_alike"}),
    ],
)
def test_a_broken_signal_is_noticed(fault: str, noticed_by: set[str]) -> None:
    class Contract(RewardSignalContract):
        name = "odd"
        row = RewardSignalRow(RewardSignalSettings, lambda spec, settings, device: Odd(fault, settings))

    assert (
        failures(Contract()) - ({"test_a_restored_signal_goes_on_alike"} if fault == "not finite" else set())
        == noticed_by
    )


class Idle(PPO):
    """Learns nothing."""

    def update(self, *args: Any) -> dict[str, Any]:
        self._buffer.clear()
        return {}


class Forgetful(PPO):
    """Does not restore its optimizer."""

    def load_optimizer_states(self, states: Any) -> None:
        pass


class Divergent(PPO):
    """Reports what is not a number."""

    def add(self, *args: Any) -> dict[str, Any]:
        return super().add(*args) | {"Odd": np.array([np.nan])}


EVERY_TRAINING = {
    "test_it_learns",
    "test_a_seed_gives_the_same_weights_again",
    "test_what_is_saved_is_restored",
    "test_its_policy_is_exported",
}


@pytest.mark.parametrize(
    ("algorithm", "noticed_by"),
    [(Idle, {"test_it_learns"}), (Forgetful, {"test_what_is_saved_is_restored"}), (Divergent, EVERY_TRAINING)],
)
def test_a_broken_algorithm_is_noticed(
    algorithm: type[PPO], noticed_by: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS.builtin, "ppo", AlgorithmRow(PPOHyperparameters, algorithm))
    assert failures(TestPPO(), tmp_path=tmp_path) == noticed_by


class Silent(GymnasiumEnvironment):
    """Does not tell that it was reset."""

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        events = super().wait(timeout_s)
        for event in events:
            event.is_reset = False
        return events


class Wide(GymnasiumEnvironment):
    """Sends more observations than it announced."""

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        events = super().wait(timeout_s)
        for event in events:
            for batch in event.steps.values():
                batch.obs = (*batch.obs, batch.obs[0])
        return events


@pytest.mark.parametrize("cls", [Silent, Wide])
def test_a_broken_environment_is_noticed(cls: type[GymnasiumEnvironment]) -> None:
    class Contract(EnvironmentContract):
        def make(self) -> Environment:
            return cls([CountingEnv()], seed=3)

    assert failures(Contract()) == {
        "test_every_worker_begins_with_a_reset",
        "test_it_can_be_played",
        "test_it_can_be_reset_in_between",
    }
