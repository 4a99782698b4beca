"""Files of other trainers, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.tools.importing.fit import fitted_actor
from trajtrainer.tools.importing.importing import read_policy
from trajtrainer.tools.importing.policy import ForeignActor, ForeignPolicy, Hints

Array = NDArray[Any]
NOTHING = Hints()
# Observations of all sensors, and a mask (1 = allowed) -> the outputs of a model by name.
Acts = Callable[..., dict[str, Array]]


def read(path: Path, hints: Hints = NOTHING) -> ForeignPolicy:
    found = read_policy(path, hints)
    assert isinstance(found, ForeignPolicy)
    return found


def fitted(path: Path, spec: BehaviorSpec, hints: Hints = NOTHING) -> ForeignActor:
    return fitted_actor(read(path, hints), hints, spec)


def imported(path: Path, spec: BehaviorSpec, hints: Hints = NOTHING) -> Acts:
    """The model for Unity that a file becomes, in onnxruntime."""
    target = path.with_name(f"{path.stem}-imported.onnx")
    export_policy(fitted(path, spec, hints), spec, target)
    return acts(target)


def acts(path: Path) -> Acts:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    inputs = {each.name for each in session.get_inputs()}

    def act(*observations: Array, allowed: Array | None = None) -> dict[str, Array]:
        feed = {contract.observation_name(k): each.astype(np.float32) for k, each in enumerate(observations)}
        if contract.ACTION_MASKS in inputs:
            (size,) = (each.shape[1] for each in session.get_inputs() if each.name == contract.ACTION_MASKS)
            mask = np.ones((len(observations[0]), size)) if allowed is None else allowed
            feed[contract.ACTION_MASKS] = mask.astype(np.float32)
        return dict(zip(names, session.run(None, feed), strict=True))

    return act


def observations(rows: int, *shapes: Sequence[int], seed: int = 3) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal((rows, *shape), np.float32) for shape in shapes]
