"""Files that are made to fill the memory are refused before they do."""

from __future__ import annotations

import io
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.commands.importing.files import read
from trajtrainer.commands.importing.weights import read_statistics
from trajtrainer.core.errors import CheckpointError

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


def statistics(path: Path, **arrays: object) -> Path:
    whole = {"mean": np.zeros(3), "var": np.ones(3), "epsilon": 1e-8, "clip_obs": 10.0, **arrays}
    np.savez(path, **{name: value for name, value in whole.items() if value is not None})  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"mean": np.zeros(2)}, "do not fit each other: mean (2,), var (3,)"),
        ({"var": None}, "it lacks var. Save it with\n  import numpy, pathlib, pickle; v = pickle.loads("),
        ({"clip_obs": np.ones(2)}, "do not fit each other"),
        ({"clip_obs": -1.0}, "a variance or limit that is not above 0"),
        ({"var": np.array([1.0, np.nan, 1.0])}, "numbers that are not finite"),
        ({"mean": np.array(["a", "b", "c"])}, "expected numbers"),
        ({"mean": np.array([object()] * 3, object)}, "expected numbers"),
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
    with pytest.raises(CheckpointError, match="its mean is of type float64 and shape"):
        read_statistics(path)


def test_a_pickle_of_statistics_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "vecnormalize.pkl"
    path.write_bytes(b"\x80\x04N.")
    with pytest.raises(CheckpointError) as caught:
        read_statistics(path)
    assert 'v = pickle.loads(pathlib.Path("vecnormalize.pkl").read_bytes())\n  numpy.savez("stats.npz", mean=' in str(
        caught.value
    )
