"""Builds the program of a policy from the same graph as its ``.onnx``, and writes it as source code."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from trajtrainer.core import atomic
from trajtrainer.core.errors import ExportError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.graph import FLOAT, Node, ValueInfo
from trajtrainer.policies.checkpoints.export_saved import Origin
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.export import GraphBuilder, policy_graph
from trajtrainer.tools.source.languages import write_c, write_csharp, write_gdscript, write_javascript, write_node
from trajtrainer.tools.source.lowering import Body, Lowering, Place, Value
from trajtrainer.tools.source.operators import OPERATORS, RANDOM, SWISH
from trajtrainer.tools.source.program import Array, ArrayRole, For, If, Program, SensorInput, Set, Statement, Step

_DETERMINISTIC = (contract.DETERMINISTIC_CONTINUOUS, contract.DETERMINISTIC_DISCRETE, contract.RECURRENT_OUT)
_SAMPLED = (contract.CONTINUOUS_ACTIONS, contract.DISCRETE_ACTIONS, contract.RECURRENT_OUT)

# 16 MB of numbers, or 20 to 50 MB of text. Compilers and editors would take minutes to process more.
MOST_WEIGHTS: Final = 4_000_000


def build_program(actor: Actor, spec: BehaviorSpec, *, columns: bool) -> Program:
    """Build the program of a policy.

    Args:
        actor: the policy network, trained or not.
        spec: spec of the behavior.
        columns: how to compute matrix products; see ``Lowering``.

    Raises:
        ExportError: the policy has no actions, or has an operator that is not supported.
    """
    graph = policy_graph(actor, spec)
    nodes = _with_swish(graph.operators)
    shapes = [(str(sensor.name), tuple(map(int, sensor.shape))) for sensor in spec.observation_specs]
    sensors = [SensorInput(name, shape, math.prod(shape)) for name, shape in shapes]
    program = Program(sensors, actor.head.continuous_size, actor.head.branches, actor.memory_size)
    low = Lowering(program, columns=columns)
    _add_inputs(low)
    low.values |= {name: Value(value.shape, constant=value) for name, value in graph.weights.items()}

    outputs = {value.name for value in graph.outputs}
    by_mode = {mode: _needed(nodes, outputs.intersection(mode)) for mode in (_DETERMINISTIC, _SAMPLED)}
    for node in nodes:
        deterministic, sampled = (node.outputs[0] in by_mode[mode] for mode in (_DETERMINISTIC, _SAMPLED))
        if not deterministic and not sampled:
            continue
        constant = _folded(low, node)
        if constant is not None:
            low.values[node.outputs[0]] = Value(constant.shape, constant=constant)
            continue
        if node.operator not in OPERATORS or (node.operator in RANDOM and deterministic):
            low.unsupported(node)
        low.next_step()
        body = OPERATORS[node.operator](low, node, *(low.values[name] for name in node.inputs if name))
        steps = program.common if deterministic and sampled else program.sampled if sampled else program.deterministic
        if body:
            value = low.values[node.outputs[0]]
            shape = " x ".join(str(size) for axis, size in enumerate(value.shape) if axis != value.agents)
            weights = [f": {name}" for name in node.inputs if "." in name]  # names in the module's state dict
            steps.append(Step(f"{node.operator}, {shape or 1}{''.join(weights[:1])}", body))
    for steps, mode in ((program.deterministic, _DETERMINISTIC), (program.sampled, _SAMPLED)):
        low.next_step()
        steps.append(Step("the decision", list(_results(low, mode))))
    program.plan_workspace()
    return program


def _add_inputs(low: Lowering) -> None:
    program = low.program
    for index, sensor in enumerate(program.sensors):
        array = program.add(Array(ArrayRole.OBSERVATION, sensor.size, f"observation{index}"))
        low.values[contract.observation_name(index)] = Value((1, *sensor.shape), 0, Place(array))
    if program.branches:
        size = sum(program.branches)
        mask = Place(program.add(Array(ArrayRole.MASK, size)))
        target = low.define(contract.ACTION_MASKS, (1, size), 0)

        def allow(at: list[Place]) -> Body:
            given, allowed = map(str, at)
            # Without a mask, all actions are allowed.
            return [If("has_mask", [Set(allowed, given)], [Set(allowed, "1.0")])]

        program.common.append(Step("the mask", low.nest((size,), [(mask, (1,)), (target, (1,))], allow)))
    if program.memory_size:
        array = program.add(Array(ArrayRole.MEMORY, program.memory_size))
        low.values[contract.RECURRENT_IN] = Value((1, 1, program.memory_size), 0, Place(array))


def _results(low: Lowering, mode: tuple[str, str, str]) -> Iterable[Statement]:
    program = low.program
    continuous, discrete, memory = mode
    for name, role, size in (
        (continuous, ArrayRole.CONTINUOUS, program.continuous_size),
        (discrete, ArrayRole.DISCRETE, len(program.branches)),
        (memory, ArrayRole.MEMORY, program.memory_size),
    ):
        if not size:
            continue
        source = low.place(low.values[name])
        array = next((k for k, array in enumerate(program.arrays) if array.role is role), None)
        target = Place(program.add(Array(role, size)) if array is None else array)
        i = low.loop()
        element = str(source.plus(0, (i, 1)))
        found = f"int({element})" if role is ArrayRole.DISCRETE else element
        yield For(i, size, [Set(str(target.plus(0, (i, 1))), found)])


def _needed(nodes: list[Node], outputs: set[str]) -> set[str]:
    """Return all values that these outputs depend on."""
    needed = set(outputs)
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs, node.outputs)
    return needed


def _with_swish(nodes: list[Node]) -> list[Node]:
    """Replace each pair of Sigmoid and Mul that computes Swish by a single node."""
    uses = Counter(name for node in nodes for name in node.inputs)
    single = (node for node in nodes if node.operator == "Sigmoid" and uses[node.outputs[0]] == 1)
    sigmoids = {node.outputs[0]: node.inputs[0] for node in single}
    found: list[Node] = []
    for node in nodes:
        x, *others = node.inputs or ("",)
        if node.operator == "Mul" and others and sigmoids.get(others[0]) == x:
            found = [other for other in found if other.outputs[0] != others[0]]
            node = Node(SWISH, (x,), node.outputs, {})
        found.append(node)
    return found


def _folded(low: Lowering, node: Node) -> NDArray[np.generic] | None:
    """Compute the value of a node that depends only on constants. Return None for other nodes."""
    if node.operator == "Constant":
        return np.asarray(node.attributes["value"])
    known = {name: low.constant(name) for name in node.inputs}
    if not node.inputs or node.operator in RANDOM or any(value is None for value in known.values()):
        return None
    graph = GraphBuilder(contract.DEFAULT_OPSET)
    graph.operators.append(node)
    graph.weights |= {name: value for name, value in known.items() if value is not None}
    graph.outputs.append(ValueInfo(node.outputs[0], FLOAT, ()))
    (value,) = ReferenceEvaluator(graph.build("constant")).run(None, {})
    return np.asarray(value)


@dataclass(frozen=True, slots=True)
class Language:
    """A language that policies can be written in.

    Attributes:
        suffix: suffix of the files.
        write: returns the text of a file.
        columns: how to compute matrix products, depending on the language's compilers; see ``Lowering``.
        write_node: returns the text of a second file, whose name ends in ``Node`` and which uses the first file.
    """

    suffix: str
    write: Callable[[Program, Origin], str]
    columns: bool = False
    write_node: Callable[[Program, Origin], str] | None = None


LANGUAGES: Final[Mapping[str, Language]] = {
    "c": Language(".h", write_c, columns=True),
    "csharp": Language(".cs", write_csharp),
    "js": Language(".mjs", write_javascript),
    "gdscript": Language(".gd", write_gdscript),
    # Also has a node for agents of the Godot RL Agents plugin.
    "godot": Language(".gd", write_gdscript, write_node=write_node),
}


def export_source(actor: Actor, spec: BehaviorSpec, path: Path, language: Language, origin: Origin) -> None:
    """Write a policy as source code. Each file is written completely or not at all.

    Args:
        actor: the policy network, trained or not, on any device.
        spec: spec of the behavior.
        path: path of the file. An existing file is replaced.
        language: one of ``LANGUAGES``.
        origin: where the policy comes from, for the comment at the top.

    Raises:
        ExportError: an operator is not supported, there are too many weights, or the file cannot be written.
    """
    size = sum(parameter.numel() for parameter in actor.parameters())
    if size > MOST_WEIGHTS:
        raise ExportError(
            f"The policy has {size:,} weights, but source code can have at most {MOST_WEIGHTS:,}. Use its .onnx "
            "instead (the same command without --to)."
        )
    program = build_program(actor, spec, columns=language.columns)
    texts = {path: language.write(program, origin)}
    if language.write_node is not None:
        texts[path.with_stem(f"{path.stem}Node")] = language.write_node(program, origin)
    try:
        for file, text in texts.items():
            atomic.write_text(file, text)
    except OSError as error:
        raise ExportError(f"The policy could not be written to {path}: {error.strerror or error}.") from error
