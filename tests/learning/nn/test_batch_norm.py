"""Batch normalization with rows that do not count, and layers that take it in."""

from __future__ import annotations

import onnx
import pytest
import torch
from torch import Tensor

from tests.learning.nn.specs import behavior, camera, entities, network, vector
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.init import seeded
from trajtrainer.learning.nn.normalization import BatchNorm, NormalizedMlp, batch_statistics, project, projected_weights
from trajtrainer.policies.onnx.export import build_model, export_policy
from trajtrainer.policies.onnx.inspect import inspect_model

SPECS = {
    "vector": behavior([vector(5)], 2),
    "branches": behavior([vector(5), vector(2, "other")], 0, (3, 2)),
    "everything": behavior([camera(3, 20, 20), entities(4, 3), vector(4), vector(2, "goal", goal=True)], 2, (3,)),
}


def trained(spec: BehaviorSpec, memory: int | None = None) -> Actor:
    """An actor whose normalizations have seen something and have learned."""
    with seeded(2):
        settings = network(hidden=12, layers=3, memory=memory, normalize=True)
        actor = Actor(spec, settings, conditional_sigma=True, tanh_squash=True, batch_norm=True)
        for norm in actor.modules():
            if isinstance(norm, BatchNorm):
                norm.mean.normal_(3.0)
                norm.var.uniform_(0.1, 4.0)
                norm.scale.data.uniform_(0.5, 2.0)
                norm.shift.data.normal_()
    return actor


def by_formula(mlp: NormalizedMlp, x: Tensor) -> Tensor:
    def normalized(x: Tensor, norm: torch.nn.Module) -> Tensor:
        assert isinstance(norm, BatchNorm)
        return (x - norm.mean) / torch.sqrt(norm.var + 1e-3) * norm.scale + norm.shift

    x = normalized(x, mlp.norms[0])
    for layer, norm in zip(mlp.layers, mlp.norms[1:], strict=True):
        assert isinstance(layer.weight, Tensor)
        x = normalized(x @ layer.weight.t(), norm).clamp(min=0)
    return x


def test_folded_layers_do_the_same_as_normalized_ones() -> None:
    mlp = trained(SPECS["vector"]).body.layers
    assert isinstance(mlp, NormalizedMlp)
    x = 3.0 + 2.0 * torch.randn(40, 5)
    expected = by_formula(mlp, x)
    torch.testing.assert_close(mlp(x), expected, rtol=1e-4, atol=1e-4)
    for weight, bias in mlp.folded():
        x = torch.relu(x @ weight + bias)
    torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-4)


def test_rows_that_do_not_count_leave_no_trace() -> None:
    one, other = BatchNorm(3), BatchNorm(3)
    rows, mask = torch.randn(20, 3), (torch.arange(20) % 3 > 0).float()
    rows[mask == 0] = 1e6
    with batch_statistics(one, mask=mask):
        found = one(rows)
    with batch_statistics(other):
        expected = other(rows[mask > 0])
    torch.testing.assert_close(found[mask > 0], expected)
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.var, other.var)
    assert not torch.equal(one.mean, torch.zeros(3))


def test_running_statistics_move_by_a_hundredth_and_only_if_asked() -> None:
    norm, rows = BatchNorm(2), torch.randn(50, 2) * 3 + 5
    with batch_statistics(norm, remember=False):
        normalized = norm(rows)
    assert torch.equal(norm.mean, torch.zeros(2))
    torch.testing.assert_close(normalized.mean(0), torch.zeros(2), rtol=0, atol=1e-5)
    with batch_statistics(norm):
        norm(rows)
    torch.testing.assert_close(norm.mean, 0.01 * rows.mean(0))
    torch.testing.assert_close(norm.var, 0.99 + 0.01 * rows.var(0, correction=0))
    torch.testing.assert_close(norm(rows), (rows - norm.mean) / (norm.var + 1e-3).sqrt())


def test_units_begin_with_weights_of_length_1_and_are_brought_back_to_it() -> None:
    actor = trained(SPECS["branches"])
    weights = projected_weights(actor.body.layers, actor.head)
    assert len(weights) == 4
    for weight in weights:
        torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight in weights:
            weight.mul_(torch.rand(len(weight), 1) + 0.5)
    project(weights)
    for weight, expected in zip(weights, before, strict=True):
        torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("memory", [None, 8])
def test_unity_loads_the_policy_and_finds_no_normalization(name: str, memory: int | None, tmp_path: object) -> None:
    actor, spec = trained(SPECS[name], memory), SPECS[name]
    model = build_model(actor, spec)
    assert [each.version for each in model.opset_import] == [9]
    operators = {node.op_type for node in model.graph.node}
    assert not operators & {"BatchNormalization", "Sqrt"} or name == "everything"  # attention has a Sqrt of its own
    assert "BatchNormalization" not in operators
    assert isinstance(model, onnx.ModelProto)
    path = f"{tmp_path}/policy.onnx"
    export_policy(actor, spec, path)  # which compares both
    assert inspect_model(path).loads


@pytest.mark.parametrize("far", [1e20, -3.4e38])
def test_inputs_that_are_too_large_to_square_leave_finite_outputs_and_statistics(far: float) -> None:
    mlp, x = NormalizedMlp(2, 8, 2), torch.randn(64, 2)
    x[::7, 1] = far
    for mask in (None, torch.ones(64)):
        with batch_statistics(mlp, mask=mask):
            assert bool(torch.isfinite(mlp(x)).all())
    assert all(bool(torch.isfinite(entry).all()) for entry in mlp.state_dict().values())
    assert bool(torch.isfinite(mlp(x)).all())
