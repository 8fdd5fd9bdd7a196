"""Hosts of their own on this machine: network namespaces on a bridge, each with its address.

They share its files and its cores, and nothing of its network: 127.0.0.1 is another one in each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

HERE = "10.213.7.1"
"""Address of this machine, as the hosts see it."""


@dataclass(frozen=True)
class Host:
    """A host: what its namespace is called, and its address."""

    name: str
    address: str

    def words(self, command: Sequence[str]) -> list[str]:
        """The same command, run there."""
        return ["ip", "netns", "exec", self.name, *command]


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts, until the block ends; the test is skipped where none can be made."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    mark = f"ct{os.getpid() % 100_000}"
    found = [Host(f"{mark}-{n}", f"10.213.7.{n + 2}") for n in range(count)]
    try:
        _ip("link", "add", mark, "type", "bridge")
        _ip("addr", "add", f"{HERE}/24", "dev", mark)
        _ip("link", "set", mark, "up")
        for number, host in enumerate(found):
            outside = f"{mark}v{number}"
            _ip("netns", "add", host.name)
            ends = ["type", "veth", "peer", "name", "eth0", "netns", host.name]
            _ip("link", "add", outside, *ends)
            _ip("link", "set", outside, "master", mark, "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "eth0", "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield found
    finally:
        for words in [*(["netns", "del", host.name] for host in found), ["link", "del", mark]]:
            subprocess.run(["ip", *words], check=False, capture_output=True)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"network namespaces are not to be had here: {done.stderr.strip()}")
