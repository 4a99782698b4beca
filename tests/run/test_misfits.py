"""Settings that fit no agent of the environment end a run with one message, which names the behavior and the cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from trajtrainer.cli.main import main

pytest.importorskip("gymnasium")
ROOT = Path(__file__).resolve().parents[2]
RECORDED = (ROOT / "config" / "demos" / "3DBall.demo").as_posix()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "hyperparameters: {symmetry: {observations: {0: {signs: [1, -1]}}, continuous_actions: {signs: [-1]}}}",
            "Behavior 'Pendulum-v1': symmetry does not fit the behavior: sensor 0 'observation' has 3 numbers, but 2 "
            "are listed.",
        ),
        (
            "network_settings: {critic_only: [Truth]}",
            "Behavior 'Pendulum-v1': network_settings.critic_only: the behavior has no sensor 'Truth'. Its sensors "
            "are 0 'observation'.",
        ),
        (
            f"hyperparameters: {{demonstrations: {{demo_path: '{RECORDED}'}}}}",
            f"Behavior 'Pendulum-v1': {Path(RECORDED)}: the sensor 'VectorSensor_size8' (observation 0) was recorded "
            "with the shape (8,), but in the behavior it has (3,). Record it again with the current sensors and "
            "actions of the game.",
        ),
    ],
    ids=["symmetry", "critic_only", "demonstrations"],
)
def test_settings_that_do_not_fit_the_agents(
    settings: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"behaviors:\n  Pendulum-v1:\n    trainer_type: sac\n    {settings}\n"
    Path("a.yaml").write_text(text, encoding="utf-8")
    assert main(["learn", "a.yaml", "--env=gym:Pendulum-v1", "--run-id=a"]) == 1
    told = capsys.readouterr().err
    assert [line for line in told.splitlines() if line.startswith("error: ")] == [f"error: {message}"]
    assert "Traceback" not in told
