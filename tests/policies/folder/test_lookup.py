"""Which folder a run id or path refers to."""

from pathlib import Path

import pytest

from trajtrainer.policies.folder.lookup import look_up, tried


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "chase" / "Chaser").mkdir(parents=True)
    (tmp_path / "chase").mkdir()
    (tmp_path / "chase" / "Chaser.onnx").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("chase", "results/chase"),  # not the export in the folder of the same name
        ("chase/Chaser", "results/chase/Chaser"),
        ("chase/Chaser.onnx", "chase/Chaser.onnx"),
        ("results/chase", "results/chase"),
        ("results", "results"),
        (".", "."),
        ("..", ".."),
        ("chase/../chase", "chase/../chase"),
        ("missing", "missing"),
    ],
)
def test_a_run_id_is_looked_up_in_the_results_folder_first(working_directory: Path, word: str, path: str) -> None:
    assert look_up(word, Path("results")) == Path(path)


def test_an_absolute_path_is_taken_as_it_is(working_directory: Path) -> None:
    folder = working_directory / "chase"
    assert look_up(folder, Path("results")) == folder
    assert tried(folder, Path("results")) == f"Tried {folder}."


def test_messages_name_both_places_and_the_run_that_may_be_meant(working_directory: Path) -> None:
    assert tried("other", Path("results")) == f"Tried {Path('results/other')}, then other."
    assert tried("chas", Path("results")) == f"Tried {Path('results/chas')}, then chas; did you mean chase?"
