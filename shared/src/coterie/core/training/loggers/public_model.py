"""What the server holds after the best round, without anything of what clients keep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from coterie.core.files import replacing
from coterie.core.run.checkpoint import BEST, LAST, read_checkpoint
from coterie.core.tensors import tree


def write_public_model(folder: Path, file: Path) -> int | None:
    """Write the server's tensors of a run's best checkpoint, else of its last.

    Of methods whose server keeps a model of each client, as it got them, these are among them.

    Args:
        folder: of the run.
        file: safetensors, names as paths in the server's state.

    Returns:
        The round that it is of; None where the run has no checkpoint.

    Raises:
        UserError: the checkpoint is damaged.
    """
    paths = [folder / "checkpoints" / name for name in (BEST, LAST)]
    path = next((one for one in paths if one.is_file()), None)
    if path is None:
        return None
    run = read_checkpoint(path)["federation"]
    tensors = dict(_tensors(run["server"]))
    with replacing(file) as temporary:
        save_file(tensors, temporary)
    return int(run["round"])


def _tensors(plain: Any, path: str = "state") -> Iterator[tuple[str, Tensor]]:
    """Yield ``(path, tensor)``; copies, as safetensors writes none that share memory."""
    if isinstance(plain, Tensor):
        yield path, plain.detach().clone(memory_format=torch.contiguous_format)
    for name, part in tree.children(plain):
        yield from _tensors(part, name if path == "state" else f"{path}.{name}")
