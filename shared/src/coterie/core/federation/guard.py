"""The guard: which answers of clients are accepted. Both ends of a wire use the same rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.core.protocol.messages import Report
from coterie.core.tensors import tree

Versions = dict[int, tuple[Tensor, int]]


def versions(mine: Any) -> Versions:
    """Remember the tensors of a private state as they are handed out: identity -> version."""
    return {id(leaf): (leaf, leaf._version) for _, leaf in tree.tensors(mine)}


def written(before: Versions) -> bool:
    """Whether a tensor was written into since."""
    return any(leaf._version != version for leaf, version in before.values())


def guard(
    up: Any, new: Any, ids: Tensor, before: Versions | None = None
) -> tuple[Tensor, dict[int, str]]:
    """Say which clients' answers are finite, ``(C,)`` bool, and why the others are refused.

    Args:
        up: the upload, stacked or of one client, or None.
        new: the private state in the same form, or None.
        ids: ``(C,)`` the clients.
        before: what `versions` gave of the private state before; what did not change since is
            finite already.
    """
    ok = torch.ones(ids.numel(), dtype=torch.bool)
    reasons: dict[int, str] = {}
    # A Report says NaN for "not measured"; only infinities are wrong there.
    nan = isinstance(up, Report)
    fresh = [(path, leaf) for path, leaf in tree.values(new) if not _known(leaf, before or {})]
    for origin, found, missing in (
        ("upload", tree.values(up), nan),
        ("private state", fresh, False),
    ):
        for path, good in tree.finite(found, ids.numel(), nan=missing):
            if bool(good.all()):
                continue
            for client in ids[ok & ~good].tolist():
                reasons[client] = f"NaN or infinity in {origin} '{path}'"
            ok &= good
    return ok, reasons


def _known(leaf: Any, before: Versions) -> bool:
    parts = [part for _, part in tree.tensors(leaf)]
    return all(id(part) in before and before[id(part)][1] == part._version for part in parts)
