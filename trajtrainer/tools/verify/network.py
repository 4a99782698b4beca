"""Runs a policy on recorded observations, and returns its distributions over actions.

An exported model samples its actions inside the graph. Here, the noise is turned into an input and the distribution
into an output, so that recorded actions can be compared with it. Checkpoints are first exported in memory.

Shape legend: N decisions, E sequences, O an observation's own shape, C continuous actions, D sum of branch sizes,
H memory size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.steps import FloatArray
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.inspect import inspect_graph, read_model
from trajtrainer.policies.onnx.policy import open_session, sensor_inputs, sensor_shapes
from trajtrainer.policies.onnx.unity_names import Report
from trajtrainer.tools.verify.recording import Question

_NOISE: Final = "verified_noise"
_BATCH: Final = 256
_NORMALIZER: Final = ("Sub", "Div", "Clip")
_DEFAULT_LIMIT: Final = 3.0  # ML-Agents clips raw continuous actions to this


@dataclass(frozen=True, slots=True)
class Answer:
    """Distributions over the actions of N decisions.

    Attributes:
        mode: the deterministic actions, f32 [N, C], within [-1, 1].
        gaussian: mean and standard deviation of the Gaussians before actions are limited, f32 [2, N, C]; None if the
            model does not sample.
        limit: limit that raw actions are clipped to and divided by; 0 if they are squashed by tanh.
        log_probs: log-probabilities per branch, f32 [N, size].
        is_sampled: True if the model can sample its discrete actions.
    """

    mode: FloatArray
    gaussian: FloatArray | None
    limit: float
    log_probs: tuple[FloatArray, ...]
    is_sampled: bool

    def at(self, rows: Any) -> Answer:
        """Return the distributions of some of the decisions."""
        gaussian = None if self.gaussian is None else self.gaussian[:, rows]
        log_probs = tuple(each[rows] for each in self.log_probs)
        return replace(self, mode=self.mode[rows], gaussian=gaussian, log_probs=log_probs)


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

    Attributes:
        shapes: input -> shape [*O], for the sensors that the model reads.
        normalizations: number of the sensor -> its normalization.
        memory_size: the memory size H; 0 without a memory.

    Raises:
        SettingsError: the package onnxruntime is not installed.
    """

    def __init__(self, model: onnx.ModelProto, report: Report) -> None:
        self.name = str(report.path)
        self.report = report
        self.memory_size = report.memory_size
        self.shapes: dict[str, tuple[Any, ...]] = sensor_shapes(report)
        self.normalizations = {} if report.is_legacy else dict(_normalizations(model.graph, self.shapes))
        self._model = model
        opened = onnx.ModelProto()
        opened.CopyFrom(model)
        graph = opened.graph
        present = {output.name: output for output in graph.output}
        wanted = (contract.CONTINUOUS_ACTIONS, contract.DETERMINISTIC_CONTINUOUS)
        self._continuous = [name for name in wanted if name in present]
        if report.is_legacy and report.continuous_size:
            self._continuous = [report.legacy_output(contract.CONTINUOUS_ACTIONS)]
        self._gaussian = _expose_gaussian(graph)
        legacy = report.is_legacy and report.discrete_branches
        self._logits = [report.legacy_output(contract.DISCRETE_ACTIONS)] if legacy else []
        self._logits += [node.input[0] for node in graph.node if node.op_type == "Multinomial"]
        mode = contract.DETERMINISTIC_DISCRETE
        mode = mode if mode in present else contract.DISCRETE_ACTIONS
        self._choices = [] if self._logits or not report.discrete_branches else [mode]
        memory = [contract.RECURRENT_OUT] * bool(self.memory_size)
        outputs = self._continuous + self._gaussian + self._logits + self._choices + memory
        self._outputs = list(dict.fromkeys(outputs))
        hidden = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self._outputs}
        values = [(hidden | present)[name] for name in self._outputs]
        del graph.output[:]
        graph.output.extend(values)
        self._session = open_session(opened, report.path)
        self._inputs = frozenset(each.name for each in self._session.get_inputs())

    def takes(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Return whether the model accepts sensors with these shapes."""
        named = sensor_inputs(self.report, [np.zeros((0, *shape), np.float32) for shape in shapes])
        found = {name: value.shape[1:] for name, value in named.items()}
        return found == self.shapes if self.report.is_legacy else self.shapes.items() <= found.items()

    def without_normalization(self, sensors: Sequence[int]) -> Network:
        """Return a copy of the network that does not normalize these sensors."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        names = {self.normalizations[sensor].output: contract.observation_name(sensor) for sensor in sensors}
        _rewire(model.graph.node, names)
        return Network(model, self.report)

    def answer(self, question: Question) -> Answer:
        """Return the distributions for all decisions. The sensors must have the shapes that the model takes.

        Raises:
            CheckpointError: the actions are NaN.
        """
        begins = np.flatnonzero(question.starts) if self.memory_size else np.arange(len(question))
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
        gaussian, limit = None, _DEFAULT_LIMIT
        if self._continuous:
            mode = np.clip(found[self._continuous[-1]], -1.0, 1.0)
            if self._gaussian:
                gaussian = np.stack([found[name] for name in self._gaussian])
                mean, spread = gaussian
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
        return Answer(mode, gaussian, limit, tuple(log_probs), is_sampled=not self._choices)


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
    _rewire(scaled, {normals[0].output[0]: _NOISE})
    graph.node.remove(normals[0])
    graph.input.append(helper.make_tensor_value_info(_NOISE, TensorProto.FLOAT, ["batch", "continuous"]))
    return [normals[0].input[0], scaled[0].output[0]]


def _rewire(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    """Replace the inputs of operators; ``names`` maps old names to new ones."""
    for node in nodes:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)


def _log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return found


def _limit(raw: FloatArray, given: FloatArray) -> float:
    """Infer the limit that raw actions are clipped to, from the actions that they become; 0 if they are squashed."""
    if np.allclose(np.tanh(raw), given, atol=1e-4):
        return 0.0
    inside = (np.abs(given) < 0.999) & (np.abs(given) > 1e-3)
    return float(np.median(raw[inside] / given[inside])) if inside.any() else _DEFAULT_LIMIT


def _normalizations(graph: onnx.GraphProto, sensors: Iterable[str]) -> Iterator[tuple[int, Normalization]]:
    constants = {each.name: each for each in graph.initializer}
    constants |= {
        node.output[0]: helper.get_attribute_value(node.attribute[0])
        for node in graph.node
        if node.op_type == "Constant" and node.attribute
    }
    for sensor in sensors:
        chain: list[onnx.NodeProto] = []
        name = sensor
        for operator in _NORMALIZER:
            found = [node for node in graph.node if node.op_type == operator and name in node.input[:1]]
            if len(found) == 1:
                chain += found
                name = found[0].output[0]
        if len(chain) == len(_NORMALIZER) and all(node.input[1] in constants for node in chain[:2]):
            mean, deviation = (numpy_helper.to_array(constants[node.input[1]]) for node in chain[:2])
            clip = chain[2]  # the upper limit is an attribute or, in newer opsets, an input
            limits = [float(attribute.f) for attribute in clip.attribute if attribute.name == "max"]
            limits += [float(numpy_helper.to_array(constants[each])) for each in clip.input[2:3] if each in constants]
            number = int(sensor.removeprefix(contract.OBSERVATION_PREFIX))
            yield number, Normalization(mean, deviation, [*limits, float("inf")][0], name)


def network_of_file(path: Path) -> Network:
    """Load the network of an exported model.

    Raises:
        CheckpointError: the file is not a policy model, or the model has no actions.
        SettingsError: the package onnxruntime is not installed.
    """
    report = Report(path)
    return _inspected(read_model(report), report)


def network_of_model(model: onnx.ModelProto, path: Path) -> Network:
    """Make the network of a model in memory, from the checkpoint ``path``. Raises the errors of ``network_of_file``."""
    return _inspected(model, Report(path))


def _inspected(model: onnx.ModelProto | None, report: Report) -> Network:
    if model is not None:
        inspect_graph(model, report)
    problems = list(report.errors)
    own = (contract.OBSERVATION_PREFIX, contract.LEGACY_VECTOR, contract.LEGACY_VISUAL_PREFIX)
    for tensor in report.inputs:
        if tensor.name in contract.ALSO_ACCEPTED_INPUTS:
            problems.append(f"it has the input {tensor.name!r}, which only trainers before ML-Agents 1.4 export")
        elif tensor.name.startswith(own) and not all(isinstance(size, int) for size in tensor.shape[1:]):
            problems.append(f"it does not define the shape of {tensor.name}")
    if problems or model is None:
        raise CheckpointError(f"The model {report.path} cannot be used: {'; '.join(problems)}.")
    return Network(model, report)
