"""A policy that acts with an exported ``.onnx`` model, using the inputs and outputs of the contract with Unity.

Models of ML-Agents 1.x (version 2) have a single input for all vectors and leave the sampling of discrete actions to
the caller.

Shape legend: N agents, K branches, D sum of branch sizes, H memory size, O shape of an observation.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.core.spec import USUAL_PROPERTIES, ActionSpec, BehaviorSpec, ObservationSpec, ObservationType
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, LongArray, ObservationArray
from trajtrainer.learning.algos.acting import PolicyDivergedError
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.inspect import inspect_model
from trajtrainer.policies.onnx.unity_names import Report

_RANDOM = frozenset({"RandomNormalLike", "RandomUniformLike", "RandomNormal", "RandomUniform", "Multinomial"})
# The operators' seed attribute is a 32-bit float, which represents integers up to this value exactly.
_LARGEST_SEED = 2**24
_PIXEL_MAX = np.float32(255.0)


class OnnxPolicy:
    """Decides for agents with an exported model on the CPU, like ``algos.acting.Policy``.

    Models do not return log-probabilities and entropy, so these are NaN. ``continuous`` contains the actions that the
    environment receives.

    Args:
        path: path of the model, exported by trajtrainer or by any version of ML-Agents since 1.0.
        seed: seed of the model's random operators.
        deterministic: use the mean and the most likely discrete actions instead of sampling.

    Raises:
        CheckpointError: the model cannot be used: the file is missing or damaged, or has inputs or outputs that Unity
            does not support.
        SettingsError: the package onnxruntime is missing.
    """

    version = 0

    def __init__(self, path: Path, *, seed: int, deterministic: bool = False) -> None:
        self.path = path
        self.deterministic = deterministic
        report = self._report = inspect_model(path)
        problems = list(report.errors) or list(_obstacles(report, deterministic=deterministic))
        if problems:
            raise CheckpointError(f"The model {path} cannot be used: {'; '.join(problems)}.")
        if report.is_legacy:
            self._continuous = report.legacy_output(contract.CONTINUOUS_ACTIONS)
            self._discrete = report.legacy_output(contract.DISCRETE_ACTIONS)
        elif deterministic:
            self._continuous, self._discrete = contract.DETERMINISTIC_CONTINUOUS, contract.DETERMINISTIC_DISCRETE
        else:
            self._continuous, self._discrete = contract.CONTINUOUS_ACTIONS, contract.DISCRETE_ACTIONS
        self._outputs = [self._continuous] if report.continuous_size else []
        self._outputs += [self._discrete] if report.discrete_branches else []
        self._outputs += [contract.RECURRENT_OUT] if report.memory_size else []
        model = onnx.load(str(path), load_external_data=False)
        # Every random operator gets its own seed. Without a seed, it would draw different numbers in each process.
        nodes = [node for node in model.graph.node if node.op_type in _RANDOM]
        self._random = np.random.default_rng(seed)
        seeds = self._random.integers(1, _LARGEST_SEED, len(nodes))
        for node, value in zip(nodes, seeds, strict=True):
            kept = [attribute for attribute in node.attribute if attribute.name != "seed"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("seed", float(value))])
        self._session = open_session(model, path)

    @property
    def memory_size(self) -> int:
        """H, the size of each agent's memory; 0 without a memory."""
        return self._report.memory_size

    def spec(self) -> BehaviorSpec:
        """Return the spec of the behavior. Models contain the shapes of the sensors, but not their names and types.

        Raises:
            CheckpointError: the model does not specify the shapes of all sensors.
        """
        shapes = sensor_shapes(self._report)
        names = [contract.observation_name(sensor) for sensor in range(len(shapes))]
        if self._report.is_legacy:
            names = list(shapes)
        if shapes.keys() != set(names) or not all(isinstance(size, int) for shape in shapes.values() for size in shape):
            raise CheckpointError(
                f"The model {self.path} does not specify the shapes of all its sensors, only those of "
                f"{', '.join(sorted(shapes))}. Use the checkpoint of the same policy."
            )
        named = [(shapes[name], name) for name in names]
        sensors = [ObservationSpec(s, USUAL_PROPERTIES[len(s)], ObservationType.DEFAULT, name) for s, name in named]
        return BehaviorSpec(sensors, ActionSpec(self._report.continuous_size, tuple(self._report.discrete_branches)))

    def mismatches(self, spec: BehaviorSpec) -> Iterator[str]:
        """Yield the differences between a behavior and the model's inputs and outputs.

        Sensors that the model does not read are ignored.
        """
        action = spec.action_spec
        held = (self._report.continuous_size, tuple(self._report.discrete_branches))
        wanted = (int(action.continuous_size), tuple(action.discrete_branches))
        if held != wanted:
            yield f"it has {held[0]} continuous actions and the branches {held[1]}, not {wanted[0]} and {wanted[1]}"
        # Only the shapes matter, so observations of zero agents are enough.
        none = [np.zeros((0, *sensor.shape), np.float32) for sensor in spec.observation_specs]
        found = sensor_inputs(self._report, none)
        for name, shape in sensor_shapes(self._report).items():
            other = found[name].shape[1:] if name in found else "none"
            if other != shape:
                yield f"it expects {name} of shape {shape}, not {other}"

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        """Decide for N agents in one pass.

        Args:
            obs: observations of each sensor, f32 or u8 [N, *O].
            mask: bool [N, D]; True marks a forbidden action.
            memory: f32 [N, H].

        Raises:
            PolicyDivergedError: an action or its probability is NaN.
        """
        report, number = self._report, len(mask)
        pixels_scaled = [each.astype(np.float32) / _PIXEL_MAX if each.dtype == np.uint8 else each for each in obs]
        feed = sensor_inputs(report, pixels_scaled)
        feed[contract.ACTION_MASKS] = (~mask).astype(np.float32)
        feed[contract.RECURRENT_IN] = memory[:, None, :]
        values = self._session.run(self._outputs, {tensor.name: feed[tensor.name] for tensor in report.inputs})
        found = dict(zip(self._outputs, values, strict=True))
        continuous = found.get(self._continuous, np.zeros((number, 0), np.float32))
        discrete = found.get(self._discrete, np.zeros((number, 0), np.int64))
        if np.isnan(continuous).any() or np.isnan(discrete).any():
            raise PolicyDivergedError(
                f"The model {self.path} returned NaN as an action. Its weights or the observations contain NaN."
            )
        if report.is_legacy and report.discrete_branches:
            discrete = self._choose(discrete, mask)
        # ML-Agents does not squash the deterministic actions of its SAC models.
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

    def _choose(self, log_probs: FloatArray, mask: BoolArray) -> LongArray:
        """Choose an action per branch, i64 [N, K], based on unnormalized log-probabilities f32 [N, D].

        The mask is applied again, because models assign a probability of about 1e-7 to forbidden actions.
        """
        chosen: list[NDArray[np.int64]] = []
        ends = np.cumsum(self._report.discrete_branches)[:-1]
        for branch in np.split(np.where(mask, -np.inf, log_probs), ends, axis=1):
            # With noise from this distribution, the argmax is a sample from the softmax (the Gumbel-max trick).
            noise = 0.0 if self.deterministic else self._random.gumbel(size=branch.shape)
            chosen.append(np.argmax(branch + noise, axis=1))
        return np.stack(chosen, axis=1)


def _obstacles(report: Report, *, deterministic: bool) -> Iterator[str]:
    """Yield the features of a model that Unity supports but ``OnnxPolicy`` does not."""
    own = {contract.ACTION_MASKS, contract.RECURRENT_IN}
    sensors = (contract.OBSERVATION_PREFIX, contract.LEGACY_VECTOR, contract.LEGACY_VISUAL_PREFIX)
    for tensor in report.inputs:
        if tensor.name not in own and not tensor.name.startswith(sensors):
            yield f"it has the input {tensor.name!r}, which no current trainer exports"
        if tensor.shape and isinstance(tensor.shape[0], int):
            yield f"{tensor.name}: the number of agents is fixed in the file"
    outputs = {tensor.name for tensor in report.outputs}
    wanted = [contract.DETERMINISTIC_CONTINUOUS] * bool(report.continuous_size)
    wanted += [contract.DETERMINISTIC_DISCRETE] * bool(report.discrete_branches and not report.is_legacy)
    if deterministic and not outputs.issuperset(wanted):
        yield f"it lacks {' and '.join(wanted)}, like other older models; omit --deterministic"


def sensor_shapes(report: Report) -> dict[str, tuple[Any, ...]]:
    """Return the name and shape [*O] of every sensor input of a model, in the order of the file.

    For ML-Agents 1.x models, the order is vectors, images, lists.
    """
    if not report.is_legacy:
        tensors = (tensor for tensor in report.inputs if tensor.name.startswith(contract.OBSERVATION_PREFIX))
        return {tensor.name: tensor.shape[1:] for tensor in tensors}
    kinds = contract.LEGACY_VECTOR, contract.LEGACY_VISUAL_PREFIX, contract.OBSERVATION_PREFIX
    shapes = {tensor.name: tensor.shape[1:] for tensor in report.inputs if tensor.name.startswith(kinds)}
    names = sorted(shapes, key=lambda name: (len(name), name))
    return {name: shapes[name] for kind in kinds for name in names if name.startswith(kind)}


def sensor_inputs(report: Report, obs: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Map the model's inputs to observations [N, *O]. In ML-Agents 1.x, all vectors are concatenated into one input."""
    if not report.is_legacy:
        return {contract.observation_name(number): each for number, each in enumerate(obs)}
    vectors = [each for each in obs if each.ndim == 2]
    named = {contract.LEGACY_VECTOR: np.concatenate(vectors, axis=1)} if vectors else {}
    names = sensor_shapes(report)
    for prefix, rank in ((contract.LEGACY_VISUAL_PREFIX, 4), (contract.OBSERVATION_PREFIX, 3)):
        sensors = (each for each in obs if each.ndim == rank)
        named.update(zip((name for name in names if name.startswith(prefix)), sensors, strict=False))
    return named


def open_session(model: onnx.ModelProto, path: Path) -> Any:
    """Open an ``InferenceSession`` for a model on one core.

    Args:
        model: the model.
        path: path of the model, for the error message.

    Raises:
        SettingsError: the package onnxruntime is missing.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise SettingsError(
            f"{path} cannot be used without the package onnxruntime, which is not installed. Install it with: pip "
            "install 'trajtrainer[onnx]'."
        ) from error
    options = onnxruntime.SessionOptions()
    # As with torch, more threads slow down small networks as soon as other processes are running.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
