"""Reading checkpoint files: nothing in them is run, and whatever is wrong is said."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.crowded import crowded
from trajtrainer.core.errors import CheckpointError
from trajtrainer.policies.checkpoints.file import read_checkpoint

CONTENT = {"Policy": {"weight": torch.arange(6.0).reshape(2, 3)}, "global_step": {"step": torch.tensor([5])}}


class Malicious:
    """Unpickled without care, it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    content = read_checkpoint(saved(tmp_path / "checkpoint.pt", CONTENT))
    assert content.keys() == CONTENT.keys()
    assert torch.equal(content["Policy"]["weight"], CONTENT["Policy"]["weight"])


def test_layers_that_share_their_weights_are_read(tmp_path: Path) -> None:
    weight = torch.ones(2**20)
    path = saved(tmp_path / "checkpoint.pt", {"Policy": {f"{number}": weight for number in range(5)}})
    assert read_checkpoint(path)["Policy"].keys() == set("01234")


def test_a_few_numbers_under_many_names_are_refused(tmp_path: Path) -> None:
    weight = torch.ones(2**20)
    policies: list[object] = [
        {f"{number}": weight for number in range(100)},
        [weight[number:] for number in range(100)],
    ]
    for policy in policies:
        path = saved(tmp_path / "checkpoint.pt", {"Policy": {"weights": policy}})
        assert "bytes in total, but the file has only 4," in refused(path)


def test_a_description_that_unpacks_to_more_than_the_file_is_not_read(tmp_path: Path) -> None:
    path, large = saved(tmp_path / "checkpoint.pt", CONTENT), tmp_path / "large.pt"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(large, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, b"N" * 2**21 + b"." if name.endswith("data.pkl") else source.read(name))
    assert "the description of its tensors has 2,097,153 bytes, but the whole file" in refused(large)


def test_an_archive_of_very_many_members_is_refused(tmp_path: Path) -> None:
    assert "its list of members has 18,800,000 bytes" in refused(crowded(tmp_path / "checkpoint.pt", 400_000))


def test_long_keys_of_many_parts_are_not_shown_as_a_whole(tmp_path: Path) -> None:
    parts = {"Policy": {"x" * 5000: {"y" * 5000: torch.tensor([float("nan")])}}}
    assert len(refused(saved(tmp_path / "checkpoint.pt", parts))) < 600


@pytest.mark.parametrize("how", ["zip", "legacy", "pickle"])
def test_code_is_refused_and_not_run(tmp_path: Path, how: str) -> None:
    path, ran = tmp_path / "checkpoint.pt", tmp_path / "ran"
    content = {"Policy": {"weights": torch.zeros(1)}, "trajtrainer": Malicious(ran)}
    if how == "pickle":
        path.write_bytes(pickle.dumps({"Policy": Malicious(ran)}))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    message = refused(path)
    assert "No code in it was run" in message
    assert not ran.exists()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_truncated(tmp_path: Path, share: float) -> None:
    path = saved(tmp_path / "checkpoint.pt", CONTENT)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(path)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=8), st.booleans())
def test_any_damage_is_a_clear_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, place: int, rubbish: bytes, cut: bool
) -> None:
    path = saved(tmp_path_factory.mktemp("damage") / "checkpoint.pt", CONTENT)
    content = path.read_bytes()
    place %= len(content)
    path.write_bytes(content[:place] if cut else content[:place] + rubbish + content[place + len(rubbish) :])
    try:
        loaded = read_checkpoint(path)
    except CheckpointError:
        return
    assert isinstance(loaded["Policy"], dict)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "it contains a list"),
        (torch.zeros(2), "it contains a Tensor"),
        ({}, "found nothing"),
        ({"model": torch.zeros(1)}, "expected an entry 'Policy' with weights, found 'model'"),
        ({"Policy": torch.zeros(1)}, "expected an entry 'Policy' with weights, found 'Policy'"),
        ({"Policy": {}, 3: torch.zeros(1)}, "found 'Policy', 3"),
        ({"\x1b[2J": 1}, r"found '\\x1b\[2J'"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(CheckpointError, match="is not a usable checkpoint: .*" + words):
        read_checkpoint(saved(tmp_path / "a.pt", content))


def test_wrong_files(tmp_path: Path, shared_data: Path) -> None:
    (tmp_path / "text.pt").write_text("behaviors:\n  3DBall: {}\n")
    refused(tmp_path / "text.pt")
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("a.txt", "hello")
    refused(tmp_path / "zip.pt")
    refused(shared_data / "models" / "Pong.onnx")
    assert "does not exist" in refused(tmp_path / "missing.pt")
    assert "cannot be read" in refused(tmp_path)


def circle() -> list[object]:
    one: list[object] = []
    one.append(one)
    return one


@pytest.mark.parametrize(
    "value",
    [
        lambda: torch.zeros(1).expand(10**15),  # four bytes that would become petabytes when copied
        lambda: torch.zeros(3, device="meta"),
        lambda: torch.zeros(3).to_sparse(),
        circle,
    ],
    ids=["expanded", "meta", "sparse", "circle"],
)
def test_traps_are_refused(tmp_path: Path, value: Callable[[], object]) -> None:
    refused(saved(tmp_path / "checkpoint.pt", {"Policy": {"weight": value()}}))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = saved(tmp_path / "plain.pt", {"Policy": {"weight": torch.zeros(20_000_000)}})
    bomb = tmp_path / "bomb.pt"
    repack(plain, bomb)
    assert bomb.stat().st_size < 200_000
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    assert "unpack to 80," in refused(bomb)


def test_a_checkpoint_that_somebody_packed_is_read(tmp_path: Path) -> None:
    packed = tmp_path / "packed.pt"
    repack(saved(tmp_path / "plain.pt", CONTENT), packed)
    assert torch.equal(read_checkpoint(packed)["Policy"]["weight"], CONTENT["Policy"]["weight"])


def repack(path: Path, target: Path) -> None:
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in archive.namelist():
            packed.writestr(name, archive.read(name))


def test_a_structure_with_more_paths_than_time(tmp_path: Path) -> None:
    nested: list[object] = []
    for _ in range(60):
        nested = [nested, nested]
    assert "extra" in read_checkpoint(saved(tmp_path / "a.pt", CONTENT | {"extra": nested}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_with_which_no_training_goes_on(tmp_path: Path, value: float) -> None:
    wrong = torch.tensor([1.0, value])
    for content in ({"Policy": {"weight": wrong}}, CONTENT | {"Optimizer:critic": {"weight": wrong}}):
        assert "NaN or infinite" in refused(saved(tmp_path / "a.pt", content))
    read_checkpoint(saved(tmp_path / "a.pt", CONTENT | {"trajtrainer": {"note": wrong}}))


@pytest.mark.parametrize("step", [torch.tensor([-5]), 2**64, torch.tensor([2.0**64]), 2**63 - 1])
def test_steps_that_no_run_reaches(tmp_path: Path, step: object) -> None:
    entry = {"_GlobalSteps__global_step": step}
    text = refused(saved(tmp_path / "a.pt", CONTENT | {"global_step": entry}))
    assert f"its step is {int(step)}, expected 0 to" in text  # type: ignore[call-overload]


@pytest.mark.parametrize("number", [2**70, -(2**70), 10**400])
def test_counts_that_no_run_reaches(tmp_path: Path, number: int) -> None:
    text = refused(saved(tmp_path / "a.pt", CONTENT | {"trajtrainer": {"episodes": {"summary": [1.0, 20, number]}}}))
    assert f"a whole number of {number.bit_length()} bits" in text


@pytest.mark.parametrize("run", ["ppo_continuous/3DBall", "ppo_discrete_two_behaviors/Recall"])
def test_mlagents_checkpoints_load(shared_data: Path, run: str) -> None:
    loaded = read_checkpoint(shared_data / "golden" / "runs" / run / "checkpoint.pt")
    assert {"Policy", "global_step", "Optimizer:value_optimizer", "Optimizer:critic"} <= loaded.keys()


def test_an_infinite_variance_of_ml_agents_is_loaded_as_the_largest_number_and_nothing_else_may_be_infinite(
    tmp_path: Path,
) -> None:
    name = "network_body.observation_encoder.processors.0.normalizer.running_variance"
    variance = torch.tensor([3.0, torch.inf])
    loaded = read_checkpoint(saved(tmp_path / "checkpoint.pt", {"Policy": {name: variance}}))
    assert loaded["Policy"][name].tolist() == [3.0, torch.finfo(torch.float32).max]
    assert f"Policy/{name} contains NaN" in refused(
        saved(tmp_path / "nan.pt", {"Policy": {name: variance * torch.nan}})
    )
    mean = name.replace("variance", "mean")
    assert f"Policy/{mean} contains NaN" in refused(saved(tmp_path / "mean.pt", {"Policy": {mean: variance}}))
