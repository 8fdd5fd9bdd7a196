"""The checkpoints of a run, for whoever reads them. Free of Lightning, which writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.tensors.entries import resolve
from coterie.core.tensors.saved import load

LAST, BEST = "last.ckpt", "best.ckpt"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint: ``federation``, the run, beside what Lightning keeps of a training.

    Raises:
        UserError: it, or an append-only entry that it refers to, cannot be read or is damaged; or
            it is no checkpoint.
    """
    found = load(path)
    if not isinstance(found, dict) or "federation" not in found:
        raise UserError(f"{path} is no checkpoint of a run: put back a copy of it")
    return found | {"federation": resolve(found["federation"], path.parent)}
