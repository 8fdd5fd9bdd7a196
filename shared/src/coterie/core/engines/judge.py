"""What is believed of a node's reply: nothing that was not asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.envelope import ReplyHeader, words
from coterie.core.federation.exchange import Answers, Request
from coterie.core.federation.guard import Asked, guard, guard_total
from coterie.core.protocol.messages import Aligned, declared
from coterie.core.protocol.uploads import Bounds, Like, Number, Shaped
from coterie.core.tensors import tree
from coterie.core.tensors.device import moved
from coterie.core.tensors.ordering import among
from coterie.core.wire.codec import MAX_BYTES, ProtocolError, decode, peek

_BESIDE = 1 << 16  # bytes of a reply beside its tensors, and as much again for each client
SILENT = "it gave no answer"


def check_reply(header: ReplyHeader, name: str) -> None:
    """Check that a reply is to the parcel ``name``, and that something of it was done.

    Raises:
        ProtocolError: it is not, or nothing was.
    """
    if header.request != name:
        raise ProtocolError(header.why or "the reply is not to this request")
    if header.why:
        raise ProtocolError(header.why)


def check_about(about: Mapping[str, str], run: str, card: str | None) -> None:
    """Check that clients can take part in a run, by what they say of themselves.

    Args:
        about: what they say.
        run: the run.
        card: digest of its card; None where that was compared otherwise.

    Raises:
        ProtocolError: they cannot.
    """
    theirs = about.get("run", "")
    if theirs not in ("", run):
        raise ProtocolError(
            f"they have private state of run '{theirs}', not of '{run}': their owner must say "
            "coterie node reset, or remove position.json, to begin anew"
        )
    if card is not None and about.get("card") != card:
        raise ProtocolError("their card is another one than the server's")


@dataclass(frozen=True)
class Judge:
    """Reads the replies to one request.

    Attributes:
        request: what was asked.
        ids: ``(K,)`` who was asked by this request.
        name: of the parcel that was sent.
        bounds: what no client can plausibly exceed.
    """

    request: Request
    ids: Tensor
    name: str
    bounds: Bounds

    def read(self, reply: bytes | None) -> tuple[Answers, bool]:
        """Give the answers that count, and say of every other client why not.

        A reply that is malformed, to another request, or of clients who were not asked counts for
        nobody.

        Returns:
            Also whether it counts that the clients answered: if not, they go back.
        """
        if reply is None:
            return self.nobody(SILENT, silent=True), False
        try:
            header: ReplyHeader = peek(reply, self._most_bytes(), header=ReplyHeader)
            check_reply(header, self.name)
            return self._judged(reply, header), True
        except ProtocolError as error:
            return self.nobody(words(str(error))), False

    def nobody(self, why: str, silent: bool = False) -> Answers:
        """No answer counts."""
        return Answers(self.ids[:0], None, dict.fromkeys(self.ids.tolist(), why), silent=silent)

    def _judged(self, reply: bytes, header: ReplyHeader) -> Answers:
        ids, refused = self._who(header)
        if not ids.numel():
            return Answers(ids, None, refused)
        step, fold = self.request.step, self.request.fold
        if header.folded:
            if fold is None:
                raise ProtocolError("the reply is folded, which was not asked for")
            total, _ = decode(reply, fold.result(step.up), header=ReplyHeader)
            sizes, here = header.sizes or {}, torch.get_default_device()
            if self.request.secret:  # judged when it is opened, with all others
                dtypes = header.dtypes or {}
                return Answers(ids, None, refused, moved(total, here), sizes, dtypes=dtypes)
            if why := guard_total(self._asked(ids), fold, total, self.bounds):
                raise ProtocolError(why)
            return Answers(ids, None, refused, moved(total, here), sizes)
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
        claimed = header.clients
        counts = among(self.ids, claimed)
        if int(counts.sum()) != claimed.numel():
            raise ProtocolError("the reply is in the name of clients who were not asked")
        left = self.ids[~counts].tolist()
        why = {one: header.refused.get(str(one), SILENT) for one in left}
        return claimed, {one: words(said) for one, said in why.items()}

    def _most_bytes(self) -> int:
        """The most that a reply can take, where the form says so."""
        step, count = self.request.step, self.ids.numel()
        if step.up is None:
            return _BESIDE * (1 + count)
        down = self.request.down_for(self.ids)
        sent = 1 if isinstance(self.request.down, Aligned) else count
        total = _BESIDE * (1 + count)
        for expected in (field.expected for field in declared(step.up)):
            if isinstance(expected, Shaped):  # 64 bits a number, as those behind masks have
                shapes = getattr(down, expected.field).values()
                total += 8 * count * sum(map(math.prod, shapes))
            elif isinstance(expected, Like):
                # A table's rows travel with their numbers, in at most as many bytes again.
                like = getattr(down, expected.field)
                total += 2 * sent * sum(tree.nbytes(leaf) for _, leaf in tree.values(like))
            elif expected is None or (isinstance(expected, Number) and expected.axes):
                return MAX_BYTES
        return min(total, MAX_BYTES)


def enrolled(reply: bytes | None, name: str) -> Tensor:
    """Who has enrolled, by the reply to the parcel ``name``, which asked for it.

    Raises:
        ProtocolError: it is none.
    """
    header: ReplyHeader = peek(reply or b"", header=ReplyHeader)
    check_reply(header, name)
    return header.clients
