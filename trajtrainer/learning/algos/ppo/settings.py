"""The hyperparameters of PPO, including those that it shares with POCA."""

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
        buffer_size: for PPO and POCA, number of steps to collect before each update, typically 2,048 to 409,600; larger
            values make training more stable but slower. For SAC and other algorithms with a replay buffer, the capacity
            of that buffer in steps, typically several thousand episodes; larger buffers take more memory.
        joint_ratio: use one probability ratio for the whole action, as in the PPO paper. Otherwise, there is one for
            each continuous action and branch, as in ML-Agents.
        joint_entropy: in the entropy bonus, sum the entropies of the continuous actions. Otherwise, they are averaged,
            as in ML-Agents.
        normalize_advantage_per_mini_batch: normalize advantages to mean 0 and standard deviation 1 in each minibatch.
            Otherwise, they are normalized over the whole buffer.
        normalize_after_update: with ``normalize: true``, update the normalizers after each update instead of with each
            trajectory, as ML-Agents does. Updates then use the same normalization as the policy that acted, like
            Stable-Baselines3's VecNormalize. Use it if training is sensitive to the first steps.
        norm_reward: divide the environment's rewards by the running standard deviation of their discounted sums. Use it
            if rewards are very large or small, or their scale is unknown. Summaries show the original rewards.
        clip_reward: maximum absolute value of rewards with ``norm_reward``.
        max_grad_norm: maximum gradient norm of policy and critic together. Typical values of 0.5 to 1 make training
            more stable. By default, gradients are not clipped.
        target_kl: stop an update if the KL divergence in a minibatch exceeds 1.5 times this value, before the gradient
            step, as in Stable-Baselines3. Typically 0.01 to 0.05. By default, updates never stop early.
            ``Policy/Approximate KL`` shows the divergence.
        value_clipping: clip the change of value estimates like that of the policy, as in OpenAI Baselines. In
            ML-Agents, value clipping has no effect.
        vf_coef: coefficient of the value loss. Only matters with ``shared_critic`` or ``max_grad_norm``.
        adam_eps: epsilon of the Adam optimizer. Most published results of PPO use 1e-5.
        v_trace: correct for experience from older policies (Espeholt et al. 2018), by weighting each step by how likely
            its action is under the current policy. Enabled by default if ``actors.max_policy_lag`` is above 0.
        rho_bar: with ``v_trace: true``, maximum weight of a step. Steps of the current policy have a weight of 1.
            Larger values reduce the bias toward older policies, but increase the variance.
        c_bar: with ``v_trace: true``, maximum coefficient (before multiplying by ``lambd``) with which a step passes
            later temporal differences on to earlier steps; at most ``rho_bar``.
        desired_kl: target KL divergence of ``learning_rate_schedule: adaptive``. Above twice this value, the learning
            rate falls by a third; below half of it, the rate rises by half. It stays between 1e-5 and 1e-2.
        beta: coefficient of the entropy bonus, which keeps actions random. Typically 1e-4 to 1e-2. Increase it if
            ``Policy/Entropy`` falls before the reward has risen, and decrease it if the entropy does not fall.
        epsilon: clipping range: how far an update may move a probability ratio from 1. Typically 0.1 to 0.3; lower
            values make training more stable but slower.
        lambd: lambda of generalized advantage estimation, typically 0.9 to 0.95. Lower values rely more on the value
            estimates (bias), and higher values more on the rewards themselves (variance).
        num_epoch: number of passes over each buffer, typically 3 to 10. More epochs learn more from the same steps but
            are less stable; use more with larger batches.
        learning_rate_schedule: ``linear`` decays to 0 at ``max_steps``, which stabilizes the end of training. Use
            ``constant`` if the run has no fixed end. Not in ML-Agents: ``cosine`` decays more slowly at the start and
            the end; ``adaptive`` follows ``desired_kl``, and the other schedules are then constant.
        beta_schedule: schedule of ``beta``. Defaults to the learning rate's.
        epsilon_schedule: schedule of ``epsilon``. Defaults to the learning rate's.
    """

    critic_may_see_more: ClassVar[bool] = True

    buffer_size: int = field(default=10240, validator=count)
    learning_rate: float = field(default=3e-4, validator=not_negative)  # redefined to keep the order of the keys
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
        shared_critic: add the value heads to the policy's layers instead of using a separate network. Use it with
            images, because image encoders take most of the training time.
        symmetry: mirror symmetry of the task. Each minibatch then also contains the mirror images of its steps (Mittal
            et al. 2024). Only for agents with vector observations and no memory. Not in ML-Agents.
    """

    shared_critic: bool = False
    symmetry: SymmetrySettings | None = field(default=None, metadata=OURS)

    def faults(self, network: NetworkSettings) -> Iterator[Fault]:
        yield from super().faults(network)
        yield from faults_of_symmetry(self.symmetry, network)
        if self.shared_critic and network.critic_only:
            expected = "none with shared_critic: true, because the critic then has the same inputs as the policy"
            yield mismatch(("network_settings", "critic_only"), network.critic_only, expected)


ROW = AlgorithmRow(PPOHyperparameters, "trajtrainer.learning.algos.ppo.ppo:PPO", clones=True)
