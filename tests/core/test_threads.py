"""Chunks on several threads: the same bits, errors where they belong, few chunks ahead."""

import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.core.methods.labelled_clients import KEY, built, labelled
from tests.core.methods.loss_modules import Linear
from torch import nn

from benchmarks.core.modules.cases import Case, Labelled, numbers, small_cnn
from benchmarks.core.modules.rounds import ModuleRounds
from coterie.core.errors import UserError
from coterie.core.federation.threads import Threads
from coterie.core.local_training.losses import MethodOf
from coterie.core.local_training.step_count import count_steps, counting_steps
from coterie.core.methods.fedavg import FedAvgClient, FedAvgSettings
from coterie.core.methods.kit.evaluation import Evaluator
from coterie.core.methods.kit.training import LocalTraining
from coterie.core.tensors.keys import Key

each_count = pytest.mark.parametrize("count", [1, 2, 5])


@each_count
def test_results_come_in_order(count):
    def slow_first(number):
        time.sleep(0.02 * (number == 0))
        return number

    assert list(Threads(count).map(slow_first, range(12))) == list(range(12))
    assert list(Threads(count).map(slow_first, [])) == []


def test_threads_work_at_the_same_time():
    meet = threading.Barrier(2, timeout=10)
    assert len(list(Threads(2).map(lambda _: meet.wait(), range(4)))) == 4


def test_few_are_ahead_of_what_is_asked_for():
    begun = []
    results = Threads(2).map(lambda number: begun.append(number), iter(range(100)))
    next(results)
    time.sleep(0.05)
    assert len(begun) <= 4


@each_count
def test_an_error_is_raised_in_its_place_and_the_threads_go_on(count):
    def fails(number):
        if number == 1:
            raise UserError("no")
        return number

    threads = Threads(count)
    results = threads.map(fails, range(5))
    assert next(results) == 0
    with pytest.raises(UserError, match="no"):
        next(results)
    assert list(threads.map(fails, [2, 3])) == [2, 3]


@each_count
def test_threads_see_what_the_one_that_asks_sees(count):
    told = contextvars.ContextVar("told", default=0)
    told.set(7)
    with torch.no_grad(), counting_steps() as steps:

        def look(number):
            count_steps(number)
            return told.get(), torch.is_grad_enabled(), torch.get_num_threads()

        found = set(Threads(count).map(look, range(200)))
    assert found == {(7, False, torch.get_num_threads())}
    assert steps.total == 199 * 200 // 2


def test_seeds_of_threads_do_not_meet():
    def draw(number):
        with Key.from_seed(number).torch_rng():
            first = torch.rand(1)
            time.sleep(0.001)
            return torch.cat([first, torch.rand(3)])

    alone = [draw(number) for number in range(20)]
    before = torch.get_rng_state()
    assert torch.stack(list(Threads(4).map(draw, range(20)))).equal(torch.stack(alone))
    assert torch.get_rng_state().equal(before)


def test_each_thread_has_a_module_of_its_own():
    meet = threading.Barrier(2, timeout=10)

    class Waiting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, batch):
            meet.wait()
            return self.weight + batch["x"]

    forward, x = MethodOf(Waiting(), "forward"), {"x": torch.zeros(())}
    found = Threads(2).map(lambda w: float(forward({"weight": torch.tensor(w)}, x)), [1.0, 2.0])
    assert list(found) == [1.0, 2.0]


def dropping() -> Labelled:
    return Labelled(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))


def linear() -> Labelled:
    return Labelled(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


SIX = numbers(6, classes=3)
MODULES = {
    "stacked": Case("", linear, SIX, 11, 12, 4),
    "alone": Case("", dropping, SIX, 11, 12, 4),
    "convolutions": Case("", lambda: small_cnn(8, 4), numbers(3, 8, 8), 5, 6, 3),
}


def test_chunks_are_run_by_threads(monkeypatch):
    seen, update = [], FedAvgClient.update

    def noting(*arguments):
        seen.append(threading.current_thread().name)
        return update(*arguments)

    rounds = ModuleRounds(MODULES["stacked"], chunk=2, workers=2)
    monkeypatch.setattr(FedAvgClient, "update", noting)
    rounds.advance()
    assert len(seen) == 6
    assert all(name.startswith("chunk") for name in seen)


@pytest.mark.parametrize("name", MODULES)
def test_a_round_has_the_same_bits(name):
    """Whole rounds of FedAvg, the third of which starts from what threads have left."""
    rounds = [ModuleRounds(MODULES[name], chunk=2, workers=workers) for workers in (1, 2, 4)]
    for _ in range(3):
        one, *others = [each.advance() for each in rounds]
        assert all(value.equal(other[n]) for other in others for n, value in one.items())


def looking():
    """Someone who trains and someone who measures, both of whom look at the module first."""
    module = built(Linear)
    module.scale = 1.0
    data, local = labelled([3, 5]), LocalTraining(module, FedAvgSettings())
    params = {name: value.detach()[None] for name, value in module.named_parameters()}
    evaluator = Evaluator(module)
    return module, {
        "trains": (local, lambda: local.batches(data, KEY.fold(data.ids))),
        "measures": (evaluator, lambda: evaluator.of_clients(params, data)),
    }


@pytest.mark.parametrize("who", ["trains", "measures"])
def test_a_thread_waits_for_what_another_makes_of_a_changed_module(who, monkeypatch):
    """Else it would go on with what was made before the change."""
    module, both = looking()
    looker, act = both[who]
    act()
    began, go, made = threading.Event(), threading.Event(), looker._made

    def slowly():
        began.set()
        assert go.wait(10)
        made()

    monkeypatch.setattr(looker, "_made", slowly)
    module.scale = 2.0
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(act)
        assert began.wait(10)
        second = pool.submit(act)
        time.sleep(0.2)
        waited = not second.done()
        go.set()
    assert first.exception() is second.exception() is None
    assert waited
