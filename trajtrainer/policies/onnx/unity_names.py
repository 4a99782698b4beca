"""The inspection report, and checks that a model's inputs and outputs have the names that Unity expects."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trajtrainer.policies.onnx import contract

Values = Mapping[str, NDArray[Any]]
Shape = tuple[int | str, ...]
_OBSERVATION = re.compile(rf"{contract.OBSERVATION_PREFIX}(\d+)")
_LEGACY_VISUAL = re.compile(rf"{contract.LEGACY_VISUAL_PREFIX}(\d+)")
_INPUT_MEANINGS = {
    contract.ACTION_MASKS: "1 = allowed, 0 = forbidden; the branches side by side",
    contract.RECURRENT_IN: "memory from the previous step, zeros at the start of an episode",
    contract.LEGACY_VECTOR: "all vector sensors, concatenated",
    **contract.ALSO_ACCEPTED_INPUTS,
}
_OUTPUT_MEANINGS = {
    contract.VERSION_NUMBER: "version of these names",
    contract.MEMORY_SIZE: "size of the memory per agent",
    contract.CONTINUOUS_ACTIONS: "sampled, -1 to 1",
    contract.CONTINUOUS_SHAPE: "number of continuous actions",
    contract.DETERMINISTIC_CONTINUOUS: "most likely",
    contract.DISCRETE_ACTIONS: "sampled, one choice per branch",
    contract.DISCRETE_SHAPE: "size of each branch",
    contract.DETERMINISTIC_DISCRETE: "most likely, one choice per branch",
    contract.RECURRENT_OUT: "memory for the next step",
    contract.LEGACY_ACTION: "continuous actions, or log-probabilities of discrete ones, as in ML-Agents 1.x",
    contract.LEGACY_ACTION_SHAPE: "number of actions",
    contract.LEGACY_IS_CONTINUOUS: "1 = continuous, 0 = discrete",
}
_CONTINUOUS = contract.CONTINUOUS_ACTIONS, contract.DETERMINISTIC_CONTINUOUS, contract.CONTINUOUS_SHAPE
_DISCRETE = contract.DISCRETE_ACTIONS, contract.DETERMINISTIC_DISCRETE, contract.DISCRETE_SHAPE
_UNSAFE = tuple(name for name in _OUTPUT_MEANINGS if name != contract.LEGACY_ACTION)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of a model.

    Attributes:
        name: name of the tensor in the file.
        dtype: numpy name of the element type (``float32``, ``int64``).
        shape: size of each dimension; a name if the size is free (``batch``), ``?`` if the file does not specify it.
        meaning: description of what Unity uses the tensor for.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    meaning: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join(map(str, self.shape))}]"


class Support(enum.Enum):
    """Whether a Unity package can load a model."""

    YES = "yes"
    MAYBE = "not certain"
    NO = "no"


@dataclass(frozen=True, slots=True)
class PackageSupport:
    """How well one generation of the Unity package supports a model.

    Attributes:
        package: the ML-Agents versions and their inference library.
        support: whether the package loads the model.
        back_ends: back ends that run all of the model's operators; empty if unknown or if the model is not loaded.
        notes: reasons and limitations.
    """

    package: str
    support: Support
    back_ends: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """The result of :func:`trajtrainer.policies.onnx.inspect.inspect_model`.

    Attributes:
        path: path of the file.
        errors: reasons why Unity does not load or run the model; empty if it does.
        warnings: problems that do not prevent Unity from loading the model.
        producer: program that wrote the file.
        ir_version: IR version of the ONNX file; 0 if the file could not be read.
        opset: version of the standard operator set; 0 if the file could not be read.
        model_version: version of the tensor names: 3 for ML-Agents 2 and later, 2 for ML-Agents 1; None if absent.
        memory_size: size of the recurrent memory per agent; 0 without a memory.
        inputs, outputs: inputs and outputs in the order of the file.
        continuous_size: number of continuous actions.
        discrete_branches: size of each discrete branch. Version 2 specifies only their sum, so the sizes are found by
            running the model.
        operators: number of occurrences of each operator.
        unsupported_operators: operators that Unity's importer rejects.
        packages: verdict for each generation of the Unity package.
    """

    path: Path
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    producer: str = ""
    ir_version: int = 0
    opset: int = 0
    model_version: int | None = None
    memory_size: int = 0
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    continuous_size: int = 0
    discrete_branches: tuple[int, ...] = ()
    operators: dict[str, int] = field(default_factory=dict)
    unsupported_operators: tuple[str, ...] = ()
    packages: tuple[PackageSupport, ...] = ()

    @property
    def is_legacy(self) -> bool:
        """True if the names are those of ML-Agents 1.x, whose models return log-probabilities of discrete actions."""
        return self.model_version == contract.LEGACY_MODEL_VERSION

    @property
    def loads(self) -> bool:
        """True if Unity loads and runs the model."""
        return not self.errors

    def legacy_output(self, name: str) -> str:
        """Return the name of an action output in an ML-Agents 1.x model. The oldest have one output for both kinds."""
        return name if any(tensor.name == name for tensor in self.outputs) else contract.LEGACY_ACTION


def input_meaning(name: str, _: str, shape: Shape) -> str:
    """Describe what Unity passes to an input; empty for a name that Unity does not know."""
    observation = _OBSERVATION.fullmatch(name)
    if observation is None:
        picture = _LEGACY_VISUAL.fullmatch(name)
        return f"image {picture[1]}" if picture else _INPUT_MEANINGS.get(name, "")
    sensor = f"sensor {observation[1]}: "
    match shape[1:]:
        case (size,):
            return f"{sensor}vector of {size}"
        case (entities, size):
            return f"{sensor}list of up to {entities} entities of {size}"
        case (channels, height, width):
            return f"{sensor}image with {channels} channels, {height} high, {width} wide"
    return f"{sensor}unknown kind"


def output_meaning(name: str, dtype: str, _: Shape) -> str:
    """Describe what Unity reads from an output; empty for a name that Unity does not know."""
    if name == contract.DISCRETE_ACTIONS and dtype.startswith("float"):
        return "log-probability of each action, as in ML-Agents 1.x; Unity samples the action"
    return _OUTPUT_MEANINGS.get(name, "")


def check_outputs(model: onnx.ModelProto, values: Values, report: Report) -> None:
    """Check the names, types and values of the outputs, and copy the constant outputs to the report."""
    names = {info.name for info in report.outputs}
    report.model_version = _constant(contract.VERSION_NUMBER, values, report)
    report.memory_size = _constant(contract.MEMORY_SIZE, values, report) or 0
    for required in (contract.VERSION_NUMBER, contract.MEMORY_SIZE):
        if required not in names:
            report.errors.append(f"the output {required!r} is missing; Unity refuses models without it")
    if report.model_version not in (None, contract.LEGACY_MODEL_VERSION, contract.MODEL_VERSION):
        report.errors.append(
            f"version_number is {report.model_version}; Unity supports {contract.LEGACY_MODEL_VERSION} and "
            f"{contract.MODEL_VERSION}"
        )
    elif report.is_legacy and report.memory_size > 0:
        report.errors.append("ML-Agents 2.0 and newer do not support models of ML-Agents 1.x with memory: train again")
    if contract.CONTINUOUS_ACTIONS in names or contract.DISCRETE_ACTIONS in names:
        _check_continuous(names, values, report)
        _check_discrete(names, values, report)
        pairs = [(sampled, deterministic) for sampled, deterministic, _ in (_CONTINUOUS, _DISCRETE)]
        missing = [mode for sampled, mode in pairs if sampled in names and mode not in names]
        if missing:
            report.warnings.append(
                f"without {' and '.join(missing)} (missing in models of older ML-Agents versions), the option "
                "'Deterministic Inference' of Behavior Parameters cannot be used with this model"
            )
    elif contract.LEGACY_ACTION in names:
        _check_legacy_action(names, values, report)
    else:
        report.errors.append(
            f"there are no actions: neither {contract.CONTINUOUS_ACTIONS!r} nor {contract.DISCRETE_ACTIONS!r} "
            "is an output"
        )
    if (size := report.memory_size) > 0 and not report.is_legacy:
        memory = values.get(contract.RECURRENT_OUT)
        if contract.RECURRENT_OUT not in names:
            report.errors.append(f"memory_size is {size}, but the output {contract.RECURRENT_OUT!r} is missing")
        elif memory is not None and memory.shape != (1, 1, size):
            found = f"{contract.RECURRENT_OUT!r} has the shape {memory.shape}"
            report.errors.append(f"{found} for one agent, not (1, 1, {size})")
    # ML-Agents' SAC policies squash the sampled action, but not the deterministic one.
    producers = {name: node.op_type for node in model.graph.node for name in node.output}
    sampled, deterministic, _ = _CONTINUOUS
    if deterministic in names and producers.get(sampled) == "Tanh" and producers.get(deterministic) != "Tanh":
        report.warnings.append(
            f"{deterministic!r} is not squashed, unlike {sampled!r} (a known bug in SAC models of ML-Agents), so "
            "deterministic actions can leave the range -1 to 1. Export again from the checkpoint"
        )
    for info in report.outputs:
        inside = [name for name in _UNSAFE if name in info.name]
        if info.name not in _OUTPUT_MEANINGS and inside:
            report.warnings.append(
                f"the output {info.name!r} contains {inside[0]!r}; Unity matches parts of names and can confuse the two"
            )


def check_inputs(report: Report) -> None:
    """Check that Unity can fill every input and that no expected input is missing."""
    legacy = report.is_legacy
    by_name = {info.name: info for info in report.inputs}
    known = {contract.ACTION_MASKS, contract.RECURRENT_IN, *contract.ALSO_ACCEPTED_INPUTS}
    if legacy:
        known.add(contract.LEGACY_VECTOR)
    patterns = (_OBSERVATION, _LEGACY_VISUAL) if legacy else (_OBSERVATION,)
    unknown = [n for n in by_name if n not in known and not any(pattern.fullmatch(n) for pattern in patterns)]
    if unknown:
        report.errors.append(
            f"Unity cannot fill the inputs {', '.join(unknown)}: it throws when the model runs. The known inputs are "
            f"{contract.OBSERVATION_PREFIX}0, {contract.OBSERVATION_PREFIX}1, ..., {contract.ACTION_MASKS} and "
            f"{contract.RECURRENT_IN}"
        )
    if not legacy:
        _check_observations(by_name, report)
    masks, total = by_name.get(contract.ACTION_MASKS), sum(report.discrete_branches)
    if masks is None and report.discrete_branches:
        report.warnings.append(
            f"the actions are discrete, but the input {contract.ACTION_MASKS!r} is missing: forbidden actions can be "
            "chosen, and Unity warns"
        )
    elif masks and report.discrete_branches and isinstance(masks.shape[-1], int) and masks.shape[-1] != total:
        report.errors.append(f"{masks}: the branches {report.discrete_branches} have {total} actions in total")
    memory, size = by_name.get(contract.RECURRENT_IN), report.memory_size
    if memory is None and size > 0 and not legacy:
        report.errors.append(f"memory_size is {size}, but the input {contract.RECURRENT_IN!r} is missing")
    elif memory and not legacy and report.model_version is not None and memory.shape[1:] != (1, size):
        report.errors.append(f"{memory}: Unity passes memory as [agents, 1, memory_size], and memory_size is {size}")


def _constant(name: str, values: Values, report: Report) -> int | None:
    numbers = _constants(name, values, report)
    return numbers[0] if numbers else None


def _constants(name: str, values: Values, report: Report) -> tuple[int, ...]:
    """Return the integers in a constant output. Unity casts the output to a float tensor and throws for other types."""
    if name not in values:
        return ()
    value = values[name]
    if value.dtype != np.float32:
        report.errors.append(f"the output {name!r} is {value.dtype.name}; Unity reads it as float32 and throws")
    if not np.isfinite(value).all():
        report.errors.append(f"the output {name!r} is {value.ravel().tolist()}, expected integers")
        return ()
    return tuple(int(number) for number in value.ravel())


def _check_continuous(names: set[str], values: Values, report: Report) -> None:
    sampled, deterministic, shape = _CONTINUOUS
    if _are_complete(*_CONTINUOUS, names, report):
        size = report.continuous_size = _constant(shape, values, report) or 0
        for name in (sampled, deterministic):
            _check_actions(name, size, f"{shape} says {size}", values, report)


def _check_discrete(names: set[str], values: Values, report: Report) -> None:
    sampled, deterministic, shape = _DISCRETE
    if not _are_complete(*_DISCRETE, names, report):
        return
    report.discrete_branches = _constants(shape, values, report)
    if report.is_legacy:
        _check_log_probs(sampled, shape, values, report)
        return
    count = len(report.discrete_branches)
    for name in (sampled, deterministic):
        _check_actions(name, count, f"there are {count} branches in {shape}", values, report, np.integer, "integers")


def _check_log_probs(name: str, shape: str, values: Values, report: Report) -> None:
    """Check the discrete actions of an ML-Agents 1.x model: log-probabilities f32 [N, D], from which Unity samples."""
    total = sum(report.discrete_branches)
    expected = "log-probabilities in version 2"
    _check_actions(name, total, f"{shape} says {total}", values, report, np.floating, expected)


def _check_actions(
    name: str,
    size: int,
    reason: str,
    values: Values,
    report: Report,
    kind: type[Any] = np.generic,
    expected: str = "",
) -> None:
    """Check that an output has the shape [1, size] for one agent, and elements of type ``kind``."""
    if name not in values:
        return
    value = values[name]
    if value.shape != (1, size):
        report.errors.append(f"{name!r} has the shape {value.shape} for one agent, but {reason}")
    if not np.issubdtype(value.dtype, kind):
        report.errors.append(f"{name!r} is {value.dtype.name}; Unity expects {expected} and throws")


def _are_complete(sampled: str, deterministic: str, shape: str, names: set[str], report: Report) -> bool:
    """Return whether the model has the sampled actions as well as the output with their shape."""
    if sampled in names and shape not in names:
        report.errors.append(f"the output {sampled!r} is present, but {shape!r} is missing")
    elif sampled not in names and deterministic in names:
        report.errors.append(f"the output {deterministic!r} is present, but {sampled!r} is missing, so Unity fails")
    return {sampled, shape} <= names


def _check_legacy_action(names: set[str], values: Values, report: Report) -> None:
    for required in (contract.LEGACY_ACTION_SHAPE, contract.LEGACY_IS_CONTINUOUS):
        if required not in names:
            report.errors.append(f"the output {contract.LEGACY_ACTION!r} is present, but {required!r} is missing")
            return
    if contract.LEGACY_ACTION_SHAPE not in values:
        return
    size = _constant(contract.LEGACY_ACTION_SHAPE, values, report)
    is_continuous = _constant(contract.LEGACY_IS_CONTINUOUS, values, report)
    if size is None or is_continuous is None:
        return
    if is_continuous > 0:
        report.continuous_size = size
    else:
        report.discrete_branches = (size,)
        _check_log_probs(contract.LEGACY_ACTION, contract.LEGACY_ACTION_SHAPE, values, report)
    report.warnings.append(
        "the actions have the names of ML-Agents 1.x; packages 3.0 and newer may reject them. Train or export again"
    )


def _check_observations(by_name: Mapping[str, TensorInfo], report: Report) -> None:
    found = sorted(int(match[1]) for match in map(_OBSERVATION.fullmatch, by_name) if match)
    if not found:
        report.warnings.append("the model has no observations: the input obs_0 is missing")
        return
    gaps = sorted(set(range(found[-1] + 1)) - set(found))
    if gaps:
        missing = ", ".join(contract.observation_name(sensor) for sensor in gaps)
        report.warnings.append(f"{missing}: not an input, although a later sensor is; Unity warns about this")
    for sensor in found:
        info = by_name[contract.observation_name(sensor)]
        if info.dtype != "float32" or not 2 <= len(info.shape) <= 4:
            report.errors.append(f"{info}: Unity passes observations as float32 with 2 to 4 dimensions")
        elif any(isinstance(size, str) for size in info.shape[1:]):
            report.warnings.append(f"{info}: the sizes after the first are not fixed, so Unity cannot check them")
