"""Memory of a federation of K organisations; every K in a process of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import peft  # noqa: F401  (so that no library is loaded while clients are measured)
import torch

from benchmarks.core.machine import (
    AfterEveryOperation,
    forget_peak,
    live_bytes,
    most_resident,
    nbytes,
    resident,
)
from benchmarks.core.timing import Row, in_a_process, row
from benchmarks.llm.federation import Shape
from coterie.core.federation.federation import Federation
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.replies import ListReplies
from coterie.core.run.driver import FederatedRun
from coterie.llm.algorithm import PPLR
from coterie.llm.backbone_settings import LoraSettings
from coterie.llm.client import Organisation
from coterie.llm.messages import TrainedAdapter
from coterie.llm.readings import resolve
from coterie.llm.settings import FederatedDataSettings, Settings, TrainSettings
from coterie.llm.state import ServerState

# 78 MB; LoRA on queries and values, as BIGRec has it. Short histories: activations stay small.
SHAPE = Shape(
    4, 512, 8, n_items=5000, history=2, batch=1, lora=LoraSettings(targets=("q_proj", "v_proj"))
)
_ROUNDS = 3  # in the third, the best rows are others than the newest
_BETWEEN_ROUNDS = 2  # matrices (K, d): R_c of all clients, and R_c of the best round
# Beside those two: answers, their matrix, changes; and changes in float64 (two), later the mixed
# rows.
_IN_A_ROUND = 7


@dataclass(frozen=True)
class Measured:
    """Bytes of a run.

    Attributes:
        clients: K.
        backbone: of all parameters, LoRA's included.
        row: of an adapter, 4 d.
        before: resident, before the backbone is built.
        live: of all tensors that exist between two rounds.
        mixing: of all tensors that exist at once while adapters are mixed.
        resident: between two rounds.
        peak: most resident in the rounds.
    """

    clients: int
    backbone: int
    row: int
    before: int
    live: int
    mixing: int
    resident: int
    peak: int


def memory(clients: Sequence[int] = (1, 100), shape: Shape = SHAPE) -> Iterator[Row]:
    """Measure runs of PPLR, one client of which is trained at a time, with K clients.

    Expected: between rounds the backbone, the common start and two matrices ``(K, d)``, the rows
    and the best ones; while adapters are mixed, seven. An optimizer that is kept would add two.
    Resident memory also holds what the allocator keeps for later. The reference is what is
    expected, or K whole copies of the backbone (reckoned, they need not fit); of resident memory it
    is compared how much more there is than with the first, smallest K.

    Raises:
        UserError: a measurement failed, for lack of memory for instance.
    """
    found = [
        Measured(**in_a_process(f"{__name__}:measure", f"{n} clients", n, asdict(shape)))
        for n in clients
    ]
    yield from rows(found, str(shape))


def rows(found: Sequence[Measured], name: str) -> Iterator[Row]:
    """Compare what was measured with what is expected."""
    one = found[0]
    for run in found:
        expected = run.backbone + run.row * (1 + _BETWEEN_ROUNDS * run.clients)
        of = f"K = {run.clients}; {name}, d = {run.row // 4:,}"
        yield _row(f"tensors between rounds, {of}", run.live, expected)
        expected = run.backbone + run.row * (1 + _IN_A_ROUND * run.clients)
        yield _row(f"tensors while adapters are mixed, {of}", run.mixing, expected)
        if run is one:
            continue
        more = (run.clients - one.clients) * run.row
        than = f"more than K = {one.clients}"
        grown = run.resident - one.resident
        yield _row(f"resident between rounds, {than}, {of}", grown, _BETWEEN_ROUNDS * more)
        grown = run.peak - one.peak
        yield _row(f"resident, most in a round, {than}, {of}", grown, _IN_A_ROUND * more)
        naive = run.clients * run.backbone
        yield _row(f"peak against K deep copies, {of}", run.peak - run.before, naive)


def measure(clients: int, plain: dict[str, Any]) -> dict[str, int]:
    """Run some rounds with K clients in this process; a `Shape` and a `Measured` as plain dicts."""
    shape = Shape(**plain | {"lora": LoraSettings(**plain["lora"])})
    torch.set_num_threads(1)
    gc.collect()
    before = resident()
    settings = resolve(
        Settings(
            data=FederatedDataSettings(clients=clients, max_history=shape.history),
            train=TrainSettings(batch_size=shape.batch, lr=1e-5),
            rounds=_ROUNDS + 2,
            patience=_ROUNDS + 2,
        )
    )
    client = Organisation(settings, shape.backbone())
    data = shape.organisations(clients, shape.batch, queries=1)
    server = _Watched(settings, clients, client.adapter.row())
    module = FederatedRun(Federation(server, client, [data]))
    peak = 0
    for _ in range(_ROUNDS):
        forget_peak()
        module.advance()
        peak = max(peak, most_resident())
    server.watching = True
    module.advance()
    gc.collect()
    parameters = list(client.backbone.parameters())
    held, row = nbytes(parameters), 4 * client.adapter.size
    return vars(Measured(clients, held, row, before, live_bytes(), server.most, resident(), peak))


class _Watched(PPLR):
    """Notes, if asked to, how much there is after every operation of the aggregation."""

    watching, most = False, 0

    def _aggregate(
        self, state: ServerState, replies: ListReplies[TrainedAdapter], cohort: Cohort
    ) -> ServerState:
        if not self.watching:
            return super()._aggregate(state, replies, cohort)
        with AfterEveryOperation() as seen:
            after = super()._aggregate(state, replies, cohort)
        self.most = seen.most
        return after


def _row(name: str, ours: float, reference: float) -> Row:
    return row(name, "MB", ours / 1e6, reference / 1e6, share=True)
