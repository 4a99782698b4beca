"""A cluster for the tests of actors on Ray."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster of Ray with two nodes, simulated on this machine, on loopback, with a token.

    Ray looks at its variables when it is imported, so nothing may do that before.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("RAY_AUTH_MODE", "token"),
            ("RAY_AUTH_TOKEN", "0" * 64),
            ("RAY_USAGE_STATS_ENABLED", "0"),
            ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"),
            ("RAY_health_check_period_ms", "500"),
            ("RAY_health_check_failure_threshold", "3"),
        ):
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        options = {"num_cpus": 2, "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
        cluster.add_node(**options)
        try:
            yield cluster
        finally:
            cluster.shutdown()
