"""The small game in a real Godot, started as an exported game: it keeps the contract, and it is learned."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.godot.games import ENGINE, TOOLS, no_real_godot, real_build
from tests.ports import free_port
from tests.run.runs import learn
from trajtrainer.cli.main import main
from trajtrainer.plugins.godot.environment import GodotGame
from trajtrainer.policies.checkpoints.export_formats import EXPORT_FORMATS
from trajtrainer.settings.environment import EngineSettings, EnvironmentSettings
from trajtrainer.testing import EnvironmentContract

CONFIGURATIONS = Path(__file__).resolve().parents[3] / "config" / "godot"
GAME = TOOLS.parents[1] / "data" / "godot"
pytestmark = pytest.mark.skipif(no_real_godot() is not None, reason=str(no_real_godot()))


def test_a_real_game_keeps_the_contract(tmp_path: Path) -> None:
    """What each of the contract's tests does, in one game, as it takes seconds to start."""
    from trajtrainer.run.contracts.environments import _playing  # only now, as trajtrainer.testing must come first

    assert {name for name in vars(EnvironmentContract) if name.startswith("test_")} == {
        "test_every_worker_begins_with_a_reset",
        "test_it_can_be_played",
        "test_it_can_be_reset_in_between",
        "test_closing_twice_and_killing_are_harmless",
    }
    settings = EnvironmentSettings(env_path=f"godot:{real_build(tmp_path)}", base_port=free_port(), seed=3)
    environment = GodotGame(settings, EngineSettings(time_scale=8))
    with _playing(environment) as play:
        assert play.specs
        play.step(60)
        play.reset()
        play.step()
    environment.close()
    environment.kill()


# The game without a trainer: some walk straight to their targets, others do what a policy says.
JUDGE = """extends Node

class Judged extends Chaser:
	var returns: Array[float] = []
	var has_begun := false
	func zero_reward():
		pass
	func restart():
		if has_begun:
			returns.append(reward)
		has_begun = true
		reward = 0.0
		super.restart()

var straight: Array[Judged] = []
var trained: Array[Judged] = []

func _ready() -> void:
	seed(3)
	Engine.physics_ticks_per_second = 480
	for i in 4:
		straight.append(Judged.new())
		trained.append(Judged.new())
		var node := PolicySharedPolicyNode.new()
		node.action_repeat = 1
		trained[i].add_child(node)
		add_child(straight[i])
		add_child(trained[i])

func _physics_process(_delta: float) -> void:
	for chaser in straight:
		var way := (chaser.target - chaser.position) * 10.0
		chaser.set_action({"move": [way.x, way.y]})
	if mean(trained)[1] >= 1000:
		print("MEANS ", mean(straight)[0], " ", mean(trained)[0])
		set_physics_process(false)
		await get_tree().create_timer(1.0).timeout
		get_tree().quit(0)

func mean(chasers: Array[Judged]) -> Array:
	var all: Array[float] = []
	for chaser in chasers:
		all.append_array(chaser.returns)
	return [all.reduce(func(a, b): return a + b, 0.0) / maxi(1, all.size()), all.size()]
"""


@pytest.mark.slow
@pytest.mark.skipif("TRAJTRAINER_TEST_LONG" not in os.environ, reason="takes minutes: wants TRAJTRAINER_TEST_LONG=1")
@pytest.mark.skipif("godot" not in EXPORT_FORMATS, reason="policies cannot be exported as source code")
@pytest.mark.parametrize("configuration", ["Chase", "Chase-sac"])
def test_a_policy_learned_in_the_game_earns_as_much_as_the_shortest_way(configuration: str, tmp_path: Path) -> None:
    done = learn(
        tmp_path, CONFIGURATIONS / f"{configuration}.yaml", f"--env=godot:{real_build(tmp_path)}", "--time-scale=8"
    )
    assert done.exit_code == 0, done.output
    assert main(["export", str(done.folder), "--to", "godot", "--output", f"{tmp_path}/"]) == 0
    (tmp_path / "main.gd").write_text(JUDGE)
    files = [GAME / "chaser.gd", *(GAME / "plugin" / f"{name}.gd" for name in ("ai_controller_2d", "ONNX_wrapper"))]
    files += [tmp_path / "shared_policy.gd", tmp_path / "shared_policyNode.gd"]
    played = subprocess.run(
        [sys.executable, TOOLS / "run.py", ENGINE, tmp_path / "main.gd", *files, "--limit", "300"],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    found = re.search(r"MEANS (\S+) (\S+)", played.stdout)
    assert found is not None, played.stdout[-2000:] + played.stderr[-4000:]
    straight, trained = map(float, found.groups())
    assert 1.9 < straight < 2.1
    assert trained >= 0.95 * straight
