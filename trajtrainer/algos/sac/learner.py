"""SAC: keeps experience in a replay and learns from draws of it at the pace of the experience.

Shape legend: V reward signals, B packed steps, S trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.algos.algorithm import Algorithm, LearningContext, Statistics
from trajtrainer.algos.sac.batches import ReplayBatches
from trajtrainer.algos.sac.optimizer import LAYOUT, SAC, TWIN_LAYOUT, make_networks
from trajtrainer.algos.sac.pace import Pace
from trajtrainer.algos.sac.settings import SACHyperparameters
from trajtrainer.algos.sac.values import Networks, TwinNetworks, ValueNetworks, by_name
from trajtrainer.algos.values import ValueEstimator, mean_values
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.steps import FloatArray
from trajtrainer.data.replay import Replay, rows_for
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.nn.conditioning import Mlp
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.trainer import TrainerSettings

_EXTRA = "sac"
# Gradient steps that acting may be ahead in a thread of its own. Where learning is the slower side, which is the rule,
# acting is always as far ahead as it may, and a short run would be over before anything was learnt.
_LEAD = 128


class SACLearner(Algorithm):
    """Soft actor-critic (Haarnoja et al. 2018).

    Every gradient step that the experience so far makes due is made before the next drain, or after a resumption if the
    run is to end meanwhile. In a thread of its own it shows its progress block by block: so acting is never further
    ahead than ``max_lead``, and when it is, waits for no more gradient steps than make room for its next steps.

    Attributes:
        replay: the experience.
    """

    may_be_nan = frozenset({"Policy/Discrete Entropy Coeff"})  # without discrete actions
    holds_rows = True
    clones = True

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        settings, hyper = context.settings, context.settings.hyperparameters
        assert isinstance(hyper, SACHyperparameters)
        memory = settings.network_settings.memory
        length = memory.sequence_length if memory is not None else 1
        self._hyper = hyper
        kind = ValueNetworks if hyper.value_network else TwinNetworks
        self.checkpoint_layout = LAYOUT if hyper.value_network else TWIN_LAYOUT
        self._networks: Networks = kind(**{one.name: cast(ValueNetwork, networks[one.name]) for one in fields(kind)})
        critic = self._networks.critic if isinstance(self._networks, ValueNetworks) else None
        self._sac = SAC(self.actor, self._networks, settings)
        self._values = None if critic is None else ValueEstimator(critic, length)
        self.replay = Replay(
            context.spec,
            context.obs_dtypes,
            num_rows=rows_for(hyper.buffer_size, settings.time_horizon) if context.training else 2,
            sequence_length=length,
            memory_size=self.actor.memory_size,
            critic_memory_size=0 if critic is None else critic.memory_size,
        )
        self._batches = ReplayBatches(
            self.replay,
            signals,
            batch_size=hyper.batch_size,
            action_size=context.spec.action_spec.continuous_size,
            seed=context.draws_seed,
            device=context.device,
            n_step=hyper.n_step,
            decides_next=not hyper.value_network,
        )
        self._pace = Pace(hyper.steps_per_update, hyper.first_update)
        self._signal_pace = Pace(hyper.reward_signal_steps_per_update, hyper.first_update)

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """See ``Algorithm``: an actor and four networks for values."""
        actor, values = make_networks(context.spec, context.settings)
        return {"actor": actor, **by_name(values)}

    @staticmethod
    def max_lead(settings: TrainerSettings) -> int:
        """See ``Algorithm``: few gradient steps, so that what is learnt is acted on; a few trajectories at least."""
        hyper = settings.hyperparameters
        assert isinstance(hyper, SACHyperparameters)
        lead = max(_LEAD * hyper.steps_per_update, 4 * settings.time_horizon)
        return int(min(lead, hyper.buffer_size))

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:  # noqa: ARG002
        """See ``Algorithm``. Rewards are evaluated again when steps are drawn; without V ``update`` tells values."""
        device = self.context.device
        obs = [torch.from_numpy(column).to(device) for column in packed.obs]
        if self.context.settings.network_settings.normalize:
            self.actor.update_normalization(obs)
            self._sac.copy_normalization()
        if self._values is None or (self.context.is_stopping() and not self.actor.memory_size):
            self.replay.add(packed, None)  # nobody will see statistics of the estimates
            return {}
        bootstrap_obs = [torch.from_numpy(column).to(device) for column in packed.bootstrap.obs]
        estimates = self._values.estimate(packed, obs, bootstrap_obs)
        self.replay.add(packed, None if estimates.memory is None else estimates.memory.cpu().numpy())
        means = mean_values(estimates.values, packed)
        return {f"Policy/{signal.title} Value": m for signal, m in zip(self.signals, means, strict=True)}

    def is_ready(self, step: int) -> bool:
        """See ``Algorithm``: there is a minibatch, and a gradient step is due."""
        if step < self._hyper.first_update or not self.replay.num_steps:
            return False
        enough = self.replay.num_steps >= self._hyper.batch_size or self.replay.is_full
        return enough and bool(self._pace.due(step) or self._signal_pace.due(step))

    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:
        """See ``Algorithm``. Shows its progress between two blocks of minibatches."""
        learning_rate = self._sac.learning_rate(step)
        found: dict[str, list[Tensor]] = {}
        made = 0
        due = self._pace.due(step)
        for block in self._batches.blocks(due):
            for batch in self.until_stop(block):
                of_policy = (self.gradient_steps + 1) % self._hyper.policy_delay == 0
                with self.context.timers("TorchSACOptimizer.update"):
                    _collect(found, self._sac.update(batch, learning_rate, of_policy))
                _collect(found, {tag: torch.tensor(value) for tag, value in self.clone(step).items()})
                self._pace.made(1)
                self.gradient_steps += 1
                made += 1
            if self.context.is_stopping():
                break
            if made < due:
                show_progress(made / due)
        self._update_signals(step, found)
        # Read back from the device once per update.
        statistics: Statistics = {tag: torch.stack(values).cpu().numpy() for tag, values in found.items()}
        return statistics | {"Policy/Learning Rate": np.array([learning_rate])} if found else {}

    def _update_signals(self, step: int, found: dict[str, list[Tensor]]) -> None:
        """Train the reward signals' networks on draws of their own."""
        due = self._signal_pace.due(step)
        learning = [signal for signal in self.signals if signal.modules()]
        if not learning:
            self._signal_pace.made(due)
            return
        for block in self.until_stop(self._batches.blocks(due)):
            for batch in self.until_stop(block):
                for signal in learning:
                    _collect(found, signal.update(batch))
                self._signal_pace.made(1)

    def reset_worker(self, worker: int | None) -> None:
        """See ``Algorithm``."""
        if self._values is not None:
            self._values.reset_worker(worker)

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """See ``Algorithm``."""
        return self._sac.states()

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """See ``Algorithm``."""
        self._sac.load_states(states)

    def generators(self) -> dict[str, torch.Generator]:
        """See ``Algorithm``."""
        layers = self._networks.q1.body.layers
        regularization = layers.regularization if isinstance(layers, Mlp) else None
        of_layers = {} if regularization is None else {"dropout": regularization.generator}
        return {**self._batches.generators(), **of_layers}

    def extra_state(self) -> dict[str, Any]:
        """See ``Algorithm``: the entropy coefficients and the pace. The replay is apart."""
        return {
            _EXTRA: {
                "log_alpha": self._sac.coefficients(),
                "pace": self._pace.state(),
                "signal_pace": self._signal_pace.state(),
            }
        }

    def load_extra_state(self, extra: Mapping[str, Any], step: int) -> None:
        """See ``Algorithm``.

        After a checkpoint of ML-Agents training begins with the entropy coefficients of the settings, and with no
        updates due.
        """
        mine = extra.get(_EXTRA, {})
        try:
            if "log_alpha" in mine:
                self._sac.load_coefficients(mine["log_alpha"])
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"Behavior {self.context.behavior!r}: the checkpoint's entropy coefficients are of other actions "
                f"({error})."
            ) from error
        self._pace.load(mine.get("pace"), step)
        self._signal_pace.load(mine.get("signal_pace"), step)

    @property
    def saved_replay(self) -> Replay | None:
        """See ``Algorithm``."""
        return self.replay if self._hyper.save_replay_buffer else None


def _collect(found: dict[str, list[Tensor]], statistics: Mapping[str, Tensor]) -> None:
    for tag, value in statistics.items():
        found.setdefault(tag, []).append(value)
