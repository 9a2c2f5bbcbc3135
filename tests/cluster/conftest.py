"""A Ray cluster of three nodes on this machine."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """The cluster: a head and two other nodes, with one CPU each. No process is connected to it yet."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100_000_000, "include_dashboard": False}
        # A node that is gone is noticed after two seconds, not after twenty.
        checks = {"initial_delay_ms": 0, "period_ms": 500, "failure_threshold": 4}
        checks = {f"health_check_{name}": value for name, value in checks.items()}
        made: Any = Cluster(initialize_head=True, head_node_args={**node, "_system_config": checks})
        for _ in range(2):
            made.add_node(**node)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def connected(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The cluster, with this process connected to it: `RayEngine()` uses it."""
    import ray

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if not ray.is_initialized():
        ray.init(cluster.address, log_to_driver=False, logging_level=logging.CRITICAL)
    yield cluster
    assert ray.is_initialized(), "a connection that was there is left alone"
