"""The exchange with clients that run elsewhere: behind nodes that take bytes and bring bytes.

Nodes fail, come late and come back. Who does not answer in time is left out of the rest of the
round; what it must not miss waits for it. What a node did that did not count, it takes back, as
every parcel says which one it goes on from. So nothing but who takes part depends on time.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.envelope import (
    ENROL,
    NOBODY,
    PRESENT,
    Parcel,
    ParcelHeader,
    ReplyHeader,
    RequestHeader,
    words,
)
from coterie.core.engines.hidden_sums import roster_of, sum_of
from coterie.core.engines.judge import SILENT, Judge, check_about, check_reply, enrolled
from coterie.core.engines.member import (
    Mark,
    Member,
    Node,
    Question,
    RoundCosts,
    load_waiting,
    message_of,
    waiting_plain,
)
from coterie.core.errors import UserError
from coterie.core.federation.exchange import Answers, Exchange, Heard, Request, TooFew
from coterie.core.protocol.card import Card
from coterie.core.protocol.messages import Aligned, PerClient
from coterie.core.protocol.uploads import PLAUSIBLE, Bounds
from coterie.core.tensors.ordering import among
from coterie.core.wire.codec import ProtocolError, encode, peek

logger = logging.getLogger(__name__)
START = 60.0
"""Seconds for nodes to come up."""


class Nodes(Exchange):
    """Clients behind nodes.

    Attributes:
        members: what is known of each node.
        costs: of the round that goes on.

    Args:
        nodes: each client is in one of them.
        run: names the run; private state is of one run.
        bounds: of what an upload may be.
        deadline: seconds for the answers to an ask, of all nodes together; None for any time.
        start: seconds for nodes to come up, at the start of a run. Without a deadline every round
            waits so long for who is away.
        epoch: how often the run's server was started; nodes refuse an earlier one.
        min_clients: how many of the clients must be there, and the same part of those who are asked
            must answer, or else the round is tried again; up to 1 it is a part of all.
        patience: how often a round is tried.
        expected: node -> ``(C,)`` ids of its clients, where the server knows them.
        card: that the nodes must have; None where it was compared otherwise.
    """

    folds = hides = True

    def __init__(
        self,
        nodes: Sequence[Node],
        run: str,
        *,
        bounds: Bounds = PLAUSIBLE,
        deadline: float | None = None,
        start: float = START,
        epoch: int = 0,
        min_clients: float | None = None,
        patience: int = 3,
        expected: Mapping[str, Tensor] | None = None,
        card: Card | None = None,
    ) -> None:
        known = expected or {}
        self.members = [Member(node, known.get(node.name)) for node in nodes]
        self.bounds, self.deadline, self.start = bounds, deadline, start
        self.patience = patience
        self._min_clients = min_clients
        self._header, self.starts = ParcelHeader(run, epoch=epoch), epoch
        self._card = None if card is None else hashlib.sha256(card.to_json().encode()).hexdigest()
        self._threads = ThreadPoolExecutor(max(len(nodes), 1))
        self.costs = RoundCosts()
        self._try = (0, 0)  # turn, attempt
        self._found = False
        self._everybody = 0

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Let the nodes go."""
        for member in self.members:
            member.node.close()
        self._threads.shutdown()

    def begin(self, turn: int, attempt: int) -> None:
        """Begin a round of the run, or try it again."""
        self._try = (turn, attempt)
        if not attempt:
            self.costs = RoundCosts()

    def mark(self) -> list[Mark]:
        """What was heard of every node, and waits for it."""
        return [one.mark() for one in self.members]

    def go_back(self, mark: list[Mark]) -> None:
        """Take back what nodes did since: with the next request they do."""
        for member, one in zip(self.members, mark, strict=True):
            member.go_back(one)

    def present(self, block: int) -> Tensor:
        """Who takes part in a block and is there, ``(R,)`` int64 ascending.

        Who is away is asked beside the rounds, and joins the first that begins after its answer.

        Raises:
            TooFew: there are fewer than the run demands.
        """
        block = max(block, 0)
        self._find(block)
        self._meet(block)
        found = [one.ids[block] for one in self.members if not one.away]
        ids = torch.cat([NOBODY, *found]).sort().values
        self._check_present(ids.numel(), block)
        return ids

    def enrol(self, ids: Tensor, block: int) -> Tensor:
        """Let the newcomers among ``ids`` make their private state; return their ids.

        Those who are known to have it are not asked. Clients that do not answer make it when they
        are first asked for a step.
        """
        newcomers = [ids[:0]]
        sent: list[tuple[Member, Tensor, Parcel, Future[bytes | None]]] = []
        for member in self.members:
            own = member.those_of(ids, max(block, 0))
            own = own[~among(own, member.enrolled)]
            if own.numel() and not member.away:
                message = encode(None, RequestHeader(block, 0, 0, ENROL, own))
                parcel = member.parcel(self._parcel_header(), message)
                sent.append((member, own, parcel, self._submit(member, parcel)))
        until = until_after(self.deadline)
        for member, own, parcel, future in sent:
            reply = self._reply(member, future, until)
            with suppress(ProtocolError):
                newcomers.append(enrolled(reply, parcel.name))
                member.counts(parcel)
                member.enrolled = torch.cat([member.enrolled, own])
        return torch.cat(newcomers).sort().values

    def ask(self, request: Request) -> Iterator[Answers]:
        """Ask all nodes at once, once for all of them; answers come in the order of the nodes.

        Raises:
            TooFew, UserError: as `roster_of` and `sum_of`, of a sum behind masks.
        """
        asked, found = self._asked(request), [request.ids[:0]]
        roster = roster_of(request, asked) if request.secret else None
        sent = []
        for member, ids in asked:
            found.append(ids)
            message = message_of(request, ids, roster)
            parcel = member.parcel(self._parcel_header(), message)
            judge = Judge(request, ids, parcel.name, self.bounds)
            future = None if member.away else self._submit(member, parcel)
            sent.append((member, message, parcel, judge, future))
        until, hidden = until_after(self.deadline), list[Answers]()
        for member, message, parcel, judge, future in sent:
            reply = None if future is None else self._reply(member, future, until)
            answers, counts = judge.read(reply)
            if counts:
                member.counts(parcel)
            elif request.waits:
                member.waiting.append(message)
            if roster is None:
                yield answers
            else:
                hidden.append(answers)
        if hidden:
            yield sum_of(request, hidden, self.bounds)
        for one in request.ids[~among(request.ids, torch.cat(found))].tolist():
            why = "no node has said that it has this client"
            yield Answers(request.ids[:0], None, {one: why}, silent=True)

    def _asked(self, request: Request) -> list[tuple[Member, Tensor]]:
        """Who has clients that are asked; a request to everybody waits for who is not there."""
        asked = []
        for member in self.members:
            ids = member.those_of(request.ids, max(request.when[0], 0))
            if ids.numel():
                asked.append((member, ids))
            elif member.away and request.everyone and request.waits:
                self._leave_for(member, request)
        return asked

    def check(self, heard: Heard) -> None:
        """Check that enough have answered an ask.

        Raises:
            TooFew: they have not, and some gave no answer: they may in another try.
            UserError: they have not, and another try would give the same.
        """
        least = max(self._least(heard.asked), heard.least)
        if heard.answered >= least:
            return
        line = (
            f"{heard.answered} of {heard.asked} clients answered '{heard.step}', and the run "
            f"demands {least}"
        )
        if heard.silent:
            raise TooFew(line)
        if heard.answered:
            raise UserError(f"{line}, as others' answers were refused: lower engine.min_clients")

    def status(self) -> list[dict[str, Any]]:
        """What is known of every node: whether it is there, why not, and what waits for it."""
        return [
            {
                "node": one.node.name,
                "here": not one.away,
                "why": one.why if one.away else "",
                "waiting": len(one.waiting),
            }
            for one in self.members
        ]

    def to_plain(self) -> dict[str, Any]:
        """What was heard of the clients and waits for them; they keep their private state."""
        return waiting_plain(self.members)

    def load_plain(self, plain: Any) -> None:
        """Restore what `to_plain` gave.

        Raises:
            KeyError: it is of other nodes, or holds private state.
        """
        if plain is None or "heard" not in plain:
            raise KeyError("the checkpoint holds private state: its clients ran in one process")
        load_waiting(self.members, plain)

    def _find(self, block: int) -> None:
        """Ask who is away whether it is there; wait for it at the start, and in another try."""
        away = [one for one in self.members if one.away and one.late != self._try]
        self._take_in(away, 0.0)  # what has come since; who has not answered is asked anew
        away = [one for one in away if one.away]
        for one in away:
            one.question = one.question or self._question(one, block)
        patient = not self._found or self.deadline is None
        seconds = self.start if patient else self.deadline if self._try[1] else 0.0
        self._take_in(away, seconds)
        self._found = True

    def _meet(self, block: int) -> None:
        """Ask who is there who of its clients takes part in a block that is new."""
        new = [one for one in self.members if not one.away and block not in one.ids]
        for one in new:
            one.question = self._question(one, block)
        self._take_in(new, self.deadline)
        for one in new:
            if one.question is not None:
                one.node.give_up()
                self._lose(one)

    def _question(self, member: Member, block: int) -> Question:
        message = encode(None, RequestHeader(block, 0, 0, PRESENT, NOBODY))
        parcel = Parcel(self._parcel_header(), (message,))
        asked = self._threads.submit(member.node.ask, parcel.to_bytes(), self.start)
        return Question(parcel, block, asked)

    def _take_in(self, members: Sequence[Member], seconds: float | None) -> None:
        """Take note of what members answer to their questions in time."""
        began = time.monotonic()
        wait([one.question.reply for one in members if one.question is not None], seconds)
        self.costs.waited += time.monotonic() - began
        for member in members:
            question = member.question
            if question is None or not question.reply.done():
                continue
            member.question = None
            try:
                member.come(question.block, self._told(member, question))
            except ProtocolError as error:
                why = words(str(error))
                if why != member.why and why != SILENT:
                    logger.warning("the clients of %s are left out: %s", member.node.name, why)
                member.leave(why)

    def _told(self, member: Member, question: Question) -> Tensor:
        """Which of its clients take part, as a member says.

        Raises:
            ProtocolError: it says nothing, or what cannot be.
        """
        if (reply := question.reply.result()) is None:
            raise ProtocolError(SILENT)
        header: ReplyHeader = peek(reply, header=ReplyHeader)
        check_reply(header, question.parcel.name)
        about = header.about or {}
        check_about(about, self._header.run, self._card)
        ids = header.clients.unique()
        others = [one.ids.get(question.block) for one in self.members if one is not member]
        strange = member.expected is not None and not among(ids, member.expected).all()
        if strange or any(one is not None and among(ids, one).any() for one in others):
            raise ProtocolError("it has clients that are another's")
        member.mask = about.get("mask", "")
        return ids

    def _submit(self, member: Member, parcel: Parcel) -> Future[bytes | None]:
        content = parcel.to_bytes()
        self.costs.sent += len(content)
        return self._threads.submit(member.node.ask, content, self.deadline)

    def _reply(
        self, member: Member, future: Future[bytes | None], until: float | None
    ) -> bytes | None:
        """Wait for a reply as long as there is time; who is late is asked no more in this try."""
        began = time.monotonic()
        try:
            reply = future.result(None if until is None else max(until - began, 0.0))
        except TimeoutError:
            member.node.give_up()
            reply = None
        self.costs.waited += time.monotonic() - began
        if reply is None:
            self._lose(member)
        else:
            self.costs.received += len(reply)
        return reply

    def _lose(self, member: Member) -> None:
        """Leave a member that is late out of the rest of the try."""
        member.leave(SILENT, self._try)
        self.costs.late.add(member.node.name)

    def _parcel_header(self) -> ParcelHeader:
        turn, attempt = self._try
        return replace(self._header, turn=turn, attempt=attempt)

    def _leave_for(self, member: Member, request: Request) -> None:
        """Let a request to everybody wait for a member that was not there to be asked."""
        one_each = isinstance(request.down, (Aligned, PerClient))
        ids = member.meant(request)
        if ids.numel() or not one_each:
            member.waiting.append(message_of(request, ids))

    def _least(self, clients: int) -> int:
        """How many of so many clients must answer."""
        if self._min_clients is None:
            return 0
        share = self._min_clients
        if share > 1:
            share /= max(self._everybody, 1)
        return min(math.ceil(round(share * clients, 9)), clients)

    def _check_present(self, here: int, block: int) -> None:
        """Check that enough clients are there, and that as many exist as are demanded."""
        everybody = here + sum(one.count(block) for one in self.members if one.away)
        is_first, self._everybody = not self._everybody, everybody
        wanted = self._min_clients or 0
        if is_first and wanted > max(everybody, 1):
            raise UserError(
                f"'engine.min_clients' demands {wanted:g} clients, and there are {everybody}"
            )
        least = max(self._least(everybody), 1)
        if everybody and here < least:
            named = ", ".join(f"{one.node.name} ({one.why})" for one in self.members if one.away)
            raise TooFew(
                f"{here} of {everybody} clients are there, and the run demands {least}; "
                f"away: {named}"
            )


def until_after(seconds: float | None) -> float | None:
    """When so many seconds are over; None for never."""
    return None if seconds is None else time.monotonic() + seconds
