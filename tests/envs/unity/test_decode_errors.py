"""What no trainer can use is refused, and the message says where it came from."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from mlagents_envs.exception import UnityObservationException

from tests.envs.unity.messages import BEHAVIOR, Agent, Space, field_of, message, message_of, varint
from trajtrainer.core.errors import InvalidDataError
from trajtrainer.envs.unity import records
from trajtrainer.envs.unity.behaviors import PictureOrder
from trajtrainer.envs.unity.decode import MessageDecoder
from trajtrainer.envs.unity.proto.communicator_pb2 import UnityMessageProto

SPACE = Space(shapes=((2,), (2, 2)), continuous_size=1, branches=(2, 2))
AGENTS = [Agent(id=index, observations=((1.0, 2.0), (1.0, 2.0, 3.0, 4.0)), reward=1.0) for index in range(4)]


def refused(agents: list[Agent], space: Space = SPACE) -> str:
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    decoder.decode(message(space, AGENTS if space is SPACE else agents[:1]))
    with pytest.raises(InvalidDataError) as caught:
        decoder.decode(message(space, agents, announce=False))
    return str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_number_in_an_observation(value: float) -> None:
    agents = [*AGENTS[:2], replace(AGENTS[2], observations=((1.0, 2.0), (1.0, 2.0, value, 4.0)))]
    text = refused(agents)
    for part in (str(value), repr(BEHAVIOR), "agent 2", "'Sensor1_size4' (observation 1)", "element [1, 0]"):
        assert part in text


def test_number_in_a_vector() -> None:
    text = refused([replace(AGENTS[3], observations=((1.0, math.nan), (0.0,) * 4)), AGENTS[0]])
    for part in ("nan", "agent 3", "'Sensor0_size2' (observation 0)", "element 1"):
        assert part in text


def test_number_of_an_agent_whose_episode_ended() -> None:
    text = refused([AGENTS[0], AGENTS[1], replace(AGENTS[2], done=True, reward=math.inf)])
    assert "inf as a reward" in text
    assert "agent 2" in text


def test_group_reward() -> None:
    assert "as a group reward" in refused([replace(AGENTS[1], group=1, group_reward=math.nan)])


def test_huge_numbers_are_fine() -> None:
    """A check by sum or mean, as ML-Agents', would overflow."""
    largest = 3.4028234663852886e38
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    agents = [Agent(id=index, observations=((largest, largest),), reward=largest) for index in range(4)]
    assert len(decoder.decode(message(Space(), agents)).steps[BEHAVIOR]) == 4


def test_errors_of_observations_are_the_exception_of_mlagents_too() -> None:
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    with pytest.raises(UnityObservationException):
        decoder.decode(message(Space(), [Agent(reward=math.nan)]))


def test_too_short_a_vector() -> None:
    text = refused([AGENTS[0], replace(AGENTS[1], observations=((1.0,), (0.0,) * 4))])
    for part in ("agent 1", "observation 0", "1 numbers", "(2,)"):
        assert part in text


def test_another_shape() -> None:
    info = SPACE.record(AGENTS[1])
    del info.observations[1].shape[:]
    info.observations[1].shape.extend((4, 1))
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    decoder.decode(message(SPACE, AGENTS))
    with pytest.raises(InvalidDataError, match=r"agent 1: .*shape \(4, 1\).*\(2, 2\)"):
        decoder.decode(message_of({BEHAVIOR: [SPACE.record(AGENTS[0]), info]}))


def test_another_number_of_sensors() -> None:
    assert "agent 1: it has 1 observations, but the first agent has 2" in refused(
        [AGENTS[0], replace(AGENTS[1], observations=((1.0, 2.0),))]
    )


def test_a_mask_of_another_size() -> None:
    text = refused([replace(AGENTS[1], mask=(True, False, True))])
    assert "its action mask has 3 entries" in text
    assert "expected none or 4" in text


def test_a_mask_where_nothing_can_be_forbidden_is_ignored() -> None:
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    batch = decoder.decode(message(Space(), [Agent(mask=(True,))])).steps[BEHAVIOR]
    assert batch.mask.shape == (1, 0)


def test_masks_of_agents_whose_episode_ended_are_dropped() -> None:
    agents = [replace(AGENTS[0], done=True, mask=(True,) * 4), replace(AGENTS[1], mask=(False, True, False, False))]
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    batch = decoder.decode(message(SPACE, agents)).steps[BEHAVIOR]
    assert batch.mask.tolist() == [[False] * 4, [False, True, False, False]]


def test_a_mask_that_forbids_everything_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """Only the Editor and debug builds refuse it in the game."""
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    agents = [replace(AGENTS[0], done=True, mask=(True,) * 4), replace(AGENTS[1], mask=(True, False, False, True))]
    decoder.decode(message(SPACE, agents))
    assert not caplog.records
    blocked = [replace(AGENTS[1], mask=(True,) * 4)]
    for _ in range(2):
        decoder.decode(message(SPACE, blocked))
    (record,) = caplog.records
    assert f"Behavior {BEHAVIOR!r}: an action mask forbids all 2 choices of discrete branch 0" in record.getMessage()


def test_a_behavior_that_was_not_announced() -> None:
    other = Space(name="Runner?team=1")
    sent = message_of({"Runner?team=1": [other.record(Agent())]}, [Space()])
    with pytest.raises(InvalidDataError, match=r"'Runner\?team=1', which it has not announced.*'Walker\?team=0'"):
        MessageDecoder(0, PictureOrder.CHANNELS_FIRST).decode(sent)


def test_a_behavior_may_be_announced_before_it_has_agents() -> None:
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    assert not decoder.decode(message_of({BEHAVIOR: []}, [Space()])).new_specs
    decoded = decoder.decode(message(Space(), [Agent()], announce=False))
    assert list(decoded.new_specs) == [BEHAVIOR]
    assert len(decoded.steps[BEHAVIOR]) == 1


def test_a_goodbye_is_not_looked_into() -> None:
    sent = UnityMessageProto.FromString(message(Space(), [Agent(reward=math.nan)]))
    sent.header.status = 400
    decoded = MessageDecoder(0, PictureOrder.CHANNELS_FIRST).decode(sent.SerializeToString())
    assert decoded.status == 400
    assert not decoded.steps


def test_behaviors_come_in_the_order_of_the_message() -> None:
    spaces = [Space(name=f"B{index}?team=0") for index in (3, 1, 2, 9, 0, 7)]
    # protobuf orders a map as it likes, so the entries are put together one by one.
    sent = b"".join(message_of({space.name: [space.record(Agent())]}, [space]) for space in spaces)
    decoded = MessageDecoder(0, PictureOrder.CHANNELS_FIRST).decode(sent)
    assert list(decoded.steps) == [space.name for space in spaces]
    assert list(decoded.new_specs) == [space.name for space in spaces]


@pytest.mark.parametrize("negative", [-1, -(2**31)])
def test_negative_ids(negative: int) -> None:
    info = Space().record(Agent())
    info.id = negative
    with pytest.raises(InvalidDataError, match=f"the id {negative}"):
        MessageDecoder(0, PictureOrder.CHANNELS_FIRST).decode(message_of({BEHAVIOR: [info]}, [Space()]))


def test_one_id_at_the_end_of_an_episode_and_the_start_of_the_next() -> None:
    agents = [
        Agent(id=1, reward=0.5),
        Agent(id=2, reward=9.0, done=True, interrupted=True),
        Agent(id=2),
        Agent(id=3, done=True),
    ]
    batch = MessageDecoder(0, PictureOrder.CHANNELS_FIRST).decode(message(Space(), agents)).steps[BEHAVIOR]
    assert batch.num_terminal == 2
    assert batch.agent.tolist() == [2, 3, 1, 2]
    assert batch.reward.tolist() == [9.0, 0.0, 0.5, 0.0]
    assert batch.interrupted.tolist() == [True, False]


def test_two_decisions_of_one_agent() -> None:
    text = refused([AGENTS[0], AGENTS[2], AGENTS[1], AGENTS[2], AGENTS[2]])
    for part in (repr(BEHAVIOR), "the agent 2 asks for 3 decisions", "must be distinct"):
        assert part in text


def test_the_same_agents_again_are_no_duplicates() -> None:
    decoder = MessageDecoder(3, PictureOrder.CHANNELS_FIRST)
    for agents in (AGENTS[:2], AGENTS[:2], AGENTS[1:3], [replace(AGENTS[2], done=True), AGENTS[2]]):
        assert len(decoder.decode(message(SPACE, agents)).steps[BEHAVIOR]) == 2


@pytest.mark.parametrize("team", ["--1", "²", "9" * 5000, "one", "1.5", "-"])
def test_a_team_that_is_no_number(team: str) -> None:
    space = Space(name=f"Walker?team={team}")
    with pytest.raises(InvalidDataError, match=r"'Walker' has the team .* Expected a whole number") as caught:
        MessageDecoder(0, PictureOrder.CHANNELS_FIRST).decode(message(space, [Agent()]))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["//[x", "//\u2100", "A#b?team=2", "x?team=-3", "B?other=1"])
def test_any_other_name_will_do(name: str) -> None:
    decoded = MessageDecoder(0, PictureOrder.CHANNELS_FIRST).decode(message(Space(name=name), [Agent()]))
    assert list(decoded.steps) == [name]


def test_too_many_behaviors() -> None:
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    decoder.decode(message_of({}, [Space(name=f"B{index}?team=0") for index in range(200)]))
    decoder.decode(message_of({}, [Space(name=f"B{index}?team=0") for index in range(256)]))
    with pytest.raises(InvalidDataError, match=r"more than 256 behaviors, the last of them 'C\?team=0'"):
        decoder.decode(message_of({}, [Space(name="C?team=0")]))


BLIND = Space(shapes=())
EMPTY_RECORD = b"\x0a\x00"
# Unknown field 99, which the fast way leaves to protobuf.
UNUSUAL_RECORD = b"\x0a\x03\x98\x06\x01"
CROWDED_RECORD = field_of(1, b"\x6a\x00" * 150_001)


@pytest.mark.parametrize(
    ("agents", "text"),
    [
        (EMPTY_RECORD * 100_001, "more than 100000 agents"),
        (EMPTY_RECORD * 20_000_000, "more than 100000 agents"),
        (b"\x0a\x00\x0a\x02\x50\x01" * 60_000, "more than 100000 agents"),  # no two of one layout in a row
        (UNUSUAL_RECORD * 100_001, "more than 100000 agents"),
    ],
)
def test_too_many_records_are_refused_before_they_are_read(agents: bytes, text: str) -> None:
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_FIRST)
    with pytest.raises(InvalidDataError, match=f"'{re.escape(BEHAVIOR)}'.* {text}"):
        decoder.decode(message_of({}, [BLIND]) + of_behavior(BEHAVIOR, agents))


@pytest.mark.parametrize("before", [b"", UNUSUAL_RECORD])
def test_too_many_fields_in_a_record(before: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_MOST_FIELDS", 150_000)
    sent = message_of({}, [BLIND]) + of_behavior(BEHAVIOR, before + CROWDED_RECORD)
    with pytest.raises(InvalidDataError, match=r"agents have more than 150000 fields"):
        MessageDecoder(0, PictureOrder.CHANNELS_FIRST).decode(sent)


def test_too_many_agents_of_all_behaviors_together() -> None:
    names = [f"B{index}?team=0" for index in range(3)]
    records = b"".join(field_of(1, b"\x50" + varint(index)) for index in range(40_000))
    sent = message_of({}, [replace(BLIND, name=name) for name in names])
    with pytest.raises(InvalidDataError, match="The player sent more than 100000 agents"):
        MessageDecoder(0, PictureOrder.CHANNELS_FIRST).decode(sent + b"".join(of_behavior(n, records) for n in names))


@pytest.mark.parametrize(
    "entries",
    [field_of(1, b"\x12\x00" * 20_000_000), field_of(2, b"\x2a\x00" * 600_000), field_of(1, b"\x12\x00") * 600_000],
)
def test_too_many_entries_are_refused_before_they_are_read(entries: bytes) -> None:
    sent = message(Space(), [Agent()]) + field_of(2, entries)
    with pytest.raises(InvalidDataError, match=f"message of {len(sent)} bytes with more than 10000 entries"):
        MessageDecoder(0, PictureOrder.CHANNELS_FIRST).decode(sent)


def test_a_large_message_with_few_entries_is_read() -> None:
    count = 300_000
    space = Space(shapes=((count,),))
    agent = Agent(observations=((0.5,) * count,))
    batch = MessageDecoder(0, PictureOrder.CHANNELS_FIRST).decode(message(space, [agent])).steps[BEHAVIOR]
    assert batch.obs[0].shape == (1, count)


def of_behavior(name: str, agents: bytes) -> bytes:
    """A message's part with a serialized list of agents."""
    entry = field_of(1, name.encode()) + field_of(2, agents)
    return field_of(2, field_of(1, field_of(2, entry)))
