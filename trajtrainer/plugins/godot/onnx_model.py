"""Writes a policy as an ``.onnx`` file for the Godot RL Agents plugin, which runs it with ONNX Runtime from C#.

Inputs are the keys of the observations, f32 [batch, size], and ``state_ins`` f32 [batch], which is not used; outputs
are ``output`` f32 [batch, M] and ``state_outs``. For each action key, in the game's order, ``output`` has the logits of
a discrete action or the values of a continuous one. If there is any discrete action, the values of each continuous one
are followed by the same number of values that the plugin skips: standard deviations in RLlib's models, zeros here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import torch

from trajtrainer.core import atomic
from trajtrainer.core.errors import ExportError
from trajtrainer.core.printable import encodable
from trajtrainer.core.spec import BehaviorSpec, ObservationKind, observation_kind
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.checkpoints.export_saved import Origin
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.evaluate import GraphEvaluator
from trajtrainer.policies.onnx.export import GraphBuilder

STATE_IN, STATE_OUT, OUTPUT = "state_ins", "state_outs", "output"
_ROWS = 3
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4


class ActionPart(NamedTuple):
    """One action key: a discrete action, or a continuous action with ``size`` numbers."""

    is_discrete: bool
    size: int = 1

    @classmethod
    def parse(cls, text: str) -> tuple[ActionPart, ...]:
        """Parse a string such as ``discrete,continuous:2``.

        Raises:
            ExportError: the string has a different format.
        """
        parts = []
        for word in text.split(","):
            kind, colon, size = word.strip().partition(":")
            is_discrete = kind == "discrete"
            fits = size.isdecimal() and int(size) > 0 if colon else True
            if kind not in ("discrete", "continuous") or not fits or (is_discrete and colon):
                raise ExportError(
                    f"The order of actions has {word!r}; expected discrete, continuous or continuous:2 (of 2 numbers)."
                )
            parts.append(cls(is_discrete, int(size or 1)))
        return tuple(parts)


def write(actor: Actor, spec: BehaviorSpec, path: Path, origin: Origin, *, action_order: str = "") -> None:  # noqa: ARG001
    """Write an actor's policy for the plugin. The file is written completely or not at all.

    Args:
        actor: the policy network, trained or not, on any device.
        spec: the behavior's spec. Its observations are named after the game's keys.
        path: path of the file. An existing file is replaced.
        origin: not used.
        action_order: order of the game's actions, see ``ActionPart.parse``. Required if there are both discrete and
            continuous actions.

    Raises:
        ExportError: the order cannot be parsed, the plugin cannot run this kind of policy, or the file cannot be
            written.
    """
    parts = _checked(actor, spec, ActionPart.parse(action_order) if action_order else ())
    model = _draw(actor, spec, parts).build("policy")
    _check_parity(model, actor, spec, parts)
    try:
        atomic.write_bytes(path, model.SerializeToString(deterministic=True))
    except OSError as error:
        raise ExportError(f"The policy could not be written to {path}: {error.strerror or error}.") from error


def _checked(actor: Actor, spec: BehaviorSpec, order: Sequence[ActionPart]) -> Sequence[ActionPart]:
    """Check that the plugin can run the policy, and return the action parts in the game's order."""
    pictures = [o.name for o in spec.observation_specs if observation_kind(o) is not ObservationKind.VECTOR]
    instead = "Write it as GDScript instead (--to godot), with a node that replaces the model."
    if pictures:
        raise ExportError(
            f"The plugin only passes vectors to models, but this policy sees {', '.join(pictures)}. {instead}"
        )
    unwritable = [o.name for o in spec.observation_specs if encodable(o.name) != o.name]
    if unwritable:
        raise ExportError(f"The observation {unwritable[0]!r} has a name that cannot be used in an .onnx. {instead}")
    if actor.memory_size:
        raise ExportError(f"The plugin does not keep a model's memory, but this policy has one. {instead}")
    continuous, branches = actor.head.continuous_size, actor.head.branches
    if continuous and branches and not order:
        raise ExportError(
            f"The policy has {continuous} continuous actions and {len(branches)} discrete ones. Pass their order in "
            "the game's get_action_space, for example --action-order discrete,continuous:2."
        )
    parts = order or [ActionPart(is_discrete=True)] * len(branches) or [ActionPart(is_discrete=False, size=continuous)]
    given = sum(part.size for part in parts if not part.is_discrete), sum(part.is_discrete for part in parts)
    if given != (continuous, len(branches)):
        raise ExportError(
            f"The order has {given[0]} continuous numbers and {given[1]} discrete actions, but the policy has "
            f"{continuous} and {len(branches)}."
        )
    return parts


def _draw(actor: Actor, spec: BehaviorSpec, parts: Sequence[ActionPart]) -> GraphBuilder:
    graph = GraphBuilder(contract.DEFAULT_OPSET, actor)
    shapes = [tuple(int(size) for size in observation.shape) for observation in spec.observation_specs]
    names = [str(observation.name) for observation in spec.observation_specs]
    observations = list(map(graph.input, names, shapes))
    state = graph.input(STATE_IN, [])
    encoding = actor.body.to_onnx(graph, observations, shapes, None, "")
    head = actor.head
    values = logits = ""
    if head.continuous_size:
        values = "continuous"
        head.continuous_to_onnx(graph, encoding, "sampled", values)
    if head.branches:
        assert head.discrete is not None
        logits = graph.linear(head.discrete, encoding)
    pieces: list[str] = []
    for is_discrete, start, end in _columns(parts, head.branches):
        pieces.append(graph.slice(logits if is_discrete else values, axis=1, start=start, end=end))
        if head.branches and not is_discrete:
            pieces.append(graph.node("Mul", pieces[-1], graph.constant(0.0)))
    graph.node("Concat", *pieces, axis=1, output=OUTPUT)
    graph.node("Identity", state, output=STATE_OUT)
    graph.output(OUTPUT, [sum(head.branches) + head.continuous_size * (2 if head.branches else 1)])
    graph.output(STATE_OUT, [])
    # Leave out the nodes that sample actions, because the plugin samples them itself.
    wanted = {output.name for output in graph.outputs}
    kept = []
    for node in reversed(graph.operators):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    graph.operators[:] = reversed(kept)
    graph.weights = {name: weight for name, weight in graph.weights.items() if name in wanted}
    return graph


def _columns(parts: Sequence[ActionPart], branches: Sequence[int]) -> Iterator[tuple[bool, int, int]]:
    """For each part, yield whether it is discrete, and the range of its columns in the logits or values."""
    sizes, ends = iter(branches), {True: 0, False: 0}
    for is_discrete, size in parts:
        start = ends[is_discrete]
        ends[is_discrete] += next(sizes) if is_discrete else size
        yield is_discrete, start, ends[is_discrete]


@torch.inference_mode()
def _check_parity(model: onnx.ModelProto, actor: Actor, spec: BehaviorSpec, parts: Sequence[ActionPart]) -> None:
    """Run the model and the actor on the same random observations. Raise ``ExportError`` if their outputs differ."""
    generator = np.random.default_rng(0)  # a separate generator, so that an export does not affect training
    shapes = [(_ROWS, *observation.shape) for observation in spec.observation_specs]
    obs = [generator.standard_normal(shape, np.float32) for shape in shapes]
    feed = {str(o.name): values for o, values in zip(spec.observation_specs, obs, strict=True)}
    state = np.arange(_ROWS, dtype=np.float32)
    found = GraphEvaluator(model).run({**feed, STATE_IN: state})
    device = next(actor.parameters()).device
    mask = torch.zeros((_ROWS, sum(actor.head.branches)), dtype=torch.bool, device=device)
    distribution, _ = actor.distribution([torch.from_numpy(values).to(device) for values in obs], mask)
    continuous = distribution.to_env(distribution.deterministic().continuous).cpu().numpy()
    logits = torch.cat([distribution.mu[:, :0], *distribution.logits], 1).cpu().numpy()
    columns = []
    for is_discrete, start, end in _columns(parts, actor.head.branches):
        columns.append((logits if is_discrete else continuous)[:, start:end])
        if actor.head.branches and not is_discrete:
            columns.append(np.zeros_like(columns[-1]))
    wanted = np.concatenate(columns, axis=1)
    if not np.allclose(found[OUTPUT], wanted, rtol=_RELATIVE, atol=_ABSOLUTE) or (found[STATE_OUT] != state).any():
        raise ExportError(
            "The exported model does not act like the policy, so it was not written. This is a bug in the "
            "exporter; your checkpoints are not affected."
        )
