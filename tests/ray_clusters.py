"""A Ray cluster on the loopback of this machine, whose nodes can be killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MEMORY = 100 << 20  # of a node's object store
# A node that is lost is known to be so after a second or two, not after half a minute.
_QUICK = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "2",
}


@contextmanager
def cluster(nodes: int = 2) -> Iterator[Any]:
    """A head without CPUs, and nodes of one CPU each."""
    before = dict(os.environ)
    # Before Ray is imported. Its own helper makes clusters without a token.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", **_QUICK}
    from ray.cluster_utils import Cluster

    ours = {"object_store_memory": MEMORY, "include_dashboard": False}
    found: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **ours})
    try:
        found.workers = [found.add_node(num_cpus=1, **ours) for _ in range(nodes)]
        yield found
    finally:
        found.shutdown()
        os.environ.clear()
        os.environ |= before
