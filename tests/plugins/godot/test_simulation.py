"""Built-in simulations as games of Godot."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from trajtrainer.envs.sim.options import add_simulation_options
from trajtrainer.envs.sim.registry import SimulationKind, simulation_kind
from trajtrainer.envs.sim.simulation import EnvironmentParameters
from trajtrainer.plugins.godot.simulation import GameProtocol, GodotAgents, _parser, main, make_game


def agents(
    name: str, parameters: EnvironmentParameters | None = None, *, tells_ends: bool = False, **options: Any
) -> GodotAgents:
    kind = simulation_kind(name)
    assert isinstance(kind, SimulationKind)
    made = kind.create(kind.options(**options), np.random.default_rng(3), parameters or EnvironmentParameters())
    return GodotAgents(name, made, reports_ends=tells_ends)


def game(*parts: GodotAgents, **options: bool) -> GameProtocol:
    return GameProtocol(list(parts), EnvironmentParameters(), **options)


def answer(played: GameProtocol, **message: Any) -> dict[str, Any]:
    told = played.answer(message)
    assert told is not None
    return told


def test_spaces_of_all_agents() -> None:
    info = answer(game(agents("Chase", agents=2), agents("Basic")), type="env_info")
    assert info["n_agents"] == 3
    assert info["agent_policy_names"] == ["Chase", "Chase", "Basic"]
    assert info["observation_space"][0] == {"obs": {"size": [4], "space": "box"}}
    assert info["action_space"][0] == {"move": {"size": 2, "action_type": "continuous"}}
    assert info["action_space"][2] == {"choice0": {"size": 3, "action_type": "discrete"}}


def test_one_space_as_plugins_of_old() -> None:
    info = answer(game(agents("Chase", agents=2), has_old_info=True), type="env_info")
    assert info == {
        "type": "env_info",
        "n_agents": 2,
        "observation_space": {"obs": {"size": [4], "space": "box"}},
        "action_space": {"move": {"size": 2, "action_type": "continuous"}},
    }


def test_teams_have_a_policy_of_one_name() -> None:
    parser = _parser()
    kinds = {"Chase": simulation_kind("Chase")}
    add_simulation_options(parser, dict(kinds))
    made = make_game(parser.parse_args(["Chase", "--agents=1", "--teams=2"]), kinds)  # type: ignore[arg-type]
    assert answer(made, type="env_info")["agent_policy_names"] == ["shared_policy?team=0", "shared_policy?team=1"]
    first, second = answer(made, type="reset")["obs"]
    assert first != second


def test_a_reset_takes_effect_with_the_next_action_and_reports_ends() -> None:
    played = game(agents("Chase", agents=2))
    idle = [{"move": [0, 0]}] * 2
    before = answer(played, type="action", action=idle)
    told = answer(played, type="reset")
    assert told == {"type": "reset", "obs": before["obs"], "info": [{}, {}]}
    told = answer(played, type="action", action=idle)
    assert told["done"] == [True, True]
    assert told["obs"] != before["obs"]
    assert answer(played, type="action", action=idle)["done"] == [False, False]


def test_a_reset_at_once_reports_none() -> None:
    played = game(agents("Chase", agents=2), resets_at_once=True)
    before = answer(played, type="action", action=[{"move": [0, 0]}] * 2)
    told = answer(played, type="reset")
    assert told["obs"] != before["obs"]
    assert answer(played, type="action", action=[{"move": [0, 0]}] * 2)["done"] == [False, False]


def test_ends_are_told_on_request() -> None:
    played = game(agents("Basic", tells_ends=True))
    for _ in range(100):
        before = answer(played, type="action", action=[{"choice0": 2}])
        if before["done"][0]:
            break
    (info,) = before["info"]
    assert info["truncated"] is False
    assert info["final_obs"].keys() == {"obs"}
    assert info["final_obs"] != before["obs"][0]


def test_pictures_are_hexadecimal_with_the_channels_of_a_pixel_together() -> None:
    made = agents("VisualBall", agents=1)
    (key,) = made.observation_space
    assert made.observation_space[key] == {"size": [3, 36, 36], "space": "box"}
    (observation,) = made.observations()
    pixels = np.frombuffer(bytes.fromhex(observation[key]), np.uint8).reshape(36, 36, 3)
    assert (pixels.transpose(2, 0, 1) == made.step.observations[0][0]).all()


def test_calls_set_parameters() -> None:
    parameters = EnvironmentParameters()
    played = GameProtocol([agents("Chase", parameters, agents=2)], parameters)
    assert answer(played, type="call", method="reach_2_5") == {"type": "call", "returns": [True, True]}
    assert answer(played, type="call", method="slope_minus_1")["returns"] == [True, True]
    assert answer(played, type="call", method="jump")["returns"] == [None, None]
    assert parameters.draw("reach", 0.0, 1).tolist() == [2.5]
    assert parameters.draw("slope", 0.0, 1).tolist() == [-1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Duel"], "agents that come and go"),
        (["Hybrid"], "masks actions"),
        (["Chas"], "Did you mean 'Chase'"),
        (["Toy", "--pictures", "1"], "not made of bytes"),
        (["Chase+Basic", "--old-env-info"], "one simulation"),
        (["Chase", "--agents", "0"], "at least 1"),
        ([], "NAME"),
    ],
)
def test_what_is_no_game_of_godot(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_no_trainer() -> None:
    command = [sys.executable, "-m", "trajtrainer.plugins.godot.simulation", "Chase", "--port=1", "--connect-seconds=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "no trainer listens on port 1" in done.stderr
