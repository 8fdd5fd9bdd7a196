"""The guard: which answers of clients are accepted. Both ends of a wire use the same rule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from coterie.core.protocol.messages import Report
from coterie.core.tensors import tree
from coterie.core.tensors.appended import Appended, Entry
from coterie.core.tensors.stacked import Stacked

Versions = dict[int, tuple[Tensor | Entry[Any], int]]


def versions(mine: Any) -> Versions:
    """Remember the parts of a private state as they are handed out: identity -> version.

    Of what only grows that is its newest entry: the others are looked at when they are used, and
    before they are saved.
    """
    return {id(part): (part, part._version) for part in _parts(mine)}


def written(before: Versions) -> bool:
    """Whether a tensor was written into since."""
    return any(part._version != version for part, version in before.values())


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
    for origin, found, missing in (
        ("upload", tree.values(up), nan),
        ("private state", _fresh(new, before or {}), False),
    ):
        for path, good in tree.finite(found, ids.numel(), nan=missing):
            if bool(good.all()):
                continue
            for client in ids[ok & ~good].tolist():
                reasons[client] = f"NaN or infinity in {origin} '{path}'"
            ok &= good
    return ok, reasons


def _parts(mine: Any) -> Iterator[Tensor | Entry[Any]]:
    for _, leaf in tree.leaves(mine, whole=True):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, Stacked):
            yield from (tensor for _, tensor in tree.tensors(leaf))
        elif isinstance(leaf, Appended) and leaf.newest is not None:
            yield leaf.newest


def _fresh(new: Any, before: Versions) -> Iterator[tuple[str, Tensor | Stacked]]:
    """Leaves that are not as they were handed out, and entries that have been appended since."""
    for path, leaf in tree.leaves(new, whole=True):
        if isinstance(leaf, Appended):
            for entry in takewhile(lambda entry: id(entry) not in before, leaf.newest_first()):
                found = tree.values({str(entry.number): entry.value})
                yield from ((f"{path}.{name}", one) for name, one in found)
        elif isinstance(leaf, (Tensor, Stacked)) and not _known(leaf, before):
            yield path, leaf


def _known(leaf: Any, before: Versions) -> bool:
    parts = [part for _, part in tree.tensors(leaf)]
    return all(id(part) in before and before[id(part)][1] == part._version for part in parts)
