"""The policy as the collector uses it: numpy in, numpy out, its own weights, its own random numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, ObservationArray
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.distribution import ActionDistribution, Actions, GaussianScale
from trajtrainer.nn.fast.acting import FastActor, acts_as_mlp
from trajtrainer.nn.heads import masked


class StateDependentNoise:
    """Draw a matrix for each agent by the policy's standard deviations, and keep it for some steps.

    The noise is what the matrix makes of the encoding, so in like states it is alike. As agents are not known by name
    where a policy acts, a matrix is that of a row of the batch.

    Args:
        actor: with a head whose ``use_sde`` is set; read whenever matrices are drawn.
    """

    def __init__(self, actor: Actor) -> None:
        assert actor.head.log_sigma is not None
        self._log_std = actor.head.log_sigma
        self._drawn_by = self._log_std.clone()
        self._frequency = actor.sde_sample_freq
        self._matrices = self._log_std.new_empty(0, *self._log_std.shape)
        self._steps = 0

    def weights_changed(self) -> None:
        """Forget the matrices if there are other deviations, as of each new policy that was not resumed."""
        if not torch.equal(self._log_std, self._drawn_by):
            self._drawn_by = self._log_std.clone()
            self._draw_anew()

    def _draw_anew(self) -> None:
        self._matrices = self._matrices[:0]
        self._steps = 0

    def __call__(self, encoding: Tensor, generator: torch.Generator) -> Tensor:
        """The noise of one step, [N, C] for encodings [N, E]."""
        if self._steps == self._frequency:
            self._draw_anew()
        self._steps += 1
        missing = len(encoding) - len(self._matrices)
        if missing > 0:
            drawn = torch.empty(missing, *self._log_std.shape, device=encoding.device).normal_(generator=generator)
            self._matrices = torch.cat((self._matrices, drawn * self._log_std.exp()))
        return torch.bmm(encoding.unsqueeze(1), self._matrices[: len(encoding)]).squeeze(1)

    def state(self) -> dict[str, Any]:
        """The matrices, what they were drawn by, and how many steps they are old. Tensors are copies."""
        tensors = {"matrices": self._matrices, "log_std": self._drawn_by}
        return {**{name: tensor.cpu().clone() for name, tensor in tensors.items()}, "steps": self._steps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take what ``state`` gave.

        Raises:
            ValueError: the matrices are of another policy.
        """
        matrices = state["matrices"]
        if matrices.shape[1:] != self._log_std.shape:
            raise ValueError(f"matrices of noise {tuple(matrices.shape)}, expected {tuple(self._log_std.shape)} each")
        self._matrices, self._steps = matrices.to(self._log_std), int(state["steps"])
        self._drawn_by = state["log_std"].to(self._log_std)


_LOG_SIGMA = "head.log_sigma"


class PolicyDivergedError(TrajtrainerError, RuntimeError):
    """The policy's actions are not numbers any more."""


class WeightsUpdate(Protocol):
    """Weights and their version: ``queues.PolicyUpdate``."""

    @property
    def version(self) -> int:
        """The version of the weights."""

    @property
    def weights(self) -> Mapping[str, Any]:
        """The weights by name."""


class Acts(Protocol):
    """The acting side of a policy, whatever it is made of: :class:`Policy`, or an exported model."""

    @property
    def memory_size(self) -> int:
        """H; 0 without a memory."""

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        """Decide for N agents; see :meth:`Policy.act`."""


class Policy:
    """Decides for agents with a copy of an actor, so that training never changes weights while it acts.

    Attributes:
        deterministic: see below.
        evenly_first: see below.
        version: of its weights.
        num_loads: how often weights were taken over.

    Args:
        actor: copied, never kept.
        seed: of the policy's own random generator.
        deterministic: take the mean and the likeliest branch instead of sampling.
        evenly_first: draw from all actions evenly as long as the weights are of version 0, which have learned nothing.
        device: where to compute.
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
        self._fast = FastActor(self._actor) if self._on_cpu and acts_as_mlp(self._actor) else None
        self.deterministic = deterministic
        self.evenly_first = evenly_first
        self.version = 0
        self.num_loads = 0

    @property
    def memory_size(self) -> int:
        """H; 0 without a memory."""
        return self._actor.memory_size

    @torch.no_grad()
    def load(self, update: WeightsUpdate) -> None:
        """Take over the weights of an update, all or some entries of the actor's ``state_dict``.

        Raises:
            KeyError: an entry that this actor does not have.
            ValueError: an entry of another shape.
        """
        for name, value in update.weights.items():
            entry = self._entries[name]
            weights = torch.as_tensor(value)
            if weights.shape != entry.shape:
                raise ValueError(f"{name}: shape {tuple(weights.shape)}, expected {tuple(entry.shape)}")
            entry.copy_(weights)
        self._derive(update.weights)
        if self._exploration is not None:
            self._exploration.weights_changed()
        self.version = update.version
        self.num_loads += 1

    def _derive(self, changed: Collection[str]) -> None:
        """Compute anew what follows from these weights alone."""
        if self._fast is not None:
            self._fast.weights_changed(changed)
        elif _LOG_SIGMA in changed:
            self._scale = self._actor.head.constant_scale()

    def weights(self) -> dict[str, Tensor]:
        """A copy of all weights, as ``load`` takes them."""
        return {name: entry.clone() for name, entry in self._entries.items()}

    @property
    def actor(self) -> Actor:
        """The network that acts; to be copied, not kept."""
        return self._actor

    def twin(self, *, seed: int) -> Policy:
        """Another policy with these weights and random numbers of its own, which acts by them from the start."""
        return Policy(self._actor, seed=seed, deterministic=self.deterministic, device=self._device)

    def exploration_state(self) -> dict[str, Any]:
        """The state of the noise that depends on the state, plain data and tensors; empty without any."""
        return {} if self._exploration is None else self._exploration.state()

    def load_exploration_state(self, state: Mapping[str, Any]) -> None:
        """Take what :meth:`exploration_state` gave, if the noise is of that kind."""
        if self._exploration is not None and state:
            self._exploration.load(state)

    def rng_state(self) -> Tensor:
        """The state of the random generator, u8."""
        return self._generator.get_state()

    def set_rng_state(self, state: Tensor) -> None:
        """Go on with random numbers where :meth:`rng_state` was taken."""
        self._generator.set_state(state)

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        """Decide for N agents in one forward pass.

        Args:
            obs: per sensor of the agents f32 or u8 [N, *O], those among them that it does not see; not copied on the
                CPU.
            mask: bool [N, D], True = forbidden.
            memory: f32 [N, H].

        Raises:
            PolicyDivergedError: an action, or its probability, is NaN.
        """
        obs = self._seen(obs)
        if self._fast is None:
            actions = self._act_by_actor(obs, mask, memory)
        else:
            actions = self._act_fast(self._fast, obs, mask, memory)
        # A NaN anywhere in the network's outputs makes the sum NaN.
        if math.isnan(actions.log_prob.sum()):
            raise self._diverged(actions.log_prob, obs)
        return self._drawn_evenly(actions, mask) if self.evenly_first and not self.version else actions

    @torch.inference_mode()
    def distribution(
        self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray
    ) -> tuple[ActionDistribution, FloatArray]:
        """The distributions over the actions of N agents, and their memories after them, f32 [N, H].

        Arguments are those of ``act``, which draws from these distributions.

        Raises:
            PolicyDivergedError: one is NaN.
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
        """Others in the place of actions: any that the environment takes, and of each branch any allowed one."""
        head, forbidden = self._actor.head, self._tensor(mask)
        size = (len(actions), head.continuous_size)
        drawn = 2.0 * torch.rand(size, generator=self._generator, device=self._device) - 1.0
        alike = head.distribution(
            drawn, GaussianScale(drawn), masked(torch.zeros_like(forbidden, dtype=torch.float32), forbidden)
        )
        return replace(
            actions,
            continuous=head.from_env(drawn).cpu().numpy(),
            env_continuous=drawn.cpu().numpy(),
            discrete=alike.sample(self._generator, drawn).discrete.cpu().numpy().astype(np.int32),
        )

    def _act_fast(
        self, fast: FastActor, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray
    ) -> ActionBatch:
        # What is not a number is noticed in ``act``, so numpy need not warn about it.
        with np.errstate(all="ignore"):
            actions, memory_out = fast(obs, mask, memory, None if self.deterministic else self._generator)
        return ActionBatch(*actions, memory_out, self.version)

    @torch.inference_mode()
    def _act_by_actor(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        sensors = [self._tensor(sensor) for sensor in obs]
        encoding, memory_out = self._actor.body(sensors, None, self._tensor(memory))
        distribution = self._actor.head(encoding, self._tensor(mask), self._scale)
        actions = self._choose(distribution, encoding)
        return ActionBatch(
            continuous=actions.continuous.cpu().numpy(),
            discrete=actions.discrete.cpu().numpy().astype(np.int32),
            env_continuous=distribution.to_env(actions.continuous).cpu().numpy(),
            log_prob=distribution.log_prob(*actions).cpu().numpy(),
            entropy=distribution.entropy().cpu().numpy(),
            memory=memory_out.cpu().numpy(),
            version=self.version,
        )

    def _choose(self, distribution: ActionDistribution, encoding: Tensor) -> Actions:
        if self.deterministic:
            return distribution.deterministic()
        if self._exploration is None:
            return distribution.sample(self._generator)
        noise = self._exploration(encoding, self._generator)
        return distribution.sample(self._generator, noise / distribution.sigma)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array if array.flags.writeable else _writable_view(array))
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
            f"The policy (version {self.version}) gave NaN as action for {len(rows)} of {len(log_prob)} agents, the "
            f"first in row {rows[0]}. {cause}"
        )


class _Exposed:
    """Return the same memory as a read-only array, without the flag.

    torch warns about read-only arrays; nothing here writes to observations, and copying pictures for the sake of a flag
    would be slow.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.owner = array


def _writable_view(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(_Exposed(array)) if array.size else array.copy()
