"""Ray clusters for tests: on the loopback of this machine, and over hosts of their own."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.hosts import HERE, Host

from coterie.core.flower.programs import free_port, program
from coterie.core.flower.supervisor import Kept

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
    with _surroundings():
        from ray.cluster_utils import Cluster

        ours = {"object_store_memory": MEMORY, "include_dashboard": False}
        found: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **ours})
        try:
            found.workers = [found.add_node(num_cpus=1, **ours) for _ in range(nodes)]
            yield found
        finally:
            found.shutdown()


@contextmanager
def cluster_over(there: Sequence[Host], logs: Path) -> Iterator[str]:
    """A head without CPUs on this machine, a node with one on each host; the head's address.

    Each is started by the command that its owner would use.
    """
    port = free_port()
    address = f"{HERE}:{port}"
    start = [program("ray"), "start", "--block", "--object-store-memory", str(MEMORY)]
    head = [*start, "--head", "--port", str(port), "--num-cpus", "0", "--node-ip-address", HERE]
    commands = {"head": [*head, "--include-dashboard", "false"]}
    for host in there:
        own = [*start, "--address", address, "--num-cpus", "1", "--node-ip-address", host.address]
        commands[host.name] = host.words(own)
    with _surroundings(), ExitStack() as ends:
        for name, words in commands.items():
            kept = Kept(lambda words=words: words, logs / f"{name}.log", once=range(256))
            ends.callback(kept.end)
            _wait_for(address)
        yield address


def _wait_for(address: str, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    host, _, port = address.partition(":")
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection((host, int(port)), 1.0):
            return
        time.sleep(0.1)


@contextmanager
def _surroundings() -> Iterator[None]:
    """Of Ray, read when it is imported. Its own helper makes clusters without a token."""
    before = dict(os.environ)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", **_QUICK}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before
