"""Append-only parts of a state: what an ask costs, and what becomes of entries that are refused."""

import copy
import gc
import pickle
import sys
import time
import weakref
from dataclasses import dataclass

import pytest
import torch
from tests.core.growing import (
    FIT,
    LOOK,
    Model,
    Party,
    PartyClient,
    Place,
    Places,
    Target,
    grown_cohort,
)
from tests.hosted import same_both_ways
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.core.federation.guard import guard_state, versions
from coterie.core.privacy.check import assert_no_shared_storage, perturbed
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Private, Reveals, Step, Up, leaves
from coterie.core.tensors import tree
from coterie.core.tensors.appended import Appended
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.core.wire.codec import Header, decode, encode

GO = Target(torch.ones(4))


def kept(cohort, client):
    return cohort.store.take(torch.tensor([client]))


def model(value=1.0):
    return Model({"w": torch.full((4,), value)}, Ragged.from_lists([[1]]), 0.5)


# As a sequence


def test_it_reads_as_the_list_of_what_was_appended():
    ours, plain = Appended(), []
    for number in range(50):
        assert len(ours) == len(plain)
        ours, plain = ours.append(torch.tensor(number)), [*plain, number]
    assert [int(one) for one in ours] == plain
    assert [int(ours[place]) for place in range(-50, 50)] == [plain[p] for p in range(-50, 50)]
    for place in (50, -51):
        with pytest.raises(IndexError):
            ours[place]
    with pytest.raises(IndexError):
        Appended()[-1]


def test_values_share_entries_and_never_see_what_others_append():
    base = Appended([torch.zeros(1)])
    left, right = base.append(torch.ones(1)), base.append(torch.full((1,), 2.0))
    assert [len(base), len(left), len(right)] == [1, 2, 2]
    assert [float(left[1]), float(right[1])] == [1.0, 2.0]
    assert left[0] is base[0] is right[0]


def test_long_ones_are_dropped_copied_and_pickled_without_recursion():
    long = Appended([torch.zeros(1)] * 100_000)
    newest = long.append(torch.ones(1))
    del long, newest  # along a chain of 100,000
    short = Appended(torch.tensor(float(n)) for n in range(1500))
    for twin in (copy.deepcopy(short), pickle.loads(pickle.dumps(short)), tree.clone(short)):
        assert torch.equal(torch.stack(list(twin)), torch.arange(1500.0))
        assert twin[7].data_ptr() != short[7].data_ptr()


def test_only_trees_of_tensors_can_be_appended():
    with pytest.raises(TypeError, match="a set cannot stand in a tree"):
        Appended().append({"a": {1, 2}})
    with pytest.raises(TypeError, match="cannot hold a sequence that only grows"):
        Appended().append({"a": [Appended()]})


# What an ask costs


class Touched(TorchDispatchMode):
    """Counts operations and the numbers that they read."""

    def __init__(self):
        super().__init__()
        self.operations, self.numbers = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        self.numbers += sum(one.numel() for one in args if isinstance(one, Tensor))
        return function(*args, **(kwargs or {}))


def cost(entries):
    """Tensor operations, the numbers they read, and Python calls of one ask of two parties."""
    asked, calls = grown_cohort(entries), [0]
    asked.ask(FIT, GO)  # what is made once is made

    def count(frame, event, argument):
        calls[0] += event == "call"

    with Touched() as touched:
        asked.ask(FIT, GO)
    sys.setprofile(count)
    try:
        asked.ask(FIT, GO)
    finally:
        sys.setprofile(None)
    return touched.operations, touched.numbers, calls[0]


def test_an_ask_does_the_same_work_however_many_entries_there_are():
    one, hundred, thousand = cost(1), cost(100), cost(1000)
    assert one[:2] == hundred[:2] == thousand[:2]
    # Of Python's calls a few are the garbage collector's, and what it calls back.
    assert max(one[2], hundred[2], thousand[2]) - min(one[2], hundred[2], thousand[2]) < 50


def test_an_ask_takes_the_same_time_however_many_entries_there_are():
    """Of models of 2 MB, 200 MB in all: a copy of all would take a hundred times as long."""

    asked = {n: grown_cohort(n, size=500_000, ids=(2,)) for n in (1, 100)}
    times = {n: [] for n in asked}
    for _ in range(9):  # in turns, in CPU time: whatever else runs slows both
        for n, cohort in asked.items():
            start = time.process_time()
            cohort.ask(FIT, GO)
            times[n].append(time.process_time() - start)
    assert min(times[100]) < 3 * min(times[1])


# What is refused


def test_the_entry_of_a_refused_party_is_dropped():
    asked = grown_cohort(2, ids=(2, 5))
    replies = asked.ask(FIT, Target(torch.ones(4), "nan"))
    assert replies.failed == {5: "NaN or infinity in private state 'models.2.weights.w'"}
    assert [len(kept(asked, client).models) for client in (2, 5)] == [3, 2]
    asked.ask(FIT, GO)
    assert [len(kept(asked, client).models) for client in (2, 5)] == [4, 3]
    assert all(bool(one.weights["w"].isfinite().all()) for one in kept(asked, 5).models)


def test_nothing_holds_a_dropped_entry():
    base = Appended([model()])
    lost = model(2.0)
    alive = weakref.ref(lost.weights["w"])
    longer = base.append(lost)
    del lost, longer
    gc.collect()
    assert alive() is None
    assert len(base) == 1


def test_the_guard_looks_at_every_entry_that_is_new():
    old = Party(Appended([model()] * 3))
    ids, before = torch.tensor([7]), versions(old)
    two = old.models.append(model(float("nan"))).append(model())
    _, why = guard_state(Party(two), ids, before)
    assert why == {7: "NaN or infinity in private state 'models.3.weights.w'"}
    # One that was not appended to but made anew is all new.
    _, why = guard_state(Party(Appended([model(), model(float("inf")), model()])), ids, before)
    assert why == {7: "NaN or infinity in private state 'models.1.weights.w'"}
    ok, _ = guard_state(Party(old.models.append(model())), ids, before)
    assert bool(ok.all())
    # Of what was accepted before nothing is known to be finite but by then.
    bad = Party(Appended([model(float("nan"))]))
    ok, _ = guard_state(Party(bad.models.append(model())), ids, versions(bad))
    assert bool(ok.all())


def test_the_guard_finds_nan_in_any_part_of_a_stack_that_a_party_keeps():
    ids, empty = torch.tensor([7]), versions(Party(Appended()))
    for values, sound in (([1.0, 2.0], True), ([1.0, float("nan")], False)):
        seen = Ragged.from_lengths(torch.tensor(values), torch.tensor([1, 1]))
        one = Model({"w": torch.ones(4)}, seen, 0.5)
        ok, why = guard_state(Party(Appended([one])), ids, empty)
        assert ok.tolist() == [sound]
        assert why == ({} if sound else {7: "NaN or infinity in private state 'models.0.seen'"})


def test_a_step_that_writes_into_the_newest_entry_is_an_error():
    asked = grown_cohort(2, size=8)
    with pytest.raises(TypeError, match="'fit' wrote into private state"):
        asked.ask(FIT, Target(torch.ones(4), "write newest"))


def test_an_older_entry_that_was_written_into_cannot_be_used_any_more():
    asked = grown_cohort(1)
    asked.ask(FIT, GO)
    asked.ask(FIT, Target(torch.ones(4), "write oldest"))
    with pytest.raises(TypeError, match="entry 0 of an append-only part was written into"):
        asked.ask(LOOK, GO)


@dataclass(frozen=True)
class Inside:
    models: list[Appended[Tensor]]


@dataclass(frozen=True)
class Outside(Private):
    inside: Inside | None


def test_it_stands_in_private_state_of_the_list_form_alone():
    with pytest.raises(TypeError, match=r"Sent\.models: .* stays where it is"):

        class Sent(Up):
            models: Appended[Tensor] = leaves("models", reveals=Reveals.PARAMETERS)

    with pytest.raises(TypeError, match="does not say what it holds"):

        class Bare(Private):
            models: Appended

    with pytest.raises(TypeError, match="Rows is of the stacked form, where nothing is append"):

        class Rows(Client[Outside, Place]):
            @Step("look", None, None)
            def look(self, down, mine, data, key):
                return None, None


# As bytes, and in the checks for tests


def test_it_is_encoded_and_decoded_as_what_a_clients_process_keeps():
    mine = Party(Appended([model(1.0), model(2.0)]), 7)
    back, _ = decode(encode(mine, Header("fit", (0,))), Party)
    assert isinstance(back.models, Appended)
    assert isinstance(back.models[1], Model)
    assert back.models[1].weights["w"].tolist() == [2.0] * 4
    assert back.models[0].seen.tolists() == [[1]]
    assert back.visits == 7


def test_a_clients_process_grows_to_the_same_bits_and_writes_each_entry_once(tmp_path):
    secret, data = Key.from_seed(0), Places(torch.tensor([2, 9]))
    same_both_ways(tmp_path, PartyClient(), data, [("fit", GO)] * 3, secret)
    entries = list((tmp_path / "clients-1" / "entries").iterdir())
    assert len(entries) == 3
    states = (tmp_path / "clients-1").glob("state-*.pt")
    assert max(file.stat().st_size for file in states) < sum(
        file.stat().st_size for file in entries
    )


def test_the_privacy_checks_look_into_the_entries():
    mine = Party(Appended([model(1.0), model(2.0)]))
    with pytest.raises(AssertionError, match=r"shares memory with private 'models\.0\.weights\.w'"):
        assert_no_shared_storage({"sent": mine.models[0].weights["w"]}, mine)
    assert perturbed(mine.models)[1].weights["w"].tolist() == [3.25] * 4
