"""How every checkpoint of a federation is written and read, whichever callback asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from coterie.core.errors import UserError
from coterie.core.run.checkpoint import read_checkpoint
from coterie.core.tensors.entries import inline, refer
from coterie.core.tensors.saved import save

_PLAIN = (str, bytes, bool, int, float, complex, torch.Tensor, torch.dtype, torch.device)


class RunCheckpointIO(CheckpointIO):
    """Write a checkpoint in one step with a digest, and read it if every bit is as written.

    A file holds all there is, private state of simulated clients included. With
    ``storage_options={"entries": folder}`` append-only parts are files of that folder, each
    written once, which several checkpoints share.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write it.

        Raises:
            UserError: it should be written to no local file, or a callback keeps what a file
                cannot hold.
            OSError: the disk is full, or the folder cannot be written.
        """
        if "://" in str(path):
            raise UserError(f"a checkpoint is a local file, not {path}: name a folder of this disk")
        for name, state in checkpoint.get("callbacks", {}).items():
            if found := next(_foreign(state), None):
                raise UserError(
                    f"the callback {name.split('{')[0]} keeps a {found}, which no checkpoint can "
                    "hold: give tensors and plain values in its state_dict"
                )
        federation = checkpoint["federation"]
        entries = (storage_options or {}).get("entries")
        kept = inline(federation) if entries is None else refer(federation, entries)
        save(checkpoint | {"federation": kept}, Path(path))

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Read it, onto the CPU.

        Raises:
            UserError: it is missing, damaged or no checkpoint of a federation.
        """
        found = read_checkpoint(Path(path))
        if "loops" not in found:
            raise UserError(
                f"{path} is of an older version, which can be measured but not trained on: start a "
                "new run with another --run.name"
            )
        return found

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove it."""
        Path(path).unlink(missing_ok=True)


def _foreign(state: Any) -> Iterator[str]:
    """Name types that ``torch.load(weights_only=True)`` would not read."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _foreign(key)
            yield from _foreign(value)
    elif type(state) in (list, tuple):
        for value in state:
            yield from _foreign(value)
    elif state is not None and not isinstance(state, _PLAIN):
        yield type(state).__name__
