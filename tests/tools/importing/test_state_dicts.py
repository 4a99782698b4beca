"""State dicts of CleanRL and rsl_rl act in Unity as their networks do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.learning.nn.specs import behavior, vector
from tests.tools.importing.files import fitted, imported, observations, read
from trajtrainer.core.errors import CheckpointError
from trajtrainer.policies.onnx import contract
from trajtrainer.tools.importing.policy import Hints, ObservationStatistics

SPEC = behavior([vector(5)])
CHOICES = behavior([vector(5)], 0, (4,))
BOUNDS = (-2.0, 2.0)
ALL = Hints(activation="tanh", bounds=BOUNDS)


def layers(sizes: list[int], activation: type[nn.Module]) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in pairwise(sizes):
        parts += [nn.Linear(a, b), activation()]
    return nn.Sequential(*parts[:-1])


class CleanPpo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = layers([5, 8, 1], nn.Tanh)
        self.actor_mean = layers([5, 8, 8, 2], nn.Tanh)
        self.actor_logstd = nn.Parameter(torch.tensor([[-1.0, -0.5]]))

    def act(self, x: Tensor) -> Tensor:
        return self.actor_mean(x).clamp(*BOUNDS) / 2  # type: ignore[no-any-return]


class CleanDiscretePpo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic, self.actor = layers([5, 8, 1], nn.Tanh), layers([5, 8, 4], nn.Tanh)

    def act(self, x: Tensor) -> Tensor:
        return self.actor(x).argmax(1, keepdim=True)  # type: ignore[no-any-return]


class CleanDqn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = layers([5, 12, 8, 4], nn.ReLU)

    def act(self, x: Tensor) -> Tensor:
        return self.network(x).argmax(1, keepdim=True)  # type: ignore[no-any-return]


class CleanSac(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(5, 8), nn.Linear(8, 8)
        self.fc_mean, self.fc_logstd = nn.Linear(8, 2), nn.Linear(8, 2)
        self.register_buffer("action_scale", torch.tensor([3.0, 0.5]))
        self.register_buffer("action_bias", torch.tensor([1.0, 0.0]))

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc2(torch.relu(self.fc1(x))))

    def act(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc_mean(self.hidden(x)))

    def draw(self, x: Tensor) -> Tensor:
        log_std = torch.tanh(self.fc_logstd(self.hidden(x)))
        log_std = -5 + 0.5 * (2 + 5) * (log_std + 1)
        return torch.tanh(self.fc_mean(self.hidden(x)) + log_std.exp() * torch.randn(len(x), 2))


class CleanTd3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc_mu = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.register_buffer("action_scale", torch.tensor([3.0, 0.5]))

    def act(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc_mu(torch.relu(self.fc2(torch.relu(self.fc1(x))))))


class Normalization(nn.Module):
    """That of rsl_rl."""

    _mean: Tensor
    _std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_mean", torch.linspace(-1, 1, 5)[None])
        self.register_buffer("_std", torch.linspace(0.5, 2, 5)[None])
        self.register_buffer("_var", torch.linspace(0.5, 2, 5)[None].square())
        self.register_buffer("count", torch.tensor(1000))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self._mean) / (self._std + 1e-2)


class RslPpo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = layers([5, 8, 6, 2], nn.ELU), layers([7, 8, 1], nn.ELU)
        self.std = nn.Parameter(torch.tensor([0.3, 0.2]))
        self.actor_obs_normalizer = Normalization()

    def act(self, x: Tensor) -> Tensor:
        return self.actor(self.actor_obs_normalizer(x)).clamp(*BOUNDS) / 2  # type: ignore[no-any-return]


class RslModel(nn.Module):
    """Since version 4."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.obs_normalizer = layers([5, 8, 2], nn.ELU), Normalization()
        self.distribution = nn.ParameterDict({"log_std_param": nn.Parameter(torch.tensor([-1.0, -2.0]))})

    def act(self, x: Tensor) -> Tensor:
        return self.mlp(self.obs_normalizer(x)).clamp(*BOUNDS) / 2  # type: ignore[no-any-return]


def build(make: Callable[[], Any]) -> Any:
    torch.manual_seed(6)
    return make()


CASES: dict[str, tuple[Callable[[], Any], str, Callable[[Any], Any]]] = {
    "CleanRL PPO": (CleanPpo, "tanh", lambda state: state),
    "CleanRL PPO, discrete": (CleanDiscretePpo, "tanh", lambda state: state),
    "CleanRL DQN": (CleanDqn, "relu", lambda state: state),
    "CleanRL SAC": (CleanSac, "relu", lambda state: (state, {"fc1.weight": torch.zeros(3, 2)})),
    "CleanRL TD3": (CleanTd3, "relu", lambda state: (state, {})),
    "rsl_rl": (RslPpo, "elu", lambda state: {"model_state_dict": state, "optimizer_state_dict": {}, "iter": 70}),
    "rsl_rl 4": (RslModel, "elu", lambda state: {"actor_state_dict": state, "critic_state_dict": {}, "iter": 70}),
}


@pytest.mark.parametrize("name", CASES)
def test_actions(name: str, tmp_path: Path) -> None:
    make, activation, pack = CASES[name]
    model = build(make)
    torch.save(pack(model.state_dict()), tmp_path / "actor.pt")
    is_discrete = name in ("CleanRL DQN", "CleanRL PPO, discrete")
    act = imported(tmp_path / "actor.pt", CHOICES if is_discrete else SPEC, Hints(activation=activation, bounds=BOUNDS))
    (rows,) = observations(9, (5,))
    with torch.no_grad():
        wanted = model.act(torch.from_numpy(rows)).numpy()
    output = contract.DETERMINISTIC_DISCRETE if is_discrete else contract.DETERMINISTIC_CONTINUOUS
    np.testing.assert_allclose(act(rows)[output], wanted, atol=1e-5)
    trainer, step = read(tmp_path / "actor.pt", Hints(activation=activation)).trainer, 70 * name.startswith("rsl")
    assert name.split()[0] in trainer
    assert read(tmp_path / "actor.pt", Hints(activation=activation)).step == step


def test_what_sac_of_cleanrl_draws(tmp_path: Path) -> None:
    model = build(CleanSac)
    torch.save(model.state_dict(), tmp_path / "actor.pt")
    (rows,) = observations(1, (5,))
    rows = np.repeat(rows, 40_000, 0)
    drawn = imported(tmp_path / "actor.pt", SPEC, Hints(activation="relu"))(rows)[contract.CONTINUOUS_ACTIONS]
    with torch.no_grad():
        wanted = model.draw(torch.from_numpy(rows)).numpy()
    quantiles = np.linspace(0.05, 0.95, 7)
    np.testing.assert_allclose(np.quantile(drawn, quantiles, 0), np.quantile(wanted, quantiles, 0), atol=0.02)


def test_normalization_beside_the_model(tmp_path: Path) -> None:
    """As rsl_rl had it before version 3."""
    model = build(RslPpo)
    weights = {name: value for name, value in model.state_dict().items() if "normalizer" not in name}
    parts = {"model_state_dict": weights, "obs_norm_state_dict": model.actor_obs_normalizer.state_dict()}
    torch.save(parts, tmp_path / "model_70.pt")
    (rows,) = observations(9, (5,))
    act = imported(tmp_path / "model_70.pt", SPEC, Hints(activation="elu", bounds=BOUNDS))
    with torch.no_grad():
        wanted = model.act(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(act(rows)[contract.DETERMINISTIC_CONTINUOUS], wanted, atol=1e-5)


def test_safetensors(tmp_path: Path) -> None:
    model = build(CleanPpo)
    path = tmp_path / "actor.safetensors"
    save_file(model.state_dict(), path)
    (rows,) = observations(9, (5,))
    act = imported(path, SPEC, Hints(activation="tanh", bounds=BOUNDS))
    with torch.no_grad():
        wanted = model.act(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(act(rows)[contract.DETERMINISTIC_CONTINUOUS], wanted, atol=1e-5)


def refused(path: Path, hints: Hints = ALL) -> str:
    with pytest.raises(CheckpointError) as caught:
        fitted(path, SPEC, hints)
    return str(caught.value)


def test_safetensors_that_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "actor.safetensors"
    save_file(build(CleanPpo).state_dict(), path)
    whole = path.read_bytes()
    for content in (b"", whole[:-1], (1 << 60).to_bytes(8, "little"), b"x" * 1000):
        path.write_bytes(content)
        assert "it is damaged, or not a file of weights" in refused(path)


def test_safetensors_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "actor.safetensors"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    wanted = "needs the package safetensors, which is not installed. Install it with: pip install 'trajtrainer[import]'"
    assert wanted in refused(path)


def test_what_must_be_told(tmp_path: Path) -> None:
    path = tmp_path / "actor.pt"
    torch.save(build(CleanPpo).state_dict(), path)
    assert "Pass --activation, one of tanh, relu, swish," in refused(path, Hints(bounds=BOUNDS))
    assert "Pass --clip, such as 1" in refused(path, Hints(activation="tanh"))
    torch.save({**build(CleanPpo).state_dict(), "encoder.weight": torch.zeros(3, 3)}, path)
    assert "it has unsupported layers: encoder.weight." in refused(path, Hints())


class Whole:
    """What is in a pickle."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Whole(), "contains pickled objects, which could run code, so it was not loaded."),
        (build(CleanPpo), 'model = torch.load("actor.pt", weights_only=False)\n  torch.save(model.state_dict(), '),
        ({"weights": 3}, "expected a mapping from names to tensors, but 'weights' is a int"),
        ({}, "expected the weights of a network"),
        ([], "expected the weights of a network, found a list"),
        ({"encoder.0.weight": torch.zeros(2, 2)}, "unsupported layers: encoder.0.weight"),
        ({**build(CleanPpo).state_dict(), "gru.weight": torch.zeros(3, 3)}, "unsupported layers: gru.weight"),
        ({"network.0.weight": torch.zeros(32, 4, 8, 8)}, "(32, 4, 8, 8), which is not that of a linear layer"),
        ({"fc2.weight": torch.zeros(2, 2), "fc_mu.weight": torch.zeros(2, 2)}, "fc[2], expected fc1, fc2"),
        ({"Policy": {}, "global_step": {}}, "Use trajtrainer export"),
        ({"actor_mean.0.weight": torch.zeros(1).expand(2**40)[None]}, "its tensors claim"),
    ],
)
def test_what_is_none(content: object, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "actor.pt")
    assert message in refused(tmp_path / "actor.pt")


def test_parts_that_do_not_fit_together(tmp_path: Path) -> None:
    path = tmp_path / "actor.pt"
    narrow = {"fc_logstd.weight": torch.zeros(3, 8), "fc_logstd.bias": torch.zeros(3)}
    torch.save({**build(CleanSac).state_dict(), **narrow}, path)
    assert "fc_logstd and fc_mean have different shapes" in refused(path, Hints(activation="relu"))
    state = build(RslPpo).state_dict()
    torch.save({"model_state_dict": {**state, "actor_obs_normalizer._std": torch.ones(1, 4)}}, path)
    assert "differ in shape: actor_obs_normalizer._mean, actor_obs_normalizer._std" in refused(path)


def test_statistics_are_in_the_file_or_given(tmp_path: Path) -> None:
    path = tmp_path / "actor.pt"
    torch.save({"model_state_dict": build(RslPpo).state_dict()}, path)
    given = ObservationStatistics(torch.zeros(5), torch.ones(5))
    hints = Hints(activation="elu", bounds=BOUNDS, statistics=given)
    assert "it contains statistics of its observations. Remove --statistics" in refused(path, hints)
    torch.save(build(CleanPpo).state_dict(), path)
    short = Hints(activation="tanh", bounds=BOUNDS, statistics=ObservationStatistics(torch.zeros(4), torch.ones(4)))
    assert "the statistics have 4 numbers, but these agents send 'vector' (5,)" in refused(path, short)
    fitted(path, SPEC, Hints(activation="tanh", bounds=BOUNDS, statistics=given))


def test_files_that_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "actor.pt"
    assert refused(path) == f"There is no file {path}."
    torch.save(build(CleanPpo).state_dict(), path)
    whole = path.read_bytes()
    for content in (b"", b"PK\x03\x04 nothing", whole[: len(whole) // 2], b"x" * 1000):
        path.write_bytes(content)
        assert "it is damaged, or not a file of weights" in refused(path)
    assert "cannot be read: Is a directory" in refused(tmp_path)
