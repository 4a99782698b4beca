"""The game of "Games of Godot", played in a real Godot: trained in, and acted in by an exported policy."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.learning.nn.specs import behavior, camera, vector
from tests.plugins.godot.games import ENGINE, TOOLS, Player, no_real_godot, straight
from tests.policies.onnx.test_onnx import random_actor
from tests.ports import free_port
from trajtrainer.core.plugins import resolve
from trajtrainer.plugins.godot.environment import GodotGame
from trajtrainer.policies.checkpoints.export_formats import EXPORT_FORMATS
from trajtrainer.policies.checkpoints.export_saved import Origin
from trajtrainer.settings.environment import EngineSettings, EnvironmentSettings
from trajtrainer.settings.yaml.convert import load

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "train" / "godot.md").read_text(encoding="utf-8")
PLUGIN = TOOLS.parents[1] / "data" / "godot" / "plugin"
SCRIPTS: list[str] = re.findall(r"^```gdscript\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
POLICY = "shared_policy"
needs_godot = pytest.mark.skipif(no_real_godot() is not None, reason=str(no_real_godot()))


def script(containing: str) -> str:
    return next(text for text in SCRIPTS if containing in text)


def prepare(folder: Path, main: str, *, trained: bool) -> list[str]:
    """The page's game and what it needs of the plugin; returns the files that go with ``main.gd``."""
    (folder / "main.gd").write_text(main)
    (folder / "chaser.gd").write_text(script("class_name Chaser"))
    for name in ("ai_controller_2d.gd", "ONNX_wrapper.gd"):
        (folder / name).write_text((PLUGIN / name).read_text())
    if not trained:
        return ["chaser.gd", "ai_controller_2d.gd", "ONNX_wrapper.gd"]
    sync = (PLUGIN / "sync.gd").read_text()
    sync = sync.replace("var stream: StreamPeerTCP = null", "var stream = null")
    (folder / "sync.gd").write_text(sync.replace("StreamPeerTCP.new()", "BridgedStream.new()"))
    (folder / "bridged_stream.gd").write_text((TOOLS / "bridged_stream.gd").read_text())
    return ["chaser.gd", "ai_controller_2d.gd", "ONNX_wrapper.gd", "sync.gd", "bridged_stream.gd"]


@contextlib.contextmanager
def playing(folder: Path, files: list[str], port: int) -> Iterator[None]:
    command = [sys.executable, str(TOOLS / "run.py"), str(ENGINE), "main.gd", *files]
    options = ["--bridge", f"127.0.0.1:{port}", "--raw", "--limit", "600"]
    with subprocess.Popen(
        [*command, *options], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def test_the_settings_of_the_page_are_those_that_are_shipped() -> None:
    (text,) = re.findall(r"^```yaml\n(behaviors:.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    shipped = yaml.safe_load((ROOT / "config" / "godot" / "Chase.yaml").read_text(encoding="utf-8"))
    assert yaml.safe_load(text) == shipped
    assert POLICY in load(json.dumps(shipped), "page").behaviors


@needs_godot
def test_the_game_of_the_page_tells_of_its_ends(tmp_path: Path) -> None:
    files = prepare(tmp_path, script("Sync.new()"), trained=True)
    port = free_port()
    with playing(tmp_path, files, port):
        environment = GodotGame(EnvironmentSettings(env_path="godot", base_port=port), EngineSettings())
        try:
            player = Player(environment)
            event = player.reset()
            reached = 0
            for _ in range(40):
                event = player.step(shared_policy=straight(event))
                batch = event.steps[POLICY]
                last = batch.obs[0][: batch.num_terminal]
                assert (np.linalg.norm(last[:, :2] - last[:, 2:], axis=1) < 0.1).all()
                assert not batch.interrupted.any()
                reached += batch.num_terminal
            assert reached >= 8
            player.reset()
            for _ in range(210):
                batch = player.step().steps[POLICY]
                if batch.num_terminal:
                    break
            assert batch.interrupted.all()
            assert batch.num_terminal == 4
        finally:
            environment.close()


# Plays the page's game by nodes and prints the mean return.
JUDGE = """extends Node

class Judged extends Chaser:
	var total := 0.0
	var returns: Array[float] = []
	func zero_reward():
		total += reward
		reward = 0.0
	func finish(truncated: bool) -> void:
		zero_reward()
		returns.append(total)
		total = 0.0
		super.finish(truncated)

var chasers: Array[Judged] = []

func _ready() -> void:
	seed(3)
	Engine.physics_ticks_per_second = 480
	for i in 4:
		var chaser := Judged.new()
		var node := PolicySharedPolicyNode.new()
		node.action_repeat = 1
		chaser.add_child(node)
		add_child(chaser)
		chasers.append(chaser)

func _physics_process(_delta: float) -> void:
	var all: Array[float] = []
	for chaser in chasers:
		all.append_array(chaser.returns)
	if all.size() >= EPISODES:
		print("MEAN ", all.reduce(func(a, b): return a + b) / all.size())
		set_physics_process(false)
		await get_tree().create_timer(1.0).timeout
		get_tree().quit(0)
"""


def mean_in_godot(folder: Path, policy: Path, episodes: int) -> float:
    """The mean return of an exported policy, ``shared_policy.gd`` with its node beside it."""
    files = prepare(folder, JUDGE.replace("EPISODES", str(episodes)), trained=False)
    for path in (policy, policy.with_stem(f"{policy.stem}Node")):
        (folder / path.name).write_text(path.read_text())
        files.append(path.name)
    done = subprocess.run(
        [sys.executable, str(TOOLS / "run.py"), str(ENGINE), "main.gd", *files, "--limit", "300"],
        cwd=folder, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    found = re.search(r"MEAN (-?[\d.e-]+)", done.stdout)
    assert found is not None, done.stdout[-2000:] + done.stderr[-4000:]
    return float(found[1])


def write_script(*policy: Any) -> None:
    """Export GDScript with its node, which is a format of another tool."""
    if "godot" not in EXPORT_FORMATS:
        pytest.skip("policies cannot be exported as source code")
    resolve(EXPORT_FORMATS["godot"].write)(*policy)


@needs_godot
def test_a_policy_acts_in_the_place_of_a_model(tmp_path: Path) -> None:
    """Weights that walk to the target: target - place, many times."""
    import torch

    spec = behavior([vector(4, "obs")], 2)
    actor = random_actor(spec, hidden=4, layers=1)
    first = actor.body.state_dict()
    linear = next(name for name, weight in first.items() if weight.shape == (4, 4))
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.zero_()
        toward = torch.tensor([[-1.0, 0, 1, 0], [0, -1, 0, 1], [1, 0, -1, 0], [0, 1, 0, -1]])
        dict(actor.body.named_parameters())[linear].copy_(40 * toward)
        assert actor.head.mu is not None
        actor.head.mu.weight.copy_(torch.tensor([[1.0, 0, -1, 0], [0, 1, 0, -1]]))
    (tmp_path / "export").mkdir()
    policy = tmp_path / "export" / "shared_policy.gd"
    write_script(actor, spec, policy, Origin(POLICY, "test", 7))
    assert mean_in_godot(tmp_path, policy, 200) == pytest.approx(1.98, abs=0.12)


MIXED = """extends Node

class Odd extends Node:
	var done := true
	var told := {}
	func get_done(): return done
	func set_done_false(): done = false
	func zero_reward(): pass
	func set_heuristic(_h): pass
	func get_obs(): return {"grid": [[1, 2], [3, 4]], "camera_2d": PackedByteArray(range(60 * 3)).hex_encode()}
	func get_action_space():
		return {
			"jump": {"size": 3, "action_type": "discrete"},
			"move": {"size": 2, "action_type": "continuous"},
			"tool": {"size": 2, "action_type": "discrete"},
			"turn": {"size": 1, "action_type": "continuous"},
		}
	func set_action(action): told = action

func _ready() -> void:
	var odd := Odd.new()
	var node := PolicyOddNode.new()
	odd.add_child(node)
	add_child(odd)
	node.decide()
	print("TOLD ", JSON.stringify([odd.told, odd.done]))
	node.deterministic = false
	node.decide()
	await get_tree().create_timer(1.0).timeout
	get_tree().quit(0)
"""


@needs_godot
def test_a_node_with_pictures_and_hybrid_actions(tmp_path: Path) -> None:
    import torch

    spec = behavior([vector(4, "grid"), camera(3, 6, 10, "camera_2d")], 3, (3, 2))
    actor = random_actor(spec, encoder="fully_connected")
    write_script(actor, spec, tmp_path / "Odd.gd", Origin("Odd", None, 7))
    (tmp_path / "main.gd").write_text(MIXED)
    done = subprocess.run(
        [sys.executable, str(TOOLS / "run.py"), str(ENGINE), "main.gd", "Odd.gd", "OddNode.gd", "--limit", "120"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found = re.search(r"TOLD (.*)", done.stdout)
    assert found is not None, done.stdout[-2000:] + done.stderr[-4000:]
    told, is_done = json.loads(found[1])
    picture = np.arange(180, dtype=np.uint8).reshape(1, 6, 10, 3).transpose(0, 3, 1, 2)
    with torch.inference_mode():
        seen = [torch.tensor([[1.0, 2, 3, 4]]), torch.from_numpy(picture / np.float32(255))]
        distribution, _ = actor.distribution(seen, torch.zeros((1, 5), dtype=torch.bool))
        actions = distribution.deterministic()
        continuous, discrete = distribution.to_env(actions.continuous)[0].tolist(), actions.discrete[0].tolist()
    assert not is_done
    assert list(told) == ["jump", "move", "tool", "turn"]
    assert [told["jump"], told["tool"]] == discrete
    assert [*told["move"], *told["turn"]] == pytest.approx(continuous, abs=1e-4)
