"""Normalized novelty and counts within episodes, against the slow obvious way."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.learning.algos.test_cloning import recorded
from tests.learning.nn.specs import behavior, camera, vector
from trajtrainer.core.columns import Columns
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.rewards import trained
from trajtrainer.learning.rewards.rnd import RndReward
from trajtrainer.learning.rewards.settings import CuriositySettings, RndSettings
from trajtrainer.learning.rewards.trained import EpisodicVisits, Novelty, RunningReturns, rounded_hash
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.yaml.convert import trainer_settings
from trajtrainer.testing import random_steps, vector_spec

SPEC = vector_spec(2)


def steps(lengths: tuple[int, ...], agents: list[int], ended: list[bool], places: list[int]) -> PackedSteps:
    """Trajectories of agents that see the places where they are; one more than steps for each trajectory."""
    seen, after, start = [], [], 0
    for length in lengths:
        seen += places[start : start + length]
        after.append(places[start + length])
        start += length + 1
    obs, last = (np.repeat(np.array(p, np.float32)[:, None], 2, 1) for p in (seen, after))
    packed = recorded(SPEC, [obs], lengths)
    return PackedSteps(
        packed.steps,
        Columns({"obs.0": last}),
        packed.offset,
        np.array(ended),
        np.array(ended),
        np.array(agents, np.int64),
    )


streams = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.lists(st.integers(0, 3), min_size=2, max_size=6)),
    min_size=1,
    max_size=8,
)


@given(streams, st.integers(1, 8))
def test_visits_are_counted_within_an_episode(stream: list[tuple[int, bool, list[int]]], cut: int) -> None:
    visits, slow, expected, found = EpisodicVisits(1.0), defaultdict[int, Counter[int]](Counter), [], []
    for agent, ended, places in stream:
        if not slow[agent]:
            slow[agent][places[0]] += 1
        for place in places[1:]:
            slow[agent][place] += 1
            expected.append(1 / math.sqrt(slow[agent][place]))
        if ended:
            slow[agent].clear()
    for start in range(0, len(stream), cut):  # in one drain or in many
        some = stream[start : start + cut]
        packed = steps(
            tuple(len(places) - 1 for *_, places in some),
            [agent for agent, *_ in some],
            [ended for _, ended, _ in some],
            [place for *_, places in some for place in places],
        )
        found += visits.bonus(packed).tolist()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(streams, st.integers(1, 8))
def test_the_scale_is_the_deviation_of_discounted_sums(stream: list[tuple[int, bool, list[int]]], cut: int) -> None:
    returns, sums, every = RunningReturns(0.9), defaultdict[int, float](float), []
    for start in range(0, len(stream), cut):
        some = stream[start : start + cut]
        rewards = [place for *_, places in some for place in places[1:]]
        packed = steps(
            tuple(len(places) - 1 for *_, places in some),
            [agent for agent, *_ in some],
            [ended for _, ended, _ in some],
            [place for *_, places in some for place in places],
        )
        returns.add(packed, np.array(rewards, np.float32))
    for agent, _, places in stream:
        for reward in places[1:]:
            sums[agent] = 0.9 * sums[agent] + reward
            every.append(sums[agent])
    deviation = float(np.std(every))
    assert returns.deviation == pytest.approx(deviation if deviation > 1e-9 else returns.deviation, rel=1e-6)
    other = RunningReturns(0.9)
    other.load_state(returns.state())
    assert other.deviation == returns.deviation


def test_states_in_one_cell_are_the_same() -> None:
    spec = behavior([vector(2), camera(1, 4, 5)])
    obs = np.array([[0.04, 1.0], [-0.04, 1.02], [0.06, 1.0], [1.0, 0.04]], np.float32)
    picture = np.zeros((4, 1, 4, 5), np.uint8)
    one, same, other, swapped = rounded_hash([obs, picture], 0.1)
    assert one == same
    assert len({one, other, swapped}) == 3
    picture[1, 0, 2, 2] = 100
    assert rounded_hash([obs, picture], 0.1)[1] != one
    picture[1, 0, 2, 2] = 10  # a 25th, of cells that are a tenth
    assert rounded_hash([obs, picture], 0.1)[1] == one
    assert len(spec.observation_specs) == 2


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajtrainer.learning.rewards.trained._MAX_AGENTS", 3)
    monkeypatch.setattr("trajtrainer.learning.rewards.trained._MAX_STATES", 5)
    visits = EpisodicVisits(1.0)
    for agent in range(9):
        visits.bonus(steps((20,), [agent], [False], list(range(21))))
    assert list(visits.of_agent) == [6, 7, 8]
    assert all(len(seen) == 5 for seen in visits.of_agent.values())


def test_broken_off_episodes_are_forgotten() -> None:
    novelty = Novelty(RndSettings(episodic_bonus=1.0, normalize=True))
    ones = np.ones(2, np.float32)
    worker = 1 << 32
    for agent in (7, worker + 7):
        novelty.collected(steps((2,), [agent], [False], [1, 2, 3]), ones)
    novelty.reset_worker(1)
    again = [novelty.collected(steps((2,), [agent], [False], [4, 2, 3]), ones) for agent in (7, worker + 7)]
    assert again[0][0] == pytest.approx(again[1][0] / math.sqrt(2), rel=0.2)


def signal(**settings: Any) -> RndReward:
    torch.manual_seed(0)
    network = NetworkSettings(hidden_units=8, num_layers=1)
    return RndReward(SPEC, RndSettings(network_settings=network, **settings), torch.device("cpu"))


def test_normalized_rewards_have_a_scale_of_their_own() -> None:
    packed = random_steps(SPEC, lengths=(50, 50))
    plain, normalized = signal(), signal(normalize=True)
    np.testing.assert_array_equal(plain.collect(packed), plain.evaluate(packed))
    raw, scaled = plain.evaluate(packed), normalized.collect(packed)
    sums = []
    for part in raw[:50], raw[50:]:
        total = 0.0
        sums += [total := 0.99 * total + one for one in part.tolist()]
    np.testing.assert_allclose(scaled, raw / np.std(sums), rtol=1e-5)
    # A replay's draws are scaled, too, but change nothing.
    np.testing.assert_array_equal(normalized.evaluate(packed), normalized.evaluate(packed))
    other = signal(normalize=True)
    state = normalized.optimizer_state()
    assert state is not None
    other.load_optimizer_state(state)
    np.testing.assert_array_equal(other.evaluate(packed), normalized.evaluate(packed))


def test_recorded_steps_are_judged_without_a_change_of_the_normalization() -> None:
    packed = random_steps(SPEC, lengths=(50,))
    torch.manual_seed(0)
    network = NetworkSettings(hidden_units=8, num_layers=1, normalize=True)
    rnd = RndReward(SPEC, RndSettings(network_settings=network), torch.device("cpu"))
    recorded_first = rnd.evaluate_recorded(packed)
    np.testing.assert_array_equal(rnd.evaluate_recorded(packed), recorded_first)
    np.testing.assert_array_equal(rnd.evaluate(packed), recorded_first)  # It updates only then.
    assert np.abs(rnd.evaluate_recorded(packed) - recorded_first).max() > 1e-4


def test_many_steps_are_judged_in_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, rnd = random_steps(SPEC, lengths=(50, 51)), signal()
    whole = rnd.evaluate(packed)
    sizes: list[int] = []
    distance = rnd._distance

    def counted(obs: Sequence[torch.Tensor]) -> torch.Tensor:
        sizes.append(len(obs[0]))
        return distance(obs)

    monkeypatch.setattr(trained, "_MAX_NUMBERS", 20)
    monkeypatch.setattr(rnd, "_distance", counted)
    np.testing.assert_allclose(rnd.evaluate(packed), whole, rtol=1e-5)
    assert sizes == [10] * 10 + [1]


def test_the_limit_of_curiosity_holds_behind_the_scale() -> None:
    novelty = Novelty(CuriositySettings(normalize=True), most=0.5)
    packed = steps((4,), [0], [False], [0, 1, 2, 3, 4])
    assert novelty.collected(packed, np.array([100, 200, 300, 9000], np.float32)).max() == 0.5


def test_a_replay_has_no_episodes_to_count_in() -> None:
    rnd = {"reward_signals": {"rnd": {"episodic_bonus": 0.1}}}
    assert trainer_settings({"trainer_type": "ppo", **rnd}).reward_signals["rnd"] == RndSettings(episodic_bonus=0.1)
    with pytest.raises(ConfigurationError, match=r"episodic_bonus: found 0\.1, expected nothing"):
        trainer_settings({"trainer_type": "sac", **rnd})
