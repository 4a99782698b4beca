"""The acting side of a policy: numpy in, numpy out, with its own weights and random number generator."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, ObservationArray
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.distribution import ActionDistribution, GaussianScale
from trajtrainer.learning.nn.fast.acting import InferenceActor, acts_as_mlp
from trajtrainer.learning.nn.heads import masked

_LOG_SIGMA = "head.log_sigma"


class StateDependentNoise:
    """Exploration noise that is linear in the encoding (gSDE; Raffin et al. 2021), so similar states get similar noise.

    Each agent has a random matrix, drawn with the policy's standard deviations and kept for ``sde_sample_freq`` steps.
    A policy does not know the ids of its agents, so it keeps one matrix per row of the batch.

    Args:
        actor: an actor whose head has ``use_sde`` set. Its standard deviations are read whenever matrices are drawn.
    """

    def __init__(self, actor: Actor) -> None:
        assert actor.head.log_sigma is not None
        self._log_std = actor.head.log_sigma
        self._drawn_by = self._log_std.clone()
        self._frequency = actor.sde_sample_freq
        self._matrices = self._log_std.new_empty(0, *self._log_std.shape)
        self._steps = 0

    def weights_changed(self) -> None:
        """Drop the matrices if the standard deviations changed. A resumed policy keeps its matrices."""
        if not torch.equal(self._log_std, self._drawn_by):
            self._drawn_by = self._log_std.clone()
            self._clear()

    def _clear(self) -> None:
        self._matrices = self._matrices[:0]
        self._steps = 0

    def __call__(self, encoding: Tensor, generator: torch.Generator) -> Tensor:
        """Return the noise [N, C] for one step with encodings [N, E]."""
        if self._steps == self._frequency:
            self._clear()
        self._steps += 1
        missing = len(encoding) - len(self._matrices)
        if missing > 0:
            drawn = torch.empty(missing, *self._log_std.shape, device=encoding.device).normal_(generator=generator)
            self._matrices = torch.cat((self._matrices, drawn * self._log_std.exp()))
        return torch.bmm(encoding.unsqueeze(1), self._matrices[: len(encoding)]).squeeze(1)

    def state(self) -> dict[str, Any]:
        """Return the matrices, their log standard deviations, and their age in steps. Tensors are copies."""
        tensors = {"matrices": self._matrices, "log_std": self._drawn_by}
        return {**{name: tensor.cpu().clone() for name, tensor in tensors.items()}, "steps": self._steps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``state``.

        Raises:
            ValueError: the matrices have the wrong shape for this policy.
        """
        matrices = state["matrices"]
        if matrices.shape[1:] != self._log_std.shape:
            raise ValueError(
                f"the noise matrices have the shape {tuple(matrices.shape)}, expected {tuple(self._log_std.shape)} each"
            )
        self._matrices, self._steps = matrices.to(self._log_std), int(state["steps"])
        self._drawn_by = state["log_std"].to(self._log_std)


class PolicyDivergedError(TrajtrainerError, RuntimeError):
    """The policy's actions or update statistics are no longer finite."""


class WeightsUpdate(Protocol):
    """New weights and their version, as in ``queues.PolicyUpdate``."""

    @property
    def version(self) -> int: ...

    @property
    def weights(self) -> Mapping[str, Any]: ...


class Policy(Protocol):
    """Anything that can act: an :class:`ActorPolicy` or an exported model."""

    @property
    def memory_size(self) -> int:
        """H, the size of each agent's memory; 0 without a memory."""

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        """Choose actions for N agents, as :meth:`ActorPolicy.act` does."""


class ActorPolicy:
    """Acts with a copy of an actor, so that training never changes the weights during a decision.

    Attributes:
        deterministic: as passed to the constructor.
        evenly_first: as passed to the constructor.
        version: version of the weights.
        num_loads: number of times weights were loaded.

    Args:
        actor: the actor to copy.
        seed: seed of the policy's own random number generator.
        deterministic: take the mode of the distribution instead of sampling.
        evenly_first: draw actions uniformly while the weights have version 0, that is, are untrained.
        device: the device to compute on.
    """

    def __init__(
        self,
        actor: Actor,
        *,
        seed: int,
        deterministic: bool = False,
        evenly_first: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self._device = torch.device(device)
        self._on_cpu = self._device.type == "cpu"
        self._actor = copy.deepcopy(actor).to(self._device).requires_grad_(False)
        self._entries: dict[str, Tensor] = self._actor.state_dict()  # shares memory with the weights
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._scale = self._actor.head.constant_scale()
        self._exploration = StateDependentNoise(self._actor) if self._actor.head.use_sde and not deterministic else None
        self._fast = InferenceActor(self._actor) if self._on_cpu and acts_as_mlp(self._actor) else None
        self.deterministic = deterministic
        self.evenly_first = evenly_first
        self.version = 0
        self.num_loads = 0

    @property
    def memory_size(self) -> int:
        """H, the size of each agent's memory; 0 without a memory."""
        return self._actor.memory_size

    @torch.no_grad()
    def load(self, update: WeightsUpdate) -> None:
        """Copy the weights of an update, which contains some or all entries of the actor's ``state_dict``.

        Raises:
            KeyError: the actor has no entry of this name.
            ValueError: an entry has the wrong shape.
        """
        for name, value in update.weights.items():
            entry = self._entries[name]
            weights = torch.as_tensor(value)
            if weights.shape != entry.shape:
                raise ValueError(f"{name}: shape {tuple(weights.shape)}, expected {tuple(entry.shape)}")
            entry.copy_(weights)
        if self._fast is not None:
            self._fast.weights_changed(update.weights)
        elif _LOG_SIGMA in update.weights:
            self._scale = self._actor.head.constant_scale()
        if self._exploration is not None:
            self._exploration.weights_changed()
        self.version = update.version
        self.num_loads += 1

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the actor's ``state_dict``."""
        return {name: entry.clone() for name, entry in self._entries.items()}

    @property
    def actor(self) -> Actor:
        """The network that acts. Copy it instead of keeping a reference."""
        return self._actor

    def twin(self, *, seed: int) -> ActorPolicy:
        """Create a policy with the same weights and its own random number generator, without ``evenly_first``."""
        return ActorPolicy(self._actor, seed=seed, deterministic=self.deterministic, device=self._device)

    def exploration_state(self) -> dict[str, Any]:
        """Return the state of ``StateDependentNoise`` as plain data and tensors, or an empty dict if it is not used."""
        return {} if self._exploration is None else self._exploration.state()

    def load_exploration_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`exploration_state`. Does nothing without ``StateDependentNoise``."""
        if self._exploration is not None and state:
            self._exploration.load(state)

    def rng_state(self) -> Tensor:
        return self._generator.get_state()

    def set_rng_state(self, state: Tensor) -> None:
        self._generator.set_state(state)

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        """Choose actions for N agents in one forward pass.

        Args:
            obs: f32 or u8 [N, *O] for every sensor of the agents, even those that the policy does not see. Not copied
                on the CPU.
            mask: bool [N, D]; True marks a forbidden action.
            memory: f32 [N, H].

        Raises:
            PolicyDivergedError: an action or its log-probability is NaN.
        """
        obs = self._seen(obs)
        if self._fast is None:
            actions = self._act_by_actor(obs, mask, memory)
        else:
            with np.errstate(all="ignore"):  # NaN is detected below.
                found, after = self._fast(obs, mask, memory, None if self.deterministic else self._generator)
            actions = ActionBatch(*found, after, self.version)
        # A NaN anywhere in the network's outputs makes the sum NaN.
        if math.isnan(actions.log_prob.sum()):
            raise self._diverged(actions.log_prob, obs)
        return self._drawn_evenly(actions, mask) if self.evenly_first and not self.version else actions

    @torch.inference_mode()
    def distribution(
        self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray
    ) -> tuple[ActionDistribution, FloatArray]:
        """Return the distributions that ``act`` would sample from, and the memories after the step, f32 [N, H].

        Raises:
            PolicyDivergedError: a parameter of a distribution is NaN.
        """
        seen = self._seen(obs)
        found, memory_out = self._actor([self._tensor(each) for each in seen], self._tensor(mask), self._tensor(memory))
        outputs = torch.cat((found.mu + found.log_sigma, found.masked_logits), 1).cpu().numpy()
        if np.isnan(outputs).any():
            raise self._diverged(outputs, seen)
        return found, memory_out.cpu().numpy()

    def _seen(self, obs: Sequence[ObservationArray]) -> Sequence[ObservationArray]:
        sees = self._actor.sees
        return obs if sees is None else [obs[number] for number in sees]

    def _drawn_evenly(self, actions: ActionBatch, mask: BoolArray) -> ActionBatch:
        """Replace actions with uniform samples: from -1 to 1, and from the allowed actions of each branch."""
        head, forbidden = self._actor.head, self._tensor(mask)
        size = (len(actions), head.continuous_size)
        drawn = 2.0 * torch.rand(size, generator=self._generator, device=self._device) - 1.0
        uniform = head.distribution(
            drawn, GaussianScale(drawn), masked(torch.zeros_like(forbidden, dtype=torch.float32), forbidden)
        )
        return replace(
            actions,
            continuous=head.from_env(drawn).cpu().numpy(),
            env_continuous=drawn.cpu().numpy(),
            discrete=uniform.sample(self._generator, drawn).discrete.cpu().numpy().astype(np.int32),
        )

    @torch.inference_mode()
    def _act_by_actor(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        sensors = [self._tensor(sensor) for sensor in obs]
        encoding, memory_out = self._actor.body(sensors, None, self._tensor(memory))
        distribution = self._actor.head(encoding, self._tensor(mask), self._scale)
        if self.deterministic:
            actions = distribution.deterministic()
        elif self._exploration is None:
            actions = distribution.sample(self._generator)
        else:
            noise = self._exploration(encoding, self._generator)
            actions = distribution.sample(self._generator, noise / distribution.sigma)
        return ActionBatch(
            continuous=actions.continuous.cpu().numpy(),
            discrete=actions.discrete.cpu().numpy().astype(np.int32),
            env_continuous=distribution.to_env(actions.continuous).cpu().numpy(),
            log_prob=distribution.log_prob(*actions).cpu().numpy(),
            entropy=distribution.entropy().cpu().numpy(),
            memory=memory_out.cpu().numpy(),
            version=self.version,
        )

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        if not array.flags.writeable:
            array = np.asarray(_Exposed(array)) if array.size else array.copy()
        tensor = torch.from_numpy(array)
        return tensor if self._on_cpu else tensor.to(self._device, non_blocking=True)

    def _diverged(self, log_prob: FloatArray, obs: Sequence[ObservationArray]) -> PolicyDivergedError:
        rows = np.flatnonzero(np.isnan(log_prob).any(axis=1))
        finite = all(bool(np.isfinite(sensor).all()) for sensor in obs)
        cause = (
            "The observations are finite, so the weights have diverged: lower learning_rate, or look for extreme "
            "rewards or observations (normalize: true limits the latter)."
            if finite
            else "The observations contain NaN or infinity: fix the sensor in the environment."
        )
        return PolicyDivergedError(
            f"The policy (version {self.version}) produced NaN actions for {len(rows)} of {len(log_prob)} agents, "
            f"the first in row {rows[0]}. {cause}"
        )


class _Exposed:
    """Exposes a read-only array as a writable one, without copying it.

    torch warns about read-only arrays. Nothing here writes to observations, and copying images just to silence the
    warning would be slow.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.owner = array
