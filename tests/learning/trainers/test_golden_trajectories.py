"""Trajectories through the trainer against what ML-Agents' trainer stores (values, returns, advantages, statistics)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.experience.groups import padded_groups
from tests.learning.algos.mlagents import Case
from tests.learning.trainers.rig import Rig, Trajectory, restore
from trajtrainer.experience.trajectory import PackedSteps

CASES = ["poca", "poca_lstm", "ppo", "ppo_shared_critic", "ppo_group_reward", "ppo_lstm"]


def _assert_close(found: Any, expected: Any, what: str) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-5, err_msg=what)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, shared_data: Path) -> Case:
    return Case.read(shared_data / "golden" / "trajectories" / request.param)


def _rig(case: Case) -> Rig:
    rig = Rig(case.settings, case.spec)
    restore(rig.trainer, case.checkpoint("start"), reset_step=True)
    return rig


def _trajectory(case: Case, number: int) -> Trajectory:
    data = case.arrays
    entry = case.json["trajectories"][number]
    ended, interrupted, agent = entry["done"], entry["interrupted"], number
    if case.settings.network_settings.memory:
        # Documented difference: ML-Agents' critic has one memory for all agents, which it clears at a true end only;
        # ours has one per agent and clears it whenever an episode ends. A single agent whose interrupted episode goes
        # on leads to ML-Agents' numbers.
        ended, agent = ended and not interrupted, 7
    given = {n.removeprefix(f"t{number}_in_"): data[n] for n in data if n.startswith(f"t{number}_in_")}
    columns: dict[str, NDArray[Any]] = {
        f"obs.{i}": np.concatenate([given[f"obs_{i}"], given[f"next_obs_{i}"][None]])
        for i in range(len(case.spec.observation_specs))
    }
    columns |= {
        "continuous": given["continuous_action"],
        "discrete": given["discrete_action"],
        "log_prob": np.concatenate([given["continuous_log_probs"], given["discrete_log_probs"]], 1),
        "reward": given["reward"],
        "group_reward": given["group_reward"],
        "group": np.ones(entry["length"], np.int32),
    }
    if "forbidden" in given:
        columns["mask"] = given["forbidden"]
    if "memory" in given:
        columns["memory"] = given["memory"]
    return Trajectory(entry["length"], ended, interrupted, agent=agent, columns=columns)


def _take(rig: Rig, case: Case, number: int) -> None:
    rig.put(_trajectory(case, number))
    if case.settings.trainer_type != "poca":
        assert rig.trainer.advance()
        return
    # The golden groupmates are lists of rows of their own, which no pool gives.
    (packed,) = rig.source.drain_into(lambda _: None, hold=False)
    assert isinstance(packed, PackedSteps)
    data, spec, length = case.arrays, case.spec, len(packed)
    sensors, start = range(len(spec.observation_specs)), f"t{number}_in_mates_"
    given = {n.removeprefix(start): data[n] for n in data if n.startswith(start)}
    action = spec.action_spec
    count = given.get("count", np.zeros(length, np.int32))
    groups = padded_groups(
        [given.get(f"obs_{i}", np.zeros((length, 0, *spec.observation_specs[i].shape))) for i in sensors],
        given.get("continuous_action", np.zeros((length, 0, action.continuous_size))),
        given.get("discrete_action", np.zeros((length, 0, action.discrete_size))),
        count,
        next_obs=[given.get(f"next_obs_{i}", np.zeros((0, *spec.observation_specs[i].shape))) for i in sensors],
        all_done=_whole_group_ends(case, number),
    )
    of_mates = given.get("reward", np.zeros((length, 0)))
    there = np.arange(of_mates.shape[1]) < count[:, None]
    rewards = np.where(there, of_mates, 0.0).sum(1, dtype=np.float32)
    steps = packed.steps.with_columns({"groupmate_reward": rewards})
    if case.settings.network_settings.memory:
        packed = replace(packed, ended=np.zeros_like(packed.ended))  # ML-Agents never clears these memories
    rig.trainer._count_by_boundaries(replace(packed, steps=steps, groups=groups))


def _whole_group_ends(case: Case, number: int) -> bool:
    entry = case.json["trajectories"][number]
    return bool(entry["done"] and entry["mates_done_at_the_end"])


def test_golden(case: Case) -> None:
    rig = _rig(case)
    buffer, signals = rig.learner._buffer, rig.learner.signals
    statistics: dict[str, list[float]] = {}
    for number in range(len(case.json["trajectories"])):
        start = buffer.num_rows
        _take(rig, case, number)
        expected = {n.removeprefix(f"t{number}_out_"): case.arrays[n] for n in case.arrays if f"t{number}_out_" in n}
        real = expected["masks"] > 0
        rows = slice(start, buffer.num_rows)
        _assert_rows(rig, expected, rows)
        for i, signal in enumerate(signals):
            estimates = buffer.column("value")[rows, i].numpy()[real]
            _assert_close(estimates, expected[f"value_estimates__{signal.name}"], f"values of {number}")
            if "poca_baseline_memory" in expected or case.settings.trainer_type == "poca":
                found = buffer.column("baseline")[rows, i]
                _assert_close(found, expected[f"baselines__{signal.name}"], f"baselines of {number}")
            returns = buffer.column("returns")[rows, i]
            _assert_close(returns, expected[f"returns__{signal.name}"], f"returns of {number}")
        _assert_close(buffer.column("advantage")[rows], expected["advantages"], f"advantages of {number}")
        _assert_normalizers(case, rig, number)
        for tag, values in rig.statistics().items():
            statistics[tag] = (statistics.get(tag, []) if tag != "Step" else []) + list(values)
    recorded = dict(case.json["statistics_recorded"])
    if case.settings.network_settings.memory:
        del recorded["Environment/Cumulative Reward"], recorded["Policy/Extrinsic Reward"]
        recorded.pop("Environment/Group Cumulative Reward", None)
        for tag in ("Environment/Cumulative Reward", "Policy/Extrinsic Reward"):
            statistics.pop(tag, None)
    for tag, values in recorded.items():
        assert statistics.pop(tag) == pytest.approx(values, rel=1e-5, abs=1e-5), tag
    assert not statistics
    assert rig.pool.num_free == rig.pool.capacity


def _assert_rows(rig: Rig, expected: dict[str, Any], rows: slice) -> None:
    """What was only copied, padding included."""
    buffer = rig.learner._buffer
    copied = {
        "continuous": expected["continuous_action"],
        "discrete": expected["discrete_action"],
        "log_prob": np.concatenate([expected["continuous_log_probs"], expected["discrete_log_probs"]], 1),
        "mask": expected["action_mask"] == 0,
    } | {f"obs.{i}": expected[f"obs__{i}"] for i in range(len(rig.spec.observation_specs))}
    for name, values in copied.items():
        real = slice(None) if name != "mask" else expected["masks"] > 0
        np.testing.assert_array_equal(buffer.column(name)[rows][real], values[real], err_msg=name)
    length = buffer.sequence_length
    if length > 1:
        sequences = slice(rows.start // length, rows.stop // length)
        np.testing.assert_array_equal(buffer.column("loss_mask")[rows], expected["masks"])
        np.testing.assert_array_equal(buffer.sequences("memory")[sequences], expected["memory"][::length])
        _assert_close(buffer.sequences("critic_memory")[sequences], expected["critic_memory"][::length], "memory")
        if "poca_baseline_memory" in expected:
            found = buffer.sequences("baseline_memory")[sequences]
            _assert_close(found, expected["poca_baseline_memory"][::length], "memory of baselines")


def _assert_normalizers(case: Case, rig: Rig, number: int) -> None:
    names = {"steps": "normalization_steps", "mean": "running_mean", "variance": "running_variance"}
    found = 0
    for who, module in (("actor", rig.trainer.actor), ("critic", rig.learner.critic)):
        for i, normalizer in module.body.encoder.normalizers().items():
            for ours, theirs in names.items():
                expected = torch.tensor(case.arrays[f"t{number}_norm_{who}_{i}.normalizer.{theirs}"])
                torch.testing.assert_close(getattr(normalizer, ours), expected, rtol=1e-5, atol=1e-5)
                found += 1
    assert bool(found) == case.settings.network_settings.normalize
