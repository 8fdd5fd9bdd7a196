"""``engine.workers``: every method of stacked clients gives the same bits, whatever the processes.

Processes that are killed, and runs that are, end in one line and leave nothing behind.
"""

import os
import signal
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

from benchmarks.core.modules.cases import Labelled
from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.federation.in_forks import InForks
from coterie.core.federation.ledger import Transcript
from coterie.core.front.trained_models import TrainedModels
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.kit.model_messages import UPDATE, GlobalModel
from coterie.core.protocol.client import OfSteps
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tables.following import follow
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


def check_same(one: FederatedRun, other: FederatedRun) -> None:
    first, second = tensors(one), tensors(other)
    assert list(first) == list(second)
    assert all(value.equal(second[path]) for path, value in first.items())
    assert one.journal.scalars == other.journal.scalars
    assert one.ledger.rows() == other.ledger.rows()
    exact = {"rtol": 0, "atol": 0, "equal_nan": True}  # NaN is what was not measured
    torch.testing.assert_close(one.journal.clients, other.journal.clients, **exact)


def check_processes(paper: str, method: str, workers: int) -> None:
    flags = ["--method", method, *(PAGE if paper == "page" else CONTINUAL)]
    rounds = 2 if paper == "page" else 5  # of which the last are in the next block
    one, others = (run(paper, flags, count, rounds) for count in (1, workers))
    check_same(one, others)
    assert others.clients.crew.starts == 1


@pytest.mark.long
@pytest.mark.parametrize(("paper", "method"), CASES)
def test_processes_give_the_same_bits(paper, method):
    check_processes(paper, method, 4)


def test_two_processes_give_the_same_bits():
    check_processes("page", "scaffold", 2)


def test_uploads_are_clipped_and_noised_as_in_one_process():
    flags = ["--method", "fedavg", *PAGE, "--privacy.clip", "0.1"]
    flags += ["--privacy.noise", "gaussian", "--privacy.scale", "0.01"]
    plain, one, two = (
        run("page", flags[:-6], 1, 1),
        run("page", flags, 1, 1),
        run("page", flags, 2, 1),
    )
    check_same(one, two)
    assert any(not v.equal(tensors(one)[path]) for path, v in tensors(plain).items())


def test_a_transcript_is_that_of_one_process():
    """It has the hashes of uploads, which processes otherwise sum up: replays compare them."""
    written = []
    for workers in (1, 2):
        made, lines = federation(workers=workers), list[str]()
        made.ledger.transcript = Transcript(lines.append)
        made.advance()
        written.append(lines)
    assert written[0] == written[1] != []


LENGTHS = [7, 0, 3, 12, 1, 5, 0, 9, 4]


def federation(lengths=LENGTHS, workers=1, chunk=2, **settings) -> FederatedRun:
    """FedAvg of clients with few samples or none, who keep their models."""
    generator = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    samples = {
        "x": torch.randn(int(offsets[-1]), 4, generator=generator),
        "y": torch.randint(0, 3, (int(offsets[-1]),), generator=generator),
    }
    data = SplitSamples.of(SampleData(torch.arange(len(lengths)), samples, offsets))
    chosen = FedAvgSettings(batch_size=3, epochs=2, lr=0.1, keep_moments=True, **settings)
    made = lambda: Labelled(torch.nn.Linear(4, 3))  # noqa: E731
    client = FedAvgClient(made(), chosen)
    parts = Federation(FedAvgServer(made, chosen), client, [data], chunk=chunk, workers=workers)
    return FederatedRun(replace(parts, seed=1))


@pytest.mark.parametrize("chunk", [1, 2, 3, None])
@pytest.mark.parametrize("lengths", [LENGTHS, [5], [0, 0, 4], [3, 3]], ids=len)
def test_few_clients_and_empty_ones_give_the_same_bits(lengths, chunk):
    both = [federation(lengths, workers, chunk) for workers in (1, 3)]
    for _ in range(2):
        for each in both:
            each.advance()
        check_same(*both)


def test_state_of_those_who_take_part_now_and_then_is_kept():
    both = [federation(workers=n, fraction=0.4, optimizer="adam") for n in (1, 2)]
    for _ in range(6):
        for each in both:
            each.advance()
        check_same(*both)
    rounds = both[1].store.take(torch.arange(len(LENGTHS))).rounds
    assert int(rounds.sum()) == 6 * round(0.4 * len(LENGTHS))
    assert len(rounds.unique()) > 1


def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits():
    whole, broken = federation(workers=2), federation(workers=2)
    for _ in range(4):
        whole.advance()
    for _ in range(2):
        broken.advance()
    saved = broken.to_plain()
    for workers in (1, 2):
        resumed = federation(workers=workers)
        resumed.load_plain(deepcopy(saved))
        for _ in range(2):
            resumed.advance()
        assert all(v.equal(tensors(whole)[path]) for path, v in tensors(resumed).items())


def test_who_looks_into_a_run_sees_what_is_sent_without_noise():
    """`FederatedRun.newest_cohort` has no middleware; it has the processes of the run."""

    def looked(workers):
        made = federation(workers=workers)
        double = lambda up, key: replace(up, loss=2 * up.loss)  # noqa: E731
        made = FederatedRun(replace(made.federation, middleware=(OfSteps(double, (UPDATE.name,)),)))
        made.advance()
        cohort = replace(made.newest_cohort(), when=(0, 2))
        start = GlobalModel(made.server_state.weights)
        return [c.ask(UPDATE, start).up for c in (cohort, made._cohort(2))], made

    (bare, passed), _ = looked(1)
    (bare_there, passed_there), there = looked(2)
    assert bare.loss.equal(bare_there.loss)
    assert passed.loss.equal(passed_there.loss)
    assert passed.loss.equal(2 * bare.loss)
    assert there.clients.crew.starts == 1


def test_a_model_that_is_given_away_is_the_one_of_one_process():
    models = []
    for workers in (1, 2):
        made = federation(workers=workers)
        made.advance()
        module = made.federation.client.module
        models.append(TrainedModels(module, made, tuple(range(len(LENGTHS))), "fedavg"))
    for client in (0, 1, 3):
        one, two = (each.client(client).state_dict() for each in models)
        assert all(value.equal(two[name]) for name, value in one.items())


def test_a_change_of_the_module_between_rounds_is_seen():
    class Weighted(Labelled):
        scale = 1.0

        def loss(self, batch):
            return self.scale * super().loss(batch)

    def trained(workers):
        made = federation(workers=workers)
        module = Weighted(torch.nn.Linear(4, 3))
        module.load_state_dict(made.federation.client.module.state_dict())
        settings = made.federation.client.settings
        client = FedAvgClient(module, settings)
        made = FederatedRun(replace(made.federation, client=client))
        made.advance()
        module.scale = 3.0
        made.advance()
        return made

    one, two = trained(1), trained(2)
    check_same(one, two)
    assert two.clients.crew.starts == 2


def test_a_change_of_middleware_between_rounds_is_seen():
    class Scaled:
        factor = 1.0

        def __call__(self, up, key):
            return replace(up, loss=self.factor * up.loss)

    def trained(workers):
        made, scaled = federation(workers=workers), Scaled()
        layer = OfSteps(scaled, (UPDATE.name,))
        made = FederatedRun(replace(made.federation, middleware=(layer,)))
        made.advance()
        scaled.factor = 3.0
        made.advance()
        return made

    one, two = trained(1), trained(2)
    check_same(one, two)
    assert two.clients.crew.starts == 2


def test_processor_time_of_a_run_is_that_of_all_processes(monkeypatch):
    made, clock = federation(workers=2, rounds=3), count(0.0, 1000.0)
    made.advance()
    assert made.exchange.seconds_elsewhere > 0
    monkeypatch.setattr(InForks, "seconds_elsewhere", property(lambda _: next(clock)))
    assert 2000 <= follow(made).total("cost/cpu_seconds") < 2500  # of the two rounds that are left


def test_what_cannot_is_told():
    with pytest.raises(
        UserError, match=r"'engine.workers' is for methods whose clients are stacked"
    ):
        run("mtal", [], 2, 0)


ENDLESS = ["page", "--method", "fedavg", "--preset", "smoke", "--train.epochs", "100000"]
ENDLESS += ["--engine.workers", "2", "--engine.chunk", "1"]
QUIET = ["--logger.wandb", "off", "--run.progress", "false"]
PATIENCE = 120.0  # seconds, on a machine that does other things


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            of = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(of[1]) == parent and of[0] != "Z":
            found.append(int(path.parent.name))
    return found


def alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def wait_until(holds) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.02)


@pytest.fixture
def training(tmp_path):
    """A training whose two processes are at work, and these."""
    # Python leaves SIGINT ignored in a background job of a shell.
    command = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from coterie.core.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command, "train", *ENDLESS, *QUIET, "--run.out", str(tmp_path)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    shared = sorted(os.listdir("/dev/shm"))
    wait_until(lambda: len(children(process.pid)) == 2)
    workers = children(process.pid)
    yield process, workers
    wait_until(lambda: not any(map(alive, workers)))
    assert sorted(os.listdir("/dev/shm")) == shared
    process.kill()
    process.communicate()


@pytest.mark.long
def test_a_process_that_is_killed_ends_the_run_in_one_line(training):
    process, workers = training
    os.kill(workers[0], signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    last = [line for line in err.splitlines() if line.startswith("coterie:")]
    assert len(last) == 1, err
    assert "a process of 'engine.workers' was killed (signal 9)" in last[0]
    assert "Traceback" not in err


@pytest.mark.long
def test_processes_end_with_a_run_that_is_killed(training):
    process, _ = training
    process.kill()


@pytest.mark.long
def test_ctrl_c_ends_the_processes(training):
    process, _ = training
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
