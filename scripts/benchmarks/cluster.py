"""Actors through Ray, on nodes simulated on this machine, against as many processes. Needs the extra ``ray``.

Players take their time, as those of ``actors.py`` do, so that what Ray does in between is not hidden by full cores.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from scripts.benchmarks.actors import RUNS, SLOW, slow, train
from scripts.benchmarks.report import Row, interleaved
from trajtrainer.core.spec import USUAL_PROPERTIES, ActionSpec, BehaviorSpec, ObservationSpec, ObservationType
from trajtrainer.envs.workers.shared_memory import Blocks
from trajtrainer.experience.source import Counts, PackedLayout
from trajtrainer.plugins.ray.node import RayChannel
from trajtrainer.run.actors.messages import Experience

NODES = (1, 2, 4)
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0" * 64,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # as a run has it that starts Ray itself
}
_STORE = 80 << 20
_FLOATS, _CHUNK_STEPS = 8, 5120
_CHUNKS = 200


def measure() -> list[Row]:
    """Measure hand-overs alone, and whole runs in turn. Return nothing where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        return []
    os.environ.update(_ENVIRONMENT)
    with _cluster(1) as address:
        costs = [_hand_over(address) for _ in range(RUNS)]
    rows = [Row(f"Ray, handing over steps of {_FLOATS} floats (at most)", "us per agent-step", costs, 3)]
    for nodes in NODES:
        ways = [partial(_speed, nodes), partial(_speed_of_ray, nodes)]
        processes, ray = interleaved(ways, RUNS)
        name = f"{SLOW.name}, {nodes} nodes"
        rows += [
            Row(f"{name}, processes", "agent-steps/s", processes),
            Row(f"{name}, Ray", "agent-steps/s", ray),
            Row(f"{name}, Ray", "% of processes", [100 * a / b for a, b in zip(ray, processes, strict=True)], 85),
        ]
    return rows


def _speed(actors: int) -> float:
    return train(slow(actors), actors).speed


def _speed_of_ray(actors: int) -> float:
    with _cluster(actors) as address:
        return train(slow(actors), actors, backend="ray", ray={"address": address}).speed


@contextlib.contextmanager
def _cluster(nodes: int) -> Iterator[str]:
    """Simulate nodes with room for one actor each, beside the learner's, which has none; yield the address."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, object_store_memory=_STORE)
        yield cluster.address
    finally:
        cluster.shutdown()


class _Maker:
    """Hands over steps as an actor on a node does."""

    def __init__(self) -> None:
        self._channel = RayChannel()
        sensor = ObservationSpec((_FLOATS,), USUAL_PROPERTIES[1], ObservationType.DEFAULT, "vector")
        spec = BehaviorSpec([sensor], ActionSpec.create_continuous(2))
        self._counts = Counts(_CHUNK_STEPS, _CHUNK_STEPS // 64)
        self._size = PackedLayout(spec, [np.dtype(np.float32)]).size(self._counts)

    def fetch(self) -> Any:
        buffer, place = self._channel.reserve(self._size)
        buffer[:] = 1
        self._channel.report(Experience("Bench", self._counts.steps, (self._counts, place)))
        return self._channel.fetch()


def _hand_over(address: str) -> float:
    """Return what a hand-over takes, one after the other, in microseconds per step: until the learner can read it."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        maker = ray.remote(_Maker).options(num_cpus=1).remote()
        ray.get(maker.fetch.remote())
        blocks = Blocks()
        begin_s = time.perf_counter()
        for _ in range(_CHUNKS):
            ((_, experience),) = ray.get(maker.fetch.remote())
            buffer, place = blocks.reserve(len(experience))
            buffer[:] = experience
            blocks.take_back(place.number)
        return 1e6 * (time.perf_counter() - begin_s) / (_CHUNKS * _CHUNK_STEPS)
    finally:
        ray.shutdown()
