"""Trajectories and a whole round of updates through SAC's trainer against ML-Agents'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.experience.packing import packed_steps
from tests.learning.algos.mlagents import Case, with_hyperparameters
from tests.learning.trainers.rig import OffPolicyRig, Trajectory, restore
from trajtrainer.core.steps import LongArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.policies.checkpoints.mlagents.convert import from_mlagents
from trajtrainer.policies.checkpoints.state import learned_state


def _rig(case: Case, **changes: Any) -> OffPolicyRig:
    rig = OffPolicyRig(with_hyperparameters(case.settings, **changes), case.spec)
    restore(rig.trainer, case.checkpoint("start"), reset_step=True)
    return rig


# trajectories/sac


@pytest.fixture
def trajectories(shared_data: Path) -> Case:
    return Case.read(shared_data / "golden" / "trajectories" / "sac")


def _trajectory(case: Case, number: int) -> Trajectory:
    entry = case.json["trajectories"][number]
    given = {n.removeprefix(f"t{number}_in_"): a for n, a in case.arrays.items() if n.startswith(f"t{number}_in_")}
    return Trajectory(
        entry["length"],
        entry["done"],
        entry["interrupted"],
        agent=number,
        columns={
            "obs.0": np.concatenate([given["obs_0"], given["next_obs_0"][None]]),
            "continuous": given["continuous_action"],
            "log_prob": given["continuous_log_probs"],
            "reward": given["reward"],
            "group_reward": given["group_reward"],
        },
    )


def test_golden_trajectories(trajectories: Case) -> None:
    case = trajectories
    rig = _rig(case)
    replay = rig.learner.replay
    for number, entry in enumerate(case.json["trajectories"]):
        before = replay.num_steps
        rig.put(_trajectory(case, number))
        rig.take_in()
        sample = replay.sample(np.arange(before, replay.num_steps))
        expected = {n.removeprefix(f"t{number}_out_"): a for n, a in case.arrays.items() if f"t{number}_out_" in n}
        np.testing.assert_array_equal(sample.rows.obs[0], expected["obs__0"])
        np.testing.assert_array_equal(sample.rows["continuous"], expected["continuous_action"])
        np.testing.assert_array_equal(sample.rows["reward"], expected["environment_rewards"])
        np.testing.assert_array_equal(sample.rows["group_reward"], expected["group_reward"])
        np.testing.assert_array_equal(sample.rows["terminated"], expected["done"])
        following = expected["next_obs__0"]
        if entry["interrupted"]:
            # Documented difference: what follows the last step of an episode that was broken off is what the agent saw
            # then; ML-Agents takes the last observation before it once more.
            np.testing.assert_array_equal(following[-1], expected["obs__0"][-1])
            following = np.concatenate([following[:-1], case.arrays[f"t{number}_in_next_obs_0"][None]])
        np.testing.assert_array_equal(sample.next_obs[0], following)
        _assert_normalizers(case, rig, number)
    statistics = rig.statistics()
    for tag, values in case.json["statistics_recorded"].items():
        assert statistics.pop(tag) == pytest.approx(values, rel=1e-5, abs=1e-5), tag
    assert not statistics


def _assert_normalizers(case: Case, rig: OffPolicyRig, number: int) -> None:
    names = {"steps": "normalization_steps", "mean": "running_mean", "variance": "running_variance"}
    others = [*rig.learner.values.values()]
    for who, ours in (("actor", (rig.trainer.actor,)), ("critic", others)):
        for module in ours:
            normalizer = module.body.encoder.normalizers()[0]
            for name, theirs in names.items():
                expected = torch.tensor(case.arrays[f"t{number}_norm_{who}_0.normalizer.{theirs}"])
                torch.testing.assert_close(getattr(normalizer, name), expected, rtol=1e-5, atol=1e-5)


# loops/sac


@pytest.fixture
def loop(shared_data: Path) -> Case:
    return Case.read(shared_data / "golden" / "loops" / "sac")


def _rows(case: Case) -> PackedSteps:
    """ML-Agents' rows, each as a trajectory of one step, whatever trajectory they come from."""
    data = {n.removeprefix("buffer_"): a for n, a in case.arrays.items() if n.startswith("buffer_")}
    count = case.json["buffer_rows"]
    return packed_steps(
        obs=(data["obs__0"],),
        mask=np.zeros((count, 0), np.bool_),
        continuous=data["continuous_action"],
        discrete=np.zeros((count, 0), np.int32),
        log_prob=data["continuous_log_probs"],
        memory=np.zeros((count, 0), np.float32),
        reward=data["environment_rewards"],
        group_reward=data["group_reward"],
        group=np.zeros(count, np.int32),
        done=data["done"],
        interrupted=np.zeros(count, np.bool_),
        version=np.zeros(count, np.int32),
        bootstrap_obs=(data["next_obs__0"],),
        bootstrap_memory=np.zeros((count, 0), np.float32),
        offset=np.arange(count + 1, dtype=np.int32),
        terminated=data["done"],
        ended=data["done"],
        agent=np.arange(count),
    )


def _use_mlagents_draws(case: Case, rig: OffPolicyRig, monkeypatch: pytest.MonkeyPatch) -> Iterator[LongArray]:
    rows = iter([case.arrays[f"draw_of_rows_{i}"] for i in range(case.json["row_draws"])])
    noise = iter([case.arrays[f"draw_{i}_randn_like"] for i in range(5)] + [np.zeros((8, 2), np.float32)] * 2)

    def numbers(count: int) -> LongArray:
        return np.concatenate([next(rows) for _ in range(count)])

    def normal(size: int) -> Tensor:
        return torch.from_numpy(np.concatenate([next(noise) for _ in range(size // 8)]))

    monkeypatch.setattr(rig.learner._batches, "_numbers", numbers)
    monkeypatch.setattr(rig.learner._batches, "_normal", normal)
    return rows


def test_golden_loop(loop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case = loop
    rig = _rig(case, buffer_size=100)
    trainer, learner = rig.trainer, rig.learner
    trainer.step = case.json["step"]
    learner.replay.add(_rows(case))
    rows = _use_mlagents_draws(case, rig, monkeypatch)
    assert learner.is_ready(trainer.step)
    trainer.advance()
    assert next(rows, None) is None
    assert not learner.is_ready(trainer.step)
    found = rig.statistics()
    for tag, values in case.json["statistics"].items():
        if tag == "Policy/Learning Rate":
            assert found[tag] == [values[0]]
        elif values[0] is None:
            assert np.isnan(found[tag]).all()
        else:
            # Documented difference: ML-Agents hands over the running mean after each update.
            running = np.cumsum(found[tag]) / np.arange(1, len(values) + 1)
            assert running.tolist() == pytest.approx(values, rel=2e-5, abs=1e-5), tag
    assert learner._pace.count == case.json["update_steps_after"]
    assert learner._signal_pace.count == case.json["reward_signal_update_steps_after"]
    _assert_after(case, rig)


def _assert_after(case: Case, rig: OffPolicyRig) -> None:
    state = learned_state(rig.learner)
    expected = from_mlagents(case.checkpoint("after"), state)
    for part in ("modules", "rewards"):
        for module, entries in state[part].items():
            for name, value in entries.items():
                message = f"{module}.{name} differs"
                torch.testing.assert_close(value, expected[part][module][name], rtol=1e-5, atol=1e-5, msg=message)
    coefficient = state["extra"]["sac"]["log_alpha"]["continuous"]
    torch.testing.assert_close(coefficient, torch.tensor(case.arrays["log_ent_coef_continuous_after"]))
