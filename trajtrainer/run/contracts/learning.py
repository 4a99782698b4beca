"""Base classes for tests of algorithms, reward signals and encoders."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.core.columns import Columns
from trajtrainer.core.plugins import resolve
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.core.timers import Timers
from trajtrainer.experience.random_steps import random_steps, vector_spec
from trajtrainer.learning.algos.algorithm import Algorithm, LearningContext
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.minibatch import Minibatch, torch_dtype
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.learning.trainers.factory import create_algorithm
from trajtrainer.policies.checkpoints.state import learned_state, load_learned
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.settings.components import RewardSignalRow, RewardSignalSettings
from trajtrainer.settings.network import EncoderRow, NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import trainer_settings

_CPU = torch.device("cpu")


def _saved_and_read(state: Any) -> Any:
    """Save ``state`` as a checkpoint, load it, and return the result."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _assert_same(found: Any, expected: Any, path: str = "state") -> None:
    if isinstance(expected, Mapping):
        assert set(found) == set(expected), path
        for key, value in expected.items():
            if key != "lr":  # schedules set the learning rate before every step
                _assert_same(found[key], value, f"{path}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), path
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            _assert_same(one, other, f"{path}[{number}]")
    elif isinstance(expected, Tensor):
        assert torch.equal(found, expected), path
    else:
        assert found == expected, path


class RewardSignalContract:
    """Tests that every reward signal must pass. Set ``row`` and ``name``; override the methods below if needed.

    Attributes:
        row: registry row of the signal.
        name: name of the signal in the YAML.
    """

    row: ClassVar[RewardSignalRow]
    name: ClassVar[str]

    def spec(self) -> BehaviorSpec:
        """Return the spec of the agents."""
        return vector_spec()

    def settings(self) -> RewardSignalSettings:
        """Return settings with non-default values of ``gamma`` and ``strength``."""
        return self.row.settings(gamma=0.75, strength=0.5)

    def make(self, seed: int = 0) -> RewardSignal:
        """Create a new signal. Its weights depend on the seed."""
        torch.manual_seed(seed)
        signal: RewardSignal = resolve(self.row.create)(self.spec(), self.settings(), _CPU)
        return signal

    def minibatch(self, seed: int = 0) -> Minibatch:
        """Return a minibatch to learn from."""
        packed = random_steps(self.spec(), seed=seed)
        columns = {name: torch.from_numpy(one).to(torch_dtype(one.dtype)) for name, one in packed.steps.items()}
        return Minibatch(Columns(columns), Columns({}))

    def test_it_has_its_name_and_settings(self) -> None:
        signal = self.make()
        assert (signal.name, signal.gamma, signal.strength) == (self.name, 0.75, 0.5)

    def test_it_rewards_each_step_and_changes_none(self) -> None:
        packed, untouched = random_steps(self.spec()), random_steps(self.spec())
        rewards = self.make().evaluate(packed)
        assert rewards.dtype == np.float32
        assert rewards.shape == (len(packed),)
        assert np.isfinite(rewards).all()
        for name, column in untouched.steps.items():
            np.testing.assert_array_equal(packed[name], column, err_msg=name)

    def test_its_statistics_are_finite_and_without_gradient(self) -> None:
        for tag, value in self.make().update(self.minibatch()).items():
            assert value.ndim == 0, tag
            assert not value.requires_grad, tag
            assert torch.isfinite(value), tag

    def test_a_restored_signal_goes_on_alike(self) -> None:
        one, other = self.make(seed=1), self.make(seed=2)
        one.update(self.minibatch(seed=1))
        for name, module in other.modules().items():
            module.load_state_dict(_saved_and_read(one.modules()[name].state_dict()))
        optimizer = one.optimizer_state()
        if optimizer is not None:
            other.load_optimizer_state(_saved_and_read(optimizer))
        for signal in (one, other):
            signal.update(self.minibatch(seed=2))
        packed = random_steps(self.spec(), seed=3)
        np.testing.assert_array_equal(one.evaluate(packed), other.evaluate(packed))


class AlgorithmContract:
    """Tests that every algorithm must pass. Set ``trainer_type`` and ``hyperparameters``.

    Override the methods below if needed.

    Attributes:
        trainer_type: name of the algorithm in the YAML; its package must be installed.
        hyperparameters: hyperparameters as in the YAML; the buffer should be small.
    """

    trainer_type: ClassVar[str]
    hyperparameters: ClassVar[Mapping[str, Any]] = {"batch_size": 8, "buffer_size": 16}

    def spec(self) -> BehaviorSpec:
        """Return the spec of the agents."""
        return vector_spec()

    def settings(self) -> TrainerSettings:
        """Return the settings of the behavior."""
        network = {"hidden_units": 8, "num_layers": 1}
        signals = {"extrinsic": {"gamma": 0.9}}
        return trainer_settings(
            {
                "trainer_type": self.trainer_type,
                "hyperparameters": dict(self.hyperparameters),
                "network_settings": network,
                "reward_signals": signals,
            }
        )

    def make(self, seed: int = 0) -> Algorithm:
        """Create a new algorithm with its networks and reward signals."""
        spec = self.spec()
        return create_algorithm(
            LearningContext(
                behavior="A",
                spec=spec,
                settings=self.settings(),
                obs_dtypes=[np.dtype(np.float32)] * len(spec.observation_specs),
                seed=seed,
                device=_CPU,
                training=True,
                timers=Timers(),
                is_stopping=lambda: False,
            )
        )

    def train(self, algorithm: Algorithm) -> int:
        """Feed experience to the algorithm until it has updated twice, and return the step."""
        step = updates = 0
        for number in range(1000):
            size = algorithm.actor.memory_size
            packed = random_steps(self.spec(), seed=number, groups=algorithm.needs_groups, memory_size=size)
            rewards = np.stack([packed["reward"] for _ in algorithm.signals])
            self._check(algorithm, algorithm.add(packed, rewards))
            step += len(packed)
            if algorithm.is_ready(step):
                self._check(algorithm, algorithm.update(step, lambda _: None))
                updates += 1
            if updates == 2:
                return step
        raise AssertionError(f"it was not ready for two updates within {step} steps")

    def _check(self, algorithm: Algorithm, statistics: Mapping[str, NDArray[Any]]) -> None:
        for tag, values in statistics.items():
            assert tag in algorithm.may_be_nan or np.isfinite(values).all(), tag

    def test_it_has_an_actor(self) -> None:
        assert isinstance(self.make().networks["actor"], Actor)

    def test_it_learns(self) -> None:
        algorithm = self.make()
        before = _saved_and_read(algorithm.actor.state_dict())
        self.train(algorithm)
        assert any(not torch.equal(value, before[name]) for name, value in algorithm.actor.state_dict().items())
        assert all(torch.isfinite(weights).all() for weights in algorithm.actor.parameters())

    def test_a_seed_gives_the_same_weights_again(self) -> None:
        one, other = self.make(seed=5), self.make(seed=5)
        for algorithm in (one, other):
            torch.manual_seed(id(algorithm))  # must not affect the result
            self.train(algorithm)
        _assert_same(learned_state(other)["modules"], learned_state(one)["modules"])

    def test_what_is_saved_is_restored(self) -> None:
        one, other = self.make(seed=1), self.make(seed=2)
        step = self.train(one)
        state = learned_state(one)
        # ``keys`` and ``layout`` map to ML-Agents' names. They are needed to write checkpoints, but are not part of
        # them.
        saved = _saved_and_read({name: part for name, part in state.items() if name not in ("keys", "layout")})
        load_learned(other, saved, resumed_at=step)
        _assert_same(learned_state(other), state)

    def test_its_policy_is_exported(self, tmp_path: Path) -> None:
        algorithm = self.make()
        self.train(algorithm)
        export_policy(algorithm.actor, self.spec(), tmp_path / "policy.onnx")
        assert (tmp_path / "policy.onnx").stat().st_size > 0


class EncoderContract:
    """Tests that every image encoder must pass. Set ``row`` and ``name``; override the methods below if needed.

    Attributes:
        row: registry row of the encoder.
        name: name of the encoder in the YAML; its package must be installed.
    """

    row: ClassVar[EncoderRow]
    name: ClassVar[str]

    def shape(self) -> tuple[int, int, int]:
        """Return (channels, height, width) of the images."""
        return 3, self.row.smallest_side, self.row.smallest_side + 3

    def make(self, size: int = 7) -> nn.Module:
        """Create a new image encoder with ``size`` outputs."""
        encoder: nn.Module = resolve(self.row.create)(self.shape(), size)
        return encoder

    def test_it_encodes_each_picture_by_itself(self) -> None:
        encoder, pictures = self.make(), torch.rand(5, *self.shape())
        encoded = encoder(pictures)
        assert encoded.shape == (5, 7)
        assert encoded.dtype == torch.float32
        assert torch.isfinite(encoded).all()
        torch.testing.assert_close(encoder(pictures[2:3]), encoded[2:3])

    def test_it_learns(self) -> None:
        encoder = self.make()
        encoder(torch.rand(5, *self.shape())).square().sum().backward()
        for name, weights in encoder.named_parameters():
            assert weights.grad is not None, name
            assert torch.isfinite(weights.grad).all(), name

    def test_its_policy_is_exported(self, tmp_path: Path) -> None:
        moves = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
        properties = (DimensionProperty.NONE, moves, moves)
        sensor = ObservationSpec(self.shape(), properties, ObservationType.DEFAULT, "picture")
        spec = BehaviorSpec([sensor], ActionSpec(2, (3,)))
        actor = Actor(spec, NetworkSettings(hidden_units=8, num_layers=1, vis_encode_type=self.name))
        export_policy(actor, spec, tmp_path / "policy.onnx")  # also compares the outputs
        assert (tmp_path / "policy.onnx").stat().st_size > 0
