"""A stream of blocks in time: the setting of continual recommendation (F³CRec, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.tensors.ordering import ascending
from coterie.core.tensors.ragged import Ragged

FRACTIONS = (0.6, 0.4 / 3, 0.4 / 3)


@dataclass(frozen=True)
class Block:
    """One block of a stream.

    Attributes:
        index: t, the base block is 0.
        rows: the block's rows in ``Stream.interactions``.
        n_users: users seen up to the end of this block.
        n_items: items seen up to the end of this block.
    """

    index: int
    rows: slice
    n_users: int
    n_items: int

    def __len__(self) -> int:
        return self.rows.stop - self.rows.start


@dataclass(frozen=True)
class Stream:
    """Interactions in order of time, cut into blocks; numbers are given by first appearance."""

    interactions: Interactions
    blocks: list[Block]

    def statistics(self) -> list[dict[str, int | float]]:
        """Tabulate the blocks as the F³CRec paper's Table 1 does.

        Returns:
            One row a block: ``block``, accumulated ``users`` and ``items``, ``interactions`` of the
            block alone, ``sparsity`` = 1 - interactions / (users * items), and ``repeats``.
        """
        return [
            {
                "block": block.index,
                "users": block.n_users,
                "items": block.n_items,
                "interactions": len(block),
                "sparsity": 1.0 - len(block) / (block.n_users * block.n_items),
                "repeats": repeats,
            }
            for block, repeats in zip(self.blocks, self.repeats(), strict=True)
        ]

    def repeats(self) -> list[float]:
        """Give, for each block, the share of its interactions with what their user had before it.

        Where it is above 0 people want the same things again, and leaving these out of a
        recommendation costs what they would have found.
        """
        data = self.interactions
        pair = data.user * data.n_items + data.item
        blocks = [block.rows for block in self.blocks]
        again = [torch.isin(pair[rows], pair[: rows.start]) for rows in blocks]
        return [float(those.double().mean()) for those in again]


def temporal_blocks(interactions: Interactions, fractions: Sequence[float] = FRACTIONS) -> Stream:
    """Cut the interactions into blocks by time.

    Rows are sorted by time; **rows of the same time keep the order of the file** (a stable sort).
    Users and items are then numbered by first appearance, and the rows cut by count: block t gets
    ``int(fractions[t] * n)`` rows, a last block the rest. The cut may fall between rows of the same
    time.

    Args:
        interactions: usually after `coterie.core.data.interactions.kcore.k_core`.
        fractions: of all blocks but the last, each above 0, sum below 1.

    Raises:
        UserError: without timestamps, with impossible fractions, or if a block would be empty.
    """
    if not fractions or min(fractions) <= 0 or sum(fractions) >= 1:
        raise UserError(f"fractions {list(fractions)} of the blocks must be positive, sum below 1")
    time = interactions.require_time("cutting blocks")
    if bool((time[1:] < time[:-1]).any()):
        order = ascending(time, int(time.max()) + 1, int(time.min()))
        interactions = interactions.take(order)
    ordered = interactions.renumbered()
    n = len(ordered)
    sizes = [int(fraction * n) for fraction in fractions]
    if min(sizes) == 0:
        raise UserError(f"{ordered.source} has only {n} interactions: too few for its blocks")
    ends = torch.tensor([*sizes, n - sum(sizes)]).cumsum(0).tolist()
    # Numbers are given by first appearance, so the highest number seen is the count seen.
    users = [int(ordered.user[:end].max()) + 1 for end in ends]
    items = [int(ordered.item[:end].max()) + 1 for end in ends]
    blocks = [
        Block(t, slice(start, end), n_users, n_items)
        for t, (start, end, n_users, n_items) in enumerate(
            zip([0, *ends[:-1]], ends, users, items, strict=True)
        )
    ]
    return Stream(ordered, blocks)


def earlier_items(stream: Stream, block: Block, users: Tensor) -> Ragged:
    """List what users had in the blocks before one, each item once, in ascending order.

    Args:
        stream: what the block is cut from.
        block: one of ``stream.blocks``.
        users: ``(C,)`` ascending user numbers.

    Returns:
        C rows of item numbers.
    """
    past = slice(0, block.rows.start)
    user, item = stream.interactions.user[past], stream.interactions.item[past]
    theirs = torch.isin(user, users)
    client = torch.searchsorted(users, user[theirs])
    pair = torch.unique(client * block.n_items + item[theirs])
    return Ragged.from_pairs(pair // block.n_items, pair % block.n_items, users.numel())
