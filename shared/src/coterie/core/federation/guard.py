"""The guard: which answers of clients are accepted. Both ends of a wire use the same rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from coterie.core.protocol.messages import Report
from coterie.core.tensors import tree
from coterie.core.tensors.rows import Rows


def guard(up: Any, new: Any, ids: Tensor) -> tuple[Tensor, dict[int, str]]:
    """Say which clients' answers are finite, ``(C,)`` bool, and why the others are refused.

    Args:
        up: the stacked upload, or None.
        new: the stacked private state, or None.
        ids: ``(C,)`` the clients.
    """
    ok = torch.ones(ids.numel(), dtype=torch.bool)
    reasons: dict[int, str] = {}
    for origin, message in (("upload", up), ("private state", new)):
        for name, good in _finite_fields(message, ids.numel()):
            for client in ids[ok & ~good].tolist():
                reasons[client] = f"NaN or infinity in {origin} '{name}'"
            ok &= good
    return ok, reasons


def _finite_fields(message: Any, count: int) -> Iterator[tuple[str, Tensor]]:
    for name, value in tree.children(message) if message is not None else ():
        if hasattr(value, "touched"):
            rows: Rows = value
            yield name, rows.finite()
            continue
        # A Report says NaN for "not measured"; only infinities are wrong there.
        nan_allowed = isinstance(message, Report)
        for path, leaf in tree.tensors({name: value}):
            if leaf.is_floating_point() and leaf.numel():
                flat = leaf.reshape(count, -1)
                if nan_allowed:
                    flat = torch.where(flat.isnan(), 0.0, flat)
                yield path, flat.sum(1).isfinite()
