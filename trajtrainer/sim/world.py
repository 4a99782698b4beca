"""All simulations of one player: what they send at every step, and what they do with the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from trajtrainer.sim.infos import InfoWriter, RowInfoWriter
from trajtrainer.sim.orders import ActionReader
from trajtrainer.sim.parameters import EnvironmentParameters, seeded_generator
from trajtrainer.sim.png_infos import PngInfoWriter
from trajtrainer.sim.registry import SimulationKind
from trajtrainer.sim.simulation import Actions, Simulation, SimulationOptions, SimulationStep
from trajtrainer.sim.style import WireStyle
from trajtrainer.sim.wire import DELIMITED, delimited, key, varint
from trajtrainer.steps import LongArray
from trajtrainer.unity.proto import communicator_pb2 as pb

HEADER = b"\x0a\x03\x08\xc8\x01"  # status 200


class Behavior:
    """One behaviour of the player: its simulation, and how its messages are written and read.

    Args:
        name: with the team, ``3DBall?team=0``.
        simulation: the task.
        style: what the messages look like.
        first_id: id of its first agent; the others follow.
    """

    def __init__(self, name: str, simulation: Simulation, style: WireStyle, first_id: int) -> None:
        self.name = name
        self._simulation = simulation
        self._style = style
        ids = np.arange(first_id, first_id + simulation.num_agents)
        self._writer = info_writer(simulation, style, ids)
        self._reader = ActionReader(name, simulation.spec.action_spec, simulation.num_agents, style.api_minor)
        self._name_field = delimited(1, name.encode())
        action_spec = simulation.spec.action_spec
        self._no_actions = Actions(
            np.zeros((simulation.num_agents, action_spec.continuous_size), dtype=np.float32),
            np.zeros((simulation.num_agents, action_spec.discrete_size), dtype=np.int32),
        )

    def reset(self) -> list[bytes]:
        """Start new episodes; return the pieces of the behaviour's entry in ``agentInfos``."""
        return self._entry(self._simulation.reset())

    def step(self, actions: bytes | None) -> list[bytes]:
        """Make one decision; a behaviour that the trainer leaves out does nothing (zeros), as in Unity.

        Raises:
            OrderError: the actions do not fit.
        """
        return self._entry(self._simulation.step(self._reader.read(actions) if actions else self._no_actions))

    def _entry(self, step: SimulationStep) -> list[bytes]:
        pieces = self._writer.write(step)
        infos = key(2, DELIMITED) + varint(sum(map(len, pieces)))
        size = len(self._name_field) + len(infos) + sum(map(len, pieces))
        return [key(2, DELIMITED) + varint(size) + self._name_field + infos, *pieces]

    def parameters(self) -> pb.BrainParametersProto:
        """Return the announcement of the behaviour."""
        spec = self._simulation.spec.action_spec
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


class World:
    """The behaviours of a player, stepped together."""

    def __init__(
        self,
        simulations: Iterable[tuple[str, SimulationKind, SimulationOptions]],
        teams: int,
        seed: int,
        style: WireStyle,
        parameters: EnvironmentParameters,
    ) -> None:
        self._behaviors: list[Behavior] = []
        agents = 0
        for name, kind, options in simulations:
            for team in range(teams):
                random = seeded_generator(seed, len(self._behaviors))
                simulation = kind.create(options, random, parameters)
                self._behaviors.append(Behavior(f"{name}?team={team}", simulation, style, agents))
                agents += simulation.num_agents

    def reset(self) -> list[bytes]:
        """Start new episodes everywhere; return the pieces of ``agentInfos``."""
        return [piece for behavior in self._behaviors for piece in behavior.reset()]

    def step(self, actions: Mapping[str, bytes]) -> list[bytes]:
        """Decide once for every agent; returns the pieces of ``agentInfos``.

        Raises:
            OrderError: the actions do not fit.
        """
        return [piece for behavior in self._behaviors for piece in behavior.step(actions.get(behavior.name))]

    def announcement(self) -> bytes:
        """Return all behaviours, for the first message that holds agents."""
        announced = [behavior.parameters() for behavior in self._behaviors]
        return pb.UnityRLInitializationOutputProto(brain_parameters=announced).SerializeToString()


def info_writer(simulation: Simulation, style: WireStyle, ids: LongArray) -> InfoWriter:
    """Return the writer for what a simulation's agents observe."""
    spec = simulation.spec
    pictures = any(len(sensor.shape) == 3 for sensor in spec.observation_specs)
    if style.png and pictures:
        return PngInfoWriter(spec, style, ids, masked=simulation.masked)
    return RowInfoWriter(spec, style, ids, masked=simulation.masked)


def output_message(infos: list[bytes], side_channel: bytes, announcement: bytes = b"") -> bytes:
    """Return a UnityMessageProto of status 200 with what the agents observe.

    Args:
        infos: pieces of ``agentInfos``.
        side_channel: frames for the trainer.
        announcement: a serialized UnityRLInitializationOutputProto.
    """
    if side_channel:
        infos = [*infos, delimited(3, side_channel)]
    body_size = sum(map(len, infos))
    output = key(1, DELIMITED) + varint(body_size)
    after = delimited(2, announcement) if announcement else b""
    size = varint(len(output) + body_size + len(after))
    return b"".join((HEADER, key(2, DELIMITED), size, output, *infos, after))
