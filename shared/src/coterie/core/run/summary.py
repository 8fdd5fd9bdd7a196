"""What a finished run says about itself in ``summary.json``. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

_PACKAGES = ("coterie-core", "torch", "lightning", "numpy")


@dataclass(frozen=True)
class Summary:
    """What ``summary.json`` holds, of a finished run.

    Attributes:
        rounds: rounds that were run, over all blocks.
        metrics: the run's numbers by name.
        reference: the paper's numbers by the same names, where it prints them.
        up_bytes: bytes sent by all clients.
        down_bytes: bytes sent to all clients.
        seconds: wall time of training.
        notes: what else the user should know, in a line each.
    """

    rounds: int
    metrics: Mapping[str, float]
    reference: Mapping[str, float]
    up_bytes: int
    down_bytes: int
    seconds: float
    notes: Sequence[str] = ()


def versions() -> dict[str, str]:
    """List the versions of Python and of the packages that make the numbers."""
    found = {"python": python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
