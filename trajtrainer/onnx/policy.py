"""Acts with an exported ``.onnx`` as a policy does, by the inputs and outputs of the contract with Unity.

Shape legend: N agents, D sum of branch sizes, H memory size, O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trajtrainer.algos.acting import PolicyDivergedError
from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.core.spec import USUAL_PROPERTIES, ActionSpec, BehaviorSpec, ObservationSpec, ObservationType
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, ObservationArray
from trajtrainer.onnx import contract, legacy
from trajtrainer.onnx.inspect import inspect_model
from trajtrainer.onnx.report import Report

_RANDOM = frozenset({"RandomNormalLike", "RandomUniformLike", "RandomNormal", "RandomUniform", "Multinomial"})
# Whole numbers up to here are exact as 32-bit floats, which is what the operators' attribute is.
_LARGEST_SEED = 2**24
_PIXEL_MAX = np.float32(255.0)


class OnnxPolicy:
    """Decides for agents with an exported model, on the CPU.

    It has what ``algos.acting.Policy`` has to act. What a model does not tell (how it sampled: log-probabilities and
    entropy) is NaN, and ``continuous`` is what the environment receives.

    Args:
        path: of the model, of any ML-Agents from 1.0 on or of ours.
        seed: of its random operators.
        deterministic: take the mean and the likeliest branch instead of sampling.

    Raises:
        CheckpointError: it cannot act: no such file, damaged, or other inputs and outputs than Unity knows.
        SettingsError: the package onnxruntime is missing.
    """

    version = 0

    def __init__(self, path: Path, *, seed: int, deterministic: bool = False) -> None:
        self.path = path
        self.deterministic = deterministic
        self._report = _inspected(path, deterministic=deterministic)
        self._inputs = frozenset(tensor.name for tensor in self._report.inputs)
        self._outputs = list(self._wanted_outputs())
        self._session = _session(path, seed)
        self._random = np.random.default_rng(seed)

    @property
    def memory_size(self) -> int:
        """H; 0 without a memory."""
        return self._report.memory_size

    def spec(self) -> BehaviorSpec:
        """Return what its agents see and do. Of sensors a model tells the shape alone, neither name nor purpose.

        Raises:
            CheckpointError: it leaves out a sensor before others.
        """
        shapes = self._sensor_shapes()
        names = [contract.observation_name(sensor) for sensor in range(len(shapes))]
        if self._report.is_legacy:
            names = list(shapes)
        if shapes.keys() != set(names) or not all(isinstance(size, int) for shape in shapes.values() for size in shape):
            raise CheckpointError(
                f"The model {self.path} does not tell the shapes of all its sensors, only {', '.join(sorted(shapes))}. "
                "Take the checkpoint of the same policy."
            )
        action = ActionSpec(self._report.continuous_size, tuple(self._report.discrete_branches))
        return BehaviorSpec([_sensor(name, shapes[name]) for name in names], action)

    def misfits(self, spec: BehaviorSpec) -> Iterator[str]:
        """Tell what of a behaviour differs from what the model takes and gives. Sensors it does not read may differ."""
        action = spec.action_spec
        held = (self._report.continuous_size, tuple(self._report.discrete_branches))
        wanted = (int(action.continuous_size), tuple(action.discrete_branches))
        if held != wanted:
            yield f"it has {held[0]} continuous actions and the branches {held[1]}, not {wanted[0]} and {wanted[1]}"
        # Only the shapes are of interest, so no agent is enough.
        found = self._named([np.zeros((0, *sensor.shape), np.float32) for sensor in spec.observation_specs])
        for name, shape in self._sensor_shapes().items():
            other = found[name].shape[1:] if name in found else "none"
            if other != shape:
                yield f"it takes {name} of shape {shape}, not {other}"

    def _sensor_shapes(self) -> dict[str, tuple[Any, ...]]:
        """Return input -> [*O] of every sensor that the model reads."""
        if self._report.is_legacy:
            return legacy.sensor_shapes(self._report)
        tensors = (tensor for tensor in self._report.inputs if tensor.name.startswith(contract.OBSERVATION_PREFIX))
        return {tensor.name: tensor.shape[1:] for tensor in tensors}

    def _named(self, obs: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return sensors [N, *O] by the names of the model's inputs."""
        if self._report.is_legacy:
            return legacy.name_sensors(obs, self._sensor_shapes())
        return {contract.observation_name(i): each for i, each in enumerate(obs)}

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        """Decide for N agents in one pass.

        Args:
            obs: per sensor f32 or u8 [N, *O].
            mask: bool [N, D], True = forbidden.
            memory: f32 [N, H].

        Raises:
            PolicyDivergedError: an action is NaN, or its probability.
        """
        number = len(mask)
        feed = self._named([_as_float(each) for each in obs])
        feed[contract.ACTION_MASKS] = (~mask).astype(np.float32)
        feed[contract.RECURRENT_IN] = memory[:, None, :]
        values = self._session.run(self._outputs, {name: feed[name] for name in self._inputs})
        found = dict(zip(self._outputs, values, strict=True))
        continuous = found.get(self._name_of_continuous, np.zeros((number, 0), np.float32))
        discrete = found.get(self._name_of_discrete, np.zeros((number, 0), np.int64))
        if np.isnan(continuous).any() or np.isnan(discrete).any():
            raise PolicyDivergedError(
                f"The model {self.path} gave NaN as action. Its weights, or observations, are NaN."
            )
        if self._report.is_legacy and self._report.discrete_branches:
            branches = self._report.discrete_branches
            discrete = legacy.choose(discrete, mask, branches, self._random, deterministic=self.deterministic)
        # Deterministic actions of SAC models of ML-Agents are not squashed.
        continuous = np.clip(continuous, -1.0, 1.0)
        unknown = np.full((number, continuous.shape[1] + discrete.shape[1]), np.nan, np.float32)
        return ActionBatch(
            continuous=continuous,
            discrete=discrete.astype(np.int32),
            env_continuous=continuous,
            log_prob=unknown,
            entropy=np.full(number, np.nan, np.float32),
            memory=found[contract.RECURRENT_OUT][:, 0] if self.memory_size else memory,
            version=self.version,
        )

    @property
    def _name_of_continuous(self) -> str:
        if self._report.is_legacy:
            return legacy.continuous_output(self._report)
        return contract.DETERMINISTIC_CONTINUOUS if self.deterministic else contract.CONTINUOUS_ACTIONS

    @property
    def _name_of_discrete(self) -> str:
        if self._report.is_legacy:
            return legacy.discrete_output(self._report)
        return contract.DETERMINISTIC_DISCRETE if self.deterministic else contract.DISCRETE_ACTIONS

    def _wanted_outputs(self) -> Iterator[str]:
        if self._report.continuous_size:
            yield self._name_of_continuous
        if self._report.discrete_branches:
            yield self._name_of_discrete
        if self.memory_size:
            yield contract.RECURRENT_OUT


def _sensor(name: str, shape: tuple[Any, ...]) -> ObservationSpec:
    return ObservationSpec(shape, USUAL_PROPERTIES[len(shape)], ObservationType.DEFAULT, name)


def _inspected(path: Path, *, deterministic: bool) -> Report:
    """Return the report on a model that can act.

    Raises:
        CheckpointError: it cannot.
    """
    report = inspect_model(path)
    problems = list(report.errors) or list(_obstacles(report, deterministic=deterministic))
    if problems:
        raise CheckpointError(f"The model {path} cannot act: {'; '.join(problems)}.")
    return report


def _obstacles(report: Report, *, deterministic: bool) -> Iterator[str]:
    """Tell what Unity does with a model, and this class does not."""
    own = {contract.ACTION_MASKS, contract.RECURRENT_IN}
    sensors = (contract.OBSERVATION_PREFIX, contract.LEGACY_VECTOR, contract.LEGACY_VISUAL_PREFIX)
    for tensor in report.inputs:
        if tensor.name not in own and not tensor.name.startswith(sensors):
            yield f"it takes the input {tensor.name!r}, which no trainer exports any more"
        if tensor.shape and isinstance(tensor.shape[0], int):
            yield f"{tensor.name}: the number of agents is fixed in the file"
    outputs = {tensor.name for tensor in report.outputs}
    wanted = [contract.DETERMINISTIC_CONTINUOUS] * bool(report.continuous_size)
    wanted += [contract.DETERMINISTIC_DISCRETE] * bool(report.discrete_branches and not report.is_legacy)
    if deterministic and not outputs.issuperset(wanted):
        yield f"it lacks {' and '.join(wanted)}, as older ones do; leave --deterministic out"


def open_session(model: onnx.ModelProto, path: Path) -> Any:
    """Return an ``InferenceSession`` of a model, on one core.

    Raises:
        SettingsError: the package onnxruntime is missing; ``path`` is the model's, for the message.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise SettingsError(
            f"To act with {path} the package onnxruntime is needed, which is not installed. Install it with: pip "
            "install 'trajtrainer[onnx]'."
        ) from error
    options = onnxruntime.SessionOptions()
    # As torch: further threads slow small networks down as soon as anything else runs.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _session(path: Path, seed: int) -> Any:
    model = onnx.load(str(path), load_external_data=False)
    _seed(model, seed)
    return open_session(model, path)


def _seed(model: onnx.ModelProto, seed: int) -> None:
    """Give every random operator a seed of its own. Without one it draws other numbers in each process."""
    nodes = [node for node in model.graph.node if node.op_type in _RANDOM]
    seeds = np.random.default_rng(seed).integers(1, _LARGEST_SEED, len(nodes))
    for node, value in zip(nodes, seeds, strict=True):
        kept = [attribute for attribute in node.attribute if attribute.name != "seed"]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute("seed", float(value))])


def _as_float(observation: ObservationArray) -> FloatArray:
    return observation.astype(np.float32) / _PIXEL_MAX if observation.dtype == np.uint8 else observation  # type: ignore[return-value]
