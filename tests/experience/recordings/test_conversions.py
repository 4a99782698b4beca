"""From and to other formats: ``.npz``, saved replays, data sets of Minari."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experience.recordings.making import SPECS, check_same, packed_steps, write_demo
from tests.learning.nn.specs import behavior, vector
from trajtrainer.core.columns import Columns
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.spec import spec_to_plain
from trajtrainer.experience import npz
from trajtrainer.experience.recordings.conversions import archive_source, minari_source, replay_source, write_archive
from trajtrainer.experience.recordings.demonstrations import load_demonstrations
from trajtrainer.experience.recordings.pairing import Trajectory
from trajtrainer.experience.recordings.source import demo_source, write_source
from trajtrainer.experience.replay import Replay
from trajtrainer.experience.trajectory import PackedSteps


def trajectories_of(packed: PackedSteps) -> list[Trajectory]:
    parts = [packed.trajectories(number, number + 1) for number in range(packed.num_trajectories)]
    return [Trajectory(part.steps, part.bootstrap) for part in parts]


def check_trajectories(found: list[Trajectory], expected: list[Trajectory], names: set[str] | None = None) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for columns, wanted in ((one.steps, other.steps), (one.after, other.after)):
            for name in wanted:
                if names is None or name in names or name.startswith("obs."):
                    np.testing.assert_array_equal(columns[name], wanted[name], name) if name in columns else None


@pytest.mark.parametrize("name", sorted(SPECS))
def test_there_and_back(tmp_path: Path, name: str) -> None:
    packed = packed_steps(name, [4, 2, 3], grouped=True, cut=True)
    first, archive, second = (tmp_path / each for each in ("a.demo", "b.npz", "c.demo"))
    write_demo(first, packed, SPECS[name], "Some?team=2")
    write_archive(archive, demo_source(first))
    read = archive_source(archive)
    assert (read.name, read.spec) == ("Some?team=2", SPECS[name])
    write_source(second, read)
    check_same(load_demonstrations([second]).packed, packed)
    assert second.read_bytes() == first.read_bytes()


def test_nothing_to_write_is_an_error(tmp_path: Path) -> None:
    empty = _source(tmp_path / "x.npz", [])
    with pytest.raises(DemonstrationError, match=r"x\.npz has no steps to write to a \.npz file"):
        write_archive(tmp_path / "y.npz", empty)
    with pytest.raises(DemonstrationError, match=r"x\.npz has no steps to write to a \.demo file"):
        write_source(tmp_path / "y.demo", empty)


@pytest.mark.parametrize("name", ["hybrid", "visual"])
def test_imitation_learns_from_an_archive_as_from_a_recording(tmp_path: Path, name: str) -> None:
    packed = packed_steps(name, [3, 4])
    write_demo(tmp_path / "x.demo", packed, SPECS[name], "Some")
    write_archive(tmp_path / "x.npz", demo_source(tmp_path / "x.demo"))
    archive, recording = (load_demonstrations([tmp_path / f"x.{suffix}"]) for suffix in ("npz", "demo"))
    check_same(archive.packed, recording.packed)
    both = load_demonstrations([tmp_path / "x.npz", tmp_path / "x.demo"], max_steps=9).packed
    assert len(both) == 9
    np.testing.assert_array_equal(both["reward"], np.concatenate([packed["reward"], packed["reward"][:2]]))


def test_an_archive_is_what_numpy_reads(tmp_path: Path) -> None:
    packed = packed_steps("hybrid", [4, 2])
    write_demo(tmp_path / "a.demo", packed, SPECS["hybrid"], "Some")
    write_archive(tmp_path / "b.npz", demo_source(tmp_path / "a.demo"))
    with np.load(tmp_path / "b.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["obs.1"], packed.obs[1])
        np.testing.assert_array_equal(file["after.1"], packed.bootstrap.obs[1])
        np.testing.assert_array_equal(file["offset"], [0, 4, 6])


def own(**changes: Any) -> dict[str, Any]:
    """The arrays that somebody writes by hand: two episodes of three and two steps."""
    done = np.array([False, False, True, False, True])
    arrays = {"obs.0": np.arange(10.0).reshape(5, 2), "discrete": np.array([[0], [2], [1], [0], [2]])}
    return {**arrays, "branches": np.array([3]), "reward": np.ones(5), "done": done, **changes}


def written(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_an_archive_by_hand_needs_few_arrays(tmp_path: Path) -> None:
    source = archive_source(written(tmp_path / "x.npz", own()))
    first, second = source.trajectories()
    assert source.spec.action_spec.discrete_branches == (3,)
    assert source.spec.observation_specs[0].shape == (2,)
    assert (len(first.steps), len(second.steps)) == (3, 2)
    assert first.steps["discrete"][:, 0].tolist() == [0, 2, 1]
    assert first.steps.obs[0].dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reward": None}, "it has no reward"),
        ({"obs.0": None}, "no steps in obs.0"),
        ({"branches": None}, "neither a spec nor branches"),
        ({"reward": np.ones(4)}, r"reward has the shape \(4,\), expected \(5,\)"),
        ({"reward": np.full(5, np.nan)}, "step 1: its reward has the value nan"),
        ({"discrete": np.full((5, 1), 3)}, r"it chose \[3\]"),
        ({"offset": np.array([0, 6])}, "offset does not increase"),
        ({"obs.0": np.array([[None, None]] * 5)}, "Python objects"),
        ({"done": np.array([0.5] * 5)}, "done has the type float64"),
        ({"spec": np.array("{}")}, "action_spec"),
    ],
)
def test_an_archive_that_does_not_fit(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    path = written(tmp_path / "x.npz", own(**changes))
    with pytest.raises(DemonstrationError, match=expected) as raised:
        archive_source(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06", b"rubbish" * 50])
def test_an_archive_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DemonstrationError, match=r"x\.npz is not a valid recording"):
        archive_source(tmp_path / "x.npz")
    with pytest.raises(DemonstrationError, match="does not exist"):
        archive_source(tmp_path / "missing.npz")


@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
@settings(max_examples=40)
@given(data=st.data())
def test_damage_of_an_archive_gives_a_message_or_steps(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The zip around the arrays is whole, so that its check sums hide nothing."""
    files = {}
    spec = {"behavior": "Own", **spec_to_plain(behavior([vector(2)], 0, (3,)))}
    for name, array in own(spec=np.array(json.dumps(spec)), offset=np.array([0, 3, 5])).items():
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        files[name] = bytearray(file.getvalue())
    for name in ("spec", "offset"):
        if data.draw(st.booleans()):
            del files[name]
    for _ in range(data.draw(st.integers(1, 3))):
        content = files[data.draw(st.sampled_from(sorted(files)))]
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{name}.npy", bytes(content))
    with contextlib.suppress(DemonstrationError):
        trajectories = list(archive_source(path).trajectories())
        assert trajectories
        assert all(np.isfinite(each.steps["reward"]).all() for each in trajectories)


def test_a_saved_replay(tmp_path: Path) -> None:
    packed = packed_steps("hybrid", [5, 3, 4, 2], cut=True)
    packed["continuous"][:] = np.clip(packed["continuous"], -1, 1)
    replay = Replay(SPECS["hybrid"], [np.float32, np.float32], num_rows=60)
    replay.add(packed)
    npz.write_replay(replay, tmp_path / "replay.npz")
    source = replay_source(tmp_path / "replay.npz", SPECS["hybrid"], "Some")
    names = {"mask", "continuous", "discrete", "reward", "group_reward", "done", "interrupted"}
    check_trajectories(list(source.trajectories()), trajectories_of(packed), names)
    write_source(tmp_path / "x.demo", source)
    assert len(load_demonstrations([tmp_path / "x.demo"])) == 14
    with pytest.raises(DemonstrationError, match="cannot be used for 'Some'"):
        replay_source(tmp_path / "replay.npz", SPECS["discrete"], "Some")
    (tmp_path / "replay.npz").write_bytes(b"rubbish")
    with pytest.raises(DemonstrationError, match="damaged"):
        replay_source(tmp_path / "replay.npz", SPECS["hybrid"], "Some")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_data_set_of_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari", reason="minari (an extra) is not installed")
    pytest.importorskip("h5py", reason="h5py (of the extra minari) is not installed")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    random = np.random.default_rng(0)

    def episode(length: int, terminated: bool, truncated: bool) -> Any:
        last = np.arange(length) == length - 1
        return EpisodeBuffer(
            observations=random.normal(size=(length + 1, 3)).astype(np.float32),
            actions=random.uniform(-2, 2, (length, 1)).astype(np.float32),
            rewards=random.normal(size=length),
            terminations=last & terminated,
            truncations=last & truncated,
        )

    episodes = [episode(4, True, False), episode(5, False, True), episode(6, False, False)]
    minari.create_dataset_from_buffers("some/test-v0", episodes, env="Pendulum-v1")
    for name in ("some/test-v0", str(tmp_path / "some" / "test-v0")):
        source = minari_source(name)
        found = list(source.trajectories())
        assert source.spec.action_spec.continuous_size == 1
        assert [len(each.steps) for each in found] == [4, 5, 6]
        assert [bool(each.steps["done"][-1]) for each in found] == [True, True, False]
        assert [bool(each.steps["interrupted"][-1]) for each in found] == [False, True, False]
        for each, buffer in zip(found, episodes, strict=True):
            np.testing.assert_array_equal(each.steps.obs[0], buffer.observations[:-1])
            np.testing.assert_array_equal(each.after.obs[0], buffer.observations[-1:])
            np.testing.assert_allclose(each.steps["continuous"], buffer.actions / 2, rtol=1e-6)
    with pytest.raises(DemonstrationError, match="cannot read the data set 'none-v0'"):
        minari_source("none-v0")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_masks_of_a_data_set_are_no_sensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari", reason="minari (an extra) is not installed")
    pytest.importorskip("h5py", reason="h5py (of the extra minari) is not installed")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    seen = {"observation": np.arange(3, dtype=np.float32).reshape(3, 1), "action_mask": np.eye(3, dtype=np.int8)}
    episode = EpisodeBuffer(
        observations=seen,
        actions=np.array([0, 1]),
        rewards=np.array([1.0, 2.0]),
        terminations=np.array([False, True]),
        truncations=np.array([False, False]),
    )
    observed = spaces.Dict({"observation": spaces.Box(-9, 9, (1,)), "action_mask": spaces.MultiBinary(3)})
    minari.create_dataset_from_buffers(
        "some/masked-v0", [episode], observation_space=observed, action_space=spaces.Discrete(3)
    )
    source = minari_source("some/masked-v0")
    (found,) = source.trajectories()
    assert [sensor.name for sensor in source.spec.observation_specs] == ["observation"]
    assert found.steps.obs[0].tolist() == [[0], [1]]
    assert found.steps["mask"].tolist() == [[False, True, True], [True, False, True]]


def _without(file: Any, name: str) -> None:
    del file["episode_1"][name]


def _instead(file: Any, name: str, value: Any) -> None:
    _without(file, name)
    file["episode_1"].create_dataset(name, data=value)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "damage",
    [
        lambda file: _without(file, "rewards"),
        lambda file: _without(file, "observations"),
        lambda file: _without(file, "actions"),
        lambda file: _without(file, "terminations"),
        lambda file: file.__delitem__("episode_1"),
        lambda file: _instead(file, "observations", np.zeros((2, 3), np.float32)),
        lambda file: _instead(file, "observations", np.full((6, 3), np.nan, np.float32)),
        lambda file: _instead(file, "observations", np.float32(1)),
        lambda file: _instead(file, "actions", np.zeros((5, 9), np.float32)),
        lambda file: _instead(file, "actions", np.array([b"left"] * 5)),
        lambda file: _instead(file, "rewards", np.array([b"much"] * 5)),
        lambda file: _instead(file, "rewards", np.float32(1)),
        lambda file: _instead(file, "terminations", np.zeros(0, np.bool_)),
    ],
)
def test_a_damaged_data_set_of_minari(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Any], None]
) -> None:
    minari = pytest.importorskip("minari", reason="minari (an extra) is not installed")
    h5py = pytest.importorskip("h5py", reason="h5py (of the extra minari) is not installed")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    episodes = [
        EpisodeBuffer(
            observations=np.ones((6, 3), np.float32),
            actions=np.ones((5, 1), np.float32),
            rewards=np.ones(5),
            terminations=np.arange(5) == 4,
            truncations=np.zeros(5, np.bool_),
        )
        for _ in range(3)
    ]
    minari.create_dataset_from_buffers("some/test-v0", episodes, env="Pendulum-v1")
    with h5py.File(tmp_path / "some" / "test-v0" / "data" / "main_data.hdf5", "r+") as file:
        damage(file)
    with pytest.raises(DemonstrationError, match=r"minari:some/test-v0, (after episode 0|episode 1): .* damaged \("):
        list(minari_source("some/test-v0").trajectories())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "share"), [("metadata.json", 0.5), ("main_data.hdf5", 0.5), ("main_data.hdf5", 0.0)])
def test_a_data_set_of_minari_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, share: float
) -> None:
    minari = pytest.importorskip("minari", reason="minari (an extra) is not installed")
    pytest.importorskip("h5py", reason="h5py (of the extra minari) is not installed")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    episode = EpisodeBuffer(
        observations=np.ones((6, 3), np.float32),
        actions=np.ones((5, 1), np.float32),
        rewards=np.ones(5),
        terminations=np.arange(5) == 4,
        truncations=np.zeros(5, np.bool_),
    )
    minari.create_dataset_from_buffers("some/test-v0", [episode], env="Pendulum-v1")
    path = tmp_path / "some" / "test-v0" / "data" / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DemonstrationError, match="some/test-v0"):
        list(minari_source("some/test-v0").trajectories())


def test_without_minari(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with pytest.raises(DemonstrationError, match=r"pip install 'trajtrainer\[minari\]'"):
        minari_source("some/test-v0")


def test_pngs_and_floats_of_one_sensor_are_not_written_side_by_side(tmp_path: Path) -> None:
    packed = packed_steps("visual", [2])
    (png,) = trajectories_of(packed)
    floats = Trajectory(*(Columns({**dict(each.items()), "obs.0": each.obs[0] / np.float32(255)}) for each in png))
    for number, trajectory in enumerate((png, floats)):
        write_source(tmp_path / f"{number}.demo", _source(tmp_path, [trajectory]))
    with pytest.raises(DemonstrationError, match="has PNGs in one recording and floats in another"):
        write_source(tmp_path / "both.demo", _source(tmp_path, [png, floats]))
    read = load_demonstrations([tmp_path / "0.demo", tmp_path / "1.demo"]).packed
    assert read.obs[0].dtype == np.float32
    np.testing.assert_array_equal(read.obs[0][:2], read.obs[0][2:])
    write_archive(tmp_path / "both.npz", _source(tmp_path, [png, floats]))
    first, second = archive_source(tmp_path / "both.npz").trajectories()
    np.testing.assert_array_equal(first.steps.obs[0], second.steps.obs[0])


def _source(path: Path, trajectories: list[Trajectory]) -> Any:
    from trajtrainer.experience.recordings.source import DemonstrationSource

    return DemonstrationSource(path, SPECS["visual"], "Some", lambda: iter(trajectories))
