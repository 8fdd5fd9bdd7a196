"""A Ray cluster on the loopback of this machine, whose nodes can be killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MEMORY = 100 << 20  # of a node's object store


@contextmanager
def cluster(nodes: int = 2) -> Iterator[Any]:
    """A head without CPUs, and nodes of one CPU each."""
    # Before Ray is imported. Its own helper makes clusters without a token.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    from ray.cluster_utils import Cluster

    ours = {"object_store_memory": MEMORY, "include_dashboard": False}
    found: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **ours})
    try:
        found.workers = [found.add_node(num_cpus=1, **ours) for _ in range(nodes)]
        yield found
    finally:
        found.shutdown()
