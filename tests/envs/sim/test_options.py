"""The command line of the player program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trajtrainer.core.steps import Aggregation, Statistic
from trajtrainer.envs.sim.options import parse_player_options
from trajtrainer.envs.sim.synthetic import BenchOptions
from trajtrainer.envs.sim.wire import WireStyle


def test_what_is_not_given_has_its_default() -> None:
    options = parse_player_options(["3DBall"])
    assert [(name, chosen.agents) for name, _, chosen in options.simulations] == [("3DBall", 12)]
    assert (options.port, options.seed, options.teams, options.log_file) == (5004, None, 1, None)
    assert options.style == WireStyle("1.5.0", "3.0.0", False)
    assert (options.hooks, options.statistics, options.step_seconds) == ((), (), 0.0)


def test_what_a_launcher_gives_a_unity_player_is_taken() -> None:
    arguments = ["Basic", "-nographics", "-batchmode", "--mlagents-port", "5010", "-logFile", "/tmp/Player-0.log"]
    options = parse_player_options([*arguments, "--seed", "-3"])
    assert (options.port, options.log_file, options.seed) == (5010, Path("/tmp/Player-0.log"), -3)


def test_simulations_have_options_of_their_own() -> None:
    sizes = ["--agents", "100", "--observation-size", "200", "--branches", "3,2", "--episode-length", "50"]
    options = parse_player_options(["Bench+Basic", *sizes])
    (_, _, bench), (_, _, basic) = options.simulations
    assert bench == BenchOptions(agents=100, observation_size=200, branches=(3, 2), episode_length=50)
    assert basic.agents == 100


def test_statistics_and_hooks() -> None:
    options = parse_player_options(["Basic", "--stat", "a/b=2:most_recent", "--hook", "a", "x", "--hook", "b", ""])
    assert options.statistics == (Statistic("a/b", 2.0, Aggregation.MOST_RECENT),)
    assert options.hooks == (("a", "x"), ("b", ""))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: NAME"),
        (["3dball"], "no built-in simulation '3dball'. Did you mean '3DBall'?"),
        (["Basic+"], "no built-in simulation ''"),
        (["Basic+Basic"], "contains a simulation twice"),
        (["Basic", "--observation-size", "3"], "unrecognized arguments: --observation-size"),
        (["Basic", "--agent", "3"], "unrecognized arguments: --agent"),
        (["Basic", "--agents", "0"], "--agents must be at least 1, found 0"),
        (["Basic", "--agents", "x"], "invalid int value: 'x'"),
        (["Basic", "--teams", "0"], "--teams must be at least 1"),
        (["Basic+Duel", "--teams", "2"], "Duel defines its own teams; omit --teams"),
        (["Bench", "--branches", "3,x"], "--branches"),
        (["Bench", "--agents", "9", "--group-size", "4"], "--group-size must divide --agents 9, found 4"),
        (["Bench", "--picture", "3,4"], "channels,height,width"),
        (["Basic", "--stat", "a:b"], "is not KEY=VALUE"),
        (["Basic", "--hook", "a"], "--hook: expected 2 arguments"),
    ],
)
def test_wrong_use_is_an_error_of_its_own_exit_code(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        parse_player_options(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_the_program_explains_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trajtrainer.envs.sim", "Bench", "--help"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "--observation-size" in done.stdout
    assert "3DBallHard" in done.stdout
