"""``trajtrainer verify``: exit codes, bad input, runs, source code, and real recordings and models."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cli.test_export import checkpoint_of, saved
from tests.learning.nn.specs import behavior, camera, network, vector
from tests.tools.verify import games
from tests.tools.verify.games import Fault, Game, make_game, play, record
from tests.tools.verify.planting import other_policy
from trajtrainer.cli.main import main
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.tools.verify.likelihood import figures
from trajtrainer.tools.verify.network import Answer, network_of_file
from trajtrainer.tools.verify.recording import PlayedActions, Question, read_recording
from trajtrainer.tools.verify.verify import _which


def verify(*arguments: str | Path) -> int:
    return main(["verify", *map(str, arguments)])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one message about bad input."""
    assert verify(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = [line for line in shown.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


def in_a_run(folder: Path, *steps: tuple[int, Game]) -> Path:
    for step, each in steps:
        content = checkpoint_of(each.actor, network(**each.options))
        saved(folder / "Crawler" / f"Crawler-{step}.pt", content)
    (folder / "run_logs").mkdir()
    return folder


def test_a_recording_is_read_as_it_is(game: Game, demo: Path) -> None:
    found = read_recording([demo], RawImageOrder.AUTO)
    assert found.behavior == "Crawler"
    for mine, theirs in zip(found.question.obs, game.obs, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(found.question.starts, game.starts)
    np.testing.assert_array_equal(found.question.mask, game.mask)
    assert found.is_whole
    cut = read_recording([demo, demo], RawImageOrder.AUTO, len(game.starts) + 5)
    assert len(cut.question) == len(game.starts) + 5
    assert cut.question.starts[len(game.starts)]
    assert not cut.is_whole


def test_what_agrees(game: Game, model: Path, demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(model, "--demo", demo) == 0
    out = capsys.readouterr().out
    assert f"{demo}: {len(game.starts)} decisions of 12 episodes" in out
    assert "AGREE" in out
    assert "actions are deterministic" in out
    assert verify(model, "--demo", demo, "--actions", "sampled") == 1
    out = capsys.readouterr().out
    assert "likely cause: deterministic or sampled actions" in out
    assert "as sampled actions: 0.00 standard deviations from the mean (1.00 expected)" in out
    assert "as deterministic actions: 0.0% of" in out
    assert verify(model, "--demo", demo, "--decisions", "100") == 0
    assert "the first 100 decisions" in capsys.readouterr().out


def test_draws_that_are_cut_off_are_expected_nearer_to_the_mean() -> None:
    random = np.random.default_rng(4)
    mean = np.full((20_000, 1), 0.5, np.float32)
    raw = random.normal(mean, 3.0).astype(np.float32)
    answer = Answer(np.tanh(mean), np.stack([mean, np.full_like(mean, 3.0)]), 3.0, (), True)
    found = figures(
        answer, PlayedActions((raw.clip(-3.0, 3.0) / 3.0).astype(np.float32), np.zeros((20_000, 0), np.int64))
    )
    assert found.deviations == pytest.approx(found.usual_deviations, rel=0.02)
    assert found.usual_deviations == pytest.approx(0.551, abs=1e-3)


def test_one_odd_decision_is_no_difference(
    game: Game, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    continuous, discrete = play(game, model, Fault())
    continuous[7] = 0.77
    longer = [*range(len(continuous))] * 2
    twice = replace(game, obs=[each[longer] for each in game.obs], mask=game.mask[longer], starts=game.starts[longer])
    continuous = np.concatenate([continuous, play(game, model, Fault())[0]])
    demo = record(tmp_path / "odd.demo", twice, continuous, np.concatenate([discrete, discrete]))
    assert verify(model, "--demo", demo) == 0
    assert "0.1% of" in capsys.readouterr().out


def test_a_forbidden_action_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    game = make_game(np.random.default_rng(5), games.vectors, games.DISCRETE, masked=True, drawn=True)
    model = game.model(tmp_path / "Crawler.onnx")
    demo = record(tmp_path / "a.demo", game, *play(game, model, Fault(mask=np.zeros_like)))
    assert verify(model, "--demo", demo) == 1
    assert "The mask is ignored" in capsys.readouterr().out


# sensors that do not fit


def test_a_sensor_that_was_not_stacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    game = make_game(np.random.default_rng(3), games.stacked, games.CONTINUOUS)
    model = game.model(tmp_path / "Crawler.onnx")
    actions = play(game, model, Fault())
    size = game.obs[0].shape[1] // 3
    plain = copy.copy(game)
    plain.obs = [game.obs[0][:, -size:], game.obs[1]]
    plain.spec = behavior([vector(size, "Body"), vector(2, "Target")], 2)
    assert verify(model, "--demo", record(tmp_path / "a.demo", plain, *actions)) == 1
    out = capsys.readouterr().out
    assert "likely cause: stacking" in out
    assert "The model expects 3 stacked frames of sensor 0 ('Body'), but only one was recorded." in out
    assert "before: the model does not accept the recorded observations" in out


def test_sensors_of_other_shapes_in_another_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    game = make_game(np.random.default_rng(4), lambda _: ([vector(3, "A"), camera(3, 20, 21, "B")], {}), games.DISCRETE)
    model = game.model(tmp_path / "Crawler.onnx")
    actions = play(game, model, Fault())
    turned = copy.copy(game)
    turned.obs, turned.spec = game.obs[::-1], behavior(game.spec.observation_specs[::-1], 0, (4,))
    assert verify(model, "--demo", record(tmp_path / "a.demo", turned, *actions)) == 1
    out = capsys.readouterr().out
    assert "likely cause: sensor order" in out
    assert "The model expects the sensors in a different order: sensor 1 ('A'), sensor 0 ('B')." in out


# runs


def test_a_run_whose_newest_checkpoint_the_game_does_not_have(
    game: Game, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = other_policy(game, np.random.default_rng(2), 0.15)
    run = in_a_run(tmp_path / "results" / "first", (100, game), (2000, newer))
    old = game.model(tmp_path / "old.onnx")
    demo = record(tmp_path / "a.demo", game, *play(game, old, Fault()))
    assert verify("first", "--demo", demo, "--results-dir", run.parent) == 1
    assert "These are the actions of another model of the run: the checkpoint of step 100" in capsys.readouterr().out
    # The same model in game and hand, which is not the newest.
    assert verify(old, "--demo", demo, "--run", run) == 0
    assert f"note: The model {old} is not the run's newest: the checkpoint of step 100" in capsys.readouterr().out
    stranger = other_policy(game, np.random.default_rng(2), 1.0)
    other = stranger.model(tmp_path / "other.onnx")
    demo = record(tmp_path / "b.demo", stranger, *play(stranger, other, Fault()))
    assert verify(other, "--demo", demo, "--run", run) == 0
    assert "does not act like any of the run's checkpoints" in capsys.readouterr().out


def test_sensors_of_the_training(
    game: Game, model: Path, demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = in_a_run(tmp_path / "first", (100, game))
    assert verify(model, "--demo", demo, "--run", run) == 0
    capsys.readouterr()
    first, second = game.spec.observation_specs
    turned = copy.copy(game)
    turned.spec = behavior([vector(first.shape[0], "Target"), vector(second.shape[0], "Body")], *games.HYBRID)
    demo = record(tmp_path / "b.demo", turned, *play(game, model, Fault()))
    assert verify(model, "--demo", demo, "--run", run) == 1
    out = capsys.readouterr().out
    assert "DIFFERENT from training: sensor order" in out
    assert "in the order Body, Target; in the game they come in the order Target, Body" in out
    turned.spec = behavior([vector(first.shape[0], "Body"), vector(second.shape[0], "Rays")], *games.HYBRID)
    demo = record(tmp_path / "c.demo", turned, *play(game, model, Fault()))
    assert verify(model, "--demo", demo, "--run", run) == 1
    out = capsys.readouterr().out
    assert "The game has a sensor 'Rays', which did not exist in training." in out
    assert "The sensor 'Target' from training does not exist in the game." in out


def test_sensors_that_a_student_does_not_see(
    game: Game, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = in_a_run(tmp_path / "first", (100, game))
    more = copy.copy(game)
    more.spec = behavior([vector(2, "Answer"), *game.spec.observation_specs], *games.HYBRID)
    more.obs = [np.ones((len(game.starts), 2), np.float32), *game.obs]
    demo = record(tmp_path / "more.demo", more, *play(game, model, Fault()))
    assert verify(run, "--demo", demo) == 0
    assert (
        "note: The policy does not see 'Answer'. In Unity, agents with its .onnx must not have such"
        in capsys.readouterr().out
    )
    assert verify(model, "--demo", demo, "--run", run) == 0
    assert "note: The policy does not see 'Answer'." in capsys.readouterr().out
    assert "it has the sensors 'Answer' (2,), 'Body' " in refused(capsys, model, "--demo", demo)


def test_observations_far_from_those_of_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    game = make_game(np.random.default_rng(6), games.vectors, games.CONTINUOUS, drawn=False)
    model = game.model(tmp_path / "Crawler.onnx")
    game.obs[0][:, 2] *= 100.0
    demo = record(tmp_path / "a.demo", game, *play(game, model, Fault()))
    assert verify(model, "--demo", demo) == 0
    out = capsys.readouterr().out
    assert "more than 5 standard deviations from their mean in training. Number 2 is" in out


# bad input


def test_bad_input(game: Game, model: Path, demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.demo"
    cut.write_bytes(demo.read_bytes()[:20])
    assert "ends after its header" in refused(capsys, model, "--demo", cut)
    cut.write_bytes(demo.read_bytes()[:300] + b"\xff" * 40 + demo.read_bytes()[340:])
    assert "cut.demo" in refused(capsys, model, "--demo", cut)
    assert "does not exist" in refused(capsys, model, "--demo", tmp_path / "none.demo")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    assert "broken.onnx" in refused(capsys, broken, "--demo", demo)
    assert "no run with this name" in refused(capsys, "nothing", "--demo", demo)


@pytest.mark.parametrize(
    ("sensors", "actions", "message"),
    [
        ([vector(3)], games.HYBRID, "it has the sensors 'Body' "),
        ([vector(3, "a"), vector(90, "b")], games.HYBRID, "it has the sensors 'Body' "),
        (None, (3, (3,)), "it has 2 continuous actions and the discrete branches [3], but the model has 3 and [3]."),
    ],
)
def test_a_model_of_other_agents(
    game: Game,
    demo: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sensors: Sequence[object] | None,
    actions: tuple[int, tuple[int, ...]],
    message: str,
) -> None:
    seen = list(sensors or game.spec.observation_specs)
    other = make_game(np.random.default_rng(1), lambda _: (seen, {}), actions)  # type: ignore[arg-type, return-value]
    told = refused(capsys, other.model(tmp_path / "other.onnx"), "--demo", demo)
    assert "was recorded with different agents than those of" in told
    assert message in told


def test_a_recording_of_another_behavior(
    game: Game, model: Path, demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = in_a_run(tmp_path / "first", (100, game))
    strange = record(tmp_path / "b.demo", game, *play(game, model, Fault()), name="Walker")
    told = refused(capsys, run, "--demo", strange)
    assert "is a recording of the behavior 'Walker', but " in told
    assert "was trained for 'Crawler'. If the behavior was renamed, use --behavior Crawler." in told
    assert verify(run, "--demo", strange, "--behavior", "Crawler") == 0
    capsys.readouterr()
    assert "has no behavior 'Crawlr'; did you mean Crawler?" in refused(
        capsys, run, "--demo", demo, "--behavior", "Crawlr"
    )


# real recordings and models


def recorded_again(folder: Path, demos: Path, name: str, model: Path, *, drawn: bool) -> Path:
    """A real recording in which a real model acted: its observations with the model's actions."""
    found = read_recording([demos / f"{name}.demo"], RawImageOrder.AUTO, 700)
    question = found.question
    game = make_game(np.random.default_rng(7), games.vectors, games.CONTINUOUS, drawn=drawn)
    again = replace(game, spec=found.spec, obs=list(question.obs), mask=question.mask, starts=question.starts)
    return record(folder / f"{name}-{drawn}.demo", again, *play(again, model, Fault()))


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("name", ["3DBallDemo", "Expert3DBall", "Pkg3BallDemo"])
@pytest.mark.parametrize("kind", ["ppo_cont", "sac_cont"])
def test_real_observations_and_models(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str, drawn: bool
) -> None:
    model = shared_data / "models" / f"{kind}.onnx"
    demo = recorded_again(tmp_path, shared_data / "demos", name, model, drawn=drawn)
    assert verify(model, "--demo", demo) == 0, capsys.readouterr().out
    assert f"actions are {'sampled' if drawn else 'deterministic'}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["3DBallDemo", "Expert3DBall", "Pkg3BallDemo"])
def test_real_recordings_in_which_something_else_acted(
    shared_data: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    model = shared_data / "models" / "ppo_cont.onnx"
    assert verify(model, "--demo", shared_data / "demos" / f"{name}.demo") == 1
    out = capsys.readouterr().out
    assert "likely cause: an older or different model" in out
    assert "something else acted, such as a player or a heuristic" in out


@pytest.mark.parametrize(
    "name",
    ["Pong", "AimBotv1", "SoccerTwos_poca", "PushButton-499970", "ppo_vis", "ppo_goal", "ppo_hybrid_lstm", "ppo_var"],
)
def test_models_of_ml_agents_can_be_taken_apart(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The recorded actions are draws of onnxruntime itself."""
    model = shared_data / "models" / f"{name}.onnx"
    found = network_of_file(model)
    random = np.random.default_rng(11)
    sensors = [games.sensor_of(shape, f"s{number}") for number, shape in enumerate(found.shapes.values())]
    actions = (found.report.continuous_size, tuple(found.report.discrete_branches))
    game = make_game(random, lambda _: (sensors, {}), actions, drawn=True)
    demo = record(tmp_path / "a.demo", game, *play(game, model, Fault()))
    assert verify(model, "--demo", demo) == 0, capsys.readouterr().out
    assert "actions are sampled" in capsys.readouterr().out


class Acting:
    """A network that always gives the same probabilities, and accepts some shapes only."""

    def __init__(self, choice: float, size: int) -> None:
        self.name, self.memory_size, self._choice, self._size = "model", 0, choice, size

    def takes(self, shapes: list[tuple[int, ...]]) -> bool:
        return shapes == [(self._size,)]

    def answer(self, question: Any) -> Any:
        return SimpleNamespace(mode=np.full(len(question), self._choice), log_probs=())


def test_the_checkpoint_is_named_although_an_earlier_one_does_not_fit() -> None:
    question = Question((np.zeros((3, 8), np.float32),), np.zeros((3, 0), np.bool_), np.zeros(3, np.bool_))
    choices = [(0.1, 9, "newest"), (0.2, 8, "of step 200"), (0.3, 8, "of step 100")]
    others: Any = [SimpleNamespace(network=Acting(choice, size), text=f"model: {at}") for choice, size, at in choices]
    recording: Any = SimpleNamespace(question=question)
    mine: Any = Acting(0.3, 8)
    assert list(_which(mine, others, recording)) == ["The model model is not the run's newest: of step 100"]
