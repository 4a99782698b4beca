"""``python -m trajtrainer.plugins.godot.simulation NAME --port=PORT``: a built-in simulation as a Godot game.

It speaks the protocol of the Godot RL Agents plugin (version 0.7), accepts the same command line, and starts and ends
episodes as most games do: a reset takes effect in the next step, which reports the end of all episodes, and
observations sent with done already belong to the next episode. Calling ``reach_0_2`` sets the environment parameter
``reach``. The policy is named ``shared_policy``. If there are several simulations (``Chase+Basic``), each policy is
named after its simulation; if there are several teams, names include the team (``shared_policy?team=1``).

Exit codes: 0 if the connection was closed, 1 if there is no trainer, 2 for invalid arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trajtrainer.core.steps import ObservationArray
from trajtrainer.envs.sim.options import (
    PlayerParser,
    add_hook_option,
    add_simulation_options,
    hooked,
    simulation_options,
)
from trajtrainer.envs.sim.registry import GameKind, SimulationKind, simulation_kind
from trajtrainer.envs.sim.simulation import (
    Constant,
    EnvironmentParameters,
    SimulatedActions,
    Simulation,
    SimulationStep,
    seeded_generator,
)

logger = logging.getLogger(__name__)

DEFAULT_PORT = 11008
_LENGTH = struct.Struct("<I")
_CONTINUOUS, _CHOICE = "move", "choice"
_ONLY_POLICY = "shared_policy"  # the plugin's default
_CALL = re.compile(r"(\w+?)_(minus_)?(\d+(?:_\d+)?)")
_RETRY_S = 0.1

Message = dict[str, Any]


class GodotAgents:
    """The agents of one simulation, with their messages as JSON values.

    Args:
        name: the agents' policy name.
        simulation: the simulation to run. Its images must be bytes, and it must not mask actions.
        reports_ends: whether infos contain ``truncated`` and ``final_obs``.

    Raises:
        ValueError: the plugin's protocol cannot represent this simulation.
    """

    def __init__(self, name: str, simulation: Simulation, *, reports_ends: bool) -> None:
        if simulation.masked:
            raise ValueError(f"{name} masks actions, which Godot games cannot do")
        self.name = name
        self.count = simulation.num_agents
        self._simulation = simulation
        self._reports_ends = reports_ends
        self.step = simulation.reset()
        self.observation_space: dict[str, Any] = {}
        self._columns: list[tuple[str, Callable[[ObservationArray], list[Any]]]] = []
        for number, sensor in enumerate(simulation.spec.observation_specs):
            is_picture = len(sensor.shape) == 3
            if is_picture and self.step.observations[number].dtype != np.uint8:
                raise ValueError(f"{name} has images that are not made of bytes, which Godot games cannot send")
            key = f"camera{number}_2d" if is_picture else "obs" if not number else f"obs{number}"
            self.observation_space[key] = {"size": list(sensor.shape), "space": "box"}
            self._columns.append((key, _hexadecimal if is_picture else lambda column: column.tolist()))
        spec = simulation.spec.action_spec
        self.action_space: dict[str, Any] = {}
        if spec.continuous_size:
            self.action_space[_CONTINUOUS] = {"size": spec.continuous_size, "action_type": "continuous"}
        for number, size in enumerate(spec.discrete_branches):
            self.action_space[f"{_CHOICE}{number}"] = {"size": size, "action_type": "discrete"}

    def act(self, actions: list[Message]) -> None:
        """Step the simulation with one action for each agent."""
        spec = self._simulation.spec.action_spec
        continuous = np.zeros((self.count, 0), np.float32)
        if spec.continuous_size:
            continuous = np.array([action[_CONTINUOUS] for action in actions], np.float32)
        discrete = [[action[f"{_CHOICE}{k}"] for k in range(spec.discrete_size)] for action in actions]
        self.step = self._simulation.step(
            SimulatedActions(continuous, np.array(discrete, np.int32).reshape(self.count, -1))
        )

    def reset(self) -> None:
        """Start new episodes, and report the end of the old ones."""
        fresh, count = self._simulation.reset(), self.count
        none = np.zeros(count, np.float32)
        self.step = SimulationStep(
            fresh.observations, none, None, np.arange(count), self.step.observations, none, np.ones(count, np.bool_)
        )

    def observations(self) -> list[Message]:
        """Return each agent's observation as a mapping from sensor keys to values."""
        return self._observations(self.step.observations)

    def _observations(self, columns: tuple[ObservationArray, ...]) -> list[Message]:
        keys = [key for key, _ in self._columns]
        values = zip(*(form(column) for (_, form), column in zip(self._columns, columns, strict=True)), strict=True)
        return [dict(zip(keys, row, strict=True)) for row in values]

    def outcome(self) -> tuple[list[float], list[bool], list[Message]]:
        """Return the rewards, done flags and infos of all agents."""
        step = self.step
        reward, done = step.reward.copy(), np.zeros(self.count, np.bool_)
        reward[step.ended], done[step.ended] = step.ended_reward, True
        infos: list[Message] = [{} for _ in range(self.count)]
        if self._reports_ends:
            last = zip(
                step.ended.tolist(), step.interrupted.tolist(), self._observations(step.ended_observations), strict=True
            )
            for agent, interrupted, final in last:
                infos[agent] = {"truncated": interrupted, "final_obs": final}
        return reward.tolist(), done.tolist(), infos


def _hexadecimal(column: ObservationArray) -> list[str]:
    """Encode images in Godot's layout, which keeps the channels of a pixel together."""
    return [picture.transpose(1, 2, 0).tobytes().hex() for picture in column]


class GameProtocol:
    """The game's side of the protocol: answers the trainer's messages.

    Args:
        agents: the agents of each simulation and team, at least one.
        parameters: environment parameters that all simulations share.
        has_old_info: announce one space for all agents, as plugins before protocol 0.4 do.
        resets_at_once: let a reset take effect immediately, without reporting the end of the old episodes.
    """

    def __init__(
        self,
        agents: list[GodotAgents],
        parameters: EnvironmentParameters,
        *,
        has_old_info: bool = False,
        resets_at_once: bool = False,
    ) -> None:
        self._agents = agents
        self._of_each = [each for each in agents for _ in range(each.count)]  # one entry per agent
        self._parameters = parameters
        self._has_old_info = has_old_info
        self._resets_at_once = resets_at_once
        self._needs_reset = False

    def answer(self, message: Message) -> Message | None:
        """Return the answer to a message, or None for a handshake."""
        kind = message["type"]
        if kind == "env_info":
            return self._info()
        if kind == "call":
            return {"type": "call", "returns": [self._call(message["method"])] * len(self._of_each)}
        if kind == "reset":
            self._needs_reset = not self._resets_at_once
            if self._resets_at_once:
                for each in self._agents:
                    each.reset()
            return {"type": "reset", "obs": self._observations(), **self._infos([{}] * len(self._of_each))}
        if kind == "action":
            return self._step(message["action"])
        return None

    def _info(self) -> Message:
        info: Message = {"type": "env_info", "n_agents": len(self._of_each)}
        if not self._has_old_info:
            info["agent_policy_names"] = [each.name for each in self._of_each]
        for name in ("observation_space", "action_space"):
            spaces = [getattr(each, name) for each in self._of_each]
            info[name] = spaces[0] if self._has_old_info else spaces
        return info

    def _step(self, actions: list[Message]) -> Message:
        at = 0
        rewards: list[float] = []
        dones: list[bool] = []
        infos: list[Message] = []
        for each in self._agents:
            if self._needs_reset:
                each.reset()
            else:
                each.act(actions[at : at + each.count])
            at += each.count
            for whole, part in zip((rewards, dones, infos), each.outcome(), strict=True):
                whole.extend(part)  # type: ignore[attr-defined]
        self._needs_reset = False
        return {"type": "step", "obs": self._observations(), "reward": rewards, "done": dones, **self._infos(infos)}

    def _observations(self) -> list[Message]:
        return [observation for each in self._agents for observation in each.observations()]

    def _infos(self, infos: list[Message]) -> Message:
        return {} if self._has_old_info else {"info": infos}

    def _call(self, method: str) -> bool | None:
        """Set an environment parameter. Return None for an unknown method, as Godot does."""
        found = _CALL.fullmatch(method)
        if found is None:
            return None
        value = float(found[3].replace("_", "."))
        self._parameters.set(found[1], Constant(-value if found[2] else value))
        return True


def make_game(arguments: argparse.Namespace, kinds: Mapping[str, SimulationKind]) -> GameProtocol:
    """Create the game from the command line arguments.

    Raises:
        ValueError: an option is not valid here, or the protocol cannot represent a simulation.
    """
    parameters = EnvironmentParameters()
    parts = [(name, kind, team) for name, kind in kinds.items() for team in range(arguments.teams)]
    agents = [
        GodotAgents(
            (name if len(kinds) > 1 else _ONLY_POLICY) + (f"?team={team}" if arguments.teams > 1 else ""),
            kind.create(
                simulation_options(kind, vars(arguments)), seeded_generator(arguments.env_seed, number), parameters
            ),
            reports_ends=not arguments.only_done,
        )
        for number, (name, kind, team) in enumerate(parts)
    ]
    if arguments.old_env_info and len(agents) > 1:
        raise ValueError(
            "--old-env-info announces one space for all agents, so there can only be one simulation and one team"
        )
    return GameProtocol(agents, parameters, has_old_info=arguments.old_env_info, resets_at_once=arguments.reset_at_once)


def play(answer: Callable[[Message], bytes | None], connection: socket.socket) -> None:
    """Answer the trainer until it sends ``close`` or disconnects."""
    with connection, connection.makefile("rb") as stream:
        while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
            message = json.loads(stream.read(*_LENGTH.unpack(head)))
            if message["type"] == "close":
                break
            content = answer(message)
            if content is not None:
                connection.sendall(_LENGTH.pack(len(content)) + content)


def _parser() -> PlayerParser:
    parser = PlayerParser(
        prog="python -m trajtrainer.plugins.godot.simulation", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("names", metavar="NAME[+NAME...]", help="the simulations to run; must be the first argument")
    add("--port", type=int, default=DEFAULT_PORT, help="the port that the trainer listens on")
    add("--env_seed", type=int, default=1, metavar="N", help="seed of the random number generators")
    for taken in ("--action_repeat", "--speedup"):
        add(taken, metavar="N", help="accepted for compatibility, but ignored")
    for taken in ("--headless", "--disable-render-loop"):
        add(taken, action="store_true", help="accepted for compatibility, but ignored")
    add("--teams", type=int, default=1, metavar="N", help="number of teams per policy, each with all of its agents")
    add("--step-ms", type=float, default=0.0, metavar="X", help="delay every step by X milliseconds")
    add("--connect-seconds", type=float, default=10.0, metavar="S", help="how long to try to connect")
    add("--only-done", action="store_true", help="leave truncated and final_obs out of the info when an episode ends")
    add("--reset-at-once", action="store_true", help="let a reset take effect before it is answered")
    add("--old-env-info", action="store_true", help="announce one space for all agents, and send no infos")
    add_hook_option(parser)
    return parser


def _connected(port: int, seconds: float) -> socket.socket | None:
    deadline_s = time.monotonic() + seconds
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError:
            if time.monotonic() > deadline_s:
                return None
            time.sleep(_RETRY_S)


def main(arguments: list[str]) -> int:
    """Run the game, and return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    parser = _parser()
    names = arguments[0].split("+") if arguments and not arguments[0].startswith("-") else []
    kinds: dict[str, SimulationKind] = {}
    try:
        for name in names:
            kind = simulation_kind(name)
            if isinstance(kind, GameKind):
                raise ValueError(f"{name} has agents that come and go, which Godot games cannot have")
            kinds[name] = kind
        add_simulation_options(parser, dict(kinds))
        parsed = parser.parse_args(arguments)
        game = make_game(parsed, kinds)
    except ValueError as error:
        parser.error(str(error))

    def answer(message: Message) -> bytes | None:
        answered = game.answer(message)
        if answered is None:
            return None
        if parsed.step_ms and answered["type"] == "step":
            time.sleep(parsed.step_ms / 1000.0)
        return json.dumps(answered).encode()

    replies = hooked("answer_godot", answer, parsed.port, parsed.hook)
    connection = _connected(parsed.port, parsed.connect_seconds)
    if connection is None:
        logger.error("no trainer listens on port %d", parsed.port)
        return 1
    with contextlib.suppress(ConnectionError):  # the trainer has disconnected
        play(replies, connection)
    return 0


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    sys.exit(main(sys.argv[1:]))
