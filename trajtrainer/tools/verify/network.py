"""Runs a policy on recorded observations, and returns its distributions over actions.

An exported model samples its actions inside the graph. Here, the noise is turned into an input and the distribution
into an output, so that recorded actions can be compared with it. Checkpoints are first exported in memory.

Shape legend: N decisions, E sequences, O an observation's own shape, C continuous actions, D sum of branch sizes,
H memory size.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.steps import BoolArray, FloatArray
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.inspect import inspect_graph, inspect_model
from trajtrainer.policies.onnx.policy import open_session, sensor_inputs, sensor_shapes
from trajtrainer.policies.onnx.unity_names import Report

_NOISE: Final = "verified_noise"
_BATCH: Final = 256
_NORMALIZER: Final = ("Sub", "Div", "Clip")
_DEFAULT_LIMIT: Final = 3.0  # ML-Agents clips raw continuous actions to this


class MemoryHandling(enum.Enum):
    """What the game does with an LSTM's memory between two decisions."""

    KEPT = "kept"  # within an episode, which is correct
    NEVER_CLEARED = "never cleared"
    ALWAYS_CLEARED = "always cleared"


@dataclass(frozen=True, slots=True)
class Question:
    """The inputs of a policy in N consecutive decisions.

    Attributes:
        obs: observations per sensor, f32 [N, *O].
        mask: bool [N, D], True = forbidden.
        starts: bool [N], True for the first decision of an episode.
    """

    obs: tuple[FloatArray, ...]
    mask: BoolArray
    starts: BoolArray

    def __len__(self) -> int:
        return len(self.mask)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each sensor's observation."""
        return [values.shape[1:] for values in self.obs]

    def with_sensor(self, number: int, values: FloatArray) -> Question:
        """Return the same question with other values of one sensor."""
        return replace(self, obs=(*self.obs[:number], values, *self.obs[number + 1 :]))


@dataclass(frozen=True, slots=True)
class Answer:
    """Distributions over the actions of N decisions.

    Attributes:
        mode: the deterministic actions, f32 [N, C], within [-1, 1].
        mean, spread: mean and standard deviation of the Gaussians before actions are limited, f32 [N, C]; None if the
            model does not sample.
        limit: limit that raw actions are clipped to and divided by; 0 if they are squashed by tanh.
        log_probs: log-probabilities per branch, f32 [N, size].
        is_sampled: True if the model can sample its discrete actions.
    """

    mode: FloatArray
    mean: FloatArray | None
    spread: FloatArray | None
    limit: float
    log_probs: tuple[FloatArray, ...]
    is_sampled: bool

    def at(self, rows: Any) -> Answer:
        """Return the distributions of some of the decisions."""
        mean, spread = (None if each is None else each[rows] for each in (self.mean, self.spread))
        log_probs = tuple(each[rows] for each in self.log_probs)
        return replace(self, mode=self.mode[rows], mean=mean, spread=spread, log_probs=log_probs)


@dataclass(frozen=True, slots=True)
class Normalization:
    """The operators that normalize a vector sensor: ``clip((x - mean) / deviation, -limit, limit)``."""

    mean: FloatArray
    deviation: FloatArray
    limit: float
    output: str

    def __call__(self, values: FloatArray) -> FloatArray:
        """Normalize f32 [N, size]."""
        found: FloatArray = np.clip((values - self.mean) / self.deviation, -self.limit, self.limit).astype(np.float32)
        return found


class Network:
    """A model that takes the noise as an input and returns the parameters of its distribution.

    Args:
        model: the model to run, which is not changed.
        report: the report of the model's inspection.
        name: name of the model for messages.

    Attributes:
        shapes: input -> shape [*O], for the sensors that the model reads.
        normalizations: number of the sensor -> its normalization.

    Raises:
        SettingsError: the package onnxruntime is not installed.
    """

    def __init__(self, model: onnx.ModelProto, report: Report, name: str) -> None:
        self.name = name
        self.report = report
        self.shapes: dict[str, tuple[Any, ...]] = sensor_shapes(report)
        self.normalizations = {} if report.is_legacy else dict(_normalizations(model.graph))
        self._model = model
        opened = onnx.ModelProto()
        opened.CopyFrom(model)
        graph = opened.graph
        present = {output.name for output in graph.output}
        wanted = (contract.CONTINUOUS_ACTIONS, contract.DETERMINISTIC_CONTINUOUS)
        self._continuous = [str(name) for name in wanted if name in present]
        if report.is_legacy and report.continuous_size:
            self._continuous = [report.legacy_output(contract.CONTINUOUS_ACTIONS)]
        self._gaussian = _expose_gaussian(graph)
        legacy = report.is_legacy and report.discrete_branches
        self._logits = [report.legacy_output(contract.DISCRETE_ACTIONS)] if legacy else []
        self._logits += [node.input[0] for node in graph.node if node.op_type == "Multinomial"]
        mode = contract.DETERMINISTIC_DISCRETE
        mode = mode if mode in present else contract.DISCRETE_ACTIONS
        self._choices = [] if self._logits or not report.discrete_branches else [mode]
        memory = [contract.RECURRENT_OUT] if report.memory_size else []
        outputs = [*self._continuous, *self._gaussian, *self._logits, *self._choices, *memory]
        self._outputs = list(dict.fromkeys(outputs))
        kept = [output for output in graph.output if output.name in self._outputs]
        hidden = [name for name in self._outputs if name not in present]
        kept += [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in hidden]
        del graph.output[:]
        graph.output.extend(kept)
        self._session = open_session(opened, report.path)
        self._inputs = frozenset(each.name for each in self._session.get_inputs())

    @property
    def memory_size(self) -> int:
        """The memory size H; 0 without a memory."""
        return self.report.memory_size

    @property
    def sensor_shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """Shape of each sensor up to the last one that the model reads; None for sensors that it does not read."""
        if self.report.is_legacy:
            return tuple(self.shapes.values())
        numbers = {int(name.removeprefix(contract.OBSERVATION_PREFIX)): shape for name, shape in self.shapes.items()}
        return tuple(numbers.get(number) for number in range(max(numbers, default=-1) + 1))

    def takes(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Return whether the model accepts sensors with these shapes."""
        if self.report.is_legacy:
            named = sensor_inputs(self.report, [np.zeros((0, *shape), np.float32) for shape in shapes])
            return {name: value.shape[1:] for name, value in named.items()} == self.shapes
        wanted = self.sensor_shapes
        return len(wanted) <= len(shapes) and all(
            own is None or own == given for own, given in zip(wanted, shapes, strict=False)
        )

    def without_normalization(self, sensors: Sequence[int]) -> Network:
        """Return a copy of the network that does not normalize these sensors."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        replaced = {self.normalizations[sensor].output: contract.observation_name(sensor) for sensor in sensors}
        for node in model.graph.node:
            for place, name in enumerate(node.input):
                node.input[place] = replaced.get(name, name)
        return Network(model, self.report, self.name)

    def answer(self, question: Question, memory: MemoryHandling = MemoryHandling.KEPT) -> Answer:
        """Return the distributions for all decisions. The sensors must have the shapes that the model takes.

        Raises:
            CheckpointError: the actions are NaN.
        """
        if self.memory_size and memory is not MemoryHandling.ALWAYS_CLEARED:
            begins = np.flatnonzero(question.starts) if memory is MemoryHandling.KEPT else np.zeros(1, np.int64)
        else:
            begins = np.arange(len(question))
        # Process all sequences together, decision by decision, because each needs the memory of the previous decision.
        lengths = np.diff([*begins, len(question)])
        state = np.zeros((len(begins), self.memory_size), np.float32)
        found: dict[str, NDArray[Any]] = {}
        for step in range(int(lengths.max())):
            alive = np.flatnonzero(lengths > step)
            for batch in np.split(alive, range(_BATCH, len(alive), _BATCH)):
                rows = begins[batch] + step
                part = self._run(question, rows, state[batch])
                if self.memory_size:
                    state[batch] = part[contract.RECURRENT_OUT][:, 0]
                for name, value in part.items():
                    found.setdefault(name, np.zeros((len(question), *value.shape[1:]), value.dtype))[rows] = value
        if any(np.isnan(value).any() for value in found.values()):
            raise CheckpointError(
                f"The model {self.name} returns NaN for the recorded observations. Its weights are damaged: use an "
                "earlier checkpoint."
            )
        return self._distributions(found)

    def _run(self, question: Question, rows: Any, memory: FloatArray) -> dict[str, NDArray[Any]]:
        feed = sensor_inputs(self.report, [sensor[rows] for sensor in question.obs])
        feed[contract.ACTION_MASKS] = (~question.mask[rows]).astype(np.float32)
        feed[contract.RECURRENT_IN] = memory[:, None, :]
        feed[_NOISE] = np.ones((len(memory), self.report.continuous_size), np.float32)
        values = self._session.run(self._outputs, {name: feed[name] for name in self._inputs})
        return dict(zip(self._outputs, values, strict=True))

    def _distributions(self, found: dict[str, NDArray[Any]]) -> Answer:
        rows, branches = len(next(iter(found.values()))), self.report.discrete_branches
        mode = np.zeros((rows, 0), np.float32)
        mean = spread = None
        limit = _DEFAULT_LIMIT
        if self._continuous:
            mode = np.clip(found[self._continuous[-1]], -1.0, 1.0)
            if self._gaussian:
                mean, spread = (found[name] for name in self._gaussian)
                limit = _limit(mean + spread, found[self._continuous[0]])
                if contract.DETERMINISTIC_CONTINUOUS not in self._continuous:
                    mode = np.tanh(mean) if limit == 0 else np.clip(mean, -limit, limit) / limit
        if self._choices:
            chosen = found[self._choices[0]]
            log_probs = [np.where(np.eye(size)[chosen[:, k]] > 0, 0.0, -np.inf) for k, size in enumerate(branches)]
        else:
            together = [found[name] for name in self._logits]
            parts = np.split(together[0], np.cumsum(branches)[:-1], axis=1) if self.report.is_legacy else together
            log_probs = [_log_softmax(part.astype(np.float64)) for part in parts] if branches else []
        return Answer(mode, mean, spread, limit, tuple(log_probs), is_sampled=not self._choices)


def _expose_gaussian(graph: onnx.GraphProto) -> list[str]:
    """Turn the noise into an input. Return the names of the values with the mean and, for noise of 1, the spread.

    The list is empty if the graph has no noise.
    """
    normals = [node for node in graph.node if node.op_type in ("RandomNormalLike", "RandomNormal")]
    if len(normals) != 1 or not normals[0].input:
        return []
    scaled = [node for node in graph.node if normals[0].output[0] in node.input]
    if len(scaled) != 1 or scaled[0].op_type != "Mul":
        return []
    for place, name in enumerate(scaled[0].input):
        if name == normals[0].output[0]:
            scaled[0].input[place] = _NOISE
    graph.node.remove(normals[0])
    graph.input.append(helper.make_tensor_value_info(_NOISE, TensorProto.FLOAT, ["batch", "continuous"]))
    return [normals[0].input[0], scaled[0].output[0]]


def _log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return found


def _limit(raw: FloatArray, given: FloatArray) -> float:
    """Infer the limit that raw actions are clipped to, from the actions that they become; 0 if they are squashed."""
    if np.allclose(np.tanh(raw), given, atol=1e-4):
        return 0.0
    inside = (np.abs(given) < 0.999) & (np.abs(given) > 1e-3)
    return float(np.median(raw[inside] / given[inside])) if inside.any() else _DEFAULT_LIMIT


def _normalizations(graph: onnx.GraphProto) -> Iterator[tuple[int, Normalization]]:
    constants = {each.name: each for each in graph.initializer}
    constants |= {
        node.output[0]: helper.get_attribute_value(node.attribute[0])
        for node in graph.node
        if node.op_type == "Constant" and node.attribute
    }
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for value in graph.input:
        number = value.name.removeprefix(contract.OBSERVATION_PREFIX)
        if number == value.name or not number.isdecimal():
            continue
        chain: list[onnx.NodeProto] = []
        name = value.name
        for operator in _NORMALIZER:
            found = [node for node in readers.get(name, []) if node.op_type == operator and node.input[0] == name]
            if len(found) != 1:
                break
            chain += found
            name = found[0].output[0]
        if len(chain) == len(_NORMALIZER) and all(node.input[1] in constants for node in chain[:2]):
            mean, deviation = (numpy_helper.to_array(constants[node.input[1]]) for node in chain[:2])
            clip = chain[2]  # the upper limit is an attribute or, in newer opsets, an input
            limits = [float(attribute.f) for attribute in clip.attribute if attribute.name == "max"]
            limits += [float(numpy_helper.to_array(constants[each])) for each in clip.input[2:3] if each in constants]
            yield int(number), Normalization(mean, deviation, [*limits, float("inf")][0], name)


def network_of_file(path: Path) -> Network:
    """Load the network of an exported model.

    Raises:
        CheckpointError: the file is not a policy model, or the model has no actions.
        SettingsError: the package onnxruntime is not installed.
    """
    report = inspect_model(path)
    _check(report, str(path))
    return Network(onnx.load(str(path), load_external_data=False), report, str(path))


def network_of_model(model: onnx.ModelProto, name: str) -> Network:
    """Make the network of a model in memory. Raises the same errors as ``network_of_file``."""
    report = Report(path=Path(name))
    inspect_graph(model, report)
    _check(report, name)
    return Network(model, report, name)


def _check(report: Report, name: str) -> None:
    problems = list(report.errors)
    own = (contract.OBSERVATION_PREFIX, contract.LEGACY_VECTOR, contract.LEGACY_VISUAL_PREFIX)
    for tensor in report.inputs:
        if tensor.name in contract.ALSO_ACCEPTED_INPUTS:
            problems.append(f"it has the input {tensor.name!r}, which only trainers before ML-Agents 1.4 export")
        elif tensor.name.startswith(own) and not all(isinstance(size, int) for size in tensor.shape[1:]):
            problems.append(f"it does not define the shape of {tensor.name}")
    if problems:
        raise CheckpointError(f"The model {name} cannot be used: {'; '.join(problems)}.")
