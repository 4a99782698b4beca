"""Games that act with a model, rightly or with one thing wrong, and record that as Unity does.

They share no code with what finds out the cause: onnxruntime runs the exported model, and Unity's files are written
message by message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from tests.experience.recordings.making import write_plainly
from tests.learning.nn.specs import behavior, camera, entities, vector
from tests.policies.onnx.test_onnx import random_actor
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, ObservationSpec
from trajtrainer.envs.unity.pictures import channel_mapping, encode
from trajtrainer.envs.unity.proto.communicator_pb2 import (
    PNG,
    ActionSpecProto,
    AgentInfoActionPairProto,
    BrainParametersProto,
    ObservationTypeProto,
)
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.normalization import Normalizer
from trajtrainer.policies.onnx.export import export_policy

Floats = NDArray[np.float32]
STACKED = "StackingSensor_size3_Body"


def vectors(random: np.random.Generator) -> tuple[list[ObservationSpec], dict[str, Any]]:
    return [vector(int(random.integers(4, 12)), "Body")], {"normalize": True}


def two_vectors(random: np.random.Generator) -> tuple[list[ObservationSpec], dict[str, Any]]:
    size = int(random.integers(3, 8))
    return [vector(size, "Body"), vector(size + int(random.integers(0, 2)), "Target")], {}


def stacked(random: np.random.Generator) -> tuple[list[ObservationSpec], dict[str, Any]]:
    return [vector(3 * int(random.integers(2, 5)), STACKED), vector(2, "Target")], {}


def pictures(random: np.random.Generator) -> tuple[list[ObservationSpec], dict[str, Any]]:
    sensors = [camera(3, 20, int(random.integers(20, 23)), "Eye")]
    return sensors + ([vector(3, "Body")] if random.random() < 0.5 else []), {}


def lists(random: np.random.Generator) -> tuple[list[ObservationSpec], dict[str, Any]]:
    return [entities(4, 3, "Food"), vector(int(random.integers(3, 6)), "Body")], {}


def remembering(random: np.random.Generator) -> tuple[list[ObservationSpec], dict[str, Any]]:
    return [vector(int(random.integers(4, 8)), "Body")], {"memory": 16, "normalize": bool(random.random() < 0.5)}


def sensor_of(shape: tuple[int, ...], name: str) -> ObservationSpec:
    """A vector, a list or a picture."""
    kinds: dict[int, Callable[..., ObservationSpec]] = {1: vector, 2: entities, 3: camera}
    return kinds[len(shape)](*shape, name)


SENSORS = (vectors, two_vectors, stacked, pictures, lists, remembering)
CONTINUOUS, DISCRETE, BRANCHES, HYBRID = (2, ()), (0, (4,)), (0, (3, 5)), (2, (3,))
ACTIONS = (CONTINUOUS, DISCRETE, BRANCHES, HYBRID)


@dataclass
class Game:
    """A behavior, what happens in its episodes, and a policy for it.

    Attributes:
        obs: per sensor f32 [N, *O].
        mask: bool [N, D], True = forbidden.
        starts: bool [N].
    """

    spec: BehaviorSpec
    actor: Actor
    obs: list[Floats]
    mask: NDArray[np.bool_]
    starts: NDArray[np.bool_]
    drawn: bool
    random: np.random.Generator
    options: dict[str, Any] = field(default_factory=dict)

    def model(self, path: Path) -> Path:
        export_policy(self.actor, self.spec, path)
        return path


@torch.no_grad()
def sharpen(actor: Actor, obs: Sequence[Floats], random: np.random.Generator) -> None:
    """Makes a policy decide by what it sees, as a trained one does, and not only by chance."""
    encoding, _ = actor.body(
        [torch.from_numpy(each) for each in obs], None, torch.zeros(len(obs[0]), actor.memory_size)
    )
    for layer, spread in ((actor.head.mu, random.uniform(0.6, 2.0)), (actor.head.discrete, random.uniform(1.5, 3.0))):
        if layer is not None:
            found = layer(encoding)
            scale = float(spread) / found.std(dim=0).clamp(min=1e-3)
            layer.weight.mul_(scale[:, None])
            middle = torch.from_numpy(random.normal(0.0, 0.3, len(scale)).astype(np.float32))
            layer.bias.copy_((layer.bias - found.mean(dim=0)) * scale + middle)
    if actor.head.log_sigma is not None:
        actor.head.log_sigma.fill_(float(random.uniform(-1.2, 0.0)))


def make_game(
    random: np.random.Generator,
    sensors: Callable[[np.random.Generator], tuple[list[ObservationSpec], dict[str, Any]]] | None = None,
    actions: tuple[int, tuple[int, ...]] | None = None,
    *,
    masked: bool | None = None,
    drawn: bool | None = None,
) -> Game:
    """A game that is drawn, as far as the arguments leave it open."""
    sensors = sensors or SENSORS[random.integers(len(SENSORS))]
    continuous, branches = actions or ACTIONS[random.integers(len(ACTIONS))]
    observed, options = sensors(random)
    spec = behavior(observed, continuous, branches)
    has_pictures = any(len(sensor.shape) == 3 for sensor in observed)
    lengths = random.integers(8, 40 if has_pictures else 90, 12)
    obs, starts = observe(spec, lengths, random)
    options["hidden"] = int(random.choice((16, 32)))
    actor = random_actor(spec, seed=int(random.integers(1000)), **options)
    fresh(actor, obs)
    sharpen(actor, obs, random)
    masked = bool(random.random() < 0.5) if masked is None else masked
    mask = np.zeros((len(starts), sum(branches)), np.bool_)
    if masked:
        begin = 0
        for size in branches:
            mask[:, begin : begin + size] = random.random((len(starts), size)) < 0.35
            mask[np.arange(len(starts)), begin + random.integers(0, size, len(starts))] = False
            begin += size
    drawn = bool(random.random() < 0.5) if drawn is None else drawn
    return Game(spec, actor, obs, mask, starts, drawn, random, options)


def normalizers(actor: Actor) -> list[Normalizer]:
    return [module for module in actor.modules() if isinstance(module, Normalizer)]


def fresh(actor: Actor, obs: Sequence[Floats]) -> None:
    """Lets normalizers see what is observed."""
    for normalizer in normalizers(actor):
        normalizer.steps.fill_(1)
        normalizer.mean.zero_()
        normalizer.variance.fill_(1.0)
    actor.update_normalization([torch.from_numpy(each) for each in obs])


def observe(
    spec: BehaviorSpec, lengths: NDArray[np.int64], random: np.random.Generator
) -> tuple[list[Floats], NDArray[np.bool_]]:
    """What episodes of these lengths show: numbers that wander, each in its own range."""
    count = int(lengths.sum())
    starts = np.zeros(count, np.bool_)
    starts[np.cumsum([0, *lengths])[:-1]] = True
    obs = []
    for sensor in spec.observation_specs:
        shape = tuple(sensor.shape)
        frames = 3 if sensor.name.startswith("StackingSensor") else 1
        one = (shape[0] // frames, *shape[1:])
        middle, width = random.normal(0.0, 1.0, one), random.uniform(0.5, 2.0, one)
        state = np.zeros(one)
        values = np.zeros((count, *one), np.float32)
        for row in range(count):
            state = random.normal(size=one) if starts[row] else 0.8 * state + 0.6 * random.normal(size=one)
            values[row] = middle + width * state
        if len(shape) == 3:
            # Pixels of bytes, brighter towards one corner.
            slope = np.linspace(0, 1, shape[1])[:, None] * np.linspace(0.3, 1, shape[2])
            values = np.round(255.0 * np.clip(0.35 + 0.2 * values * (0.3 + slope), 0.0, 1.0)).astype(np.float32)
            values /= np.float32(255.0)
        if frames > 1:
            values = stack_frames(values, starts, frames)
        obs.append(values)
    return obs, starts


def stack_frames(newest: Floats, starts: NDArray[np.bool_], frames: int) -> Floats:
    """As Unity's StackingSensor: oldest first, zeros when an episode begins."""
    size = newest.shape[1]
    rows = np.zeros((len(newest), frames * size), np.float32)
    stack = np.zeros(frames * size, np.float32)
    for row in range(len(newest)):
        if starts[row]:
            stack = np.zeros_like(stack)
        stack = np.concatenate([stack[size:], newest[row]])
        rows[row] = stack
    return rows


@dataclass
class Fault:
    """What a game does wrong, one decision after the other.

    Attributes:
        see: what the network is given, of what was recorded.
        mask: likewise.
        forgets: the memory is empty at every decision.
        remembers: it is never cleared.
        late: by how many decisions the game acts too late.
        model: that it has instead.
    """

    see: Callable[[list[Floats]], list[Floats]] = lambda obs: obs
    mask: Callable[[NDArray[np.bool_]], NDArray[np.bool_]] = lambda mask: mask
    forgets: bool = False
    remembers: bool = False
    late: int = 0
    model: Path | None = None


def play(game: Game, model: Path, fault: Fault) -> tuple[Floats, NDArray[np.int64]]:
    """The actions of the game, decision by decision."""
    onnxruntime.set_seed(int(game.random.integers(1 << 30)))
    session = onnxruntime.InferenceSession(str(fault.model or model), providers=["CPUExecutionProvider"])
    used = [each.name for each in session.get_inputs()]
    names = [each.name for each in session.get_outputs()]
    prefix = "" if game.drawn else "deterministic_"
    continuous, branches = game.spec.action_spec.continuous_size, game.spec.action_spec.discrete_branches
    wanted = [f"{prefix}continuous_actions"] * (continuous > 0) + [f"{prefix}discrete_actions"] * (len(branches) > 0)
    wanted += ["recurrent_out"] * ("recurrent_out" in names)
    seen, mask = fault.see([each.copy() for each in game.obs]), fault.mask(game.mask.copy())
    sizes = {each.name: each.shape[-1] for each in session.get_inputs()}
    memory = np.zeros((1, 1, sizes.get("recurrent_in", 0)), np.float32)
    done = np.zeros((len(mask), continuous), np.float32)
    chosen = np.zeros((len(mask), len(branches)), np.int64)
    for row in range(len(mask)):
        if (game.starts[row] and not fault.remembers) or fault.forgets:
            memory = np.zeros_like(memory)
        feed = {f"obs_{k}": np.ascontiguousarray(each[row : row + 1], np.float32) for k, each in enumerate(seen)}
        feed["action_masks"] = (~mask[row : row + 1]).astype(np.float32)
        feed["recurrent_in"] = memory
        found = dict(zip(wanted, session.run(wanted, {name: feed[name] for name in used}), strict=True))
        if continuous:
            done[row] = found[f"{prefix}continuous_actions"][0]
        if branches:
            chosen[row] = found[f"{prefix}discrete_actions"][0]
        memory = found.get("recurrent_out", memory)
    if fault.late:
        done = np.concatenate([np.zeros_like(done[: fault.late]), done[: -fault.late]])
        chosen = np.concatenate([np.zeros_like(chosen[: fault.late]), chosen[: -fault.late]])
    return done, chosen


def record(path: Path, game: Game, continuous: Floats, discrete: NDArray[np.int64], name: str = "Crawler") -> Path:
    """Writes a recording as Unity does: each action stands in the record after its observation."""
    action: ActionSpec = game.spec.action_spec
    parameters = BrainParametersProto(
        brain_name=f"{name}?team=0",
        action_spec=ActionSpecProto(
            num_continuous_actions=action.continuous_size,
            num_discrete_actions=action.discrete_size,
            discrete_branch_sizes=action.discrete_branches,
        ),
    )
    pairs: list[bytes] = []

    def add(row: int, acted: int | None, *, done: bool = False) -> None:
        pair = AgentInfoActionPairProto()
        info = pair.agent_info
        info.reward, info.done = 0.1, done
        if not done and game.mask.any():
            info.action_mask.extend(game.mask[row].tolist())
        for sensor, values in zip(game.spec.observation_specs, game.obs, strict=True):
            each = info.observations.add()
            each.shape.extend(sensor.shape)
            each.dimension_properties.extend(one.value for one in sensor.dimension_property)
            each.observation_type = ObservationTypeProto.Name(sensor.observation_type.value)  # type: ignore[assignment]
            each.name = sensor.name
            if len(sensor.shape) == 3:
                each.compression_type = PNG
                each.compressed_data = encode(np.round(values[row] * 255).astype(np.uint8), 1)
                each.compressed_channel_mapping.extend(channel_mapping(sensor.shape[0]))
            else:
                each.float_data.data.extend(values[row].ravel().tolist())
        if acted is None:
            pair.action_info.continuous_actions.extend([0.0] * action.continuous_size)
            pair.action_info.discrete_actions.extend([0] * action.discrete_size)
        else:
            pair.action_info.continuous_actions.extend(continuous[acted].tolist())
            pair.action_info.discrete_actions.extend(discrete[acted].tolist())
        pairs.append(pair.SerializeToString())

    for row in range(len(game.starts)):
        if game.starts[row] and row:
            add(row - 1, row - 1, done=True)
        # Of the decision before; none at the beginning of an episode.
        add(row, None if game.starts[row] else row - 1)
    add(len(game.starts) - 1, len(game.starts) - 1, done=True)
    write_plainly(path, parameters.SerializeToString(), pairs, by_unity=True)
    return path
