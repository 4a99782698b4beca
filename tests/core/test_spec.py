"""What the agents of a behavior see and do, compared, stored and named."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from mlagents_envs.base_env import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

from tests.learning.nn.specs import behavior, camera, entities, vector
from trajtrainer.core.errors import InvalidDataError, SettingsError, UnsupportedError
from trajtrainer.core.spec import (
    BehaviorId,
    ObservationKind,
    first_allowed,
    mismatches,
    observation_kind,
    sensors_named,
    sensors_seen,
    spec_from_plain,
    spec_to_plain,
    usual_sensor,
    with_sensors,
)

SOCCER = BehaviorSpec(
    [usual_sensor((3,), "Ball"), usual_sensor((5, 2), "Players"), usual_sensor((3, 20, 30), "Eyes", goal=True)],
    ActionSpec(2, (3, 4)),
)


def seeing(*names: str) -> BehaviorSpec:
    """A behavior with a vector of each name, each of another size."""
    return BehaviorSpec([usual_sensor((len(name),), name) for name in names], SOCCER.action_spec)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (usual_sensor((3,), "a"), ObservationKind.VECTOR),
        (usual_sensor((5, 2), "a"), ObservationKind.VARIABLE_LENGTH),
        (usual_sensor((3, 20, 30), "a"), ObservationKind.VISUAL),
        (ObservationSpec((3,), (DimensionProperty.UNSPECIFIED,), ObservationType.DEFAULT, "a"), ObservationKind.VECTOR),
    ],
)
def test_the_kind_follows_from_the_dimension_properties(spec: ObservationSpec, kind: ObservationKind) -> None:
    assert observation_kind(spec) is kind


def test_a_sensor_without_an_encoder_is_named_with_its_properties() -> None:
    properties = (DimensionProperty.NONE, DimensionProperty.TRANSLATIONAL_EQUIVARIANCE)
    sensor = ObservationSpec((4, 7), properties, ObservationType.DEFAULT, "Lidar")
    expected = r"'Lidar' of shape \(4, 7\) .*'NONE', 'TRANSLATIONAL_EQUIVARIANCE'.*Change the sensor in Unity"
    with pytest.raises(UnsupportedError, match=expected):
        observation_kind(sensor)


def test_the_first_allowed_choice_of_each_branch() -> None:
    forbidden = np.zeros((3, 7), np.bool_)
    forbidden[1, [0, 3, 4]] = True
    forbidden[2, [0, 1, 3, 4, 5]] = True
    np.testing.assert_array_equal(first_allowed(SOCCER.action_spec, forbidden), [[0, 0], [1, 2], [2, 3]])


def test_sensors_are_numbered_in_the_order_of_unity() -> None:
    assert sensors_named(SOCCER, ["Eyes", "Ball"]) == (0, 2)


def test_every_sensor_that_is_missing_is_named() -> None:
    with pytest.raises(
        SettingsError, match=r"called 'Ears', 'Nose'\. The sensors are 'Ball' \(3,\), 'Players' \(5, 2\)"
    ):
        sensors_named(SOCCER, ["Nose", "Ball", "Ears"])


@pytest.mark.parametrize(
    ("own", "seen"),
    [
        (seeing("B", "DDDD"), (1, 3)),
        (seeing("A", "B", "CCC", "DDDD"), None),  # sees all of them
        (seeing("DDDD", "B"), None),  # another order: the names do not decide it
        (seeing("B", "Unknown"), None),
    ],
)
def test_a_policy_sees_the_sensors_it_knows_by_name(own: BehaviorSpec, seen: tuple[int, ...] | None) -> None:
    assert sensors_seen(own, seeing("A", "B", "CCC", "DDDD")) == seen


def test_a_spec_with_fewer_sensors_keeps_its_actions() -> None:
    fewer = with_sensors(SOCCER, (2, 0))
    assert [sensor.name for sensor in fewer.observation_specs] == ["Eyes", "Ball"]
    assert fewer.action_spec == SOCCER.action_spec
    assert with_sensors(SOCCER, None) is SOCCER


def test_every_difference_of_a_policy_is_reported() -> None:
    other = BehaviorSpec(
        [usual_sensor((3,), "Renamed"), usual_sensor((6, 2), "Team"), SOCCER.observation_specs[2]], ActionSpec(1, ())
    )
    assert list(mismatches(SOCCER, other)) == [
        "its sensor 1 ('Players', here 'Team') has the shape (5, 2), not (6, 2)",
        "its actions are 2 continuous and the branches [3, 4], not 1 continuous and the branches []",
    ]
    assert list(mismatches(with_sensors(SOCCER, (0,)), with_sensors(SOCCER, (0, 1)))) == [
        "it sees the sensors 'Ball' (3,), not 'Ball' (3,), 'Players' (5, 2)"
    ]
    assert not list(mismatches(SOCCER, SOCCER))


@pytest.mark.parametrize(
    ("full", "name", "team"),
    [
        ("Ball", "Ball", 0),
        ("Ball?team=3", "Ball", 3),
        ("Ball?team=-1", "Ball", -1),
        ("Ball?other=1", "Ball", 0),
        ("Ball?team=2#x", "Ball", 2),
        ("//[x?team=1", "//[x", 1),
    ],
)
def test_a_behavior_id_has_a_name_and_a_team(full: str, name: str, team: int) -> None:
    assert BehaviorId.parse(full) == BehaviorId(full, name, team)


@pytest.mark.parametrize(
    ("team", "shown"),
    [("red", "'red'"), ("1.5", "'1.5'"), ("12345678901", "'12345678901'"), ("9" * 60, f"'{'9' * 40}...'")],
)
def test_a_team_that_is_no_number_is_shown_shortened(team: str, shown: str) -> None:
    with pytest.raises(InvalidDataError, match="Team Id") as caught:
        BehaviorId.parse(f"Ball?team={team}")
    assert f"'Ball' has the team {shown}." in str(caught.value)


@pytest.mark.parametrize("spec", [SOCCER, behavior([vector(4), camera(3, 20, 20), entities(5, 2)], 0, (2, 3))])
def test_a_stored_spec_is_read_back_as_it_was(spec: BehaviorSpec) -> None:
    assert spec_from_plain(json.loads(json.dumps(spec_to_plain(spec)))) == spec


def damaged(path: str, value: object) -> dict[str, Any]:
    plain = copy.deepcopy(spec_to_plain(SOCCER))
    part: Any = plain
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("/"))
    for key in parents:
        part = part[key]
    part[last] = value
    return plain


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        ("observation_specs/0/shape/0", 0, "0 is not a valid size"),
        ("observation_specs/0/shape/0", 2.0, "2.0 is not a valid size"),
        ("observation_specs/1/dimension_property/0", "x", "'x' is not a valid DimensionProperty"),
        ("observation_specs/1/observation_type", 7, "7 is not a valid ObservationType"),
        ("action_spec/continuous_size", -1, "-1 is not a valid size"),
        ("action_spec/discrete_branches/1", 1 << 31, "2147483648 is not a valid size"),
    ],
)
def test_an_impossible_value_in_a_stored_spec_is_refused(path: str, value: object, shown: str) -> None:
    with pytest.raises(ValueError, match=shown):
        spec_from_plain(damaged(path, value))
