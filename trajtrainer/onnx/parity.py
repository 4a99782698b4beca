"""Compares an exported model with the actor it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.errors import ExportError
from trajtrainer.core.spec import BehaviorSpec, ObservationKind, observation_kind
from trajtrainer.nn.distribution import ActionDistribution
from trajtrainer.onnx import contract
from trajtrainer.onnx.drawing import Acting
from trajtrainer.onnx.evaluate import Evaluator

_ROWS = 2
# Loose against rounding (two libraries, other orders of summing), tight against any real difference.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4


@dataclass(frozen=True, slots=True)
class _Inputs:
    obs: list[NDArray[np.float32]]  # per sensor [rows, *O]
    allowed: NDArray[np.bool_]  # [rows, D], at least one action per branch
    memory: NDArray[np.float32]  # [rows, H]


@torch.inference_mode()
def check_parity(model: onnx.ModelProto, actor: Acting, spec: BehaviorSpec) -> None:
    """Run both on the same random observations and compare actions without sampling, and memories.

    Raises:
        ExportError: they differ.
    """
    inputs = _random_inputs(actor, spec)
    found = Evaluator(model).run(_feed(model, inputs))
    distribution, memory = _run_actor(actor, inputs)
    actions = distribution.deterministic()
    if actor.head.continuous_size:
        _compare(
            contract.DETERMINISTIC_CONTINUOUS,
            found[contract.DETERMINISTIC_CONTINUOUS],
            distribution.to_env(actions.continuous),
        )
    if actor.memory_size:
        _compare(contract.RECURRENT_OUT, found[contract.RECURRENT_OUT], memory.unsqueeze(1))
    if actor.head.branches:
        # Two actions that are equally likely but for rounding may change places, so probabilities are compared.
        chosen = torch.from_numpy(found[contract.DETERMINISTIC_DISCRETE]).to(memory.device)
        probability = distribution.discrete_log_prob(chosen).exp().cpu().numpy()
        likeliest = distribution.discrete_log_prob(actions.discrete).exp()
        _compare(f"the probability of {contract.DETERMINISTIC_DISCRETE}", probability, likeliest)


def _compare(name: str, found: NDArray[Any], wanted: Tensor) -> None:
    expected = wanted.cpu().numpy()
    if not np.allclose(found, expected, rtol=_RELATIVE, atol=_ABSOLUTE):
        raise ExportError(
            f"The exported model does not act as the policy does ({name} differs by "
            f"{np.abs(found - expected).max():.3g}), so it was not written. This is a fault of the exporter; "
            "checkpoints are not affected."
        )


def _random_inputs(actor: Acting, spec: BehaviorSpec) -> _Inputs:
    generator = np.random.default_rng(0)  # of its own: training must not notice an export
    obs = []
    for observation in spec.observation_specs:
        values = generator.standard_normal((_ROWS, *observation.shape), np.float32)
        if observation_kind(observation) is ObservationKind.VARIABLE_LENGTH:
            values[generator.random(values.shape[:2]) < 0.5] = 0.0  # padding
        obs.append(values)
    masks = [generator.random((_ROWS, size)) < 0.5 for size in actor.head.branches]
    for mask in masks:
        mask[np.arange(_ROWS), generator.integers(mask.shape[1], size=_ROWS)] = True
    return _Inputs(
        obs=obs,
        allowed=np.concatenate([np.zeros((_ROWS, 0), np.bool_), *masks], axis=1),
        memory=generator.standard_normal((_ROWS, actor.memory_size), np.float32),
    )


def _feed(model: onnx.ModelProto, inputs: _Inputs) -> dict[str, NDArray[np.float32]]:
    feed = {contract.observation_name(i): values for i, values in enumerate(inputs.obs)}
    feed[contract.ACTION_MASKS] = inputs.allowed.astype(np.float32)
    feed[contract.RECURRENT_IN] = inputs.memory[:, None, :]
    return {value.name: feed[value.name] for value in model.graph.input}


def _run_actor(actor: Acting, inputs: _Inputs) -> tuple[ActionDistribution, Tensor]:
    device = next(actor.parameters()).device
    return actor.distribution(
        [torch.from_numpy(values).to(device) for values in inputs.obs],
        torch.from_numpy(~inputs.allowed).to(device),
        torch.from_numpy(inputs.memory).to(device),
    )
