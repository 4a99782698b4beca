"""Runs whose policy learns the distribution of another run's, from fewer sensors or in a smaller network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from gymnasium import spaces

import trajtrainer
from tests.learning.algos.recorded import recording
from tests.learning.nn.specs import behavior, vector
from tests.plugins.imitation.test_learn_offline import assert_same, weights
from tests.run.api.test_learn_api import Lamp
from trajtrainer.cli.main import main
from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.experience.recordings.pairing import Trajectory
from trajtrainer.experience.recordings.writer import DemoWriter

LIT, NOISE = spaces.Box(0, 1, (2,)), spaces.Box(-1, 1, (3,))


class Room(Lamp):
    """A lamp that is seen by two sensors: "far" tells the light as "lamp" does, among noise."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.observation_space = spaces.Dict({"far": NOISE, "lamp": LIT})

    def _light(self) -> Any:
        light = super()._light()
        noise = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        noise[1] = 1.0 - 2.0 * light
        return {"far": noise, "lamp": np.eye(2, dtype=np.float32)[light]}


class Distance(Room):
    """A room that is seen from far away alone."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.observation_space = spaces.Dict({"far": NOISE})

    def _light(self) -> Any:
        return {"far": super()._light()["far"]}


def by_the_lamp(observations: Any, mask: Any) -> Any:
    return observations[1].argmax(1)


def by_what_is_far(observations: Any, mask: Any) -> Any:
    return (observations[0][:, 1] < 0).astype(int)


def settings(kind: str, name: str = "Room", hidden: int = 16, **more: Any) -> dict[str, Any]:
    hyper = {"batch_size": 16, "learning_rate": 0.02, **more.pop("hyperparameters", {})}
    if kind == "dagger":
        hyper["steps_per_update"] = 1
    trainer = {
        "trainer_type": kind,
        "hyperparameters": hyper,
        "network_settings": {"hidden_units": hidden, "num_layers": 1},
        "max_steps": 300,
        "summary_freq": 100,
        "time_horizon": 8,
        **more,
    }
    return {"behaviors": {name: trainer}, "env_settings": {"seed": 7}, "torch_settings": {"device": "cpu"}}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with the run ``teacher``, whose policy sees both sensors of the room."""
    folder = tmp_path_factory.mktemp("results")
    given = settings("dagger", hyperparameters={"expert": f"python:{__name__}:by_the_lamp"})
    learn(folder, given, Room, run_id="teacher")
    return folder


def learn(results: Path, given: Any, *arguments: Any, **options: Any) -> trajtrainer.LearnResult:
    return trajtrainer.learn(given, *arguments, **{"results_dir": results, "verbose": False, **options})


def reward(results: Path, make: type[Room], run: str) -> float:
    """The mean return of 20 episodes."""
    room, total = make(), 0.0
    policy = trajtrainer.load_policy(run, env=room, results_dir=results)
    for episode in range(20):
        seen, is_over = room.reset(seed=episode)[0], False
        while not is_over:
            seen, earned, is_over, _, _ = room.step(int(policy.act(seen, deterministic=True).action))
            total += earned
    return total / 20


def record(path: Path, spec: Any, name: str, packed: Any) -> str:
    with DemoWriter(path, spec, name) as writer:
        for number in range(packed.num_trajectories):
            one = packed.trajectories(number, number + 1)
            after = one.steps.slice(len(one) - 1, len(one)).with_columns(dict(one.bootstrap.items()))
            writer.write(Trajectory(one.steps, after))
    return str(path)


def test_a_student_of_dagger_sees_one_sensor_and_plays_as_well(results: Path) -> None:
    hyper = {"expert": "teacher", "student_sensors": ["far"]}
    given = settings("dagger", hidden=4, hyperparameters=hyper, evaluation={"interval": 200, "episodes": 4})
    evaluations: list[Any] = []
    result = learn(results, given, Room, run_id="student", on_evaluation=evaluations.append)

    student = result.behaviors["Room"]
    assert weights(student.checkpoint)["trajtrainer"]["gradient_steps"] > 200
    sensors = weights(student.checkpoint)["trajtrainer"]["policy"]["observation_specs"]
    assert [sensor["name"] for sensor in sensors] == ["far"]
    inputs = onnxruntime.InferenceSession(str(student.onnx)).get_inputs()
    assert {each.name: each.shape[1:] for each in inputs} == {"obs_0": [3], "action_masks": [2]}
    assert reward(results, Room, "student") > 7
    assert reward(results, Distance, "student") > 7
    assert evaluations[-1].result.returns.mean > 6
    resumed = learn(results, given, Room, run_id="student", resume=True, inference=True, episodes=5)
    assert (resumed.behaviors["Room"].mean_reward or 0) > 7


def test_a_teacher_may_see_fewer_sensors_than_there_are(results: Path) -> None:
    """One of the far sensor alone teaches a student of the lamp alone."""
    learn(
        results,
        settings("dagger", "Distance", hyperparameters={"expert": f"python:{__name__}:by_what_is_far"}),
        Distance,
        run_id="far",
    )
    given = settings("dagger", hyperparameters={"expert": "far", "student_sensors": ["lamp"]})
    learn(results, given, Room, run_id="near")
    assert reward(results, Room, "near") > 7
    with pytest.raises(CheckpointError, match=r"it sees the sensors 'far' \(3,\), not 'far' \(3,\), 'lamp' \(2,\)"):
        trajtrainer.load_policy("far", env=Room(), results_dir=results)  # it is no student


def test_a_run_that_was_stopped_goes_on(results: Path, tmp_path: Path) -> None:
    given = settings(
        "dagger", hyperparameters={"expert": str(results / "teacher"), "save_replay_buffer": True}, max_steps=100
    )
    learn(tmp_path, given, Room, run_id="run")
    given["behaviors"]["Room"]["max_steps"] = 200
    result = learn(tmp_path, given, Room, run_id="run", resume=True)
    log = (tmp_path / "run" / "run_logs" / "trainer.log").read_text()
    assert "Training continues without earlier experience" not in log
    assert weights(result.behaviors["Room"].checkpoint)["trajtrainer"]["gradient_steps"] > 150


ROOM = behavior([vector(3, "far"), vector(2, "lamp")], 0, (2,))


def of_rooms() -> Any:
    """What was seen in rooms, with actions that make no sense."""
    packed = recording(ROOM, [8] * 40)
    light = np.random.default_rng(0).integers(2, size=320)
    packed["obs.0"][:, 1] = 1.0 - 2.0 * light
    packed["obs.1"][:] = np.eye(2, dtype=np.float32)[light]
    packed["mask"][:] = False
    return packed


def test_a_student_of_recordings_learns_from_its_teacher_and_not_from_them(results: Path, tmp_path: Path) -> None:
    recorded = record(tmp_path / "a.demo", ROOM, "Room", of_rooms())
    hyper = {"teacher": "teacher", "student_sensors": ["far"], "validation_fraction": 0.2}
    given = settings("bc", hidden=4, hyperparameters=hyper, dataset=[recorded], checkpoint_interval=150)

    result = learn(results, given, run_id="cloned")

    assert reward(results, Room, "cloned") > 7
    again = learn(results, given, run_id="again")
    assert_same(*(weights(each.behaviors["Room"].checkpoint)["Policy"] for each in (result, again)))


def test_an_exported_expert_teaches_its_actions(results: Path) -> None:
    given = settings("dagger", hyperparameters={"expert": str(results / "teacher" / "Room.onnx")})
    learn(results, given, Room, run_id="of-onnx")
    assert reward(results, Room, "of-onnx") > 7


def test_what_is_wrong_with_teachers_of_recordings_is_told_at_once(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rooms = record(tmp_path / "rooms.demo", ROOM, "Room", of_rooms())
    other = behavior([vector(3, "far"), vector(2, "lamp")], 2)
    others = record(tmp_path / "others.demo", other, "Other", recording(other, [8] * 4))
    onnx = str(results / "teacher" / "Room.onnx")
    wrong = {
        "A": (rooms, {"teacher": "teacher", "student_sensors": ["near", "far", "lump"]}),
        "B": (others, {"teacher": "teacher"}),
        "C": (rooms, {"teacher": onnx}),
        "D": (rooms, {"teacher": "nobody", "student_sensors": ["near"]}),
    }
    given: dict[str, Any] = {"behaviors": {}}
    for name, (dataset, hyper) in wrong.items():
        given["behaviors"] |= settings("bc", name, hyperparameters=hyper, dataset=[dataset])["behaviors"]
    (tmp_path / "a.yaml").write_text(json.dumps(given))

    assert main(["learn", str(tmp_path / "a.yaml"), f"--results-dir={results}", "--run-id=wrong"]) == 1

    told = [line.strip().removeprefix("error: ") for line in capsys.readouterr().err.splitlines()]
    expected = [
        "behaviors.A.hyperparameters.student_sensors: no sensor is called 'lump', 'near'. The sensors are 'far' (3,),",
        "behaviors.B.hyperparameters.teacher: ",
        f"behaviors.C.hyperparameters.teacher: {onnx} provides its actions, but not their probabilities.",
        "behaviors.D.hyperparameters.student_sensors: no sensor is called 'near'.",
        "behaviors.D.hyperparameters.teacher: ",
    ]
    assert [next((line for line in told if line.startswith(each)), each) for each in expected] == told[-5:]
    assert "its actions are 0 continuous and the branches [2], not 2 continuous" in told[-4]
    assert not (results / "wrong").exists()


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"expert": "teacher", "student_sensors": ["lump"]}, "student_sensors: no sensor is called 'lump'"),
        ({"expert": "student of bees"}, r"hyperparameters\.expert: "),
    ],
)
def test_what_is_wrong_in_an_environment(results: Path, hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        learn(results, settings("dagger", hyperparameters=hyper), Room, run_id="none", force=True)


def test_an_expert_of_other_agents_is_told(results: Path) -> None:
    given = settings("dagger", "Lamp", hyperparameters={"expert": "teacher", "student_sensors": ["lump"]})
    with pytest.raises(SettingsError) as caught:
        learn(results, given, Lamp, run_id="lamp", force=True)
    first, second = str(caught.value).splitlines()
    assert "student_sensors: no sensor is called 'lump'" in first
    assert "is a policy for different agents: it sees the sensors 'far' (3,), 'lamp' (2,), not" in second


def test_other_rewards_see_all_sensors(results: Path) -> None:
    hyper = {"expert": "teacher", "student_sensors": ["far"]}
    rewards: dict[str, Any] = {"extrinsic": {}, "rnd": {}}
    with pytest.raises(SettingsError, match=r"reward_signals\.rnd: .*no reward signal but extrinsic with student_sens"):
        learn(results, settings("dagger", hyperparameters=hyper, reward_signals=rewards), Room, run_id="none")
