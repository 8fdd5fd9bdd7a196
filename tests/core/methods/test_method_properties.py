"""What holds for every method: chunks, order, few and empty and broken clients, privacy."""

from dataclasses import replace

import pytest
import torch
from tests.core.methods.method_cases import (
    KEY,
    METHODS,
    SECRET,
    Linear,
    Net,
    assert_same,
    down_of,
    method,
    play,
    sample_data,
)
from tests.core.test_fedavg import cohort_of

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.store import PrivateStore
from coterie.core.methods.fedamp import CloudModel
from coterie.core.methods.kit.model_messages import GlobalModel
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.tensors import tree
from coterie.core.wire.annotations import restore

every_method = pytest.mark.parametrize("name", METHODS)


def assert_same_trees(found, expected, tolerance):
    pairs = dict(tree.tensors(found)), dict(tree.tensors(expected))
    assert list(pairs[0]) == list(pairs[1])
    for path, value in pairs[1].items():
        torch.testing.assert_close(pairs[0][path], value, atol=tolerance, rtol=tolerance)


@every_method
def test_chunks_make_no_difference(name):
    data = sample_data()
    server, client = method(name, epochs=2, batch_size=3, fraction=0.7)
    whole = play(server, client, data, 2)
    for chunk in (1, 3):
        parts = play(server, client, data, 2, chunk)
        assert_same_trees(parts.state, whole.state, 1e-12)
        assert_same_trees(parts.store.take(data.ids), whole.store.take(data.ids), 1e-12)
        losses = [
            [journal.scalars["fed/loss"] for journal in played.journals]
            for played in (parts, whole)
        ]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@every_method
def test_the_same_run_twice_is_bit_equal(name):
    data = sample_data()
    runs = [play(*method(name, batch_size=3), data, 2, 4) for _ in range(2)]
    first, second = (dict(tree.tensors(run.state)) for run in runs)
    assert all(torch.equal(first[path], leaf) for path, leaf in second.items())


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fedamp"])
def test_client_order_makes_no_difference(name):
    """The same clients under the same ids, in reverse; FedAMP keeps rows in the order of ids."""
    data = sample_data()
    server, client = method(name, epochs=2, batch_size=3)
    turn = torch.arange(len(data)).flip(0)
    straight, turned = play(server, client, data, 2, 4), play(server, client, data, 2, 3, turn)
    assert_same(turned.state.weights, straight.state.weights)
    assert_same_trees(turned.store.take(data.ids), straight.store.take(data.ids), 1e-12)


@every_method
def test_rows_follow_the_clients(name):
    """Without mini-batches nothing is drawn: other ids for the clients permute everything."""
    data = sample_data()
    turn = torch.tensor([3, 0, 9, 1, 7, 2, 8, 4, 6, 5])
    turned = replace(data.take(turn), ids=data.ids)
    server, client = method(name, epochs=2)
    runs = [play(server, client, one, 2) for one in (data, turned)]
    assert_same(runs[1].state.weights, runs[0].state.weights)
    first, second = (run.store.take(data.ids) for run in runs)
    assert_same_trees(second, tree.take(first, turn), 1e-12)


@every_method
def test_one_client(name):
    data = sample_data([6])
    server, client = method(name, Linear, epochs=2, evaluate_every=1)
    played = play(server, client, data, 3)
    assert played.state.weights["w"].isfinite().all()
    assert played.journals[2].scalars["fed/loss"] < played.journals[0].scalars["fed/loss"]


@every_method
def test_empty_clients_change_nothing_for_the_others(name):
    data = sample_data()
    index = (data.lengths > 0).nonzero().flatten()
    server, client = method(name, batch_size=3)
    full, without = (play(server, client, one, 2) for one in (data, data.take(index)))
    if name == "fedamp":  # all start alike, and the server learns of it after one round
        before = play(server, client, data, 1)
        assert before.state.silent.tolist() == (data.lengths == 0).tolist()
    assert_same(full.state.weights, without.state.weights)
    kept, expected = (run.store.take(data.ids[index]) for run in (full, without))
    assert_same_trees(kept, expected, 1e-12)
    alone = full.store.take(torch.tensor([2]))
    assert all(leaf.isfinite().all() for _, leaf in tree.tensors(alone))


@every_method
@pytest.mark.parametrize("lengths", [[0], [0, 0, 0]])
def test_nobody_has_data(name, lengths):
    server, client = method(name, evaluate_every=1)
    played = play(server, client, sample_data(lengths), 2)
    assert_same(played.state.weights, server.begin(KEY).weights)
    assert "fed/loss" not in played.journals[0].scalars


@every_method
@pytest.mark.parametrize("chunk", [1, 4])
def test_a_broken_client_is_refused_and_rolled_back(name, chunk):
    data = sample_data()
    server, client = method(name, batch_size=3)
    good = play(server, client, data, 1, chunk)
    kept = good.store.take(data.ids)
    broken = tree.clone(data)
    broken.samples["x"][broken.offsets[3]] = torch.nan
    cohort = cohort_of(client, broken, chunk, 2).keeping(good.store)
    state = server.round(good.state, cohort, KEY.fold("round", 2))
    assert [(s, c) for s, c, _ in cohort.journal.refused] == [("update", 3)]
    after = good.store.take(data.ids)
    assert after.rounds.tolist() == [2, 2, 2, 1, 2, 2, 2, 2, 2, 2]
    three = torch.tensor([3])
    for path, leaf in tree.tensors(tree.take(kept, three)):
        assert torch.equal(leaf, dict(tree.tensors(tree.take(after, three)))[path])
    assert all(leaf.isfinite().all() for _, leaf in tree.tensors(state))
    if name == "fedamp":
        for key, models in state.models.items():
            assert torch.equal(models[3], good.state.models[key][3])


@every_method
def test_state_survives_a_checkpoint(name):
    data = sample_data()
    server, client = method(name, batch_size=3)
    played = play(server, client, data, 2)
    again = restore(server.begin(KEY), tree.to_plain(played.state))
    assert type(again) is type(played.state)
    assert_same_trees(again, played.state, 0.0)


def message(name, server, data):
    state = play(server, method(name)[1], data, 2).state
    if name == "fedamp":
        return CloudModel(
            {key: models + 0.0 for key, models in state.models.items()},
            torch.full((len(data),), 0.5, dtype=torch.float64),
        )
    return down_of(name, state)


@every_method
def test_uploads_depend_on_what_they_declare(name):
    data = sample_data()
    server, client = method(name, batch_size=3)
    mine = play(server, client, data, 2).store.take(data.ids)
    split, key = SplitSamples.of(data, valid=data), SECRET.fold(data.ids)
    down = message(name, server, data)
    assert_non_interference(client, "update", down, mine, split, key)
    shared = GlobalModel(server.begin(KEY).weights)
    assert_non_interference(client, "evaluate", shared, mine, split, key)
    up, after = client.update(down, tree.clone(mine), split, key)
    assert_no_shared_storage(up, after)
    assert_no_shared_storage(up, mine)
    assert_no_shared_storage(up, down)
    if "size" in client.steps():
        assert_non_interference(client, "size", None, mine, split, key)
        assert_no_shared_storage(client.size(None, mine, split, key)[0], mine)


@every_method
def test_steps_do_not_write_into_what_they_are_given(name):
    data = sample_data()
    server, client = method(name, batch_size=3)
    mine = play(server, client, data, 2).store.take(data.ids)
    down, split = message(name, server, data), SplitSamples.of(data)
    before = tree.clone({"down": down, "mine": mine})
    client.update(down, mine, split, SECRET.fold(data.ids))
    for path, leaf in tree.tensors(before):
        assert torch.equal(leaf, dict(tree.tensors({"down": down, "mine": mine}))[path])


@every_method
def test_private_state_of_newcomers_is_that_of_a_store(name):
    """Rows of several blocks go into one store."""
    _, client = method(name)
    store = PrivateStore()
    data = SplitSamples.of(sample_data())
    for part in (torch.tensor([1, 4]), torch.tensor([0, 2])):
        some = data.take(part)
        store.enrol(some.ids, client.enrol(some, SECRET.fold(some.ids)))
    assert store.take(torch.tensor([0, 1, 2, 4])).rounds.tolist() == [0, 0, 0, 0]


@every_method
def test_three_accuracies_are_noted(name):
    data = sample_data()
    server, client = method(name, epochs=2, evaluate_every=1)
    scalars = play(server, client, data, 2).journals[-1].scalars
    assert {"eval/global_loss", "eval/personal_loss"} <= set(scalars)


@every_method
def test_float32_keeps_its_type(name):
    class Single(Net):
        def __init__(self):
            super().__init__()
            self.float()

    data = sample_data()
    data.samples.update({key: value.float() for key, value in data.samples.items()})
    played = play(*method(name, Single, batch_size=3, fraction=0.6), data, 2)
    kept = played.store.take(data.ids)
    for path, leaf in tree.tensors({"state": played.state, "kept": kept}):
        assert not leaf.is_floating_point() or leaf.dtype == torch.float32, path
