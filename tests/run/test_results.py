"""What a program and a notebook get of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trajtrainer import learn
from trajtrainer.policies.play.result import Episode, EvaluationResult

REWARD = "Environment/Cumulative Reward"


def settings(max_steps: int) -> dict[str, Any]:
    return {"behaviors": {"CartPole-v1": {"trainer_type": "ppo", "max_steps": max_steps, "summary_freq": 100}}}


def test_curves_are_arrays_of_all_sessions(tmp_path: Path) -> None:
    where: dict[str, Any] = {"run_id": "pole", "results_dir": tmp_path, "verbose": False}
    learn(settings(400), "gym:CartPole-v1", **where)
    result = learn(settings(800), "gym:CartPole-v1", **where, resume=True)
    reward = result.curves()["CartPole-v1"][REWARD]
    assert isinstance(reward.steps, np.ndarray)
    assert isinstance(reward.values, np.ndarray)
    assert reward.steps[0] <= 200
    assert reward.steps[-1] >= 700
    assert (np.diff(reward.steps) > 0).all()
    assert np.isfinite(reward.values).all()
    html = result._repr_html_()
    assert "<td>CartPole-v1</td>" in html
    assert f"<td>{result.behaviors['CartPole-v1'].steps:,}</td>" in html
    assert result.behaviors["CartPole-v1"]._repr_html_() in html
    assert str(result.run_folder) in html


def test_names_are_no_markup() -> None:
    episode = Episode(worker=0, team=0, number=0, reward=2.0, group_reward=1.0, length=7, interrupted=False)
    html = EvaluationResult("<b>Ball", (episode,), (), 7, 1.0)._repr_html_()
    assert "&lt;b&gt;Ball" in html
    assert "3.000 ± 0.000" in html
    assert "nan" in EvaluationResult("none", (), (), 0, 0.0)._repr_html_()
