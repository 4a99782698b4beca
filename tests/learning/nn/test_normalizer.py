"""The running normalizer against ML-Agents' numbers and against its own rule, one trajectory at a time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.learning.nn.golden import Case, behavior_spec, network_settings, policy_case
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import SharedCritic, ValueNetwork, update_normalizations
from trajtrainer.learning.nn.normalization import Normalizer


def update_as_mlagents_says(state: tuple[int, Tensor, Tensor], x: Tensor) -> tuple[int, Tensor, Tensor]:
    """The rule of docs/explanation/mlagents-behavior.md#networks, literally, in float64."""
    steps, mean, variance = state
    steps += len(x)
    difference = x.double() - mean
    new_mean = mean + (difference / steps).sum(0)
    return steps, new_mean, variance + ((x.double() - new_mean) * difference).sum(0)


def check(normalizer: Normalizer, steps: int, mean: Tensor, variance: Tensor, rtol: float = 1e-6) -> None:
    assert int(normalizer.steps) == steps
    torch.testing.assert_close(normalizer.mean, mean.float(), rtol=rtol, atol=rtol)
    torch.testing.assert_close(normalizer.variance, variance.float(), rtol=rtol, atol=rtol)


def test_worked_numbers() -> None:
    normalizer = Normalizer(1)
    normalizer.update(torch.tensor([[1.0], [3.0]]))
    check(normalizer, 3, torch.tensor([4 / 3]), torch.tensor([17 / 3]))
    assert float(normalizer(torch.tensor([[3.0]]))) == pytest.approx(1.2127, abs=1e-4)


def test_mlagents_ten_batches(shared_data: Path) -> None:
    arrays = np.load(shared_data / "golden" / "trajectories" / "normalizer.npz")
    one_by_one, batches = Normalizer(4), []
    for k in range(10):
        batches.append(torch.from_numpy(arrays[f"batch_{k}"]))
        one_by_one.update(batches[-1])
        at_once = Normalizer(4)
        at_once.update(torch.cat(batches))
        for normalizer in (one_by_one, at_once):
            mean, variance = (torch.from_numpy(arrays[f"after_{k}_{name}"]) for name in ("mean", "variance"))
            check(normalizer, int(arrays[f"after_{k}_steps"]), mean, variance)
            torch.testing.assert_close(
                normalizer(torch.from_numpy(arrays["probe"])),
                torch.from_numpy(arrays[f"after_{k}_probe_normalized"]),
                rtol=0,
                atol=1e-5,
            )


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    repeats=st.integers(1, 3),
    centre=st.sampled_from([0.0, -3.0, 1e4]),
    seed=st.integers(0, 1000),
)
def test_many_trajectories_at_once_are_one_after_the_other(
    lengths: list[int], repeats: int, centre: float, seed: int
) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).normal(centre, 2.0, (sum(lengths), 3))).float()
    state = (1, torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    for part in x.split(lengths):  # type: ignore[no-untyped-call]
        for _ in range(repeats if len(part) else 0):
            state = update_as_mlagents_says(state, part)
    normalizer = Normalizer(3)
    normalizer.update(x, repeats)
    check(normalizer, *state)


def test_no_rows_change_nothing() -> None:
    normalizer = Normalizer(2)
    normalizer.update(torch.zeros(0, 2))
    check(normalizer, 1, torch.zeros(2), torch.ones(2))


def test_far_off_values_keep_their_spread() -> None:
    """Positions of 1e4 with a spread of 0.1 lose it in float32 totals."""
    x = 1e4 + 0.1 * torch.randn(5000, 1, generator=torch.Generator().manual_seed(1))
    normalizer = Normalizer(1)
    normalizer.update(x)
    before = normalizer.variance.double()
    normalizer.update(x)
    mean_before = 5000 * x.double().mean() / 5001
    mean = 10000 * x.double().mean() / 10001
    expected = ((x.double() - mean) * (x.double() - mean_before)).sum()
    assert float(normalizer.variance - before) == pytest.approx(float(expected), abs=16.0)  # a float32 at 1e8


def test_batches_of_a_behavior_with_two_sensors(shared_data: Path) -> None:
    case = policy_case(shared_data, "ppo_normalize")
    actor = Actor(case.spec, case.settings)
    for k in range(case.described["normalizer_batches"]):
        actor.update_normalization(case.obs(f"norm_batch_{k}_"))
        for i, normalizer in actor.body.encoder.normalizers().items():
            after = f"norm_after_{k}_obs_{i}_"
            check(normalizer, int(case.arrays[f"{after}steps"]), case[f"{after}mean"], case[f"{after}variance"])


@pytest.mark.parametrize("name", ["ppo", "ppo_shared_critic"])
def test_trajectories_update_actor_and_critic(shared_data: Path, name: str) -> None:
    """With a shared critic ML-Agents takes every trajectory in twice."""
    folder = shared_data / "golden" / "trajectories" / name
    described = json.loads((folder / "case.json").read_text())
    with np.load(folder / "data.npz") as data:
        arrays = {key: data[key] for key in data.files}
    case = Case(name, described, arrays, {})
    spec, network = (
        behavior_spec(described["behavior_spec"]),
        network_settings(described["settings"]["network_settings"]),
    )
    actor = Actor(spec, network)
    critic = SharedCritic(actor, ["extrinsic"]) if case.shared_critic else ValueNetwork(spec, network, ["extrinsic"])
    count = len(described["trajectories"])
    obs = [torch.cat([case[f"t{k}_in_obs_{i}"] for k in range(count)]) for i in range(len(spec.observation_specs))]
    update_normalizations(actor, critic, obs)
    for part, body in (("actor", actor.body), ("critic", critic.body)):
        for i, normalizer in body.encoder.normalizers().items():
            after = f"t{count - 1}_norm_{part}_{i}.normalizer."
            mean, variance = case[f"{after}running_mean"], case[f"{after}running_variance"]
            check(normalizer, int(arrays[f"{after}normalization_steps"]), mean, variance)


def test_copy() -> None:
    source, target = Normalizer(2), Normalizer(2)
    source.update(torch.tensor([[1.0, 2.0]]))
    target.copy_from(source)
    source.update(torch.tensor([[5.0, 7.0]]))
    assert target.mean.tolist() == [0.5, 1.0]
    assert int(target.steps) == 2


@pytest.mark.parametrize("far", [1e20, -3.4e38])
def test_values_that_are_too_large_to_square_leave_finite_statistics_and_one_warning(
    far: float, caplog: pytest.LogCaptureFixture
) -> None:
    normalizer = Normalizer(2, name="target")
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, far], [-1.0, 0.0]])
    for _ in range(100):
        normalizer.update(rows)
    assert all(bool(torch.isfinite(entry).all()) for entry in normalizer.state_dict().values())
    (record,) = caplog.records
    assert f"Sensor 'target' sent {far:.3g} (index 1 of its observation)" in record.getMessage()
    near, normalized = normalizer(rows)[0], normalizer(rows)[2]
    assert abs(float(near[1])) == pytest.approx(0.577, abs=0.01), "a quarter of the rows is far away"
    assert float(normalized[1]) == np.sign(far) * 5.0
    other = Normalizer(1)
    for _ in range(100):
        other.update(rows[:, :1])
    torch.testing.assert_close(normalizer.variance[:1], other.variance, rtol=0, atol=0)


def test_a_sum_that_overflows_slowly_stays_finite() -> None:
    normalizer = Normalizer(1)
    for _ in range(5):
        normalizer.update(torch.tensor([1e18, -1e18]).repeat(100)[:, None])
    assert bool(torch.isfinite(normalizer.variance).all())


@pytest.mark.parametrize("center", [0.0, 1e4, -1e6])
def test_a_small_prior_learns_as_vec_normalize_and_normalizes_values_far_from_zero(center: float) -> None:
    """VecNormalize starts with 0.0001 rows of mean 0 and variance 1 (Chan et al. 1979)."""
    rows = center + torch.tensor([1.0, -1.0]).repeat(2000)[:, None]
    normalizer, count, mean, variance = Normalizer(1, 10.0, prior=1e-4), 1e-4, 0.0, 1.0
    for part in torch.split(rows, 100):
        normalizer.update(part)
        values = part.double().numpy()
        total, delta = count + len(values), values.mean() - mean
        variance = (variance * count + values.var() * len(values) + delta**2 * count * len(values) / total) / total
        mean, count = mean + delta * len(values) / total, total
    assert float(normalizer.mean) == pytest.approx(mean, rel=1e-6, abs=1e-6)
    assert float(normalizer.standard_deviation()) == pytest.approx(variance**0.5, rel=1e-3)


def test_a_normalizer_continues_from_its_statistics_whatever_its_prior() -> None:
    first, second = Normalizer(2), Normalizer(2, prior=1e-4)
    first.update(torch.randn(5, 2))
    second.copy_from(first)
    rows = torch.randn(7, 2)
    for normalizer in (first, second):
        normalizer.update(rows)
    assert int(second.steps) == 13
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)
