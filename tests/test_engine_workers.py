"""``engine.workers``: every method of stacked clients gives the same bits, whatever the threads."""

import pytest
import torch

from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tensors import tree

PAGE = ["--data.clients", "6", "--train.epochs", "1", "--train.batch_size", "50"]
CONTINUAL = ["--rounds", "2", "--patience", "2"]
METHODS = {
    "page": [
        "page",
        "fedavg",
        "scaffold",
        "feddyn",
        "fedala",
        "fedamp",
        "fed-rod",
        "ditto",
        "pfedme",
    ],
    "f3crec": ["ft", "f3crec", "reg", "rlp2", "spp"],
}
CASES = [(paper, method) for paper, methods in METHODS.items() for method in methods]


def run(paper: str, flags: list[str], workers: int, rounds: int) -> FederatedRun:
    found, chunk = find_paper(paper), "2" if paper == "page" else "60"
    given = [*flags, "--engine.workers", str(workers), "--engine.chunk", chunk]
    module = FederatedRun(load(found.experiment)(configure(found, given).settings).federation())
    for _ in range(rounds):
        module.advance()
    return module


def tensors(module: FederatedRun) -> dict[str, torch.Tensor]:
    everything = (module.server_state, module.exchange.to_plain())
    return dict(tree.tensors(everything))


@pytest.mark.long
@pytest.mark.parametrize(("paper", "method"), CASES)
def test_threads_give_the_same_bits(paper, method):
    flags = ["--method", method, *(PAGE if paper == "page" else CONTINUAL)]
    rounds = 2 if paper == "page" else 5  # of which the last are in the next block
    one, four = (tensors(run(paper, flags, workers, rounds)) for workers in (1, 4))
    assert list(one) == list(four)
    assert all(value.equal(four[path]) for path, value in one.items())


def test_what_cannot_is_told():
    with pytest.raises(
        UserError, match=r"'engine.workers' is for methods whose clients are stacked"
    ):
        run("mtal", [], 2, 0)
