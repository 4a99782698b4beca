"""What the algorithms that learn from a data set share.

Shape legend: B packed steps, b rows of a minibatch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.algos.algorithm import Algorithm, LearningContext, Statistics
from trajtrainer.algos.bc.settings import BCHyperparameters, CloningHyperparameters, OfflineHyperparameters, PolicyKind
from trajtrainer.algos.dagger.settings import DAggerHyperparameters
from trajtrainer.algos.offline.rows import DatasetRows, Shuffled, held_out, tensors
from trajtrainer.algos.schedules import MIN_LEARNING_RATE, decayed
from trajtrainer.core.columns import TEACHER_MEAN, TEACHER_PROBS, TEACHER_STD
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.spec import BehaviorSpec, sensors_named, with_sensors
from trajtrainer.core.steps import FloatArray
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.nn.distribution import ActionDistribution
from trajtrainer.nn.minibatch import Minibatch
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.network import NetworkSettings

# What was recorded at the very end of the range has no finite place ahead of tanh.
_BELOW_ONE = 0.999


def make_actor(spec: BehaviorSpec, network: NetworkSettings, hyper: CloningHyperparameters) -> Actor:
    """Return a policy of the kind that ``policy`` names, with weights of the global generator.

    Raises:
        UnsupportedError: a sensor that no encoder takes.
    """
    is_sac = hyper.policy is PolicyKind.SAC
    return Actor(spec, network, conditional_sigma=is_sac, tanh_squash=is_sac)


def make_student(context: LearningContext) -> Actor:
    """Return a policy like ``make_actor`` that sees the ``student_sensors``, if there are any; else all.

    Raises:
        SettingsError: one of these is missing.
        UnsupportedError: a sensor that no encoder takes.
    """
    hyper = context.settings.hyperparameters
    assert isinstance(hyper, BCHyperparameters | DAggerHyperparameters)
    sees = sensors_named(context.spec, hyper.student_sensors) if hyper.student_sensors else None
    actor = make_actor(with_sensors(context.spec, sees), context.settings.network_settings, hyper)
    actor.sees = sees
    return actor


def recorded(actor: Actor, continuous: Tensor) -> Tensor:
    """Return recorded actions of the environment [b, C] as the policy's distribution gives them."""
    raw = actor.head.from_env(continuous)
    return raw.clamp(-_BELOW_ONE, _BELOW_ONE) if actor.head.tanh_squash else raw


def log_likelihood(actor: Actor, batch: Minibatch) -> Tensor:
    """Return the log-probability of what was recorded, summed over actions and branches [b]."""
    distribution, _ = actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
    of_each: Tensor = distribution.log_prob(recorded(actor, batch["continuous"]), batch["discrete"])
    return of_each.sum(1)


def divergence(distribution: ActionDistribution, batch: Minibatch) -> Tensor:
    """Return KL(teacher || policy), summed over actions and branches [b].

    Between a squashed and a clipped Gaussian it is the one between Gaussians of the teacher's ``moments``, which
    differs from the true one by what does not depend on the policy.
    """
    found = distribution.mu.new_zeros(len(batch))
    if distribution.mu.shape[1]:
        mean, std, sigma = batch[TEACHER_MEAN], batch[TEACHER_STD], distribution.sigma
        squares = (std.square() + (mean - distribution.mu).square()) / (2.0 * sigma.square())
        found = found + ((sigma / std).log() + squares - 0.5).sum(1)
    if distribution.branches:
        probs = batch[TEACHER_PROBS]
        log_probs = torch.cat([logits.log_softmax(1) for logits in distribution.logits], 1)
        found = found + (torch.xlogy(probs, probs) - probs * log_probs).sum(1)
    return found


def imitation_losses(actor: Actor, distribution: ActionDistribution, batch: Minibatch) -> Tensor:
    """Return what imitation minimizes [b]: the divergence from a teacher where there is one, else -ln pi(a | s)."""
    if TEACHER_MEAN in batch.rows:
        return divergence(distribution, batch)
    return -distribution.log_prob(recorded(actor, batch["continuous"]), batch["discrete"]).sum(1)


@torch.no_grad()
def limit_sigma(actor: Actor, min_std: float) -> None:
    """Keep a standard deviation that does not depend on the state from becoming smaller than ``min_std``."""
    if actor.head.log_sigma is not None:
        actor.head.log_sigma.clamp_(min=math.log(actor.head.clip_actions * min_std))


@torch.no_grad()
def prediction(actor: Actor, batch: Minibatch) -> dict[str, Tensor]:
    """Return how well the policy's likeliest actions are what was recorded, as sums over the real rows.

    Returns:
        ``rows``; ``loss``, see ``imitation_losses``; ``squared_error`` of the continuous actions, mean over them, in
        the environment's units; ``hits``, the part of the branches that is right. What the actions do not have is left
        out.
    """
    distribution, _ = actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
    likeliest = distribution.deterministic()
    weight = torch.ones(len(batch), device=batch["mask"].device) if batch.loss_mask is None else batch.loss_mask
    sums = {"rows": weight.sum(), "loss": weight @ imitation_losses(actor, distribution, batch)}
    if actor.head.continuous_size:
        error = distribution.to_env(likeliest.continuous) - batch["continuous"]
        sums["squared_error"] = weight @ error.square().mean(1)
    if actor.head.branches:
        sums["hits"] = weight @ (likeliest.discrete == batch["discrete"]).float().mean(1)
    return sums


# Gradient steps between two looks at everything else that a run does.
_BLOCK = 16
# Held-out steps are predicted in batches of so many.
_ROWS = 4096


class Offline(Algorithm):
    """Learns from a data set, which ``add`` is given once.

    A step of its trainer is a gradient step. Which rows it learns from is a function of the seed and the step alone, so
    that a resumed run goes on as if it had never ended.

    Attributes:
        needs_next: whether minibatches have next observations, ``rewards`` and ``discount``.
        timer: name of a gradient step.
        hyper: the hyperparameters.
    """

    counts_group_rewards = True
    needs_next: ClassVar[bool] = False
    timer: ClassVar[str]

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, OfflineHyperparameters)
        self.hyper = hyper

    @abstractmethod
    def gradient_step(self, batch: Minibatch, step: int) -> dict[str, Tensor]:
        """Make gradient step ``step``. Return statistics as 0-d tensors on the device, without gradient."""

    def decayed(self, initial: float, step: int) -> float:
        """Return a learning rate at gradient step ``step``."""
        schedule, last = self.hyper.learning_rate_schedule, self.context.settings.max_steps
        return decayed(schedule, initial, MIN_LEARNING_RATE, last, step)

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:
        """Take the data set. Called once.

        Raises:
            SettingsError: nothing of it is left to learn from.
        """
        context, hyper = self.context, self.hyper
        memory = context.settings.network_settings.memory
        length = self._length = 1 if memory is None else memory.sequence_length
        learned, apart = held_out(packed, hyper.validation_fraction, context.draws_seed)
        more = (lambda: self._outcomes(packed, rewards)) if self.needs_next else None
        self._rows = DatasetRows(packed, learned, sequence_length=length, device=context.device, more=more)
        self._apart = DatasetRows(packed, apart, sequence_length=length, device=context.device)
        if not self._rows.num_steps:
            raise SettingsError(
                f"Behavior {context.behavior!r}: validation_fraction {hyper.validation_fraction} leaves nothing of the "
                f"data set's {len(packed)} steps to learn from. Set it to 0, or record more."
            )
        self._per_batch = max(1, hyper.batch_size // length)
        self._shuffled = Shuffled(self._rows.num_sequences, context.draws_seed)
        if context.settings.network_settings.normalize:
            for obs in self._rows.observations():
                self.actor.update_normalization(obs)
        return {}

    def _copy_normalization(self) -> None:
        """Let all networks have the policy's normalizers, which may come from another run."""
        for network in self.networks.values():
            if isinstance(network, ValueNetwork):
                network.body.copy_normalization(self.actor.body)

    def _outcomes(self, packed: PackedSteps, rewards: FloatArray) -> dict[str, FloatArray]:
        """Return the columns ``rewards``, of the extrinsic signal, and ``discount``, f32 [B]."""
        (signal,) = self.signals
        terminated = packed["done"] & ~packed["interrupted"]
        return {
            "rewards": rewards[0],
            "discount": (np.float32(signal.gamma) * ~terminated).astype(np.float32),
        }

    def is_ready(self, step: int) -> bool:  # noqa: ARG002
        """Return True: the data set is given before the first step."""
        return True

    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:  # noqa: ARG002
        """Make some gradient steps, none beyond the next summary, checkpoint or the end."""
        self._copy_normalization()
        count = self._block(step)
        size = self._per_batch
        numbers = self._shuffled(step * size, (step + count) * size)
        found: list[dict[str, Tensor]] = []
        for batch in self.until_stop(self._rows.minibatches(numbers, count)):
            with self.context.timers(self.timer):
                found.append(self.gradient_step(batch, step + len(found)))
        self.gradient_steps += len(found)
        after = step + len(found)
        once = {"Policy/Learning Rate": self.decayed(self.hyper.learning_rate, after)}
        if after % self.context.settings.summary_freq == 0:
            once |= {"Policy/Epoch": after * size / self._rows.num_sequences, **self.validate()}
        return {**tensors(found), **{tag: np.array([value]) for tag, value in once.items()}}

    def _block(self, step: int) -> int:
        """Return how many gradient steps there are to the next one at which something is due, at most ``_BLOCK``."""
        settings = self.context.settings
        due = [interval - step % interval for interval in (settings.summary_freq, settings.checkpoint_interval)]
        return max(1, min(_BLOCK, settings.max_steps - step, *due))

    def validate(self) -> dict[str, float]:
        """Return how well the steps that are held out are predicted, by tags; nothing where there are none.

        ``Losses/Validation Loss`` is the mean of minus the log-probability, or of the divergence from a teacher;
        ``Policy/Validation Error`` the squared error of continuous actions, from -1 to 1 as the environment has them;
        ``Policy/Validation Accuracy`` the part of the discrete ones that is right.
        """
        sums: defaultdict[str, float] = defaultdict(float)
        size = max(1, _ROWS // self._length)
        for start in range(0, self._apart.num_sequences, size):
            numbers = np.arange(start, min(start + size, self._apart.num_sequences))
            for batch in self._apart.minibatches(numbers, 1):
                for name, value in prediction(self.actor, batch).items():
                    sums[name] += float(value)
        rows = sums.pop("rows", 0.0)
        tags = {
            "loss": "Losses/Validation Loss",
            "squared_error": "Policy/Validation Error",
            "hits": "Policy/Validation Accuracy",
        }
        return {tags[name]: value / rows for name, value in sums.items()}
