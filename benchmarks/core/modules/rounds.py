"""How fast FedAvg trains any module, beside a plain loop and pfl; on a GPU, beside one core."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.core import pfl_rounds
from benchmarks.core.modules.cases import CASES, Case
from benchmarks.core.modules.loops import Batch, ClientLoop, PflLoop
from benchmarks.core.timing import CPU_MS, Row, in_a_process, in_turns, in_two_processes, row
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.federation import Federation
from coterie.core.federation.in_forks import InForks
from coterie.core.federation.in_process import InProcess
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer
from coterie.core.methods.kit.model_messages import UPDATE, GlobalModel
from coterie.core.methods.kit.uploads import Weighted, mean_added
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.device import CPU, computing_on
from coterie.core.tensors.keys import Key

SHARED = (replace(CASES[0], name=f"{CASES[0].name}, 4,000 clients", clients=4_000), *CASES[1:])
"""What two processes share: clients in several chunks. 100 of a softmax regression are one."""


class ModuleRounds:
    """Rounds of FedAvg by plain gradient descent, from one model, without an evaluation.

    Args:
        case: what is trained.
        chunk: clients per stacked call; None = as many as there is memory for.
        device: where.
        workers: processes that run chunks.
    """

    def __init__(
        self,
        case: Case,
        chunk: int | None = None,
        device: torch.device = CPU,
        workers: int = 1,
    ) -> None:
        self.case, self.device = case, device
        self.settings = FedAvgSettings(
            epochs=case.epochs,
            batch_size=case.batch_size,
            lr=case.lr,
            clip=None,
            weight_decay=0.0,
            keep_models=False,  # as the loops
        )
        self.split, self._number = SplitSamples.of(case.data()), 0
        with Key.from_seed(0).torch_rng():
            self.module = case.make()
        self.client = FedAvgClient(self.module.to(device), self.settings)
        server = FedAvgServer(case.make, self.settings)
        parts = Federation(
            server, self.client, [self.split], chunk=chunk, workers=workers, device=device
        )
        self.run = FederatedRun(parts)
        with computing_on(device):
            self.run.newest_cohort().enrol()
        named = self.module.named_parameters()
        self.weights = {name: value.detach().clone() for name, value in named}

    def advance(self) -> dict[str, Tensor]:
        """Train all clients once, from the same model every time; return the mean of theirs."""
        self._number += 1
        with computing_on(self.device):
            cohort = replace(self.run.newest_cohort(), when=(0, self._number))
            replies = cohort.ask(UPDATE, GlobalModel(self.weights), reduce=Weighted("samples"))
        assert replies.total is not None
        return mean_added(self.weights, replies.total)

    def loop(self, made: type[ClientLoop] = ClientLoop) -> ClientLoop:
        """The same clients for the plain loop, or for another of its kind."""
        return made(self.case.make(), self.settings, self.split.train)

    def largest_difference(self, count: int = 2, made: type[ClientLoop] = ClientLoop) -> float:
        """Train the first clients here and in a loop on the same batches; compare their means."""
        first = torch.arange(count)
        split = self.split.take(first)
        key = Key.from_seed(0).fold("same batches").fold(first)
        up, _ = self.client.update(
            GlobalModel(self.weights), self.run.store.take(first), split, key
        )
        drawn = self.client.local.batches(split.train, key)

        def batches(client: int) -> Iterable[Batch]:
            row = torch.tensor([client])
            for number in range(int(drawn.steps[client])):
                yield {name: values[0] for name, values in drawn(number, row).items()}

        loop = made(self.case.make(), self.settings, split.train)
        reference = loop.round(self.weights, batches)
        ours = [self.weights[name] + change.mean(0) for name, change in up.change.items()]
        pairs = zip(ours, reference, strict=True)
        return max(float((one - other).abs().max()) for one, other in pairs)


def beside_a_loop(cases: Sequence[Case] = CASES, turns: int = 5) -> Iterator[Row]:
    """Compare rounds with a plain loop of torch, one client after the other, and with pfl's.

    Yields:
        Rows with ``name, unit, ours, reference, ratio, max_abs_diff``, medians of processor time;
        those whose names end in ``; pfl`` are there where pfl-research is installed.
    """
    loops = {"": ClientLoop} | ({"; pfl": PflLoop} if pfl_rounds.installed() else {})
    for case in cases:
        rounds = ModuleRounds(case)
        works: dict[str, Callable[[], object]] = {
            label: partial(rounds.loop(made).round, rounds.weights) for label, made in loops.items()
        }
        works["ours"] = rounds.advance
        found = {name: statistics.median(times) for name, times in in_turns(works, turns).items()}
        name = f"{case.name}; {case.clients} clients, {case.steps:,} steps"
        for label, made in loops.items():
            difference = rounds.largest_difference(made=made)
            yield row(name + label, CPU_MS, found["ours"], found[label], difference)


def on_two_processes() -> Iterator[Row]:
    """Compare rounds whose chunks run in two processes with those in one, in wall time.

    Yields:
        As `beside_a_loop`; the time of forking them, once a run, has a row of its own, beside that
        of the first case's round.
    """
    for number, case in enumerate(SHARED):
        what = f"{case.name} in two processes"
        yield from in_a_process(f"{__name__}:shared_by_two", what, number)


def shared_by_two(number: int) -> list[Row]:
    """Run the rounds of a case of `SHARED` in this process and two of its own."""
    torch.set_num_threads(1)
    case = SHARED[number]
    one, two = ModuleRounds(case), ModuleRounds(case, workers=2)
    forking = _forking(two.run.clients)
    difference = _largest(two.advance(), one.advance())
    found = in_two_processes(case.name, "ms a round", one.advance, two.advance, difference)
    rows = [found]
    if not number:
        rows.append(row("forking two processes, once a run; a round", "ms", forking, found["ours"]))
    return rows


def _forking(clients: InProcess) -> float:
    """Milliseconds until the processes of clients are there."""
    assert isinstance(clients, InForks)
    assert clients.crew is not None
    began = time.perf_counter()
    clients.crew.start()
    return 1e3 * (time.perf_counter() - began)


def beside_a_core(
    device: torch.device, cases: Sequence[Case] = CASES, turns: int = 3
) -> Iterator[Row]:
    """Compare rounds on a GPU with the same ones on one core.

    Yields:
        As `beside_a_loop`; wall milliseconds on the GPU, processor time of the core.
    """
    for case in cases:
        there, here = ModuleRounds(case, device=device), ModuleRounds(case)
        difference = _largest(there.advance(), here.advance())
        ours = in_turns({"ours": partial(_finished, there)}, turns, time.perf_counter)["ours"]
        core = in_turns({"core": here.advance}, 1)["core"]
        name = f"{case.name} on {torch.cuda.get_device_name(device)}; one core"
        yield row(name, "ms a round", statistics.median(ours), min(core), difference)


def _finished(rounds: ModuleRounds) -> None:
    rounds.advance()
    torch.cuda.synchronize(rounds.device)


def _largest(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    return max(float((value.cpu() - second[n].cpu()).abs().max()) for n, value in first.items())
