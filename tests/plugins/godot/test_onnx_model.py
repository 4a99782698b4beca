"""Policies in the form that the Godot RL Agents plugin runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tests.learning.nn.specs import behavior, camera, vector
from tests.policies.onnx.test_onnx import random_actor
from trajtrainer.core.errors import ExportError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.distribution import ActionDistribution
from trajtrainer.plugins.godot.onnx_model import write
from trajtrainer.policies.checkpoints.export_saved import Origin

onnxruntime = pytest.importorskip("onnxruntime")


def run(path: Path, observations: dict[str, Any], state: Any = None) -> list[Any]:
    """What the plugin's C# asks for, with as many rows as it likes."""
    rows = len(next(iter(observations.values())))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = np.zeros(rows, np.float32) if state is None else state
    found: list[Any] = session.run(["output", "state_outs"], {**observations, "state_ins": given})
    return found


def answers(actor: Actor, *columns: Any) -> tuple[Any, list[Any]]:
    """Continuous actions and logits."""
    with torch.inference_mode():
        mask = torch.zeros((len(columns[0]), sum(actor.head.branches)), dtype=torch.bool)
        distribution, _ = actor.distribution([torch.from_numpy(column) for column in columns], mask)
        continuous = distribution.to_env(distribution.deterministic().continuous)
        return continuous.numpy(), [logits.numpy() for logits in distribution.logits]


def exported(path: Path, spec: BehaviorSpec, order: str = "", **options: Any) -> Actor:
    actor = random_actor(spec, **options)
    write(actor, spec, path, Origin("Ball", None, 0), action_order=order)
    return actor


def random(rows: int, size: int) -> Any:
    return np.random.default_rng(5).standard_normal((rows, size), np.float32)


def test_the_inputs_are_the_keys_of_the_observations(tmp_path: Path) -> None:
    path = tmp_path / "a.godot.onnx"
    spec = behavior([vector(4, "obs"), vector(3, "rays")], 2)
    actor = exported(path, spec)
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == ["obs", "rays", "state_ins"]
    assert [value.name for value in graph.output] == ["output", "state_outs"]
    assert not {node.op_type for node in graph.node} & {"RandomNormalLike", "Multinomial"}
    seen = {"obs": random(5, 4), "rays": random(5, 3)}
    state = np.arange(5, dtype=np.float32)
    output, states = run(path, seen, state)
    continuous, _ = answers(actor, *seen.values())
    np.testing.assert_allclose(output, continuous, rtol=1e-4, atol=1e-5)
    assert (states == state).all()


def test_discrete_actions_are_logits(tmp_path: Path) -> None:
    path = tmp_path / "a.godot.onnx"
    actor = exported(path, behavior([vector(4, "obs")], 0, (3, 2)))
    seen = random(6, 4)
    output, _ = run(path, {"obs": seen})
    _, logits = answers(actor, seen)
    np.testing.assert_allclose(output, np.concatenate(logits, axis=1), rtol=1e-4, atol=1e-5)


def test_hybrid_actions_have_what_the_plugin_skips(tmp_path: Path) -> None:
    path = tmp_path / "a.godot.onnx"
    actor = exported(path, behavior([vector(4, "obs")], 3, (3, 2)), "discrete,continuous:2,discrete,continuous")
    seen = random(4, 4)
    output, _ = run(path, {"obs": seen})
    continuous, (first, second) = answers(actor, seen)
    np.testing.assert_allclose(output[:, :3], first, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output[:, 3:5], continuous[:, :2], rtol=1e-4, atol=1e-5)
    assert not output[:, 5:7].any()
    np.testing.assert_allclose(output[:, 7:9], second, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output[:, 9:10], continuous[:, 2:], rtol=1e-4, atol=1e-5)
    assert not output[:, 10:].any()
    assert output.shape == (4, 11)


def test_policies_of_sac(tmp_path: Path) -> None:
    path = tmp_path / "a.godot.onnx"
    spec = behavior([vector(4, "obs")], 2)
    actor = exported(path, spec, sac=True)
    seen = random(6, 4)
    np.testing.assert_allclose(run(path, {"obs": seen})[0], answers(actor, seen)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("", "Pass their order"),
        ("continuous:2", "has 2 continuous numbers and 0 discrete actions, but the policy has 3 and 1"),
        ("continuous:2,discrete,discrete", "but the policy has 3 and 1"),
        ("continous:3,discrete", "'continous:3'; expected"),
        ("continuous:0,discrete", "expected"),
        ("continuous:3,discrete:2", "expected"),
        ("continuous:,discrete", "expected"),
    ],
)
def test_orders_that_do_not_fit(order: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        exported(tmp_path / "a.onnx", behavior([vector(4, "obs")], 3, (2,)), order)
    assert not list(tmp_path.iterdir())


def test_what_the_plugin_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"this policy sees camera_2d\. .*--to godot"):
        exported(tmp_path / "a.onnx", behavior([vector(2, "obs"), camera(3, 20, 20, "camera_2d")], 2))
    with pytest.raises(ExportError, match=r"does not keep a model's memory.*--to godot"):
        exported(tmp_path / "a.onnx", behavior([vector(2, "obs")], 2), memory=8)


def test_a_model_that_acts_differently_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionDistribution, "to_env", lambda _, continuous: continuous + 0.1)
    with pytest.raises(ExportError, match="does not act like the policy"):
        exported(tmp_path / "a.onnx", behavior([vector(4, "obs")], 2))
    assert not list(tmp_path.iterdir())
