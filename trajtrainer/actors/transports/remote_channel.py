"""The channel of an actor outside the learner's loop: experience and weights as bytes, statistics as reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trajtrainer.actors.messages import Buffer, Experience, Learn, NewBehavior, Report, Weights
from trajtrainer.actors.noisy_policy import NoisyPolicy
from trajtrainer.actors.weights import WeightsLayout
from trajtrainer.algos.acting import Policy
from trajtrainer.core.queues import PolicyUpdate
from trajtrainer.core.stats import StatsReporter, StatsSummary, StatsWriter
from trajtrainer.data.packed_layout import Counts, PackedLayout
from trajtrainer.data.rows import RowPool
from trajtrainer.data.trajectory import TrajectoryBatch, gather, release


class Room(NamedTuple):
    """Room for experience.

    Attributes:
        buffer: to be written into.
        place: names it for the transport.
    """

    buffer: Buffer
    place: Any


class _StatsBuffer(StatsWriter):
    """Keeps the statistics of the last ``write``."""

    def __init__(self) -> None:
        self.values: Mapping[str, StatsSummary] = {}

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:  # noqa: ARG002
        """See ``StatsWriter``."""
        self.values = values


@dataclass(frozen=True, slots=True)
class _Behavior:
    """One behavior: where its bytes are, and its statistics."""

    layout: PackedLayout
    weights: WeightsLayout
    reporter: StatsReporter
    buffer: _StatsBuffer


class RemoteChannel(ABC):
    """See ``Channel``."""

    def __init__(self) -> None:
        self._behaviors: dict[str, _Behavior] = {}

    @abstractmethod
    def report(self, report: Report) -> None:
        """See ``Channel``."""

    @abstractmethod
    def room(self, size: int) -> Room:
        """Return room for so many bytes of experience, which is reported next."""

    @abstractmethod
    def weights(self, place: Any) -> Buffer:
        """Return the weights at this place."""

    def begin(self, order: Learn, found: NewBehavior) -> tuple[Policy, StatsReporter]:
        """See ``Channel``."""
        options: dict[str, Any] = {"noise": order.noise} if order.noise else {}
        policy = (NoisyPolicy if order.noise else Policy)(
            order.network,
            seed=order.seed,
            deterministic=order.settings.network_settings.deterministic,
            evenly_first=order.evenly_first,
            **options,
        )
        policy.version = order.version
        layout = PackedLayout(found.spec, found.obs_dtypes, memory_size=policy.memory_size, groups=order.groups)
        buffer = _StatsBuffer()
        reporter = StatsReporter(order.behavior, [buffer])
        weights = WeightsLayout(policy.actor.state_dict())
        self._behaviors[order.behavior] = _Behavior(layout, weights, reporter, buffer)
        return policy, reporter

    def hand_over(self, order: Learn, pool: RowPool, batches: Sequence[TrajectoryBatch], rows: int) -> None:
        """See ``Channel``. Copies the trajectories to where the learner reads them."""
        layout = self._behaviors[order.behavior].layout
        counts = Counts(sum(batch.num_steps for batch in batches), sum(map(len, batches)))
        if pool.moments is None:
            room = self.room(layout.size(counts))
            packed = gather(pool, batches, layout.over(room.buffer, counts).steps)
        else:  # how many groupmates there are is known only afterwards
            packed = gather(pool, batches)
            counts = Counts.of(packed)
            room = self.room(layout.size(counts))
        layout.write(packed, room.buffer)
        self.report(Experience(order.behavior, rows, (counts, room.place)))
        release(pool, batches)

    def statistics(self, behavior: str) -> Mapping[str, StatsSummary]:
        """See ``Channel``."""
        known = self._behaviors[behavior]
        known.buffer.values = {}
        known.reporter.write(0)
        return known.buffer.values

    def load(self, order: Weights, policy: Policy) -> None:
        """See ``Channel``."""
        weights = self._behaviors[order.behavior].weights.over(self.weights(order.place))
        policy.load(PolicyUpdate(order.version, weights))
