"""What rules in place of the mean are worth: 30 % of the clients lie in every round.

    python -m benchmarks.core.attackers [page] [fedavg] [f3crec] [--seeds 3] [--rules mean median]

PAGE's Synthetic data (100 clients) by PAGE and by FedAvg, accuracy of the server's model on its
test samples, in the round that is best on validation; F³CRec on ML-100K, NDCG@20 over the blocks.
Who lies is drawn anew for each seed and stays so. Attackers send, of what an honest client would
have sent, the opposite, ten times as much, or noise of ten times its norm in its place; what they
report of their own accuracy is true.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from coterie.core.cli.command import say
from coterie.core.errors import UserError
from coterie.core.federation.exchange import Answers, Exchange, Request
from coterie.core.federation.in_process import InProcess
from coterie.core.privacy.noise import normal, upload_norms
from coterie.core.privacy.releases import change_releases, release_names
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tables.jobs import Counting, worker_count
from coterie.core.tables.report import markdown_table
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import Rows, TouchedRows
from coterie.core.tensors.stacked import Ragged

logger = logging.getLogger(__name__)
SHARE = 0.3
ATTACKS = ("none", "opposite", "ten times", "noise")
RULES = ("none", "mean", "median", "trimmed-mean", "krum", "multi-krum")
RUNS = {
    "page": ("page", ["--run.progress", "false"], "test/server_accuracy"),
    "fedavg": ("page", ["--method", "fedavg"], "test/server_accuracy"),
    "f3crec": ("f3crec", ["--data.name", "ml-100k"], "test/average/ndcg@20"),
}


class Attacked(Exchange):
    """Clients of whom some lie.

    Args:
        inner: reaches all of them, honest.
        attack: one of `ATTACKS`.
        key: draws who lies, and the noise.
    """

    def __init__(self, inner: InProcess, attack: str, key: Key) -> None:
        self.inner, self.attack, self.key = inner, attack, key

    def present(self, block: int) -> Tensor:
        """Who takes part."""
        return self.inner.present(block)

    def enrol(self, ids: Tensor, block: int) -> Tensor:
        """Let newcomers enrol."""
        return self.inner.enrol(ids, block)

    def ask(self, request: Request) -> Iterator[Answers]:
        """Ask all, and put something else in the place of what some have answered."""
        for answers in self.inner.ask(request):
            released = answers.up is not None and release_names(request.step.up)
            yield self._changed(request, answers) if released else answers

    def to_plain(self) -> Any:
        """Private state."""
        return self.inner.to_plain()

    def load_plain(self, plain: Any) -> None:
        """Restore it."""
        self.inner.load_plain(plain)

    def lies(self, ids: Tensor) -> Tensor:
        """Who of these clients lies, ``(K,)`` bool."""
        return self.key.fold("attackers").fold(ids).uniform(dtype=torch.float64) < SHARE

    def _changed(self, request: Request, answers: Answers) -> Answers:
        lies = self.lies(answers.ids)
        keys = self.key.fold("noise", *request.when).fold(answers.ids)
        norms = upload_norms(answers.up)
        if self.attack == "none" or norms is None or not bool(lies.any()):
            return answers
        if self.attack != "noise":
            times = torch.where(lies, -1.0 if self.attack == "opposite" else 10.0, 1.0)
            return replace(answers, up=change_releases(answers.up, lambda _, v: scaled(v, times)))
        noise = change_releases(answers.up, lambda path, v: drawn(v, keys.fold(path)))
        size = upload_norms(noise)
        assert size is not None
        factor = 10.0 * norms / size.clamp_min(1e-30)
        made = change_releases(noise, lambda _, v: scaled(v, factor))
        return replace(answers, up=mixed(lies, made, answers.up))


def scaled(value: Any, factor: Tensor) -> Any:
    """Multiply each client's part by ``(C,)``."""
    if isinstance(value, Rows):
        return value.wire().scaled(factor.to(value.dtype))
    return value * tree.columns(factor.to(value.dtype), value)


def drawn(value: Any, keys: Key) -> Any:
    """Normal numbers in the form of a release; of rows in all of them."""
    if not isinstance(value, Rows):
        return normal(keys, value[0].numel(), value.dtype).view_as(value)
    (n_rows, width), count = value.table_shape, value.n_clients
    numbers = normal(keys, n_rows * width, value.dtype).view(-1, width)
    offsets = torch.arange(count + 1) * n_rows
    return TouchedRows(Ragged(torch.arange(n_rows).repeat(count), offsets), numbers, n_rows)


def mixed(lies: Tensor, made: Any, honest: Any) -> Any:
    """Of some clients what was made up, of the others what is honest."""
    honest = change_releases(honest, lambda _, v: v.wire() if isinstance(v, Rows) else v)
    who, others = lies.nonzero().flatten(), (~lies).nonzero().flatten()
    both = tree.concatenate(tree.take(made, who), tree.take(honest, others))
    return tree.take(both, torch.cat([who, others]).argsort())


@dataclass(frozen=True)
class Case:
    """One run."""

    name: str
    attack: str
    rule: str
    seed: int


def result(case: Case) -> float:
    """Train, and give what is measured; NaN where the run ended by a rule or by an attack."""
    torch.set_num_threads(1)
    name, flags, wanted = RUNS[case.name]
    flags = [*flags, "--seed", str(case.seed), "--aggregate.rule", case.rule]
    paper = find_paper(name)
    experiment = load(paper.experiment)(configure(paper, flags).settings)
    run = FederatedRun(experiment.federation())
    key = Key.from_seed(case.seed).fold("liars")
    run.exchange = Attacked(run.clients, case.attack, key)
    try:
        while not run.finished:
            run.advance()
    except UserError as error:
        logger.warning("%s: %s", case, error)
        return float("nan")
    return best(run, wanted, experiment)


def best(run: FederatedRun, wanted: str, experiment: Any) -> float:
    """The measure in the round that validation chooses."""
    if wanted.startswith("test/average"):
        return float(experiment.final_metrics(run)[wanted])
    monitor = run.federation.monitor
    assert monitor is not None
    scored = [row for row in run.history if monitor.key in row]
    return float(max(scored, key=lambda row: row[monitor.key])[wanted])


def main(argv: Sequence[str]) -> None:
    """Run all cases and print a table for each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(RUNS), choices=[*RUNS, []])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rules", nargs="+", default=RULES, choices=RULES)
    given = parser.parse_args(argv)
    for name in given.names:
        cases = [
            Case(name, attack, rule, seed)
            for rule, attack, seed in product(given.rules, ATTACKS, range(given.seeds))
        ]
        with (
            ProcessPoolExecutor(worker_count()) as pool,
            Counting(name, len(cases), True) as bar,
        ):
            found: dict[Case, float] = {}
            for case, value in zip(cases, pool.map(result, cases), strict=True):
                found[case] = value
                bar.done(f"{case.rule}, {case.attack}")
        rows = [
            {"rule": rule}
            | {
                attack: told([found[Case(name, attack, rule, s)] for s in range(given.seeds)])
                for attack in ATTACKS
            }
            for rule in given.rules
        ]
        say(f"\n{name}: {RUNS[name][2]}, {given.seeds} seeds\n")
        say("\n".join(markdown_table(rows)))


def told(values: list[float]) -> str:
    """Mean and spread."""
    return f"{mean(values):.4f} ± {stdev(values) if len(values) > 1 else 0.0:.4f}"


if __name__ == "__main__":
    main(sys.argv[1:])
