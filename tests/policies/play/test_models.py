"""What the words of the command line mean, and what is told of those that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_export import checkpoint_of, saved
from tests.learning.nn.specs import behavior, network, vector
from tests.policies.onnx.test_onnx import random_actor
from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.policies.play.models import ActingOptions, Model, find_models

SPEC = behavior([vector(3)], 0, (3,))


def checkpoint(path: Path, step: int = 7, seed: int = 5) -> Path:
    content = checkpoint_of(random_actor(SPEC, seed=seed), network())
    content["global_step"]["_GlobalSteps__global_step"].fill_(step)
    return saved(path, content)


def run_with(folder: Path, **steps: list[int]) -> Path:
    """A run with numbered checkpoints of each behavior, and the newest as checkpoint.pt."""
    for name, own in steps.items():
        for step in own:
            checkpoint(folder / name / f"{name}-{step}.pt", step)
        checkpoint(folder / name / "checkpoint.pt", own[-1])
    (folder / "run_logs").mkdir()
    return folder


def found(results: Path, *words: str | Path) -> list[Model]:
    return find_models([str(word) for word in words], results, ActingOptions())


def files(model: Model) -> dict[str, str]:
    return {behavior: file.path.name for behavior, file in model.policies.items()}


def refusal(results: Path, *words: str | Path) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        found(results, *words)
    return str(caught.value).splitlines()


def test_runs_folders_and_files(tmp_path: Path) -> None:
    first = run_with(tmp_path / "first", Striker=[10, 20], Goalie=[11, 23])
    other = checkpoint(tmp_path / "elsewhere" / "Striker-5.pt", 5)
    export_policy(random_actor(SPEC), SPEC, tmp_path / "Striker-99.onnx")
    models = found(tmp_path, "first", first / "Goalie", other, tmp_path / "Striker-99.onnx")

    assert [model.name for model in models] == [
        "first", str(first / "Goalie"), str(other), str(tmp_path / "Striker-99.onnx")
    ]  # fmt: skip
    assert [files(model) for model in models] == [
        {"Goalie": "checkpoint.pt", "Striker": "checkpoint.pt"},
        {"Goalie": "checkpoint.pt"},
        {"elsewhere": "Striker-5.pt"},
        {"Striker": "Striker-99.onnx"},
    ]
    assert [model.steps for model in models] == [23, 23, 5, 99]


def test_a_folder_of_the_same_name_does_not_hide_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(tmp_path / "results" / "first", A=[9])
    (tmp_path / "first").mkdir()  # such as that of an export
    monkeypatch.chdir(tmp_path)
    results = Path("results")

    assert [files(model) for model in found(results, "first", "first/*")] == [{"A": "checkpoint.pt"}, {"A": "A-9.pt"}]
    (problem,) = refusal(results, "first@best")
    assert problem.endswith(f"Tried {results / 'first'}, then first.")


def test_all_checkpoints_of_a_run(tmp_path: Path) -> None:
    run_with(tmp_path / "first", A=[9, 100])
    models = found(tmp_path, "first/*")

    assert [(model.name, model.steps, model.series) for model in models] == [
        ("first/9", 9, "first"), ("first/100", 100, "first")
    ]  # fmt: skip
    assert [files(model) for model in models] == [{"A": "A-9.pt"}, {"A": "A-100.pt"}]
    assert [files(model) for model in found(tmp_path, tmp_path / "first" / "A" / "*")] == [
        {"A": "A-9.pt"}, {"A": "A-100.pt"}
    ]  # fmt: skip


def test_of_other_behaviors_it_is_the_nearest_step(tmp_path: Path) -> None:
    run_with(tmp_path / "first", A=[10, 20, 30], B=[4, 12, 29])
    models = found(tmp_path, "first/*")

    assert [files(model) for model in models] == [
        {"A": "A-10.pt", "B": "B-12.pt"}, {"A": "A-20.pt", "B": "B-12.pt"}, {"A": "A-30.pt", "B": "B-29.pt"}
    ]  # fmt: skip


def test_all_mistakes_are_told(tmp_path: Path) -> None:
    run_with(tmp_path / "first", A=[9])
    (tmp_path / "untrained" / "run_logs").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("notes")
    missing: list[str | Path] = ["missing", "missing/*", tmp_path / "missing.pt", tmp_path / "missing.onnx"]
    lines = refusal(tmp_path, "first", "untrained", "untrained/*", tmp_path / "notes.txt", *missing)

    assert lines[0].startswith(f"There is no checkpoint in {tmp_path / 'untrained'}")
    assert lines[1].startswith(f"There is no checkpoint with a step in its name in {tmp_path / 'untrained'}")
    assert lines[2].startswith(f"The checkpoint {tmp_path / 'notes.txt'} was rejected")
    assert lines[3].startswith(f"There is no file or folder missing, and no run with this name in {tmp_path}")
    assert lines[4].startswith(f"There is no folder missing, and no run with this name in {tmp_path}")
    assert lines[5].startswith(f"There is no file or folder {tmp_path / 'missing.pt'}")
    assert lines[6].startswith(f"The model {tmp_path / 'missing.onnx'} cannot be used: the file does not exist")
    assert len(lines) == 7


def test_a_checkpoint_of_other_agents(tmp_path: Path) -> None:
    run_with(tmp_path / "first", A=[9, 10])
    (file, *_) = found(tmp_path, "first/*")[0].policies.values()

    file.load(SPEC)
    with pytest.raises(CheckpointError, match=r"sensor 0 \('vector', here 'eye'\) has the shape \(3,\), not \(4,\)"):
        file.load(behavior([vector(4, "eye")], 0, (3,)))
    with pytest.raises(CheckpointError, match=r"it sees the sensors 'vector' \(3,\), not 'vector' \(3,\), 'b' \(1,\)"):
        file.load(behavior([vector(3), vector(1, "b")], 0, (3,)))
    with pytest.raises(CheckpointError, match=r"its actions are 0 continuous and the branches \[3\], not 1 cont"):
        file.load(behavior([vector(3)], 1, ()))


def test_checkpoints_of_ml_agents_take_the_environments_word_for_what_is_seen(shared_data: Path) -> None:
    folder = shared_data / "models"
    models = found(folder, folder / "PushButton-499970.pt", folder / "PushButton_checkpoint.pt")
    for model in models:
        (file,) = model.policies.values()
        file.load(behavior([vector(4)], 0, (3, 3, 2)))
    assert [model.steps for model in models] == [499970, 500019]
