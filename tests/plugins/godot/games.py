"""Games for tests: one that says what it is told to, the built-in ones, and a real one of Godot's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.ports import free_port
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Environment
from trajtrainer.plugins.godot.environment import GodotGame
from trajtrainer.settings.environment import EngineSettings, EnvironmentSettings

TOOLS = Path(__file__).resolve().parents[4] / "shared" / "tools" / "godot"
ENGINE = Path(os.environ.get("GODOT_WEB", Path(__file__).resolve().parents[3] / "build" / "godot"))
_LENGTH = struct.Struct("<I")

Json = dict[str, Any]
VECTOR: Json = {"obs": {"size": [2], "space": "box"}}
MOVE: Json = {"move": {"size": 2, "action_type": "continuous"}}


def no_real_godot() -> str | None:
    """What the real game needs and is not here."""
    if not (TOOLS / "play.sh").is_file() or not (ENGINE / "index.wasm").is_file():
        return "needs Godot's web build"
    browsers = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return None if any(map(shutil.which, browsers)) else "needs chromium"


def env_info(agents: int = 2, observed: Any = None, acted: Any = None, **others: Any) -> Json:
    """What a game announces, of agents that are all alike."""
    return {
        "type": "env_info",
        "observation_space": [observed or VECTOR] * agents,
        "action_space": [acted or MOVE] * agents,
        "n_agents": agents,
        "agent_policy_names": ["shared_policy"] * agents,
        **others,
    }


def step(*numbers: float, kind: str = "step", **others: Any) -> Json:
    """A message of agents that observe two equal numbers each."""
    count = len(numbers)
    message = {"type": kind, "obs": [{"obs": [n, n]} for n in numbers], "info": [{}] * count}
    return {**message, **({"reward": [0.0] * count, "done": [False] * count} if kind == "step" else {}), **others}


def first(*numbers: float) -> Json:
    return step(*numbers, kind="reset")


def framed(message: Json | bytes) -> bytes:
    content = message if isinstance(message, bytes) else json.dumps(message).encode()
    return _LENGTH.pack(len(content)) + content


class Scripted:
    """A game in a thread: answers each message with the next of some answers, and keeps what it is told.

    Args:
        port: of the trainer.
        answers: bytes are sent as they are, without a length; after the last it waits until it is let go.
    """

    def __init__(self, port: int, answers: Iterable[Json | bytes | Callable[[], object]]) -> None:
        self.heard: list[Json] = []
        self._port, self._answers = port, iter(answers)
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def _play(self) -> None:
        connection = connected(self._port)
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
                self.heard.append(json.loads(stream.read(*_LENGTH.unpack(head))))
                if self.heard[-1]["type"] in ("handshake", "close"):
                    continue
                answer = next(self._answers, None)
                if answer is None:
                    continue
                if callable(answer):
                    answer()
                    return
                connection.sendall(answer if isinstance(answer, bytes) else framed(answer))

    def told(self) -> list[str]:
        """The types of what it was told, once the trainer is gone."""
        self._thread.join(10.0)
        assert not self._thread.is_alive()
        return [message["type"] for message in self.heard]


def connected(port: int) -> socket.socket:
    until = time.monotonic() + 120.0  # a trainer has to start first
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            return socket.create_connection(("127.0.0.1", port))
        threading.Event().wait(0.02)
    raise AssertionError("nobody listens")


@contextlib.contextmanager
def scripted(
    *answers: Json | bytes | Callable[[], object], timeout_wait: int = 10, **settings: Any
) -> Iterator[tuple[GodotGame, Scripted]]:
    """A trainer's end of a scripted game."""
    port = free_port()
    game = Scripted(port, answers)
    settings = {"env_path": "godot", "base_port": port, "timeout_wait": timeout_wait, **settings}
    environment = GodotGame(EnvironmentSettings(**settings), EngineSettings())
    try:
        yield environment, game
    finally:
        environment.close()


@contextlib.contextmanager
def simulated(name: str, *arguments: str, timeout_wait: int = 60, **others: Any) -> Iterator[GodotGame]:
    """A built-in simulation in a process of its own."""
    settings = EnvironmentSettings(
        env_path=f"godot:sim:{name}", env_args=list(arguments), base_port=free_port(), timeout_wait=timeout_wait, seed=3
    )
    environment = GodotGame(settings, EngineSettings(), **others)
    try:
        yield environment
    finally:
        environment.close()


@contextlib.contextmanager
def real(*arguments: str, limit_s: int = 600) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The small game in a real Godot, which connects to the port."""
    port = free_port()
    command = ["bash", str(TOOLS / "play.sh"), str(ENGINE), str(port), "--limit", str(limit_s), "--", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield port, process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def real_build(folder: Path) -> Path:
    """The small game in a real Godot, started as an exported game is."""
    build = folder / "chase.x86_64"
    build.write_text(
        f"""#!/usr/bin/env bash
for argument in "$@"; do
  case "$argument" in
    --port=*) port="${{argument#--port=}}" ;;
    --headless | --disable-render-loop) ;;
    *) rest+=("$argument") ;;
  esac
done
exec bash "{TOOLS}/play.sh" "{ENGINE}" "$port" --limit 900 -- "${{rest[@]}}" --action_repeat=1
"""
    )
    build.chmod(0o755)
    return build


class Player:
    """Resets an environment of one worker and answers it."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.specs: dict[str, BehaviorSpec] = {}
        self.event: EnvironmentEvent | None = None

    def reset(self, parameters: Mapping[str, Any] | None = None) -> EnvironmentEvent:
        self.environment.reset(parameters or {})
        return self.wait()

    def step(self, **continuous: Any) -> EnvironmentEvent:
        """Answer with actions of some behaviors, and zeros for all others."""
        assert self.event is not None
        actions = {
            name: batch_of(self.specs[name], batch.num_decisions, continuous.get(name))
            for name, batch in self.event.steps.items()
        }
        self.environment.send(self.event.worker, actions)
        return self.wait()

    def wait(self) -> EnvironmentEvent:
        events = self.environment.wait(60.0)
        assert len(events) == 1
        self.event = events[0]
        self.specs |= self.event.new_specs
        return self.event


def batch_of(spec: BehaviorSpec, count: int, continuous: Any = None, discrete: Any = None) -> ActionBatch:
    empty = spec.action_spec.empty_action(count)
    numbers = empty.continuous if continuous is None else np.asarray(continuous, np.float32)
    return ActionBatch(
        continuous=numbers,
        discrete=empty.discrete if discrete is None else np.asarray(discrete, np.int32),
        env_continuous=numbers,
        log_prob=np.zeros((count, spec.action_spec.continuous_size + spec.action_spec.discrete_size), np.float32),
        entropy=np.zeros(count, np.float32),
        memory=np.zeros((count, 0), np.float32),
        version=0,
    )


def straight(event: EnvironmentEvent, name: str = "shared_policy") -> Any:
    """Actions that walk straight to the target of Chase."""
    batch = event.steps[name]
    seen = batch.obs[0][batch.num_terminal :]
    return np.clip((seen[:, 2:] - seen[:, :2]) * 10.0, -1.0, 1.0)
