"""Games that die, and games that send what no game should: counts stay exact, and each ends with one message."""

from __future__ import annotations

import os
import random
import re
import signal
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.envs.sim.faults import fault
from tests.plugins.godot.games import Player, Scripted, batch_of, env_info, first, framed, scripted, step
from tests.ports import free_port, free_ports
from tests.run.runs import LearnProcess, behaviors_settings, ppo
from trajtrainer.core.errors import EnvironmentFaultError, TrajtrainerError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import EnvironmentEvent
from trajtrainer.envs.protocol import Environment, LogFolder
from trajtrainer.envs.unity.faults import PlayerTimeoutError, PortInUseError
from trajtrainer.envs.workers import supervisor
from trajtrainer.plugins.godot.environment import make_godot_environment
from trajtrainer.settings.environment import EnvironmentSettings
from trajtrainer.settings.run import RunSettings

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
POLICY = "shared_policy"
NUM_KILLS = int(os.environ.get("TRAJTRAINER_TEST_FAULTS", "6"))
_MEMORY = 200 << 20


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(supervisor, "LONGEST_DELAY_S", 0.1)


@contextmanager
def games(
    count: int, path: str, *arguments: str, lifetime: int = -1, timeout_wait: int = 60, logs: Path | None = None
) -> Iterator[Environment]:
    settings = EnvironmentSettings(
        env_path=path,
        env_args=list(arguments),
        base_port=free_ports(count) if path != "godot" else free_port(),
        num_envs=count,
        timeout_wait=timeout_wait,
        seed=5,
        max_lifetime_restarts=lifetime,
        restarts_rate_limit_n=-1,
    )
    environment = make_godot_environment(RunSettings(env_settings=settings), LogFolder(logs))
    try:
        yield environment
    finally:
        environment.close()


class Counter:
    """Plays all workers, and counts messages, and resets of each."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.specs: dict[str, BehaviorSpec] = {}
        self.steps: dict[int, int] = defaultdict(int)
        self.resets: dict[int, int] = defaultdict(int)

    def play(self, condition: Callable[[], bool], limit_s: float = 300.0) -> None:
        end_s = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end_s, (dict(self.steps), dict(self.resets))
            for event in self.environment.wait(0.25):
                self.answer(event)

    def answer(self, event: EnvironmentEvent) -> None:
        self.specs |= event.new_specs
        self.resets[event.worker] += event.is_reset
        self.steps[event.worker] += not event.is_reset
        actions = {name: batch_of(self.specs[name], batch.num_decisions) for name, batch in event.steps.items()}
        self.environment.send(event.worker, actions)


def started_games() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    found = []
    for child in children:
        try:
            if "trajtrainer.plugins.godot.simulation" in child.cmdline():
                found.append(child)
        except psutil.Error:
            pass
    return found


@posix
@pytest.mark.parametrize("count", [1, 2])
def test_games_that_are_killed_are_counted_exactly(count: int, tmp_path: Path) -> None:
    choice = random.Random(3)
    with games(count, "godot:sim:Chase", logs=tmp_path) as environment:
        counter = Counter(environment)
        environment.reset({})
        for killed in range(NUM_KILLS):
            begun = count + killed
            counter.play(lambda: sum(counter.resets.values()) >= begun)  # noqa: B023
            later = sum(counter.steps.values()) + choice.randrange(1, 30)
            counter.play(lambda: sum(counter.steps.values()) > later)  # noqa: B023
            alive = started_games()
            assert len(alive) == count
            alive[choice.randrange(count)].send_signal(signal.SIGKILL)
        counter.play(lambda: sum(counter.resets.values()) >= count + NUM_KILLS)
        assert sum(counter.resets.values()) == count + NUM_KILLS
    assert not started_games()


@posix
def test_restarts_have_a_quota() -> None:
    with games(1, "godot:sim:Chase", *fault("crash@3:7"), lifetime=2) as environment:
        environment.reset({})
        counter = Counter(environment)
        with pytest.raises(EnvironmentFaultError, match=r"restarted 2 times .* return code 7"):
            counter.play(lambda: False)
        assert counter.resets == {0: 3}
        assert counter.steps == {0: 0}  # the third message of a game is the first step that is told


def test_an_editor_in_which_nobody_presses_play_again_is_not_waited_for_twice() -> None:
    settings = EnvironmentSettings(env_path="godot", base_port=free_port(), timeout_wait=5, restarts_rate_limit_n=-1)
    game = Scripted(settings.base_port, [env_info(1), first(1), step(2), lambda: None])
    environment = make_godot_environment(RunSettings(env_settings=settings), LogFolder(None))
    try:
        counter = Counter(environment)
        environment.reset({})
        with pytest.raises(PlayerTimeoutError, match="did not connect within 5 s"):
            counter.play(lambda: False)
        assert counter.resets == {0: 1}
    finally:
        environment.close()
    assert game.told()[-1] == "action"


def test_ports_that_are_taken_are_passed_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_port = free_ports(3)
    monkeypatch.setattr("trajtrainer.envs.unity.ports.BASE_PORT", base_port)
    settings = EnvironmentSettings(env_path="godot:sim:Chase", base_port=base_port)
    run = RunSettings(env_settings=settings)
    first_one = make_godot_environment(run, LogFolder(None))
    second = make_godot_environment(run, LogFolder(None))
    first_one.close()
    second.close()
    assert f"Port {base_port} is in use by process {os.getpid()}" in caplog.text
    assert f"Using port {base_port + 1} instead." in caplog.text


def test_the_port_of_the_editor_is_the_only_one() -> None:
    settings = EnvironmentSettings(env_path="godot", base_port=free_port(), timeout_wait=30)
    Scripted(settings.base_port, [env_info(1)])
    run = RunSettings(env_settings=settings)
    environment = make_godot_environment(run, LogFolder(None))
    try:
        with pytest.raises(PortInUseError, match=f"Port {settings.base_port} .* is in use"):
            make_godot_environment(run, LogFolder(None))
    finally:
        environment.close()


# -- hostile messages

HUGE = struct.pack("<I", 0xFFFFFFFF)
DEEP = b"[" * 400_000
TRUTH = {"type": "step", "obs": [{"obs": [1, 2]}], "reward": [0.0], "done": [False], "info": [{}]}


def step_with(**change: Any) -> bytes:
    return framed({**TRUTH, **change})


HOSTILE_STEPS: dict[str, bytes] = {
    "4 GB": HUGE + b"x" * 1000,
    "3 MB more than announced": struct.pack("<I", 3 << 20) + b"x" * 1000,
    "nothing": framed(b""),
    "zeros": b"\0" * 64,
    "no text": framed(b"\xff\xfe\x00\x07"),
    "half": framed(b'{"type": "step", "obs": ['),
    "deep": framed(DEEP),
    "deep inside": framed(b'{"type": ' + DEEP + b"}"),
    "a number": framed(b"1"),
    "a long number": framed(b"1" * 100_000),
    "null": framed(b"null"),
    "a list": framed(b"[]"),
    "a text": framed(b'"step"'),
    "empty": framed({}),
    "no type": framed({"obs": []}),
    "type is a list": framed({"type": []}),
    "another type": framed({"type": "reset", "obs": [{"obs": [1, 2]}]}),
    "a call": framed({"type": "call", "returns": []}),
    "an env_info": framed(env_info(1)),
    "no obs": framed({"type": "step", "reward": [0], "done": [False]}),
    "nan": framed(b'{"type": "step", "obs": [{"obs": [NaN, 0]}], "reward": [0], "done": [false]}'),
    "Godot's nan": framed(b'{"type": "step", "obs": [{"obs": [nan, 0]}], "reward": [0], "done": [false]}'),
    "Godot's inf": framed(b'{"type": "step", "obs": [{"obs": [1e99999, 0]}], "reward": [0], "done": [false]}'),
    "no agents": step_with(obs=[], reward=[], done=[], info=[]),
    "two agents": step_with(obs=[{"obs": [1, 2]}] * 2),
    "a million agents": step_with(obs=[0] * 300_000),
    "obs is null": step_with(obs=None),
    "obs is a mapping": step_with(obs={"obs": [1, 2]}),
    "an agent's obs is null": step_with(obs=[None]),
    "another key": step_with(obs=[{"other": [1, 2]}]),
    "one number": step_with(obs=[{"obs": [1]}]),
    "three numbers": step_with(obs=[{"obs": [1, 2, 3]}]),
    "a number for a list": step_with(obs=[{"obs": 1}]),
    "text for numbers": step_with(obs=[{"obs": ["a", "b"]}]),
    "mappings for numbers": step_with(obs=[{"obs": [{}, {}]}]),
    "null for numbers": step_with(obs=[{"obs": [None, None]}]),
    "large": step_with(obs=[{"obs": [10**400, 0]}]),
    "beyond f32": step_with(obs=[{"obs": [1e200, 0]}]),
    "reward is a number": step_with(reward=0),
    "reward of two": step_with(reward=[0, 0]),
    "reward is null": step_with(reward=[None]),
    "reward is text": step_with(reward=["x"]),
    "reward is a list": step_with(reward=[[0]]),
    "reward is infinite": step_with(reward=[float("-inf")]),
    "done is a number": step_with(done=1),
    "done of two": step_with(done=[True, True]),
    "done is null": step_with(done=[None]),
    "done is text": step_with(done=["true"]),
    "info of two": step_with(info=[{}, {}]),
    "info is text": step_with(info=["x"], done=[True]),
    "final_obs is a number": step_with(info=[{"final_obs": 3}], done=[True]),
    "final_obs of another size": step_with(info=[{"final_obs": {"obs": []}}], done=[True]),
}


@pytest.mark.parametrize("name", HOSTILE_STEPS)
def test_hostile_steps(name: str) -> None:
    before = psutil.Process().memory_info().rss
    with scripted(env_info(1), first(1), step(2), HOSTILE_STEPS[name], timeout_wait=5) as (environment, _):
        player = Player(environment)
        player.reset()
        with pytest.raises(EnvironmentFaultError) as error:
            player.step()
        assert len(str(error.value).splitlines()) == 1
        assert len(str(error.value)) < 600
        with pytest.raises(EnvironmentFaultError):
            environment.reset({})
    assert psutil.Process().memory_info().rss < before + _MEMORY


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had; 0 if it is gone."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").is_file(), reason="looks at the memory of a process as Linux tells it"
)
@pytest.mark.parametrize("name", list(HOSTILE_STEPS)[:: 1 if len(HOSTILE_STEPS) <= NUM_KILLS else 9])
def test_a_run_ends_with_one_message(name: str, tmp_path: Path) -> None:
    """``trajtrainer learn`` as a whole: one line that says why, no traceback, no more memory than others take."""
    port = free_port()
    game = Scripted(port, [env_info(1), first(1), step(2), step(3), HOSTILE_STEPS[name]])
    options = ["--env=godot", f"--base-port={port}", "--timeout-wait=10", "--max-lifetime-restarts=0"]
    run = LearnProcess(tmp_path, behaviors_settings(shared_policy=ppo(1000)), *options)
    most, end_s = 0, time.monotonic() + 120
    while run.process.poll() is None and time.monotonic() < end_s:
        most = max(most, peak_bytes(run.process.pid))
        time.sleep(0.02)
    done = run.finish()
    assert done.exit_code == 1, done.output
    assert "Traceback" not in done.output
    (error,) = re.findall(r"^error: .*$", done.output, re.MULTILINE)
    assert len(error) < 800
    assert 0 < most < psutil.Process().memory_info().rss + _MEMORY + (400 << 20)
    assert game.told()[:3] == ["handshake", "env_info", "reset"]


@pytest.mark.parametrize(
    "content",
    [
        framed({"type": "env_info"}),
        framed(env_info(0)),
        framed(env_info(1, n_agents=1 << 40)),
        framed(env_info(1, observation_space={"obs": {"size": [1 << 40], "space": "box"}})),
        framed(env_info(1, action_space={"a": {"size": 1e308, "action_type": "discrete"}})),
        framed(env_info(1, agent_policy_names=["x" * 100_000 + "?team=z"])),
        framed(env_info(1, observation_space={f"{k}": {"size": [1], "space": "odd"} for k in range(5000)})),
    ],
)
def test_hostile_announcements(content: bytes) -> None:
    with pytest.raises(TrajtrainerError) as error, scripted(content):
        pass
    assert len(str(error.value)) < 800


@pytest.mark.parametrize("content", [HUGE, framed(DEEP), framed(b"null"), b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_answers_like_no_game_is_turned_away(content: bytes) -> None:
    with pytest.raises(PlayerTimeoutError, match="was rejected"), scripted(content, timeout_wait=5):
        pass


@pytest.mark.parametrize("name", ["4 GB", "deep", "null", "another type", "no obs"])
def test_hostile_answers_to_a_reset(name: str) -> None:
    content = HOSTILE_STEPS[name].replace(b'"reset"', b'"call"')
    with scripted(env_info(1), content, timeout_wait=5) as (environment, _), pytest.raises(EnvironmentFaultError):
        Player(environment).reset()


def test_a_message_that_does_not_end() -> None:
    cut = framed(first(1))[:-1]
    with scripted(env_info(1), cut) as (environment, _):
        environment._timeout_s = 1.0  # only now, as the start may take longer
        with pytest.raises(PlayerTimeoutError, match="stopped answering within 1 s"):
            Player(environment).reset()
