"""The hyperparameters of PPO, and those that it shares with POCA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from attrs import Factory, field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import OURS, Fault, count, fraction, in_order, mismatch, not_negative, positive
from trajtrainer.settings.components import AlgorithmRow, Hyperparameters, ScheduleType, of_set_course
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.symmetry import SymmetrySettings, faults_of_symmetry


def _along(hyper: OnPolicy) -> ScheduleType:
    schedule = hyper.learning_rate_schedule
    return ScheduleType.CONSTANT if schedule is ScheduleType.ADAPTIVE else schedule


@frozen
class OnPolicy(Hyperparameters):
    """Hyperparameters that PPO and POCA share.

    Attributes:
        buffer_size: PPO and POCA: steps that are collected before each update, 2,048 to 409,600; larger is steadier and
            slower. SAC and others with a replay: steps that are remembered in all, several thousand episodes' worth;
            more costs memory.
        joint_ratio: one probability ratio for the whole action, as in the PPO paper. Off: one for each continuous
            action and branch, as in ML-Agents.
        joint_entropy: ``beta`` weighs the sum over the continuous actions. Off: their mean, as in ML-Agents.
        normalize_advantage_per_mini_batch: advantages have mean 0 and standard deviation 1 in each minibatch. Off: in
            the whole buffer.
        normalize_after_update: with ``normalize: true``, update the normalizers after each update, not with each
            trajectory as ML-Agents does. So an update sees observations as the policy saw them, as with
            Stable-Baselines3's VecNormalize. For runs that are sensitive to their first steps.
        norm_reward: divide the environment's reward by the running standard deviation of its discounted sums. For
            rewards that are large, small or of unknown size. Summaries show the original rewards.
        clip_reward: limit of rewards with ``norm_reward``.
        max_grad_norm: limit of the gradient norm of policy and critic together. 0.5 to 1: steadier. Left out: none.
        target_kl: end an update before the gradient step of a minibatch whose KL divergence exceeds 1.5 times this, as
            Stable-Baselines3 does. 0.01 to 0.05. Left out: never. ``Policy/Approximate KL`` shows the divergence.
        value_clipping: clip the change of value estimates like that of the policy, as OpenAI's Baselines does. In
            ML-Agents clipping has no effect.
        vf_coef: weight of the value loss. Matters with ``shared_critic`` and ``max_grad_norm``.
        adam_eps: epsilon of Adam. 1e-5 in most published results of PPO.
        v_trace: correct for policies that acted and are older than the one that learns (Espeholt et al. 2018), by
            weighting each step by how likely its action still is. Left out: on if ``actors.max_policy_lag`` is above 0.
        rho_bar: with ``v_trace: true``, the largest weight of a step; without old policies each counts 1. Larger is
            less biased toward the old policies, and noisier.
        c_bar: with ``v_trace: true``, the most that later steps count for the target of an earlier one, per step and
            times ``lambd``; at most ``rho_bar``.
        desired_kl: the KL divergence that ``learning_rate_schedule: adaptive`` aims at: above twice this value the
            learning rate falls by a third, below half of it it rises by half, within 1e-5 and 1e-2.
        beta: weight of the entropy, which keeps actions random. 1e-4 to 1e-2: higher if ``Policy/Entropy`` falls before
            the reward has risen, lower if it does not fall.
        epsilon: how far a step may move a probability ratio from 1. 0.1 to 0.3: lower is steadier and slower.
        lambd: lambda of generalized advantage estimation. 0.9 to 0.95: lower relies on the value estimate (bias),
            higher on the rewards themselves (variance).
        num_epoch: passes over each buffer. 3 to 10: more learns more from the same steps, and is less stable; larger
            with larger batches.
        learning_rate_schedule: ``linear`` falls to 0 at ``max_steps``, which steadies the end; ``constant`` if the run
            has no set end. Not in ML-Agents: ``cosine`` falls slowly first and last; ``adaptive`` follows
            ``desired_kl``, and the other schedules are constant then.
        beta_schedule: schedule of ``beta``. Left out: that of the learning rate.
        epsilon_schedule: schedule of ``epsilon``. Left out: that of the learning rate.
    """

    critic_may_see_more: ClassVar[bool] = True

    buffer_size: int = field(default=10240, validator=count)
    learning_rate: float = field(default=3e-4, validator=not_negative)  # once more, for the order of the keys
    joint_ratio: bool = field(default=False, metadata=OURS)
    joint_entropy: bool = field(default=False, metadata=OURS)
    normalize_advantage_per_mini_batch: bool = field(default=False, metadata=OURS)
    normalize_after_update: bool = field(default=False, metadata=OURS)
    norm_reward: bool = field(default=False, metadata=OURS)
    clip_reward: float = field(default=10.0, validator=positive, metadata=OURS)
    max_grad_norm: float | None = field(default=None, validator=optional(positive), metadata=OURS)
    target_kl: float | None = field(default=None, validator=optional(positive), metadata=OURS)
    value_clipping: bool = field(default=False, metadata=OURS)
    vf_coef: float = field(default=0.5, validator=not_negative, metadata=OURS)
    adam_eps: float = field(default=1e-8, validator=positive, metadata=OURS)
    desired_kl: float = field(default=0.01, validator=positive, metadata=OURS)
    v_trace: bool | None = field(default=None, metadata=OURS)
    rho_bar: float = field(default=1.0, validator=positive, metadata=OURS)
    c_bar: float = field(default=1.0, validator=positive, metadata=OURS)
    beta: float = field(default=5e-3, validator=not_negative)
    epsilon: float = field(default=0.2, validator=positive)
    lambd: float = field(default=0.95, validator=fraction)
    num_epoch: int = field(default=3, validator=count)
    learning_rate_schedule: ScheduleType = ScheduleType.LINEAR
    beta_schedule: ScheduleType = field(default=Factory(_along, takes_self=True), validator=of_set_course)
    epsilon_schedule: ScheduleType = field(default=Factory(_along, takes_self=True), validator=of_set_course)

    def faults(self, network: NetworkSettings) -> Iterator[Fault]:  # noqa: ARG002
        limits = {"rho_bar": self.rho_bar, "c_bar": self.c_bar}
        if not self.v_trace:
            for name, limit in limits.items():
                if limit != 1.0:
                    yield Fault(("hyperparameters", name), "has no effect without v_trace: true")
        elif self.c_bar > self.rho_bar:
            expected = f"at most rho_bar ({self.rho_bar})"
            yield mismatch(("hyperparameters", "c_bar"), self.c_bar, expected)


@frozen(field_transformer=in_order("shared_critic", "learning_rate_schedule", "beta_schedule", "epsilon_schedule"))
class PPOHyperparameters(OnPolicy):
    """Hyperparameters of proximal policy optimization (Schulman et al. 2017).

    Attributes:
        shared_critic: value heads on the policy's own layers instead of a second network. For pictures, whose encoders
            take most of the time.
        symmetry: the mirror under which the task stays the same: each minibatch also contains the mirror image of each
            of its steps (Mittal et al. 2024). For agents that see vectors, without a memory. Not in ML-Agents.
    """

    shared_critic: bool = False
    symmetry: SymmetrySettings | None = field(default=None, metadata=OURS)

    def faults(self, network: NetworkSettings) -> Iterator[Fault]:
        yield from super().faults(network)
        yield from faults_of_symmetry(self.symmetry, network)
        if self.shared_critic and network.critic_only:
            expected = "none with shared_critic: true, since the critic then sees what the policy sees"
            yield mismatch(("network_settings", "critic_only"), network.critic_only, expected)


ROW = AlgorithmRow(PPOHyperparameters, "trajtrainer.learning.algos.ppo.ppo:PPO")
