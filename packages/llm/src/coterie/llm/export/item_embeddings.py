"""The frozen item embeddings of the second stage, in a file beside what was exported."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.files import writing
from coterie.llm.backbones.base import Backbone

EMBEDDINGS = "item_embeddings.safetensors"
_NAME = "item_embeddings"


def save_items(backbone: Backbone, folder: Path) -> None:
    """Write the item embeddings that a backbone scores against, if they are frozen.

    Args:
        backbone: with a client's adapter.
        folder: an existing one.

    Raises:
        UserError: the disk is full.
    """
    if backbone.frozen_items is not None:
        with writing(folder):
            save_file({_NAME: backbone.frozen_items.contiguous()}, folder / EMBEDDINGS)


def read_items(folder: Path, backbone: Backbone) -> Tensor | None:
    """Read what `save_items` wrote, ``(n_items, h)``; None where there is no such file.

    Raises:
        UserError: the file is damaged or does not fit the backbone.
    """
    path = folder / EMBEDDINGS
    if not path.is_file():
        return None
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    expected = (backbone.n_items, backbone.hidden)
    if _NAME not in found or found[_NAME].shape != expected:
        given = {name: tuple(tensor.shape) for name, tensor in found.items()}
        raise UserError(
            f"{path} has {given}, expected '{_NAME}' of {expected}: it is of other items or "
            "another model"
        )
    if not bool(found[_NAME].isfinite().all()):
        raise UserError(f"{path} has numbers that are not finite: export it again")
    # Products round by where a tensor lies in memory, and in a file it lies anywhere.
    return found[_NAME].clone()
