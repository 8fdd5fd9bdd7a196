"""What a server makes of a reply: nothing of it is believed that it can check itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.envelope import ReplyHeader
from coterie.core.federation.exchange import Answers, Request
from coterie.core.federation.guard import Asked, guard, guard_total
from coterie.core.protocol.cohort import Aligned
from coterie.core.protocol.expected import Bounds, Like, Number
from coterie.core.protocol.messages import declared
from coterie.core.tensors import tree
from coterie.core.tensors.device import moved
from coterie.core.wire.codec import MAX_BYTES, ProtocolError, decode, peek

_ABOUT = 1 << 16  # bytes of a reply beside its tensors, and as much again for each client
_SILENT = "it gave no answer"


@dataclass(frozen=True)
class Judge:
    """Reads the replies to one request.

    Attributes:
        request: what was asked.
        ids: ``(K,)`` who was asked by this request.
        name: `digest` of the bytes that were sent.
        bounds: what no client can plausibly exceed.
    """

    request: Request
    ids: Tensor
    name: str
    bounds: Bounds

    def read(self, reply: bytes | None) -> Answers:
        """Give the answers that count, and say of every other client why not.

        A reply that is malformed, to another request, or of clients who were not asked counts for
        nobody.
        """
        if reply is None:
            return self.nobody(_SILENT)
        try:
            return self._read(reply)
        except ProtocolError as error:
            return self.nobody(str(error))

    def nobody(self, why: str) -> Answers:
        """No answer counts."""
        return Answers(self.ids[:0], None, dict.fromkeys(self.ids.tolist(), why))

    def _read(self, reply: bytes) -> Answers:
        header: ReplyHeader = peek(reply, self._most_bytes(), header=ReplyHeader)
        ids, refused = self._who(header)
        if not ids.numel():
            return Answers(ids, None, refused)
        step, fold = self.request.step, self.request.fold
        if header.folded:
            if fold is None:
                raise ProtocolError("the reply is folded, which was not asked for")
            total, _ = decode(reply, fold.result(step.up), header=ReplyHeader)
            if why := guard_total(self._asked(ids), fold, total, self.bounds):
                raise ProtocolError(why)
            here = torch.get_default_device()
            return Answers(ids, None, refused, moved(total, here), header.sizes or {})
        up: Any = decode(reply, step.up or type(None), header=ReplyHeader)[0]
        up = moved(up, torch.get_default_device())
        ok, reasons = guard(self._asked(ids), up, self.bounds)
        if bool(ok.all()):
            return Answers(ids, up, refused)
        keep = ok.nonzero().flatten()
        up = tree.take(up, keep) if keep.numel() and up is not None else None
        return Answers(ids[keep], up, refused | reasons)

    def _asked(self, ids: Tensor) -> Asked:
        one_each = isinstance(self.request.down, Aligned)
        return Asked(self.request.step, self.request.down_for(ids), ids, one_each)

    def _who(self, header: ReplyHeader) -> tuple[Tensor, dict[int, str]]:
        """Whose answers are in the reply, and why those of others are not."""
        if header.request != self.name:
            raise ProtocolError("the reply is not to this request")
        asked, claimed = self.ids.tolist(), list(header.clients)
        known = {str(client): client for client in asked}
        if len(set(claimed)) < len(claimed) or not set(claimed) <= set(asked):
            raise ProtocolError("the reply is in the name of clients who were not asked")
        why = {known[one]: reason for one, reason in header.refused.items() if one in known}
        left = {c: why.get(c, _SILENT) for c in asked if c not in set(claimed)}
        return torch.tensor(claimed, dtype=torch.int64), left

    def _most_bytes(self) -> int:
        """The most that a reply can take, where the form says so."""
        step, count = self.request.step, self.ids.numel()
        if step.up is None:
            return _ABOUT * (1 + count)
        down = self.request.down_for(self.ids)
        sent = 1 if isinstance(self.request.down, Aligned) else count
        total = _ABOUT * (1 + count)
        for expected in (field.expected for field in declared(step.up)):
            if isinstance(expected, Like):
                # A table's rows travel with their numbers, in at most as many bytes again.
                like = getattr(down, expected.field)
                total += 2 * sent * sum(tree.nbytes(leaf) for _, leaf in tree.values(like))
            elif expected is None or (isinstance(expected, Number) and expected.axes):
                return MAX_BYTES
        return min(total, MAX_BYTES)
