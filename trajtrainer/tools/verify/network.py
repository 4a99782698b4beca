"""A policy as the distribution over actions that it gives for recorded observations.

An exported model draws its actions inside the graph. Here the noise is an input, and what is drawn from is an output,
so that recorded actions can be compared with the whole distribution. Checkpoints are exported in memory first.

Shape legend: N decisions, E sequences, O an observation's own shape, C continuous actions, D sum of branch sizes,
H memory size.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
DEFAULT_LIMIT: Final = 3.0  # of raw continuous actions in ML-Agents


class MemoryHandling(enum.Enum):
    """What becomes of an LSTM's memory from one decision to the next."""

    KEPT = "kept"  # within an episode, as it should be
    NEVER_CLEARED = "never cleared"
    ALWAYS_CLEARED = "always cleared"


@dataclass(frozen=True, slots=True)
class Question:
    """What a policy was asked in N decisions, one after the other.

    Attributes:
        obs: per sensor f32 [N, *O].
        mask: bool [N, D], True = forbidden.
        starts: bool [N], the first decision of an episode.
    """

    obs: tuple[FloatArray, ...]
    mask: BoolArray
    starts: BoolArray

    def __len__(self) -> int:
        return len(self.mask)

    def with_sensor(self, number: int, values: FloatArray) -> Question:
        """The same with other values of one sensor."""
        return replace(self, obs=(*self.obs[:number], values, *self.obs[number + 1 :]))


@dataclass(frozen=True, slots=True)
class Answer:
    """Distributions over the actions of N decisions.

    Attributes:
        mode: what is done deterministically, f32 [N, C], within [-1, 1].
        mean, spread: of the Gaussians before they are limited, f32 [N, C]; None where the model does not draw.
        limit: raw actions are cut off there and divided by it; 0 if they are squashed by tanh.
        log_probs: per branch f32 [N, size].
        is_drawn: whether the model can draw its discrete actions.
    """

    mode: FloatArray
    mean: FloatArray | None
    spread: FloatArray | None
    limit: float
    log_probs: tuple[FloatArray, ...]
    is_drawn: bool


@dataclass(frozen=True, slots=True)
class Normalization:
    """The first operators behind a vector sensor: ``clip((x - mean) / deviation, -limit, limit)``."""

    mean: FloatArray
    deviation: FloatArray
    limit: float
    output: str

    def __call__(self, values: FloatArray) -> FloatArray:
        """Normalize f32 [N, size]."""
        found: FloatArray = np.clip((values - self.mean) / self.deviation, -self.limit, self.limit).astype(np.float32)
        return found


class Network:
    """A model that was taken apart.

    Args:
        model: to be run; not changed.
        report: on it.
        name: for messages.

    Attributes:
        shapes: input -> [*O] of the sensors that the model reads.
        normalizations: number of the sensor -> what is done to it first.

    Raises:
        SettingsError: the package onnxruntime is missing.
    """

    def __init__(self, model: onnx.ModelProto, report: Report, name: str) -> None:
        self.name = name
        self.report = report
        self.shapes: dict[str, tuple[Any, ...]] = sensor_shapes(report)
        self._model = model
        self.normalizations = {} if report.is_legacy else dict(_normalizations(model.graph))
        self._opened = _Opened(model, report)

    @property
    def memory_size(self) -> int:
        """H; 0 without a memory."""
        return self.report.memory_size

    @cached_property
    def sensor_shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """What the model takes of each sensor, up to the last that it reads; None of one that it does not read."""
        if self.report.is_legacy:
            return tuple(self.shapes.values())
        numbers = {int(name.removeprefix(contract.OBSERVATION_PREFIX)): shape for name, shape in self.shapes.items()}
        return tuple(numbers.get(number) for number in range(max(numbers, default=-1) + 1))

    def takes(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether sensors of these shapes can be fed to it."""
        if self.report.is_legacy:
            named = sensor_inputs(self.report, [np.zeros((0, *shape), np.float32) for shape in shapes])
            return {name: value.shape[1:] for name, value in named.items()} == self.shapes
        wanted = self.sensor_shapes
        return len(wanted) <= len(shapes) and all(
            own is None or own == given for own, given in zip(wanted, shapes, strict=False)
        )

    def without_normalization(self, sensors: Sequence[int]) -> Network:
        """The network as if these sensors were not normalized."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        replaced = {self.normalizations[sensor].output: contract.observation_name(sensor) for sensor in sensors}
        for node in model.graph.node:
            for place, name in enumerate(node.input):
                node.input[place] = replaced.get(name, name)
        return Network(model, self.report, self.name)

    def answer(self, question: Question, memory: MemoryHandling = MemoryHandling.KEPT) -> Answer:
        """The distributions for all decisions, whose sensors must fit.

        Raises:
            CheckpointError: they are not numbers.
        """
        size = self.memory_size
        if size and memory is not MemoryHandling.ALWAYS_CLEARED:
            found = self._in_order(question, cleared=memory is MemoryHandling.KEPT)
        else:
            rows = [slice(start, start + _BATCH) for start in range(0, len(question), _BATCH)]
            parts = [self._run(question, each, np.zeros((len(question.mask[each]), size), np.float32)) for each in rows]
            found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if any(np.isnan(value).any() for value in found.values()):
            raise CheckpointError(
                f"The model {self.name} gives actions that are not numbers for what was recorded. Its weights are "
                "damaged: take an earlier checkpoint."
            )
        return self._opened.answer(found)

    def _in_order(self, question: Question, *, cleared: bool) -> dict[str, NDArray[Any]]:
        """Run decision by decision; all episodes at once if each begins with an empty memory."""
        begins = np.flatnonzero(question.starts) if cleared else np.zeros(1, np.int64)
        lengths = np.diff([*begins, len(question)])
        memory = np.zeros((len(begins), self.memory_size), np.float32)
        found: dict[str, NDArray[Any]] = {}
        for step in range(int(lengths.max())):
            alive = np.flatnonzero(lengths > step)
            rows = begins[alive] + step
            part = self._run(question, rows, memory[alive])
            memory[alive] = part[contract.RECURRENT_OUT][:, 0]
            for name, value in part.items():
                if name not in found:
                    found[name] = np.zeros((len(question), *value.shape[1:]), value.dtype)
                found[name][rows] = value
        return found

    def _run(self, question: Question, rows: Any, memory: FloatArray) -> dict[str, NDArray[Any]]:
        feed = sensor_inputs(self.report, [sensor[rows] for sensor in question.obs])
        feed[contract.ACTION_MASKS] = (~question.mask[rows]).astype(np.float32)
        feed[contract.RECURRENT_IN] = memory[:, None, :]
        feed[_NOISE] = np.ones((len(memory), self.report.continuous_size), np.float32)
        return self._opened.run(feed)


class _Opened:
    """A session whose outputs are the parts of the distribution; the noise, an input, is 1 everywhere."""

    def __init__(self, model: onnx.ModelProto, report: Report) -> None:
        self._report = report
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

    def run(self, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        values = self._session.run(self._outputs, {name: feed[name] for name in self._inputs})
        return dict(zip(self._outputs, values, strict=True))

    def answer(self, found: Mapping[str, NDArray[Any]]) -> Answer:
        rows, branches = len(next(iter(found.values()))), self._report.discrete_branches
        mode = np.zeros((rows, 0), np.float32)
        mean = spread = None
        limit = DEFAULT_LIMIT
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
            parts = np.split(together[0], np.cumsum(branches)[:-1], axis=1) if self._report.is_legacy else together
            log_probs = [log_softmax(part.astype(np.float64)) for part in parts] if branches else []
        return Answer(mode, mean, spread, limit, tuple(log_probs), is_drawn=not self._choices)


def _expose_gaussian(graph: onnx.GraphProto) -> list[str]:
    """Make the noise an input. Return the values that are mean and, for a noise of 1, spread; none without noise."""
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


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Of each row."""
    found: NDArray[np.float64] = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return found


def _limit(raw: FloatArray, given: FloatArray) -> float:
    """Where raw actions are cut off, by what the model makes of some; 0 if it squashes them."""
    if np.allclose(np.tanh(raw), given, atol=1e-4):
        return 0.0
    inside = (np.abs(given) < 0.999) & (np.abs(given) > 1e-3)
    return float(np.median(raw[inside] / given[inside])) if inside.any() else DEFAULT_LIMIT


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
            clip = chain[2]  # its upper limit is an attribute or, in later opsets, an input
            limits = [float(attribute.f) for attribute in clip.attribute if attribute.name == "max"]
            limits += [float(numpy_helper.to_array(constants[each])) for each in clip.input[2:3] if each in constants]
            yield int(number), Normalization(mean, deviation, [*limits, float("inf")][0], name)


def network_of_file(path: Path) -> Network:
    """The network of an exported model.

    Raises:
        CheckpointError: it is none, or cannot act.
        SettingsError: the package onnxruntime is missing.
    """
    report = inspect_model(path)
    _check(report, str(path))
    return Network(onnx.load(str(path), load_external_data=False), report, str(path))


def network_of_model(model: onnx.ModelProto, name: str) -> Network:
    """The network of a model in memory. Errors as ``network_of_file``."""
    report = Report(path=Path(name))
    inspect_graph(model, report)
    _check(report, name)
    return Network(model, report, name)


def _check(report: Report, name: str) -> None:
    problems = list(report.errors)
    own = (contract.OBSERVATION_PREFIX, contract.LEGACY_VECTOR, contract.LEGACY_VISUAL_PREFIX)
    for tensor in report.inputs:
        if tensor.name in contract.ALSO_ACCEPTED_INPUTS:
            problems.append(f"it takes the input {tensor.name!r}, which only trainers before ML-Agents 1.4 export")
        elif tensor.name.startswith(own) and not all(isinstance(size, int) for size in tensor.shape[1:]):
            problems.append(f"it does not say the shape of {tensor.name}")
    if problems:
        raise CheckpointError(f"The model {name} cannot act: {'; '.join(problems)}.")
