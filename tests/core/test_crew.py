"""Chunks in forked processes: the same bits, errors where they belong, nothing left behind."""

import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import pytest
import torch
from tests.core.methods.labelled_clients import KEY, built, labelled
from tests.core.methods.loss_modules import Linear
from torch import Tensor, nn

from benchmarks.core.modules.cases import Case, Labelled, numbers, small_cnn
from benchmarks.core.modules.rounds import ModuleRounds
from coterie.core.errors import UserError
from coterie.core.federation import letters
from coterie.core.federation.crew import Crew
from coterie.core.federation.letters import Reader, Writer
from coterie.core.kernels import switch
from coterie.core.local_training.losses import MethodOf
from coterie.core.local_training.step_count import count_steps, counting_steps
from coterie.core.methods.fedavg import FedAvgClient, FedAvgSettings
from coterie.core.methods.kit.evaluation import Evaluator
from coterie.core.methods.kit.training import LocalTraining
from coterie.core.tensors.device import tiny_are_zero, tiny_as_zero
from coterie.core.tensors.keys import Key

each_count = pytest.mark.parametrize("workers", [1, 2, 5])
FORK = multiprocessing.get_context("fork")


def found(crew, pieces, common=None):
    return [made for _, made in crew.answers(common, pieces)]


@each_count
def test_results_come_in_order(workers):
    def slow_first(_, number):
        time.sleep(0.02 * (number == 0))
        return -number

    crew = Crew(workers, slow_first)
    assert list(crew.answers(None, range(12))) == [(number, -number) for number in range(12)]
    assert list(crew.answers(None, [])) == []


def test_processes_work_at_the_same_time():
    meet = FORK.Barrier(2, timeout=10)
    crew = Crew(2, lambda *_: (meet.wait(), os.getpid()))
    (first, second) = ({process for _, process in found(crew, range(4))} for _ in range(2))
    assert first == second
    assert len(first - {os.getpid()}) == 2


def test_few_are_ahead_of_what_is_asked_for():
    taken = []
    answers = Crew(2, lambda _, number: number).answers(None, map(taken.append, count()))
    next(answers)
    assert len(taken) <= 5


class Strange(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


@each_count
def test_an_error_is_raised_in_its_place_and_the_processes_go_on(workers):
    def fails(_, number):
        if number == 1:
            raise UserError("no")
        if number == 7:
            raise Strange(1, 2)  # which cannot be read from its bytes
        if number == 8:
            raise FileNotFoundError("eight")
        return number

    crew = Crew(workers, fails)
    answers = crew.answers(None, range(5))
    assert next(answers) == (0, 0)
    with pytest.raises(UserError, match=r"^no$"):
        next(answers)
    assert found(crew, [2, 3]) == [2, 3]
    with pytest.raises(RuntimeError, match="Strange: 1 2"):
        found(crew, [7])
    with pytest.raises(FileNotFoundError, match="eight") as error:
        found(crew, [8])
    assert "in fails\n" in error.value.__notes__[0]
    assert crew.starts == 1


def test_what_torch_cannot_after_a_fork_is_told():
    def fails(*_):
        raise RuntimeError(
            "Unable to handle autograd's threading in combination with fork-based multiprocessing. "
            "See https://github.com/pytorch/pytorch/wiki/Autograd-and-Fork"
        )

    with pytest.raises(UserError, match=r"^'engine.workers' are forked .*or leave it at 1$"):
        found(Crew(2, fails), [1])


def test_what_no_other_process_can_have_is_told():
    with pytest.raises(UserError, match=r"^'engine.workers' sends messages .*leave it at 1$"):
        found(Crew(1, lambda _, given: given), [lambda: None])
    with pytest.raises(UserError, match=r"^'engine.workers' sends messages .*leave it at 1$"):
        found(Crew(1, lambda *_: lambda: None), [1])


def test_processes_see_what_the_one_that_asks_sees():
    def look(_, number):
        count_steps(number)
        return (
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            switch.available(),
            tiny_are_zero(),
        )

    crew = Crew(2, look)
    usual = found(crew, range(4))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), counting_steps() as steps, switch.kernels(False), tiny_as_zero():
            set_here = found(crew, range(200))
    finally:
        torch.set_default_dtype(before)
    assert set(set_here) == {(torch.float64, False, torch.get_num_threads(), False, True)}
    assert set(usual) == {(before, True, torch.get_num_threads(), switch.available(), False)}
    assert steps.total == 199 * 200 // 2
    assert crew.starts == 1


def test_a_fork_of_a_process_whose_torch_has_threads_does_not_wait_for_them():
    threads, x = torch.get_num_threads(), torch.ones(1_000_000)
    torch.set_num_threads(2)
    try:
        here = float(x.exp().sum())
        assert found(Crew(2, lambda *_: float(x.exp().sum())), range(2)) == [here, here]
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Message:
    plain: str
    parts: dict


def odd():
    """Tensors in whose memory something is special."""
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "transposed": base.t(),
        "columns": base[:, 1:3],
        "expanded": torch.arange(3.0)[None].expand(5, 3),
        "empty": torch.empty(0, 7),
        "scalar": torch.tensor(3),
        "half": base.bfloat16(),
        "bool": base > 3,
        "complex": base.to(torch.complex64)[::2],
    }


def test_letters_keep_values_and_strides():
    message = Message("x" * 100_000, odd())  # a text too long for a line
    (back,) = found(Crew(1, lambda _, given: given[0]), [(message, torch.ones(1))])
    assert back.plain == message.plain
    for name, tensor in message.parts.items():
        other = back.parts[name]
        assert other.equal(tensor), name
        assert (other.dtype, other.stride()) == (tensor.dtype, tensor.stride()), name


def test_messages_may_be_of_classes_that_have_no_name():
    @dataclass(frozen=True)
    class Local:
        x: Tensor

    crew = Crew(2, lambda _, given: Local(given.x + 1), classes=[Local])
    assert [type(one) is Local for one in found(crew, [Local(torch.ones(2))] * 3)] == [True] * 3


def test_what_comes_back_unchanged_is_what_was_given():
    def work(_, given):
        given["changed"].add_(1)
        return {**given, "new": given["same"] + 1}

    given = {"same": torch.zeros(3), "changed": torch.zeros(3)}
    (back,) = found(Crew(1, work), [given])
    assert back["same"] is given["same"]
    assert back["changed"].tolist() == [1, 1, 1]
    assert given["changed"].tolist() == [0, 0, 0]
    assert back["new"].tolist() == [1, 1, 1]


def test_what_is_still_used_is_not_written_over_and_memory_is_used_again():
    crew = Crew(2, lambda common, given: given * common)
    kept = [found(crew, torch.arange(8.0).split(1), torch.tensor(turn)) for turn in range(1, 9)]
    values = [[float(one) for one in each] for each in kept]
    assert values == [[turn * n for n in range(8)] for turn in map(float, range(1, 9))]
    del kept
    for turn in range(40):
        found(crew, torch.full((8, 50_000), float(turn)).split(1), torch.tensor(turn))
    assert len(crew._forks.writer.numbers()) <= 12
    seen = max(len(line.reader._blocks) for line in crew._forks.lines)
    assert seen <= 20


def test_a_block_is_free_once_nothing_of_a_letter_is_used():
    writer, reader = Writer([]), Reader([])
    letter = writer.write({"a": torch.arange(3), "b": torch.ones(2)})
    letter.block.readers[1] = True
    reader.see(letter.block.number, os.dup(letter.block.descriptor))
    read = reader.read(letter.text, letter.block.number)[0]
    part = read["a"][1:]
    del read
    gc.collect()
    assert reader.unused() == []
    assert part.tolist() == [1, 2]
    del part
    assert reader.unused() == [letter.block.number]
    assert reader.unused() == []
    writer.returned(1, [letter.block.number])
    assert writer.write(torch.ones(1)).block is letter.block


def test_too_little_memory_is_told(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(letters.os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"^no .* MB of shared memory for 'engine.workers'"):
        Writer([]).write(torch.ones(3))


def test_processes_are_forked_anew_when_what_they_know_has_changed():
    told = {"scale": 1.0}
    crew = Crew(2, lambda _, given: told["scale"] * given, lambda: dict(told))
    assert found(crew, [1, 2]) == found(crew, [1, 2]) == [1, 2]
    assert crew.starts == 1
    told["scale"] = 3.0
    assert found(crew, [1, 2]) == [3, 6]
    assert crew.starts == 2


def test_what_cannot_be_compared_is_forked_for_every_ask(caplog):
    told = {"scale": 1.0}
    crew = Crew(1, lambda _, given: told["scale"] * given, lambda: None)
    found(crew, [1])
    told["scale"] = 4.0
    assert found(crew, [1]) == [4]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "forked for every ask" in line


def test_what_processes_tell_is_told_once(caplog):
    def tells(_, number):
        logging.getLogger("somewhere").warning("the same %s", "for all")
        logging.getLogger("somewhere").warning("from %d", number)
        warnings.warn(f"beware of {number}", UserWarning, stacklevel=1)
        time.sleep(0.02)  # so that both have something to do
        return os.getpid()

    with caplog.at_level(logging.WARNING), pytest.warns(UserWarning, match="beware") as warned:
        assert len(set(found(Crew(2, tells), range(4)))) == 2
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= lines.count("the same for all") < 4
    assert [line for line in lines if line.startswith("from")] == [f"from {n}" for n in range(4)]
    assert [str(one.message) for one in warned] == [f"beware of {n}" for n in range(4)]


def test_what_is_told_of_things_that_no_other_process_can_have_is_told_without_them(caplog):
    class Local(UserWarning):
        pass

    def tells(_, number):
        logging.getLogger("somewhere").warning("beside %d", number, extra={"by": lambda: number})
        warnings.warn("of a local class", Local, stacklevel=1)
        return number

    with caplog.at_level(logging.WARNING), pytest.warns(UserWarning, match="of a local class"):
        assert found(Crew(2, tells), range(3)) == [0, 1, 2]
    assert [r.getMessage() for r in caplog.records] == [f"beside {n}" for n in range(3)]


def test_processor_time_of_processes_is_counted():
    def burns(_, seconds):
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass

    crew = Crew(2, burns)
    assert crew.seconds == 0
    found(crew, [0.05] * 4)
    first = crew.seconds
    assert 0.2 <= first < 2
    crew.rest()
    assert crew.seconds == first
    found(crew, [0.05])
    assert first + 0.05 <= crew.seconds < first + 1


def test_what_a_process_prints_is_printed(capfd):
    # In one write: those of two processes may otherwise come between each other's parts.
    found(Crew(2, lambda _, number: print(f"piece {number}\n", end="")), range(3))
    assert sorted(capfd.readouterr().out.splitlines()) == ["piece 0", "piece 1", "piece 2"]


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_that_is_killed_is_told_in_one_line_and_others_take_its_place():
    def dies(_, number):
        if number < 0:
            os.kill(os.getpid(), -number)
        return os.getpid()

    with pytest.raises(UserError, match="has ended by itself, as it says above: go on"):
        found(Crew(1, lambda *_: sys.exit(3)), [0])
    crew = Crew(2, dies)
    before = set(found(crew, range(8)))
    with pytest.raises(UserError, match=r"^a process of 'engine.workers' was killed \(signal 9\)"):
        found(crew, [0, -signal.SIGKILL, 2])
    assert not any(map(alive, before))
    after = set(found(crew, range(8)))
    assert not before & after
    assert crew.starts == 2


def test_signals_to_all_are_for_the_one_that_asks():
    crew = Crew(2, lambda *_: [os.kill(os.getpid(), s) for s in (signal.SIGINT, signal.SIGTERM)])
    assert found(crew, range(4)) == [[None, None]] * 4
    assert crew.starts == 1


def descriptors():
    gc.collect()  # of what other tests have left
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_left_of_a_crew():
    at_first, shared = descriptors(), sorted(os.listdir("/dev/shm"))
    crew = Crew(3, lambda _, given: (os.getpid(), given + 1))
    of_first = {process for process, _ in found(crew, torch.ones(12, 1000).split(1))}
    crew.rest()
    assert not any(map(alive, of_first))
    of_second = {process for process, _ in found(crew, torch.ones(12, 1000).split(1))}
    del crew
    gc.collect()
    assert not any(map(alive, of_second))
    assert descriptors() == at_first
    assert sorted(os.listdir("/dev/shm")) == shared


def test_an_ask_that_is_broken_off_disturbs_no_later_one():
    def slow(_, number):
        time.sleep(0.01)
        return torch.full((3,), float(number))

    crew = Crew(2, slow)
    answers = crew.answers(None, range(100))
    next(answers)
    answers.close()
    assert [float(one[0]) for one in found(crew, range(200, 206))] == list(range(200, 206))


def test_asks_that_are_broken_off_leave_no_memory_behind():
    crew = Crew(2, lambda _, number: torch.full((100,), float(number)))
    for _ in range(40):
        answers = crew.answers(None, range(100))
        next(answers)
        time.sleep(0.002)  # so that others have come, which nobody asks for
        next(answers)
        answers.close()
    assert max(len(line.reader._blocks) for line in crew._forks.lines) < 10


def test_seeds_of_threads_do_not_meet():
    def draw(number):
        with Key.from_seed(number).torch_rng():
            first = torch.rand(1)
            time.sleep(0.001)
            return torch.cat([first, torch.rand(3)])

    alone = [draw(number) for number in range(20)]
    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        assert torch.stack(list(pool.map(draw, range(20)))).equal(torch.stack(alone))
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
    with ThreadPoolExecutor(2) as pool:
        of = pool.map(lambda w: float(forward({"weight": torch.tensor(w)}, x)), [1.0, 2.0])
        assert list(of) == [1.0, 2.0]


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


def test_chunks_are_run_by_processes(monkeypatch):
    seen, update = FORK.SimpleQueue(), FedAvgClient.update

    def noting(*arguments):
        seen.put(os.getpid())
        return update(*arguments)

    rounds = ModuleRounds(MODULES["stacked"], chunk=2, workers=2)
    monkeypatch.setattr(FedAvgClient, "update", noting)
    rounds.advance()
    assert os.getpid() not in {seen.get() for _ in range(6)}
    assert seen.empty()


@pytest.mark.parametrize("name", MODULES)
def test_a_round_has_the_same_bits(name):
    """Whole rounds of FedAvg, the third of which starts from what the processes have learnt."""
    for chunk in (2, 3):
        rounds = [ModuleRounds(MODULES[name], chunk=chunk, workers=n) for n in (1, 2, 4)]
        for _ in range(3):
            one, *others = [each.advance() for each in rounds]
            assert all(value.equal(other[n]) for other in others for n, value in one.items())
        assert [each.run.clients.crew.starts for each in rounds[1:]] == [1, 1]


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
