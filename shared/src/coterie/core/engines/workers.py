"""Clients in processes of their own on this machine, and what is believed of their replies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.folder import check_one_federation
from coterie.core.engines.worker import (
    ENROL,
    PRESENT,
    ReplyHeader,
    RequestHeader,
    digest,
    read_frame,
    write_frame,
)
from coterie.core.federation.exchange import Answers, Exchange, Request
from coterie.core.federation.guard import Asked, guard, guard_total
from coterie.core.protocol.messages import Aligned, PerClient, declared
from coterie.core.protocol.uploads import PLAUSIBLE, Bounds, Like, Number
from coterie.core.tensors import tree
from coterie.core.tensors.device import moved
from coterie.core.wire.codec import MAX_BYTES, ProtocolError, decode, encode, peek

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


# Clients in processes of their own on this machine, a folder each: the exchange between them.


@dataclass
class WorkerProcesses(Exchange):
    """Worker processes, each with the folder of some clients and nothing else.

    A process that dies, answers too late or nonsense has its clients left out of the ask; it is
    started again for the next one and goes on from the state that it has kept.

    Args:
        folders: of the processes, made by `coterie.core.engines.folder.ClientFolder.create`; each
            client in one of them.
        run: names the run; private state is of one run.
        bounds: of what an upload may be.
        deadline: seconds that a process has for an answer; None for any time.
        environment: of the processes; None for this one's.

    Raises:
        UserError: the folders are of several federations.

    Example:
        with WorkerProcesses([Path("north"), Path("south")], run="trial") as workers:
            FederatedRun(federation, workers).advance()
    """

    folders: Sequence[Path]
    run: str
    bounds: Bounds = PLAUSIBLE
    deadline: float | None = None
    environment: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        check_one_federation(self.folders)
        self._workers = [_Worker(folder, self.environment) for folder in self.folders]
        self._threads = ThreadPoolExecutor(max(len(self._workers), 1))
        self._present: dict[int, list[Tensor]] = {}

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown()

    def present(self, block: int) -> Tensor:
        """Who takes part in a block, ``(R,)`` int64 ascending.

        Raises:
            ProtocolError: a process does not say.
        """
        block = max(block, 0)
        if block not in self._present:
            headers = [self._header(PRESENT, (block, 0), Tensor()) for _ in self._workers]
            told = self._told(headers)
            for worker, ids in zip(self._workers, told, strict=True):
                if ids is None:
                    raise ProtocolError(f"the clients in {worker.folder} do not answer")
            self._present[block] = [ids for ids in told if ids is not None]
        return _ids(self._present[block]).sort().values

    def enrol(self, ids: Tensor, block: int) -> Tensor:
        """Let the newcomers among ``ids`` make their private state; return their ids.

        Clients that do not answer make it when they are first asked for a step.
        """
        headers = [self._header(ENROL, (block, 0), own) for own in self._shared(ids, block)]
        return _ids(self._told(headers)).sort().values

    def ask(self, request: Request) -> Iterator[Answers]:
        """Ask all processes at once; their answers come in the order of the folders."""
        waiting: list[tuple[_Worker, Judge, Future[bytes | None]]] = []
        shares = self._shared(request.ids, request.when[0])
        for worker, ids in zip(self._workers, shares, strict=True):
            if not ids.numel():
                continue
            down = request.down
            if isinstance(down, (Aligned, PerClient)):
                down = request.down_for(ids)
            sent = encode(down, self._of(request, ids))
            judge = Judge(request, ids, digest(sent), self.bounds)
            waiting.append((worker, judge, self._threads.submit(worker.ask, sent)))
        for worker, judge, reply in waiting:
            yield judge.read(self._reply(worker, reply))

    def to_plain(self) -> None:
        """The clients keep their private state themselves."""

    def load_plain(self, plain: Any) -> None:
        """The clients have kept their private state themselves.

        Raises:
            KeyError: it is in the checkpoint.
        """
        if plain is not None:
            raise KeyError("the checkpoint holds private state: its clients ran in one process")

    def _shared(self, ids: Tensor, block: int) -> list[Tensor]:
        """Which of ``ids`` are in which folder."""
        self.present(block)
        return [own[torch.isin(own, ids)] for own in self._present[max(block, 0)]]

    def _told(self, headers: list[RequestHeader]) -> list[Tensor | None]:
        """Ask every process for ids; None where it does not say."""
        sent = [encode(None, header) for header in headers]
        futures = [
            self._threads.submit(worker.ask, one)
            for worker, one in zip(self._workers, sent, strict=True)
        ]
        found: list[Tensor | None] = []
        for worker, one, future in zip(self._workers, sent, futures, strict=True):
            reply = self._reply(worker, future)
            told: ReplyHeader | None = None if reply is None else peek(reply, header=ReplyHeader)
            sound = told is not None and told.request == digest(one) and not told.refused
            clients = told.clients if told is not None and sound else None
            found.append(None if clients is None else torch.tensor(clients, dtype=torch.int64))
        return found

    def _reply(self, worker: _Worker, future: Future[bytes | None]) -> bytes | None:
        try:
            return future.result(self.deadline)
        except TimeoutError:
            worker.stop()
            return None

    def _header(self, step: str, when: tuple[int, ...], ids: Tensor) -> RequestHeader:
        block, number = when
        return RequestHeader(self.run, block, number, 0, 0, step, tuple(ids.long().tolist()))

    def _of(self, request: Request, ids: Tensor) -> RequestHeader:
        plain = self._header(request.step.name, request.when, ids)
        one_each = isinstance(request.down, Aligned)
        fold = None if request.fold is None else request.fold.to_plain()
        return replace(
            plain, number=request.number, draw=request.draw, one_each=one_each, fold=fold
        )


def _ids(parts: Sequence[Tensor | None]) -> Tensor:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else torch.empty(0, dtype=torch.int64)


class _Worker:
    """One process, started when it is needed."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None) -> None:
        self.folder, self._environment = folder, environment
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: bytes) -> bytes | None:
        """Send a request and wait for its reply; None where the process is gone."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError, ValueError, ProtocolError):
            write_frame(process.stdin, request)  # type: ignore[arg-type]
            if (reply := read_frame(process.stdout)) is not None:  # type: ignore[arg-type]
                return reply
        self.stop()
        return None

    def stop(self) -> None:
        """End the process; what it has not kept by now, it never did."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "coterie.core.engines.worker"]
            self._process = subprocess.Popen(
                [*command, "--folder", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
            )
        return self._process
