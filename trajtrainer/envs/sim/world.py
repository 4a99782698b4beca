"""The simulations of one player, which write its messages and apply the trainer's answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from trajtrainer.core.protobuf import DELIMITED, delimited, key, varint
from trajtrainer.core.steps import LongArray
from trajtrainer.envs.sim.canvas import png
from trajtrainer.envs.sim.infos import InfoWriter, PngInfoWriter, RowInfoWriter
from trajtrainer.envs.sim.registry import GameKind, Kind
from trajtrainer.envs.sim.simulation import (
    EnvironmentParameters,
    Game,
    Pictured,
    Role,
    SimulatedActions,
    Simulation,
    SimulationOptions,
    SimulationStep,
    seeded_generator,
)
from trajtrainer.envs.sim.wire import ActionReader, WireStyle
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

HEADER = b"\x0a\x03\x08\xc8\x01"  # a serialized header with status 200
GROUPS_API = 5  # first minor version with groups


class ServedBehavior:
    """One behavior of the player, with the writer and the reader of its messages.

    Args:
        name: name with the team, such as ``3DBall?team=0``.
        role: agents of the behavior.
        style: format of the messages.
        ids: i64 [N], agent ids.
        first_group: id of the first group, at least 1; further groups have consecutive ids.
    """

    def __init__(self, name: str, role: Role, style: WireStyle, ids: LongArray, first_group: int) -> None:
        self.name = name
        self._action_spec = role.spec.action_spec
        self._style = style
        self._waiting = role.num_agents
        # Packages before API 1.5 do not support groups.
        groups = None if role.groups is None or style.api_minor < GROUPS_API else role.groups + first_group
        has_pictures = any(len(sensor.shape) == 3 for sensor in role.spec.observation_specs)
        kind = PngInfoWriter if style.png and has_pictures else RowInfoWriter
        self._writer: InfoWriter = kind(role.spec, style, ids, masked=role.masked, groups=groups)
        self._reader = ActionReader(name, self._action_spec, role.num_agents, style.api_minor)
        self._name_field = delimited(1, name.encode())

    def read(self, actions: bytes | None) -> SimulatedActions:
        """Return the actions of the waiting agents. Without bytes, all actions are 0, as in Unity.

        Raises:
            OrderError: the actions do not match the behavior.
        """
        if actions:
            return self._reader.read(actions, self._waiting)
        return SimulatedActions(
            np.zeros((self._waiting, self._action_spec.continuous_size), dtype=np.float32),
            np.zeros((self._waiting, self._action_spec.discrete_size), dtype=np.int32),
        )

    def write(self, step: SimulationStep) -> list[bytes]:
        """Return the behavior's entry in ``agentInfos`` as pieces of bytes."""
        self._waiting = len(step.reward)
        pieces = self._writer.write(step)
        infos = key(2, DELIMITED) + varint(sum(map(len, pieces)))
        size = len(self._name_field) + len(infos) + sum(map(len, pieces))
        return [key(2, DELIMITED) + varint(size) + self._name_field + infos, *pieces]

    def parameters(self) -> pb.BrainParametersProto:
        """Return the message that announces the behavior."""
        spec = self._action_spec
        branches = list(spec.discrete_branches)
        announced = pb.BrainParametersProto(brain_name=self.name, is_training=True)
        if self._style.api_minor >= 3:
            announced.action_spec.num_continuous_actions = spec.continuous_size
            announced.action_spec.num_discrete_actions = len(branches)
            announced.action_spec.discrete_branch_sizes.extend(branches)
        else:
            announced.vector_action_size_deprecated.extend(branches or [spec.continuous_size])
            announced.vector_action_space_type_deprecated = pb.discrete if branches else pb.continuous
        return announced


class Solo:
    """Wraps a single simulation, whose agents do not interact, as a game."""

    def __init__(self, name: str, simulation: Simulation) -> None:
        self.roles: Mapping[str, Role] = {name: simulation}
        self.ids: Mapping[str, LongArray] = {name: np.arange(simulation.num_agents)}
        self._simulation = simulation

    def reset(self) -> list[SimulationStep]:
        return [self._simulation.reset()]

    def step(self, actions: Sequence[SimulatedActions]) -> list[SimulationStep]:
        return [self._simulation.step(*actions)]


class World:
    """All behaviors of a player, which are stepped together."""

    def __init__(
        self,
        simulations: Iterable[tuple[str, Kind, SimulationOptions]],
        teams: int,
        seed: int,
        style: WireStyle,
        parameters: EnvironmentParameters,
    ) -> None:
        self._games: list[tuple[Game, list[ServedBehavior]]] = []
        self._pictured: list[Pictured] = []
        agents, groups = 0, 1
        for name, kind, options in simulations:
            for team in range(1 if isinstance(kind, GameKind) else teams):
                random = seeded_generator(seed, sum(len(behaviors) for _, behaviors in self._games))
                if isinstance(kind, GameKind):
                    pictured: object = (game := kind.create(options, random, parameters))
                else:
                    game = Solo(f"{name}?team={team}", pictured := kind.create(options, random, parameters))
                if isinstance(pictured, Pictured):
                    self._pictured.append(pictured)
                behaviors = []
                for behavior_id, role in game.roles.items():
                    behaviors.append(ServedBehavior(behavior_id, role, style, agents + game.ids[behavior_id], groups))
                    groups += 0 if role.groups is None else int(role.groups.max()) + 1
                self._games.append((game, behaviors))
                agents += sum(role.num_agents for role in game.roles.values())

    def reset(self) -> list[bytes]:
        """Start new episodes in all simulations; return ``agentInfos`` in pieces."""
        return [piece for game, behaviors in self._games for piece in written(behaviors, game.reset())]

    def step(self, actions: Mapping[str, bytes]) -> list[bytes]:
        """Apply one decision of every agent; return ``agentInfos`` in pieces.

        Raises:
            OrderError: the actions do not match their behavior.
        """
        pieces: list[bytes] = []
        for game, behaviors in self._games:
            chosen = [behavior.read(actions.get(behavior.name)) for behavior in behaviors]
            pieces += written(behaviors, game.step(chosen))
        return pieces

    def picture(self) -> bytes:
        """Return a PNG of the agents and areas, for humans to watch."""
        return png([partial(each.paint, number) for each in self._pictured for number in range(each.num_pictures)])

    def announcement(self) -> bytes:
        """Return the serialized announcement of all behaviors, for the first message that contains agents."""
        announced = [behavior.parameters() for _, behaviors in self._games for behavior in behaviors]
        return pb.UnityRLInitializationOutputProto(brain_parameters=announced).SerializeToString()


def written(behaviors: Iterable[ServedBehavior], steps: Iterable[SimulationStep]) -> list[bytes]:
    """Return the entries of several behaviors in ``agentInfos`` as pieces of bytes."""
    return [piece for behavior, step in zip(behaviors, steps, strict=True) for piece in behavior.write(step)]


def output_message(infos: list[bytes], side_channel: bytes, announcement: bytes = b"") -> bytes:
    """Return a serialized UnityMessageProto with status 200 and the agents' observations.

    Args:
        infos: pieces of ``agentInfos``.
        side_channel: side channel frames for the trainer.
        announcement: a serialized UnityRLInitializationOutputProto; empty if there are no behaviors to announce.
    """
    if side_channel:
        infos = [*infos, delimited(3, side_channel)]
    body_size = sum(map(len, infos))
    output = key(1, DELIMITED) + varint(body_size)
    after = delimited(2, announcement) if announcement else b""
    size = varint(len(output) + body_size + len(after))
    return b"".join((HEADER, key(2, DELIMITED), size, output, *infos, after))
