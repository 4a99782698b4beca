"""What no environment may send, whatever its kind. Players: ``test_decode_errors``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trajtrainer.core.spec import ActionSpec, BehaviorSpec, usual_sensor
from trajtrainer.core.steps import StepBatch, agent_ids
from trajtrainer.envs.unity.faults import InvalidObservationError, NotFiniteError
from trajtrainer.envs.unity.gate import Gate

SPEC = BehaviorSpec([usual_sensor((2,), "Eyes"), usual_sensor((1, 4, 4), "Camera")], ActionSpec(0, (2, 3)))
BATCH = StepBatch(
    agent=agent_ids(2, np.array([7, 7, 9])),
    obs=(np.zeros((3, 2), np.float32), np.zeros((3, 1, 4, 4), np.float32)),
    reward=np.zeros(3, np.float32),
    group=np.zeros(3, np.int32),
    group_reward=np.zeros(3, np.float32),
    mask=np.zeros((3, 5), np.bool_),
    interrupted=np.zeros(1, np.bool_),
    num_terminal=1,
)


def gate() -> Gate:
    return Gate("The game", "in its rewards")


def with_value(column: NDArray[Any], place: tuple[int, ...], value: float) -> NDArray[Any]:
    column = column.copy()
    column[place] = value
    return column


def test_an_end_and_the_next_decision_of_an_agent_are_fine() -> None:
    checked = gate()
    for _ in range(2):
        checked.check("Pilot", SPEC, BATCH)


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"reward": with_value(BATCH.reward, (2,), np.nan)}, "nan as a reward: behavior 'Pilot', agent 9"),
        ({"group_reward": with_value(BATCH.group_reward, (0,), np.inf)}, "inf as a group reward: .*, agent 7"),
        (
            {"obs": (with_value(BATCH.obs[0], (1, 1), np.nan), BATCH.obs[1])},
            r"nan as an observation: .*, agent 7, sensor 'Eyes' \(observation 0\), element 1",
        ),
        (
            {"obs": (BATCH.obs[0], with_value(BATCH.obs[1], (2, 0, 3, 1), -np.inf))},
            r"-inf as an observation: .*, agent 9, sensor 'Camera' \(observation 1\), element \[0, 3, 1\]",
        ),
    ],
)
def test_a_number_that_is_not_finite_is_named_with_its_place(changed: dict[str, Any], found: str) -> None:
    with pytest.raises(
        NotFiniteError, match=f"The game sent {found}\\. Training cannot use this value. .* in its rewards"
    ):
        gate().check("Pilot", SPEC, replace(BATCH, **changed))


def test_two_decisions_of_one_agent() -> None:
    checked = gate()
    checked.check("Pilot", SPEC, BATCH)
    with pytest.raises(InvalidObservationError, match="'Pilot', the agent 9 asks for 2 decisions in one message"):
        checked.check("Pilot", SPEC, replace(BATCH, agent=agent_ids(2, np.array([7, 9, 9]))))


def test_only_a_whole_branch_is_reported_and_only_once(caplog: pytest.LogCaptureFixture) -> None:
    checked = gate()
    some = [[False] * 5, [True, False, False, True, True], [False, True, True, False, False]]
    checked.check("Pilot", SPEC, replace(BATCH, mask=np.array(some)))
    assert not caplog.records
    for _ in range(2):
        checked.check("Pilot", SPEC, replace(BATCH, mask=np.array([[False] * 5, *some[1:2], [False, *[True] * 4]])))
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Behavior 'Pilot': an action mask forbids all 3 choices of discrete branch 1."
    )


def test_agents_without_discrete_actions_have_no_masks(caplog: pytest.LogCaptureFixture) -> None:
    spec = BehaviorSpec(SPEC.observation_specs, ActionSpec(1, ()))
    gate().check("Pilot", spec, replace(BATCH, mask=np.zeros((3, 0), np.bool_)))
    assert not caplog.records
