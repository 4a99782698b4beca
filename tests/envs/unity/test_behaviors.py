"""Specs from the first message of a behavior."""

from __future__ import annotations

import pytest

from tests.envs.unity.messages import BEHAVIOR, Agent, Space
from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.spec import ActionSpec, DimensionProperty, ObservationType
from trajtrainer.envs.unity.behaviors import PictureOrder, announced
from trajtrainer.envs.unity.proto.communicator_pb2 import (
    GOAL_SIGNAL,
    PNG,
    AgentInfoProto,
    BrainParametersProto,
    ObservationProto,
    continuous,
    discrete,
)


def with_observation(observation: ObservationProto) -> AgentInfoProto:
    return AgentInfoProto(observations=[observation])


def floats(shape: tuple[int, ...], count: int) -> ObservationProto:
    return ObservationProto(
        shape=shape, name="Eyes", float_data=ObservationProto.FloatData(data=[0.0] * count), dimension_properties=[]
    )


def test_action_spec_of_new_packages() -> None:
    spec = announced(
        Space(continuous_size=2, branches=(3, 2)).parameters(), AgentInfoProto(), PictureOrder.CHANNELS_FIRST
    )
    assert spec.spec.action_spec == ActionSpec(2, (3, 2))
    assert spec.mask_size == 5


def test_deprecated_continuous_actions() -> None:
    parameters = BrainParametersProto(
        brain_name=BEHAVIOR, vector_action_size_deprecated=[4], vector_action_space_type_deprecated=continuous
    )
    assert announced(parameters, AgentInfoProto(), PictureOrder.CHANNELS_LAST).spec.action_spec == ActionSpec(4, ())


def test_deprecated_discrete_actions() -> None:
    parameters = BrainParametersProto(
        brain_name=BEHAVIOR, vector_action_size_deprecated=[3, 3, 2], vector_action_space_type_deprecated=discrete
    )
    assert announced(parameters, AgentInfoProto(), PictureOrder.CHANNELS_LAST).spec.action_spec == ActionSpec(
        0, (3, 3, 2)
    )


def test_new_fields_win_over_deprecated_ones() -> None:
    parameters = Space(continuous_size=2).parameters()
    parameters.vector_action_size_deprecated.append(7)
    assert announced(parameters, AgentInfoProto(), PictureOrder.CHANNELS_LAST).spec.action_spec == ActionSpec(2, ())


@pytest.mark.parametrize(
    ("size", "branches"), [(-1, ()), (2**31 - 1, ()), (0, (0,)), (0, (3, -2)), (0, (2**31 - 1, 2**31 - 1))]
)
def test_absurd_action_spaces_are_refused(size: int, branches: tuple[int, ...]) -> None:
    with pytest.raises(InvalidDataError, match="Sizes must be positive"):
        announced(
            Space(continuous_size=size, branches=branches).parameters(), AgentInfoProto(), PictureOrder.CHANNELS_LAST
        )


@pytest.mark.parametrize(
    ("order", "shape"),
    [
        (PictureOrder.CHANNELS_LAST, (3, 20, 10)),
        (PictureOrder.ANNOUNCED_CHANNELS_FIRST, (20, 10, 3)),
        (PictureOrder.CHANNELS_FIRST, (20, 10, 3)),
    ],
)
def test_pictures_have_their_channels_first(order: PictureOrder, shape: tuple[int, ...]) -> None:
    observation = floats((20, 10, 3), 600)
    observation.dimension_properties.extend((2, 2, 1))
    observation.observation_type = GOAL_SIGNAL
    behavior = announced(Space().parameters(), with_observation(observation), order)
    spec = behavior.spec.observation_specs[0]
    convolved, plain = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE, DimensionProperty.NONE
    assert spec.shape == shape
    assert spec.dimension_property == (
        (plain, convolved, convolved) if order is PictureOrder.CHANNELS_LAST else (convolved, convolved, plain)
    )
    assert spec.observation_type is ObservationType.GOAL_SIGNAL
    assert spec.name == "Eyes"
    assert behavior.sensors[0].wire_shape == (20, 10, 3)


def test_missing_dimension_properties_are_unspecified() -> None:
    behavior = announced(Space().parameters(), with_observation(floats((4, 2), 8)), PictureOrder.CHANNELS_LAST)
    assert behavior.spec.observation_specs[0].dimension_property == (DimensionProperty.UNSPECIFIED,) * 2


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        (floats((), 0), r"the shape \(\)"),
        (floats((0,), 0), r"the shape \(0,\)"),
        (floats((4, -1), 4), r"the shape \(4, -1\)"),
        (floats((4,), 3), "is 4 numbers, but its first agent sent 3"),
        (floats((2**30, 2**30), 3), f"{2**60} numbers per agent; at most 16777216"),
        (floats((1,) * 65, 1), "a shape of 65 dimensions; at most 16"),
        (
            ObservationProto(shape=[3, 13000, 13000], compression_type=PNG, compressed_data=b"PNG"),
            "507000000 numbers per agent; at most 16777216",
        ),
        (ObservationProto(shape=[1], dimension_properties=[1, 1]), r"dimension properties \(1, 1\)"),
        (ObservationProto(shape=[1], dimension_properties=[9]), r"dimension properties \(9,\)"),
        (ObservationProto(shape=[1], observation_type=3), "observation type 3"),  # type: ignore[arg-type]
        (ObservationProto(shape=[2], compression_type=1), "only pictures of 3 dimensions"),  # type: ignore[arg-type]
    ],
)
def test_impossible_sensors_are_refused(observation: ObservationProto, text: str) -> None:
    with pytest.raises(InvalidDataError, match=text) as caught:
        announced(Space().parameters(), with_observation(observation), PictureOrder.CHANNELS_FIRST)
    assert repr(BEHAVIOR) in str(caught.value)
    assert "(observation 0)" in str(caught.value)


def test_more_than_any_game_needs_is_refused() -> None:
    small, large = floats((1,), 1), floats((2**23,), 2**23)
    for space, observations, text in (
        (Space(), [small] * 1001, "1001 observations; at most 1000"),
        (Space(), [large] * 3, f"its 3 sensors announce {3 * 2**23} numbers per agent"),
        (Space(branches=(1,) * 100_000), [small], "100000 discrete branches; at most 1000"),
    ):
        with pytest.raises(InvalidDataError, match=text):
            announced(space.parameters(), AgentInfoProto(observations=observations), PictureOrder.CHANNELS_FIRST)


def test_an_agent_without_sensors() -> None:
    behavior = announced(
        Space().parameters(), Space(shapes=()).record(Agent(observations=())), PictureOrder.CHANNELS_FIRST
    )
    assert behavior.spec.observation_specs == []
