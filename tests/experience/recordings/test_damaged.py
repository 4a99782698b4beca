"""Files that are none, cut off, damaged or of something else: one clear message each, no memory for empty claims."""

from __future__ import annotations

import contextlib
import logging
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experience.recordings.making import SPECS, check_same, packed_steps, read_plainly, write_demo, write_plainly
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, ObservationSpec
from trajtrainer.envs.unity.proto.communicator_pb2 import AgentInfoActionPairProto
from trajtrainer.experience.recordings.conversions import write_archive
from trajtrainer.experience.recordings.demonstrations import load_demonstrations
from trajtrainer.experience.recordings.source import demo_source


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "x.demo"
    write_demo(path, packed_steps("hybrid", [5, 4, 3]), SPECS["hybrid"], "Some")
    return path


def message(path: Path, spec: BehaviorSpec | None = None) -> str:
    with pytest.raises(DemonstrationError) as raised:
        load_demonstrations([path], spec=spec)
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.txt", b"", "is not a .demo file"),
        ("x.demo", b"", "is empty"),
        ("x.demo", b"GIF89a" * 20, "is not a recording"),
        ("x.demo", b"\x02\x08\x07".ljust(80, b"\0"), "has version 7 of the format"),
        ("x.demo", b"\x02\x08\x01", "ends after its header (3 bytes)"),
        ("x.demo", b"\x02\x08\x01".ljust(33, b"\0") + b"\xff\xff\xff\xff\xff\xff", "its behavior has no valid length"),
        ("x.demo", b"\x02\x08\x01".ljust(33, b"\0") + b"\x7f", "the 127 bytes of its behavior are missing"),
        ("x.demo", b"\x02\x08\x01".ljust(60, b"\0"), "has no steps"),
        ("x.demo", b"\x04\x08\x01\x18\x05".ljust(34, b"\0") + b"\xff\xff\xff\xff\x0f", "is damaged at byte 34"),
    ],
)
def test_files_that_are_no_recordings(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert expected in message(path)
    assert str(path) in message(path)


def test_real_recorders_that_never_got_to_a_step(shared_data: Path) -> None:
    assert "ends after its header" in message(shared_data / "demos" / "only_header.demo")
    assert "has no steps" in message(shared_data / "demos" / "zero_steps.demo")


def test_no_files(tmp_path: Path) -> None:
    assert "contains no .demo file" in message(tmp_path)
    assert "does not exist" in message(tmp_path / "missing.demo")
    with pytest.raises(DemonstrationError, match="No recording was given"):
        load_demonstrations([])


def test_a_recording_of_one_record_has_no_step(recording: Path) -> None:
    _, parameters, pairs = read_plainly(recording)
    write_plainly(recording, parameters.SerializeToString(), [pairs[0].SerializeToString()])
    assert "There are no steps in" in message(recording)


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_truncated_file_is_used_as_far_as_it_goes(
    recording: Path, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    whole = load_demonstrations([recording]).packed
    recording.write_bytes(recording.read_bytes()[:-cut])
    with caplog.at_level(logging.WARNING):
        read = load_demonstrations([recording]).packed
    assert "is truncated" in caplog.text
    assert 0 < len(read) <= len(whole)
    np.testing.assert_array_equal(read["continuous"], whole["continuous"][: len(read)])
    assert not read.ended[-1]


def test_a_header_that_names_a_billion_steps_takes_no_memory(recording: Path) -> None:
    _, parameters, pairs = read_plainly(recording)
    messages = [pair.SerializeToString() for pair in pairs]
    whole = load_demonstrations([recording]).packed
    write_plainly(recording, parameters.SerializeToString(), messages, number=10**9)
    tracemalloc.start()
    read = load_demonstrations([recording])
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()
    assert len(read) == len(whole)


def test_no_more_steps_than_asked_for(recording: Path) -> None:
    whole = load_demonstrations([recording, recording]).packed
    for most in range(1, len(whole) + 1):
        part = load_demonstrations([recording, recording], max_steps=most).packed
        assert len(part) == most
        np.testing.assert_array_equal(part.obs[0], whole.obs[0][:most])
        assert part.offset[-1] == most
        if not part.ended[-1] and most % 12:
            np.testing.assert_array_equal(part.bootstrap.obs[0][-1], whole.obs[0][most])


def test_a_folder_of_a_thousand_files(tmp_path: Path) -> None:
    packed = packed_steps("continuous", [2])
    write_demo(tmp_path / "0.demo", packed, SPECS["continuous"], "Some")
    data = (tmp_path / "0.demo").read_bytes()
    for number in range(1, 1000):
        (tmp_path / f"{number}.demo").write_bytes(data)
    (tmp_path / "note.txt").write_text("not a recording")
    read = load_demonstrations([tmp_path])
    assert len(read.sources) == read.packed.num_trajectories == 1000
    assert [each.name for each in read.sources[:3]] == ["0.demo", "1.demo", "10.demo"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda spec: BehaviorSpec(spec.observation_specs[:1], spec.action_spec), "with 2 observations ((3,), (4, 2))"),
        (
            lambda spec: BehaviorSpec(
                [spec.observation_specs[0], ObservationSpec((5, 2), *spec.observation_specs[1][1:])], spec.action_spec
            ),
            "the sensor 'entities' (observation 1) was recorded with the shape (4, 2), but in the behavior it has (5, "
            "2)",
        ),
        (
            lambda spec: BehaviorSpec(spec.observation_specs, ActionSpec(1, (4,))),
            "1 continuous actions and the discrete branches (3,), but the behavior has",
        ),
    ],
)
def test_another_spec(recording: Path, change: Callable[[BehaviorSpec], BehaviorSpec], expected: str) -> None:
    assert expected in message(recording, change(SPECS["hybrid"]))


def test_files_of_different_behaviors(tmp_path: Path, recording: Path) -> None:
    other = tmp_path / "y.demo"
    write_demo(other, packed_steps("discrete", [3]), SPECS["discrete"], "Other")
    with pytest.raises(DemonstrationError, match=r"y\.demo: the sensor 'goal' .* in .*x\.demo it has"):
        load_demonstrations([recording, other])


def changed(recording: Path, change: Callable[[AgentInfoActionPairProto], None]) -> str:
    _, parameters, pairs = read_plainly(recording)
    change(pairs[2])
    write_plainly(recording, parameters.SerializeToString(), [pair.SerializeToString() for pair in pairs])
    return message(recording)


def test_a_step_that_does_not_fit(recording: Path) -> None:
    def with_nan(pair: AgentInfoActionPairProto) -> None:
        pair.agent_info.observations[1].float_data.data[3] = float("nan")

    assert "step 3: sensor 'entities' (observation 1) has the value nan" in changed(recording, with_nan)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda pair: pair.action_info.Clear(), "step 3: it has no action"),
        (
            lambda pair: pair.action_info.discrete_actions.append(1),
            "1 continuous and 2 discrete numbers, expected 1 and 1",
        ),
        (lambda pair: pair.action_info.discrete_actions.__setitem__(0, 3), "it chose [3]"),
        (lambda pair: pair.action_info.discrete_actions.__setitem__(0, -1), "it chose [-1]"),
        (lambda pair: pair.agent_info.observations.pop(), "it has 1 observations, but the first agent has 2"),
        (lambda pair: pair.agent_info.observations[0].float_data.data.append(1), "it contains 4 numbers"),
        (lambda pair: pair.agent_info.action_mask.extend([True] * 4), "its action mask has"),
        (lambda pair: setattr(pair.agent_info, "reward", float("inf")), "its reward has the value inf"),
    ],
)
def test_steps_that_do_not_fit(
    recording: Path, change: Callable[[AgentInfoActionPairProto], None], expected: str
) -> None:
    assert expected in changed(recording, change)


@pytest.mark.parametrize("name", ["continuous", "discrete", "hybrid"])
def test_unusual_ways_to_write_the_same(tmp_path: Path, name: str) -> None:
    """Negative ids, unknown fields and unpacked numbers take the general way through protobuf."""
    path, packed = tmp_path / "x.demo", packed_steps(name, [4, 3], grouped=True)
    write_demo(path, packed, SPECS[name], "Some")
    _, parameters, pairs = read_plainly(path)
    messages = []
    for number, pair in enumerate(pairs):
        pair.agent_info.id = -1 - number
        unpacked = b"".join(b"\x35" + np.float32(each).tobytes() for each in pair.action_info.continuous_actions)
        whole = pair.SerializeToString()
        if unpacked and number % 2:
            discrete = list(pair.action_info.discrete_actions)
            del pair.action_info.continuous_actions[:]
            del pair.action_info.discrete_actions[:]
            action = unpacked + b"".join(b"\x38" + bytes([each]) for each in discrete)
            pair.ClearField("action_info")
            whole = pair.SerializeToString() + b"\x12" + bytes([len(action)]) + action
        messages.append(whole + b"\x98\x06\x01")  # field 99
    write_plainly(path, parameters.SerializeToString(), messages)
    check_same(load_demonstrations([path]).packed, packed)


def test_actions_of_packages_before_2(tmp_path: Path) -> None:
    path, packed = tmp_path / "x.demo", packed_steps("discrete", [4, 3])
    write_demo(path, packed, SPECS["discrete"], "Some")
    _, parameters, pairs = read_plainly(path)
    parameters.ClearField("action_spec")
    for pair in pairs:
        pair.action_info.vector_actions_deprecated.extend(map(float, pair.action_info.discrete_actions))
        del pair.action_info.discrete_actions[:]
    write_plainly(path, parameters.SerializeToString(), [pair.SerializeToString() for pair in pairs])
    check_same(load_demonstrations([path]).packed, packed)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_an_old_choice_that_is_no_number(tmp_path: Path, number: float) -> None:
    path, packed = tmp_path / "x.demo", packed_steps("discrete", [4, 3])
    write_demo(path, packed, SPECS["discrete"], "Some")
    _, parameters, pairs = read_plainly(path)
    for pair in pairs:
        pair.action_info.vector_actions_deprecated.extend(map(float, pair.action_info.discrete_actions))
        del pair.action_info.discrete_actions[:]
    pairs[2].action_info.vector_actions_deprecated[1] = number
    write_plainly(path, parameters.SerializeToString(), [pair.SerializeToString() for pair in pairs])
    assert "step 3: its action is not finite" in message(path)


def with_pictures(path: Path, change: Callable[[bytes], bytes]) -> Path:
    """A recording whose third picture is another."""
    write_demo(path, packed_steps("visual", [4, 3]), SPECS["visual"], "Some")
    _, parameters, pairs = read_plainly(path)
    camera = pairs[2].agent_info.observations[0]
    camera.compressed_data = change(camera.compressed_data)
    write_plainly(path, parameters.SerializeToString(), [pair.SerializeToString() for pair in pairs])
    return path


def test_a_picture_of_another_size(tmp_path: Path) -> None:
    def wider(png: bytes) -> bytes:
        return png[:16] + (7).to_bytes(4, "big") + png[20:]

    expected = "step 3: sensor 'camera' (observation 0): found a PNG of 6 rows by 7 columns, expected 6 by 5"
    assert expected in message(with_pictures(tmp_path / "x.demo", wider))


def test_a_damaged_picture_that_is_converted_names_its_sensor(tmp_path: Path) -> None:
    path = with_pictures(tmp_path / "x.demo", lambda png: png[:40] + bytes(len(png) - 40))
    with pytest.raises(DemonstrationError, match="A recorded picture of the sensor 'camera': "):
        write_archive(tmp_path / "x.npz", demo_source(path))


def test_unitys_recorder_writes_an_action_one_record_later(tmp_path: Path) -> None:
    path, packed = tmp_path / "x.demo", packed_steps("continuous", [4, 3])
    write_demo(path, packed, SPECS["continuous"], "Some")
    _, parameters, pairs = read_plainly(path)
    parameters.DiscardUnknownFields()
    actions = [list(pair.action_info.continuous_actions) for pair in pairs]
    for pair, before in zip(pairs, [[0.0, 0.0], *actions], strict=False):
        pair.action_info.continuous_actions[:] = before
    messages = [pair.SerializeToString() for pair in pairs]
    write_plainly(path, parameters.SerializeToString(), messages, by_unity=True)
    check_same(load_demonstrations([path]).packed, packed)
    # Its recorder died: no header that tells the number, none at the end.
    write_plainly(path, parameters.SerializeToString(), messages, number=0)
    check_same(load_demonstrations([path]).packed, packed)


@settings(max_examples=60)
@given(data=st.data())
def test_damage_gives_a_message_or_steps(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp()
    name = data.draw(st.sampled_from(["hybrid", "visual"]))
    whole = folder / f"whole {name}.demo"
    if not whole.exists():
        write_demo(whole, packed_steps(name, [3, 2]), SPECS[name], "Some")
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        action = data.draw(st.sampled_from(["change", "remove", "insert", "cut"]))
        if action == "change":
            content[place] = data.draw(st.integers(0, 255))
        elif action == "remove":
            del content[place : place + data.draw(st.integers(1, 20))]
        elif action == "insert":
            content[place:place] = data.draw(st.binary(min_size=1, max_size=20))
        else:
            del content[place:]
        if not content:
            break
    path = folder / "damaged.demo"
    path.write_bytes(bytes(content))
    with contextlib.suppress(DemonstrationError):
        packed = load_demonstrations([path]).packed
        assert packed.offset[-1] == len(packed) > 0
        assert all(np.isfinite(column).all() for column in packed.steps.values() if column.dtype == np.float32)
