"""The server's part in sums behind masks: who is in one, and what it opens to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.masks import LEAST, Roster, entry, opened
from coterie.core.engines.member import Member
from coterie.core.errors import UserError
from coterie.core.federation.exchange import Answers, Request, TooFew
from coterie.core.federation.guard import Asked, guard_total
from coterie.core.protocol.messages import Aligned, PerClient
from coterie.core.protocol.uploads import Bounds


def roster_of(request: Request, asked: Sequence[tuple[Member, Tensor]]) -> Roster:
    """Who is in the sum, with which clients and from which state.

    Raises:
        UserError: they are too few for a sum to hide one of them, one has told no key, or they are
            not asked the same.
        TooFew: one of them is not there.
    """
    if isinstance(request.down, (Aligned, PerClient)):
        raise UserError(
            f"'aggregate.secret' hides sums of what all are asked alike, and '{request.step.name}' "
            "differs from client to client: leave it out"
        )
    if len(asked) < LEAST:
        raise UserError(
            f"'aggregate.secret' takes clients of {LEAST} processes or machines in every round, "
            f"and those drawn are of {len(asked)}: let more take part"
        )
    if away := [one.node.name for one, _ in asked if one.away]:
        raise TooFew(f"a sum behind masks takes all of them, and {', '.join(away)} is away")
    silent = next((one.node.name for one, _ in asked if not one.mask), None)
    if silent is not None:
        raise UserError(f"{silent} has told no key for sums behind masks: its card is another one")
    return {one.node.name: entry(one.mask, ids, one.heard) for one, ids in asked}


def sum_of(request: Request, parts: Sequence[Answers], bounds: Bounds) -> Answers:
    """Open the sum of what all have sent.

    Raises:
        TooFew: one is missing.
        UserError: they have not sent the same, or what opens is refused.
    """
    step, fold = request.step.name, request.fold
    assert fold is not None
    if missing := next((one for one in parts if one.total is None), None):
        said = next(iter(missing.refused.values()), "it gave no answer")
        raise TooFew(f"a sum of answers to '{step}' behind masks does not open: {said}")
    dtypes = parts[0].dtypes or {}
    if any(one.dtypes != dtypes for one in parts):
        raise UserError(f"the clients' sums of '{step}' are not of one form: none of it counts")
    total: Any = parts[0].total
    for one in parts[1:]:
        total = fold.merge(total, one.total)
    ids = torch.cat([one.ids for one in parts])
    total = opened(total, dtypes)
    asked = Asked(request.step, request.down, ids)
    if why := guard_total(asked, fold, total, bounds):
        raise UserError(
            f"the sum of '{step}' behind masks is refused, and nobody can say for whose sake: {why}"
        )
    sizes = Counter[str]()
    for one in parts:
        sizes.update(one.sizes)
    refused = {client: said for one in parts for client, said in one.refused.items()}
    return Answers(ids, None, refused, total, dict(sizes))
