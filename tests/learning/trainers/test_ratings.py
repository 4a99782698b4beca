"""Ratings: those of ML-Agents, and what it does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.learning.trainers.rig import vector_spec
from trajtrainer.core.steps import ActionBatch, StepBatch
from trajtrainer.experience.agent_processor import AgentProcessor, match_results
from trajtrainer.experience.rows import RowPool
from trajtrainer.learning.trainers.self_play import Player, expected_score, rate


@pytest.fixture(scope="module")
def golden(shared_data: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((shared_data / "golden" / "schedules" / "elo.json").read_text())
    return loaded


def last_message(case: dict[str, Any], processor: AgentProcessor, agent: int) -> StepBatch:
    """A terminal record or a decision with the rewards of a case; of a mate, too, if the group goes on."""
    ended = int(case["done"])
    mates = 0 if case["whole_group_done"] else 1
    n = 1 + mates
    return StepBatch(
        agent=np.array([agent, agent + 1][:n]),
        obs=(np.zeros((n, 4), np.float32),),
        reward=np.array([case["final_reward"]] * n, np.float32),
        group=np.full(n, 1, np.int32),
        group_reward=np.array([case["final_group_reward"]] * n, np.float32),
        mask=np.zeros((n, 0), np.bool_),
        interrupted=np.array([case["interrupted"]] * ended, np.bool_),
        num_terminal=ended,
    )


def results(case: dict[str, Any]) -> list[float]:
    """The results of a trajectory that ends as the case says; its mate has one step before."""
    pool = RowPool(vector_spec(), [np.dtype(np.float32)])
    processor = AgentProcessor(pool, 1 if not case["done"] else 64)
    for message in range(2):
        batch = last_message(case | {"done": False}, processor, 0)
        if message:
            batch = last_message(case, processor, 0)
        recorded = processor.record(batch)
        if message == 1:
            assert recorded.trajectories is not None
            return match_results(pool, processor, recorded, 0)
        n = len(recorded.rows)
        zeros = np.zeros((n, 2), np.float32)
        actions = ActionBatch(zeros, zeros[:, :0].astype(np.int32), zeros, zeros, zeros[:, 0], zeros[:, :0], 0)
        processor.acted(recorded.rows, actions)
    raise AssertionError


def test_matches_change_the_ratings_as_in_mlagents(golden: dict[str, Any]) -> None:
    players = [Player(str(i), elo) for i, elo in enumerate(golden["initial_ratings"])]
    for match in golden["matches"]:
        for result in results(match):
            rate(players[-1], [players[match["opponent"]]], result)
        assert [player.elo for player in players] == pytest.approx(match["ratings_after"], rel=0, abs=1e-9)


def test_pairs_change_as_in_mlagents(golden: dict[str, Any]) -> None:
    for case in golden["formula"]:
        learner, opponent = Player("latest", case["rating"]), Player("a", case["opponent"])
        rate(learner, [opponent], case["result"])
        assert learner.elo == pytest.approx(case["rating"] + case["change"], rel=0, abs=1e-9)
        assert opponent.elo == pytest.approx(case["opponent_after"], rel=0, abs=1e-9)


def test_several_opponents_share_what_the_learner_gets() -> None:
    learner, opponents = Player("latest", 1300.0), [Player("a", 1200.0), Player("b", 1500.0)]
    rate(learner, opponents, 1.0)
    changes = [1 - expected_score(1300.0, elo) for elo in (1200.0, 1500.0)]
    assert learner.elo == pytest.approx(1300.0 + sum(changes) / 2)
    assert [player.elo for player in opponents] == pytest.approx([1200 - changes[0] / 2, 1500 - changes[1] / 2])


def test_who_was_always_beaten_is_known_but_never_certain() -> None:
    player, learner = Player("a", 1200.0), Player("latest", 1200.0)
    assert player.beaten == 0.5
    for _ in range(1000):
        rate(learner, [player], 1.0)
    assert 0.99 < player.beaten < 1.0
    for _ in range(1000):
        rate(learner, [player], 0.0)
    assert 0.0 < player.beaten < 0.01
