"""Files that are made to fill the memory are refused before they do."""

from __future__ import annotations

import io
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from tests.core.crowded import crowded
from tests.tools.importing.files import read
from trajtrainer.core.errors import CheckpointError
from trajtrainer.tools.importing.importing import read_policy
from trajtrainer.tools.importing.policy import Hints
from trajtrainer.tools.importing.weights import read_statistics

MOST = 60_000_000


def bomb(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            with archive.open(name, "w") as member:
                for _ in range(200):
                    member.write(b" " * 2**20)
    return path


@pytest.mark.parametrize("names", [("policy.pth", "data"), ("data", "policy.pth"), ("x/data.pkl",), ("mean.npy",)])
def test_archives_that_unpack_to_far_more(names: tuple[str, ...], tmp_path: Path) -> None:
    path = bomb(tmp_path / "bomb.zip", *names)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="far more than a checkpoint would"):
            (read_statistics if names == ("mean.npy",) else read)(path)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="a file with a hole takes its whole size there")
def test_files_of_any_size(tmp_path: Path) -> None:
    path = tmp_path / "large.pt"
    with path.open("wb") as file:
        file.truncate(2**29)
    with pytest.raises(CheckpointError, match="more than any policy needs"):
        read(path)


def test_a_few_numbers_under_many_names(tmp_path: Path) -> None:
    weight, path = torch.ones(2**20), tmp_path / "a.pt"
    torch.save({f"{number}": weight[number:] for number in range(100)}, path)
    with pytest.raises(CheckpointError, match="its tensors claim"):
        read(path)
    torch.save({f"{number}": weight[:2] for number in range(10_001)}, path)
    with pytest.raises(CheckpointError, match="it has 10,001 tensors, expected at most 10,000"):
        read(path)


@pytest.mark.parametrize("name", ["a.zip", "a.pt", "stats.npz"])
def test_archives_of_many_members(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be imported: its list of members has 1,410,000 bytes"):
        (read_statistics if name == "stats.npz" else read)(crowded(tmp_path / name, 30_000))


def test_models_with_long_names(tmp_path: Path) -> None:
    values = [onnx.helper.make_tensor_value_info(end * 900_000, onnx.TensorProto.INT64, [1, 2]) for end in "xy"]
    node = onnx.helper.make_node("Identity", [values[0].name], [values[1].name])
    path = tmp_path / "a.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "graph", values[:1], values[1:])), path)
    with pytest.raises(CheckpointError, match="is not of type float32") as caught:
        read_policy(path, Hints())
    assert len(str(caught.value)) < 2500


def statistics(path: Path, **arrays: object) -> Path:
    whole = {"mean": np.zeros(3), "var": np.ones(3), "epsilon": 1e-8, "clip_obs": 10.0, **arrays}
    np.savez(path, **{name: value for name, value in whole.items() if value is not None})  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"mean": np.zeros(2)}, "do not match: mean (2,), var (3,)"),
        ({"var": None}, "it lacks var. Save it with\n  import numpy, pathlib, pickle; v = pickle.loads("),
        ({"clip_obs": np.ones(2)}, "do not match"),
        ({"clip_obs": -1.0}, "a variance or limit that is not above 0"),
        ({"var": np.array([1.0, np.nan, 1.0])}, "numbers that are not finite"),
        ({"mean": np.array(["a", "b", "c"])}, "it is damaged, or not a file of weights"),
        ({"mean": np.array([object()] * 3, object)}, "No code was run. (ValueError: Object arrays cannot be loaded"),
    ],
)
def test_damaged_statistics(arrays: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_statistics(statistics(tmp_path / "stats.npz", **arrays))
    assert message in str(caught.value)


def test_statistics_that_claim_any_size(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"shape": (2**50,), "fortran_order": False, "descr": "<f8"})
    path = tmp_path / "stats.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("mean", "var", "epsilon", "clip_obs"):
            archive.writestr(f"{name}.npy", header.getvalue())
    with pytest.raises(CheckpointError, match="it is damaged, or not a file of weights"):
        read_statistics(path)


def test_a_pickle_of_statistics_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "vecnormalize.pkl"
    path.write_bytes(b"\x80\x04N.")
    with pytest.raises(CheckpointError) as caught:
        read_statistics(path)
    assert 'v = pickle.loads(pathlib.Path("vecnormalize.pkl").read_bytes())\n  numpy.savez("stats.npz", mean=' in str(
        caught.value
    )
