"""Validation of some rounds by some clients; tests of everybody."""

from dataclasses import replace

import pytest
import torch
from tests.continual.stream import make_stream, settings, simulate

from coterie.continual.algorithm import F3CRec
from coterie.continual.client import ContinualClient
from coterie.core.federation.federation import Federation
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import ValidationSettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

STREAM = make_stream(60)
VALID, TEST = "eval/ndcg@20", "test/ndcg@20"


def with_validation(**how):
    return settings(rounds=5, patience=5, validation=ValidationSettings(**how))


def drawn(ids, count):
    """The ids with the lowest draws, one at a time."""
    key = Key.from_seed(0).fold("validators")
    draws = {i: key.fold(torch.tensor([i])).uniform(dtype=torch.float64).item() for i in ids}
    return sorted(sorted(ids, key=draws.__getitem__)[:count])


def test_a_fixed_sample_validates_and_everybody_is_tested():
    everybody = simulate(with_validation(), STREAM)
    some = simulate(with_validation(clients=20), STREAM)
    block = -1
    for number, (all_of, part) in enumerate(zip(everybody.clients, some.clients, strict=True)):
        block += number % 5 == 0
        ids, values = part[VALID]
        assert ids.tolist() == drawn(STREAM[block].ids.tolist(), 20)
        places = torch.searchsorted(all_of[VALID][0], ids)
        if number == 0:  # later rounds may carry another best one on
            torch.testing.assert_close(values, all_of[VALID][1][places], equal_nan=True)
            assert some.scalars[0][VALID] == pytest.approx(float(values.nanmean()), rel=1e-12)
        if number % 5 == 4:
            assert part[TEST][0].tolist() == STREAM[block].ids.tolist()
        assert some.scalars[number]["eval/clients"] == 20
    assert not any("eval/clients" in scalars for scalars in everybody.scalars)


def test_as_many_clients_as_there_are_is_everybody():
    most = max(len(block.ids) for block in STREAM)
    everybody, many = (simulate(with_validation(clients=n), STREAM) for n in (10_000, most))
    assert everybody.scalars == many.scalars
    for path, value in everybody.tensors().items():
        assert torch.equal(value, many.tensors()[path]), path


def test_a_round_that_is_not_validated_trains_the_same():
    """With another best round only what is carried on differs; within a block nothing does."""
    each, few = (simulate(with_validation(every=n), STREAM[:1]) for n in (1, 3))
    assert [VALID in scalars for scalars in few.scalars] == [False, False, True, False, True]
    assert torch.equal(each.state.items, few.state.items)
    assert each.scalars[2][VALID] == few.scalars[2][VALID]
    assert few.state.chosen.round in (3, 5)
    assert few.ledger.bytes("down") < each.ledger.bytes("down")


@pytest.mark.parametrize("stopped", [1, 2, 3, 4, 7])
def test_a_resumed_run_validates_the_same_rounds_by_the_same_clients(stopped):
    chosen = with_validation(every=2, clients=20)

    def new():
        halves = F3CRec(chosen, (30, 36, 40)), ContinualClient(chosen)
        return FederatedRun(Federation(*halves, STREAM, chosen.seed, chosen.rounds))

    def go(run, rounds):
        while not run.finished and run.round < rounds:
            run.advance()
            found.append((run.round, dict(run.journal.scalars)))

    found: list = []
    whole = new()
    go(whole, 99)
    expected, found = found, []
    first, second = new(), new()
    go(first, stopped)
    second.load_plain(first.to_plain())
    go(second, 99)
    assert found == expected
    saved = (dict(tree.tensors(run.to_plain()["server"])) for run in (whole, second))
    for (path, value), (other, same) in zip(*(one.items() for one in saved), strict=True):
        assert path == other
        assert torch.equal(value, same), path


def test_a_block_ends_at_a_validated_round_when_patience_is_over():
    chosen = replace(with_validation(every=4), rounds=11, patience=1)
    run = simulate(chosen, STREAM[:1])
    assert len(run.scalars) in (4, 8, 11)
    assert VALID in run.scalars[-1]
