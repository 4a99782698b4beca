"""A module states ML-Agents' names and draws itself: one that the package does not know is kept and exported, too."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tests.learning.nn.specs import behavior, network, vector
from trajtrainer.learning.algos.ppo.ppo import LAYOUT
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.graph import Graph
from trajtrainer.learning.nn.init import kaiming_linear
from trajtrainer.learning.nn.mlagents import Key, Names, mlagents_keys
from trajtrainer.policies.checkpoints.mlagents.convert import from_mlagents, to_mlagents
from trajtrainer.policies.onnx.export import export_policy


class Scaled(nn.Module):
    """An encoder with a buffer between its parameters, and names of its own for some of them."""

    mlagents_names: ClassVar[Names] = {"scale": "scaling.factor", "first": "layers.0", "both": {"a": 1, "b": 2}}

    def __init__(self) -> None:
        super().__init__()
        self.first = kaiming_linear(3, 3)
        self.register_buffer("scale", torch.tensor([2.0]))
        self.register_buffer("count", torch.tensor([0.0]))
        self.both = kaiming_linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.scale, Tensor)
        return self.both(self.first(x) * self.scale)  # type: ignore[no-any-return]

    def to_onnx(self, graph: Graph, x: str) -> str:
        assert isinstance(self.scale, Tensor)
        scaled = graph.node("Mul", graph.linear(self.first, x), graph.parameter(self.scale))
        return graph.linear(self.both, scaled)


def with_scaled(module: Any) -> Any:
    module.body.encoder.sensors[0] = Scaled()
    return module


def test_keys_are_put_together_from_the_parts() -> None:
    keys = mlagents_keys(nn.Sequential(nn.Linear(1, 1), Scaled()))
    assert keys == {
        "0.weight": Key(("0.weight",)),
        "0.bias": Key(("0.bias",)),
        "1.scale": Key(("1.scaling.factor",), is_parameter=False),
        "1.first.weight": Key(("1.layers.0.weight",)),
        "1.first.bias": Key(("1.layers.0.bias",)),
        "1.both.weight": Key(("1.a.weight", "1.b.weight"), (1, 2)),
        "1.both.bias": Key(("1.a.bias", "1.b.bias"), (1, 2)),
    }


def test_an_encoder_of_ones_own_is_kept_with_its_moments_and_exported(tmp_path: Path) -> None:
    spec = behavior([vector(3)], 1, (2, 2))

    def state() -> dict[str, Any]:
        actor, critic = with_scaled(Actor(spec, network())), with_scaled(ValueNetwork(spec, network(), ["extrinsic"]))
        modules = {"actor": actor, "critic": critic}
        adam = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
        for index, parameter in enumerate((*actor.parameters(), *critic.parameters())):
            parameter.grad = torch.full_like(parameter, index + 1.0)
        adam.step()
        return {
            "step": 5,
            "modules": {name: module.state_dict() for name, module in modules.items()},
            "keys": {name: mlagents_keys(module) for name, module in modules.items()},
            "layout": LAYOUT,
            "optimizers": {"adam": adam.state_dict()},
        }

    source, like = state(), state()
    written = copy.deepcopy(to_mlagents(source))
    assert "network_body.observation_encoder.processors.0.layers.0.weight" in written["Policy"]
    assert written["Policy"]["network_body.processors.0.b.weight"].shape == (2, 3)
    for moments in like["optimizers"]["adam"]["state"].values():
        moments["exp_avg"].zero_()
    read = from_mlagents(written, like)
    for name in ("actor", "critic"):
        for entry, value in source["modules"][name].items():
            torch.testing.assert_close(read["modules"][name][entry], value, rtol=0, atol=0, msg=entry)
    for index, moments in source["optimizers"]["adam"]["state"].items():
        torch.testing.assert_close(
            read["optimizers"]["adam"]["state"][index]["exp_avg"], moments["exp_avg"], rtol=0, atol=0
        )
    export_policy(with_scaled(Actor(spec, network())), spec, tmp_path / "a.onnx")
    assert (tmp_path / "a.onnx").stat().st_size > 0
