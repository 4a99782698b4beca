"""``trajtrainer.Training``: the epochs of a run, functions that it calls, and how it ends."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import trajtrainer
from tests.envs.python.pettingzoo_samples import Arena
from tests.run.api.test_learn_api import Lamp, settings
from tests.run.runs import ppo
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError
from trajtrainer.core.stats import Distribution
from trajtrainer.run.api.epochs import BehaviorStats, EpisodeStats

STEPS = 1200


def training(tmp_path: Path, environment: Any = Lamp, **options: Any) -> trajtrainer.Training:
    given = options.pop("settings", None) or settings(max_steps=STEPS)
    options = {"results_dir": tmp_path, "run_id": "lamp", "num_envs": 4, "verbose": False, **options}
    return trajtrainer.Training(given, environment, **options)


def state(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "lamp" / "Lamp" / "checkpoint.pt", weights_only=True)  # type: ignore[no-any-return]


def tensors(content: Any) -> Iterator[torch.Tensor]:
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from tensors(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from tensors(value)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All that is not time."""
    events = EventAccumulator(str(folder / "lamp" / "Lamp"), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("Perf/")]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


class Counting(Lamp):
    """Remembers its episodes' returns, and draws its light from the global generator."""

    returns: list[float]

    def reset(self, **options: Any) -> tuple[int, dict[str, Any]]:
        self.total = 0.0
        return super().reset(**options)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        light, reward, done, cut, info = super().step(action)
        self.total += reward
        if done:
            self.returns.append(self.total)
        return light, reward, done, cut, info

    def _light(self) -> int:
        self.light = random.randrange(2)
        return self.light


def counting() -> type[Counting]:
    return type("Lamp", (Counting,), {"returns": []})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by ``learn``, from a known state of the global generator."""
    folder = tmp_path_factory.mktemp("plain")
    random.seed(1)
    trajtrainer.learn(
        settings(max_steps=STEPS), counting(), results_dir=folder, run_id="lamp", num_envs=4, verbose=False
    )
    return folder


def test_epochs_tell_all_and_change_nothing(tmp_path: Path, plain: Path) -> None:
    """Bit for bit, though the environment and the loop's body both draw from the global generators."""
    environment, epochs, drawn, saved = counting(), [], [], []
    random.seed(1)
    expected = [random.random() for _ in range(6)]
    random.seed(1)

    def on_checkpoint(checkpoint: trajtrainer.SavedCheckpoint) -> None:
        saved.append((checkpoint.step, checkpoint.is_last))
        assert checkpoint.path.is_file()
        assert checkpoint.onnx is not None
        assert checkpoint.onnx.is_file()
        np.random.random(3)
        torch.rand(3)

    given = settings(max_steps=STEPS)
    given["behaviors"]["Lamp"]["checkpoint_interval"] = 500
    seen: list[int] = []
    bests: list[trajtrainer.BestCheckpoint] = []
    with training(
        tmp_path,
        environment,
        settings=given,
        on_checkpoint=on_checkpoint,
        on_best=bests.append,
        on_epoch=lambda epoch: seen.append(epoch.epoch),
        stop_when=lambda epoch: False,
    ) as run:
        for epoch in run.epochs(steps=200):
            epochs.append(epoch)
            assert seen[-1] == epoch.epoch
            drawn.append(random.random())
            torch.rand(5)
            np.random.random()

    assert scalars(tmp_path) == scalars(plain)
    pairs = list(zip(tensors(state(tmp_path)), tensors(state(plain)), strict=True))
    assert len(pairs) > 10
    assert all(torch.equal(one, other) for one, other in pairs)
    assert drawn == expected[: len(drawn)]

    result = run.result.behaviors["Lamp"]
    assert [epoch.epoch for epoch in epochs] == [1, 2, 3, 4, 5, 6]
    assert sum(epoch.steps for epoch in epochs) == epochs[-1].behavior.total_steps == result.steps > STEPS
    # The trainer takes in 128 steps or more at a time.
    assert all(0 <= epoch.behavior.total_steps - 200 * epoch.epoch < 160 for epoch in epochs[:-1])
    assert sum(epoch.gradient_steps for epoch in epochs) == epochs[-1].behavior.total_gradient_steps > 0
    episodes = [epoch.behavior.episodes for epoch in epochs]
    total = reduce(Distribution.joined, [each.returns for each in episodes])
    expected_returns = environment.returns[: total.number]
    assert total.number == sum(each.number for each in episodes) >= STEPS // 8
    assert total.mean == pytest.approx(np.mean(expected_returns))
    assert total.std == pytest.approx(np.std(expected_returns))
    assert {(each.lengths.min, each.lengths.max) for each in episodes} == {(8.0, 8.0)}
    assert {"Policy Loss", "Value Loss"} <= epochs[1].behavior.losses.keys()
    assert epochs[1].behavior.losses["Policy Loss"] == epochs[1].behavior.statistics["Losses/Policy Loss"]
    # Four copies in one process are stepped together, and an episode begins with a message of its own.
    assert sum(epoch.environment_steps for epoch in epochs) == pytest.approx(result.steps / 4, rel=0.02)
    assert sum(epoch.phases["save"].seconds > 0 for epoch in epochs) == 2
    for epoch in epochs:
        assert 0 < sum(phase.seconds for phase in epoch.phases.values()) <= epoch.seconds
        assert epoch.steps_per_second == epoch.steps / epoch.seconds
        assert epoch.behavior.elo is None
    assert [is_last for _, is_last in saved] == [False, False, True]
    assert saved[-1][0] == result.steps
    *_, best = bests
    assert (best.behavior, best.by) == ("Lamp", "training")
    assert best.measure.startswith("mean return of the summary of step ")
    assert best.path.is_file()
    assert best.onnx.is_file()
    assert best.step == result.steps, "the last model is compared, too, when the epochs are over"
    assert [epoch.behavior.best for epoch in epochs] == 4 * [None] + 2 * [bests[0]]


def test_leaving_the_loop_saves_and_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        for epoch in run.epochs(steps=200):
            if epoch.epoch == 2:
                break
        assert not run.result.run_folder.joinpath("Lamp.onnx").is_file()
    (left,) = run.result.behaviors.values()
    assert left.checkpoint is not None
    assert left.onnx is not None
    assert 400 <= left.steps < 600
    assert int(state(tmp_path)["global_step"]["_GlobalSteps__global_step"]) == left.steps

    with training(tmp_path, resume=True) as run:
        epochs = list(run.epochs(steps=200, max_epochs=4))
    assert [epoch.epoch for epoch in epochs] == [3, 4]
    assert epochs[0].behavior.total_steps == left.steps + epochs[0].steps
    made = sum(epoch.gradient_steps for epoch in epochs)
    assert epochs[-1].behavior.total_gradient_steps > made > 0


def test_loops_may_follow_one_another(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        first = list(run.epochs(steps=130, max_epochs=3))
        rest = list(run.epochs(steps=400))
        assert list(run.epochs(steps=400)) == []
    assert [epoch.epoch for epoch in first] == [1, 2, 3]
    assert [epoch.epoch for epoch in rest] == [2, 3], "the first 400 steps are over"
    assert sum(epoch.steps for epoch in [*first, *rest]) == run.result.behaviors["Lamp"].steps


def test_learn_is_that_loop(tmp_path: Path) -> None:
    epochs: list[trajtrainer.EpochStats] = []
    options: dict[str, Any] = {"results_dir": tmp_path, "num_envs": 4, "verbose": False, "epoch_steps": 200}
    options["on_epoch"] = epochs.append
    trajtrainer.learn(settings(), Lamp, run_id="limited", max_epochs=2, **options)
    assert [epoch.epoch for epoch in epochs] == [1, 2]
    epochs.clear()
    result = trajtrainer.learn(settings(), Lamp, run_id="stopped", stop_when=lambda epoch: epoch.epoch == 3, **options)
    assert [epoch.epoch for epoch in epochs] == [1, 2, 3]
    assert result.behaviors["Lamp"].steps < 1000
    assert result.behaviors["Lamp"].onnx is not None


def leave(run: trajtrainer.Training, at: Callable[[trajtrainer.EpochStats], None]) -> None:
    with run:
        for epoch in run.epochs(steps=200):
            at(epoch)


def fail(_: object) -> None:
    raise ZeroDivisionError("in the program")


@pytest.mark.parametrize("where", ["body", "on_epoch", "stop_when", "on_checkpoint"])
def test_what_the_program_raises_ends_the_run_in_good_order(tmp_path: Path, where: str) -> None:
    lamps: list[Lamp] = []

    def make() -> Lamp:
        lamps.append(Lamp())
        return lamps[-1]

    given = settings("Lamp", max_steps=10**6)
    given["behaviors"]["Lamp"]["checkpoint_interval"] = 300
    run = training(tmp_path, make, settings=given, **({} if where == "body" else {where: fail}))
    with pytest.raises(ZeroDivisionError, match="in the program"):
        leave(run, fail if where == "body" else lambda _: None)
    (behavior,) = run.result.behaviors.values()
    assert 200 <= behavior.steps < 500
    assert behavior.checkpoint is not None
    assert behavior.onnx is not None
    assert all(lamp.closed for lamp in lamps)


def test_what_fails_in_the_run_comes_out_of_the_loop(tmp_path: Path) -> None:
    class Doomed(Lamp):
        total = 0

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            self.total += 1
            if self.total == 100:
                raise ZeroDivisionError("bulb burst")
            return super().step(action)

    run = training(tmp_path, lambda: Doomed(), settings=settings("Doomed"))
    with pytest.raises(EnvironmentFaultError, match="bulb burst"):
        leave(run, lambda _: None)


class Signalling(Lamp):
    """Sends itself a signal in the midst of training."""

    number = signal.SIGINT
    total = 0

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.total += 1
        if self.total == 100:
            signal.raise_signal(self.number)
        return super().step(action)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
@pytest.mark.parametrize("where", ["body", "on_checkpoint", "training"])
def test_a_signal_raises_once_everything_is_saved(
    tmp_path: Path, where: str, number: signal.Signals, raised: type[BaseException]
) -> None:
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    went_on, saved = [], []

    def at(event: object) -> None:
        went_on.append(False)
        signal.raise_signal(number)
        went_on.append(True)

    def on_checkpoint(checkpoint: trajtrainer.SavedCheckpoint) -> None:
        saved.append(checkpoint.is_last)
        if where == "on_checkpoint" and not checkpoint.is_last:
            at(checkpoint)

    given = settings("Lamp", max_steps=10**6)
    given["behaviors"]["Lamp"]["checkpoint_interval"] = 300
    environment = type("Lamp", (Signalling if where == "training" else Lamp,), {"number": number})
    run = training(tmp_path, environment, settings=given, on_checkpoint=on_checkpoint)
    with pytest.raises(raised):
        leave(run, at if where == "body" else lambda _: None)
    assert True not in went_on
    assert run.result.behaviors["Lamp"].onnx is not None
    if where != "on_checkpoint":
        assert saved[-1:] == [True], "the last checkpoint is told"
    assert {each: signal.getsignal(each) for each in handlers} == handlers


def test_a_signal_ends_inference_and_its_loop(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        next(iter(run.epochs(steps=200)))
    given = settings(max_steps=STEPS)
    epochs = []
    with training(tmp_path, settings=given, resume=True, inference=True) as run:
        for epoch in run.epochs(steps=200):
            epochs.append(epoch.steps)
            if len(epochs) == 3:
                signal.raise_signal(signal.SIGINT)
    assert len(epochs) == 3
    assert run.result.behaviors["Lamp"].num_episodes > 0


def test_evaluations_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajtrainer.run.evaluations.usable_cores", lambda: 1)  # in turn: quicker to start
    told: list[trajtrainer.Evaluation] = []
    bests: list[trajtrainer.BestCheckpoint] = []
    given = settings(max_steps=STEPS, evaluation={"interval": 400, "episodes": 3})
    with training(tmp_path, settings=given, on_evaluation=told.append, on_best=bests.append) as run:
        epochs = list(run.epochs(steps=500))
    assert [evaluation.step // 400 for evaluation in told] == [1, 2, 3][: len(told)]
    assert len(told) >= 2
    assert told[-1].step + 400 > epochs[-1].behavior.total_steps, "the last epoch waits for what is due within it"
    assert all(len(evaluation.result.episodes) == 3 for evaluation in told)
    assert epochs[-1].behavior.evaluation == told[-1]
    assert {best.by for best in bests} == {"evaluation"}
    assert max(evaluation.result.returns.mean for evaluation in told) == bests[-1].reward
    assert sum(epoch.phases["evaluate"].seconds for epoch in epochs) > 0


def test_a_trainer_in_a_thread_of_its_own(tmp_path: Path) -> None:
    given = settings(max_steps=STEPS)
    given["behaviors"]["Lamp"]["threaded"] = True
    with training(tmp_path, settings=given) as run:
        epochs = list(run.epochs(steps=200))
    assert sum(epoch.steps for epoch in epochs) == run.result.behaviors["Lamp"].steps > STEPS
    assert epochs[-1].behavior.total_gradient_steps > 0
    assert not any(thread.name.startswith("trainer ") for thread in threading.enumerate())


def test_several_behaviors(tmp_path: Path) -> None:
    given = {"default_settings": ppo(300), "env_settings": {"seed": 3}}
    with training(tmp_path, lambda: Arena({"red_0": 5, "blue_0": -7}), settings=given, num_envs=1) as run:
        epochs = list(run.epochs(steps=200))
    assert set(epochs[-1].behaviors) == set(run.result.behaviors)
    assert len(epochs[-1].behaviors) == 2
    for name, result in run.result.behaviors.items():
        assert sum(epoch.behaviors[name].steps for epoch in epochs) == result.steps
    with pytest.raises(ValueError, match="2 behaviors"):
        epochs[-1].behavior  # noqa: B018


def test_mistakes(tmp_path: Path) -> None:
    run = training(tmp_path, called="Training()")
    with pytest.raises(SettingsError, match=r"Training\(\): call epochs\(\) inside a with statement"):
        run.epochs()
    with pytest.raises(SettingsError, match="no result before"):
        run.result  # noqa: B018
    with run:
        for steps in (0, -5, 1.5, True, "many"):
            with pytest.raises(SettingsError, match=r"steps of an epoch is .*whole number of at least 1"):
                run.epochs(steps)  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match="max_epochs is 0"):
            run.epochs(100, 0)
    with pytest.raises(SettingsError, match="Create a new object"), run:
        pass
    with pytest.raises(SettingsError, match=r"learn\(\): max_epochs is 0"):
        trajtrainer.learn(settings(), Lamp, max_epochs=0, results_dir=tmp_path, verbose=False)


def test_what_is_told_cannot_be_changed() -> None:
    episodes = EpisodeStats(1, Distribution.of([1.0]), Distribution.of([2.0]))
    behavior = BehaviorStats("B", 1, 1, 0, 0, episodes, {}, {}, None, None, None)
    for target, name in ((episodes, "number"), (behavior, "steps"), (episodes.returns, "mean")):
        with pytest.raises(AttributeError):
            setattr(target, name, 2)
