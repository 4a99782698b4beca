"""The findings of an inspection of an ``.onnx`` file, as plain data."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

from trajtrainer.onnx import contract


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One input or output of a model.

    Attributes:
        name: as in the file.
        dtype: of the elements, in numpy's words (``float32``, ``int64``).
        shape: sizes; a name where the size is free (``batch``), ``?`` where the file says nothing.
        meaning: what Unity uses it for, in words.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    meaning: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join(map(str, self.shape))}]"


class Support(enum.Enum):
    """The degree to which a Unity package loads a model."""

    YES = "yes"
    MAYBE = "not certain"
    NO = "no"


@dataclass(frozen=True, slots=True)
class PackageSupport:
    """The support of a model by one generation of the Unity package.

    Attributes:
        package: the ML-Agents versions and the inference library below them.
        support: whether it loads the model.
        back_ends: on which all of the model's operators run; empty where it is not loaded or not known.
        notes: reasons and limits.
    """

    package: str
    support: Support
    back_ends: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """The result of :func:`trajtrainer.onnx.inspect.inspect_model`.

    Attributes:
        path: the file.
        errors: why Unity does not load or run the model. Empty when it does.
        warnings: what Unity or the game will lack, although the model loads.
        producer: the program that wrote the file.
        ir_version: of the ONNX container; 0 when the file could not be read.
        opset: of the standard operators; 0 when the file could not be read.
        model_version: of the names: 3 for ML-Agents 2 and later, 2 for ML-Agents 1; None when absent.
        memory_size: numbers of recurrent memory per agent; 0 without.
        inputs, outputs: in the file's order.
        continuous_size: number of continuous actions.
        discrete_branches: size of each discrete branch. Version 2 names only their sum; they are then found by trying.
        operators: name -> how often.
        unsupported_operators: those that Unity's importer refuses.
        packages: the verdict per generation of the Unity package.
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
        """Whether the names are those of ML-Agents 1.x, which also gives log-probabilities for discrete actions."""
        return self.model_version == contract.LEGACY_MODEL_VERSION

    @property
    def loads(self) -> bool:
        """Whether Unity loads and runs the model."""
        return not self.errors
