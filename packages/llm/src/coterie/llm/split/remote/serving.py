"""What `coterie llm serve` is told: which layers, how many threads."""

from __future__ import annotations

import re

import torch

from coterie.core.errors import UserError
from coterie.llm.backbones.base import Backbone
from coterie.llm.settings.run import Settings


def parse_layers(text: str) -> tuple[int, int]:
    """Read which layers the server has, as ``k:N-1``.

    Raises:
        UserError: it is no such range.

    Example:
        >>> parse_layers("2:7")
        (2, 7)
    """
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise UserError(
            f"--layers '{text}' is no range: write the first layer of the server and the one after "
            "its last, from 0, as 2:7"
        )
    return int(found[1]), int(found[2])


def check_layers(layers: tuple[int, int], backbone: Backbone) -> int:
    """Compare a range with the model; give k.

    Raises:
        UserError: the client would not keep some lower layers and exactly the last one.
    """
    (first, end), total = layers, len(backbone.layers)
    if end != total - 1 or first < 1:
        last = total - 1
        remedy = f"as {min(max(first, 1), last - 1)}:{last}" if total > 2 else "with more layers"
        raise UserError(
            f"--layers {first}:{end} does not fit a model of {total} layers, of which the client "
            f"keeps the lowest and the last: serve it {remedy}"
        )
    return first


def use_threads(settings: Settings) -> None:
    """Use as many threads as the settings say."""
    if settings.engine.threads is not None:
        torch.set_num_threads(settings.engine.threads)
