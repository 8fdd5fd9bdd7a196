"""A round of FedAvg is that of a plain loop over modules and batches, whatever the loss."""

import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.methods.labelled_clients import KEY, built, key_of, run, samples_of
from tests.core.methods.loss_modules import (
    MODULES,
    WAYS,
    WORDS,
    ClassWeights,
    Contrastive,
    GradientPenalty,
    Hooked,
    IgnoreIndex,
    Linear,
    MaskedNormed,
    Normed,
    NormedPenalty,
    PaddingRow,
    Penalty,
    RareClassWeights,
    Sum,
    Tied,
    Tokens,
    unstackable,
)

from coterie.core.data.samples.samples import MiniBatches, SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training import fit as fitting
from coterie.core.local_training import stacking
from coterie.core.local_training.fit import RowSGD, fit
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings

FIRST = torch.tensor([0])
MIXING = (Normed, NormedPenalty, MaskedNormed)
each_module = pytest.mark.parametrize("build", MODULES, ids=lambda build: build.__name__)


def clients(sizes, ignored=0.3) -> SampleData:
    found = []
    for c, n in enumerate(sizes):
        key = KEY.fold("loss", c)
        words = key.fold("i").integers(WORDS, torch.arange(5 * n)).reshape(n, 5)
        labels = key.fold("t").integers(4, torch.arange(5 * n)).reshape(n, 5)
        unlabelled = key.fold("u").uniform(n, 5) < ignored
        x = key.normal(n, 3, dtype=torch.float64) + 0.3 * c
        y = key.fold("y").integers(4, torch.arange(n))
        labels = labels.masked_fill(unlabelled, -100)
        found.append({"x": x, "i": words, "y": y, "t": labels, "mask": unlabelled, "seed": y})
    return SampleData.from_clients(found)


def plain_round(build, data, first, options):
    """One module, one optimizer and one batch after the other.

    Steps without a loss count but in the mean of losses; who has no loss at all is left out.
    """
    mixes = build in MIXING
    total, weight, losses = {n: torch.zeros_like(v) for n, v in first.items()}, 0, {}
    for c, n in enumerate(data.lengths.tolist()):
        module = built(build)
        with torch.no_grad():
            for name, value in module.named_parameters():
                value.copy_(first[name])
        own = SampleData(data.ids[c : c + 1], samples_of(data, c), torch.tensor([0, n]))
        key = key_of(c, "update", 1)
        epochs, size = options["epochs"], options["batch_size"]
        batches = MiniBatches(own, epochs, size, key, by_place=mixes, at_least=1 + mixes)
        optimizer, seen = torch.optim.SGD(module.parameters(), lr=options["lr"]), []
        for number in range(int(batches.steps[0])):
            batch = {name: values[0] for name, values in batches(number, FIRST).items()}
            optimizer.zero_grad()
            value = module.loss(batch)
            value.backward()
            optimizer.step()
            seen.append(float(value.detach()))
        found = {name: value.detach() for name, value in module.named_parameters()}
        sound = all(value.isfinite().all() for value in found.values())
        known = [value for value in seen if not math.isnan(value)]
        if sound and (known or not seen):
            total = {name: value + n * found[name] for name, value in total.items()}
            weight += n
            losses[c] = n * sum(known) / max(len(known), 1)
    if not weight:
        return first, None
    return {name: value / weight for name, value in total.items()}, sum(losses.values()) / weight


def both(build, data, **options):
    """Weights and mean loss of one round, ours and those of the loop; where it began."""
    chosen = FedAvgSettings(rounds=1, evaluate_every=0, **options)
    server = FedAvgServer(build, chosen)
    first = {name: value.clone() for name, value in server.begin(KEY).weights.items()}
    made = run(server, FedAvgClient(built(build), chosen), SplitSamples.of(data), 1)
    ours = made.state.weights, made.journals[-1].scalars.get("fed/loss")
    return ours, plain_round(build, data, first, options), first


def same(build, data, **options):
    """Both are equal, and the round moved something."""
    (ours, loss), (right, right_loss), first = both(build, data, **options)
    for name, value in right.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-6, atol=1e-9, msg=name)
    assert (loss is None) == (right_loss is None)
    if loss is not None:
        assert loss == pytest.approx(right_loss, rel=1e-6, abs=1e-9)
    return {name: float((right[name] - first[name]).abs().max()) for name in first}


SIZES = st.lists(st.integers(0, 9), min_size=2, max_size=4)
OPTIONS = st.fixed_dictionaries(
    {"epochs": st.integers(1, 2), "batch_size": st.sampled_from([None, 1, 2, 3, 4, 8])}
)


@pytest.mark.long
@each_module
@given(sizes=SIZES, options=OPTIONS)
@settings(max_examples=3)
def test_a_round_is_that_of_a_plain_loop(build, sizes, options):
    if build in MIXING:  # which has no variance of one sample; that is refused elsewhere
        sizes = [n + 2 if n == 1 else n for n in sizes]
        options = options | {
            "batch_size": options["batch_size"] if options["batch_size"] != 1 else 2
        }
    same(build, clients(sizes), lr=0.05, **options)


@pytest.mark.long
@each_module
@pytest.mark.parametrize("sizes", [(2, 5, 6), (6, 6), (5,)], ids=["unequal", "equal", "one"])
def test_and_moves(build, sizes):
    moved = same(build, clients(sizes), epochs=2, batch_size=4, lr=0.05)
    assert max(moved.values()) > 1e-3, moved


@pytest.mark.parametrize("build", [Linear, ClassWeights, Normed, Penalty, GradientPenalty, Hooked])
def test_only_what_looks_behind_a_layer_gives_up_the_short_way(build):
    """Which gradients by factors are; nothing else would tell that it is never gone."""
    client = FedAvgClient(built(build), FedAvgSettings())
    data = clients((5, 9, 6))
    client.local.batches(data, KEY.fold(data.ids))
    assert client.local.factored == (build not in (GradientPenalty, Hooked))


@pytest.mark.parametrize("way", WAYS)
def test_what_torch_cannot_stack_is_trained_one_by_one(way, caplog):
    stacking.say_one_by_one.cache_clear()
    with caplog.at_level(logging.WARNING):
        same(unstackable(way), clients((5, 9, 6)), epochs=1, batch_size=4, lr=0.05)
    assert len(caplog.messages) <= 2


def test_a_batch_without_labels_has_no_loss_and_the_others_have():
    data = clients((5, 9, 12), ignored=0.0)
    data.samples["t"][data.offsets[1] : data.offsets[1] + 4] = -100
    moved = same(IgnoreIndex, data, epochs=1, batch_size=1, lr=0.05)
    assert min(moved.values()) > 1e-3


@pytest.mark.parametrize("singly", [False, True], ids=["stacked", "singly"])
def test_steps_without_a_loss_are_not_in_its_mean(singly, monkeypatch):
    nan = math.nan
    beside = torch.tensor([[0.0, nan, 0.0], [nan, nan, nan], [0.0, 0.0, 0.0]])

    def loss(params, batch):
        return (params["w"] - batch["x"]).square() + batch["beside"]

    def batches(number, rows):
        return {"x": torch.full((len(rows),), 1.0 + number), "beside": beside[rows, number]}

    steps, kept = torch.tensor([3, 3, 2]), {"seen": torch.zeros(3)} if singly else None
    made = []
    monkeypatch.setattr(fitting, "count_steps", made.append)
    got = fit(loss, {"w": torch.zeros(3)}, batches, RowSGD(), 0.25, steps, statistics=kept)
    w, values, models = 0.0, [], []
    for x in (1.0, 2.0, 3.0):
        values.append((w - x) ** 2)
        w -= 0.25 * 2 * (w - x)
        models.append(w)
    assert sum(made) == 8
    assert got.params["w"].tolist() == [models[2], models[2], models[1]]
    right = [(values[0] + values[2]) / 2, nan, (values[0] + values[1]) / 2]
    assert got.loss.tolist() == pytest.approx(right, nan_ok=True)


def test_one_sample_without_a_label_among_all_clients_is_enough():
    data = clients((8, 5, 7, 30, 30), ignored=0.0)
    same(IgnoreIndex, data, epochs=1, batch_size=None, lr=0.05)
    data.samples["t"][data.offsets[3] + 11, 0] = -100
    same(IgnoreIndex, data, epochs=1, batch_size=None, lr=0.05)


def test_a_class_of_its_own_weight_that_one_client_has_once_is_enough():
    data = clients((8, 5, 7, 30, 30))
    data.samples["y"].clamp_(max=2)
    same(RareClassWeights, data, epochs=1, batch_size=None, lr=0.05)
    data.samples["y"][data.offsets[3] + 11] = 3
    same(RareClassWeights, data, epochs=1, batch_size=None, lr=0.05)


@pytest.mark.parametrize("build", [ClassWeights, Tokens, Contrastive, Sum])
def test_chunks_make_no_difference(build):
    """Whether clients are stacked depends on the samples of all, not on who is asked with whom."""
    data, options = SplitSamples.of(clients((5, 9, 12, 4))), {"epochs": 1, "batch_size": 4}
    found = []
    for chunk in (1, 3, None):
        chosen = FedAvgSettings(rounds=1, evaluate_every=0, lr=0.05, **options)
        halves = FedAvgServer(build, chosen), FedAvgClient(built(build), chosen)
        found.append(run(*halves, data, 1, chunk=chunk).state.weights)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", [(5, 9, 12), (6, 6, 6), (5,)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_padding_row_stays(sizes, optimizer):
    chosen = FedAvgSettings(rounds=1, evaluate_every=0, lr=0.1, epochs=12, optimizer=optimizer)
    halves = FedAvgServer(PaddingRow, chosen), FedAvgClient(built(PaddingRow), chosen)
    weights = run(*halves, SplitSamples.of(clients(sizes)), 1).state.weights
    assert not weights["table.weight"][0].any()
    assert weights["table.weight"][1:].abs().min() > 0


def test_the_padding_row_of_a_tied_table_moves_by_the_other_layer_alone():
    moved = same(Tied, clients((5, 9, 12)), epochs=12, batch_size=None, lr=0.1)
    assert moved["table.weight"] > 0.01


def test_an_error_of_ones_own_stays_that_error():
    class Misspelt(Linear):
        def loss(self, batch):
            return self.nett(batch["x"]).mean()

    class WrongShape(Linear):
        def loss(self, batch):
            return (self.scores(batch) @ torch.ones(3, 3).double()).mean()

    for build, error, words in (
        (Misspelt, AttributeError, "nett"),
        (WrongShape, RuntimeError, "cannot be multiplied"),
    ):
        with pytest.raises(error, match=words):
            both(build, clients((5, 9)), epochs=1, batch_size=None, lr=0.1)


def test_what_decomposes_is_stacked(caplog):
    """Else the checks above would be passed by training everybody alone."""
    stacking.say_one_by_one.cache_clear()
    with caplog.at_level(logging.WARNING):
        for build in (Linear, PaddingRow, Tied):
            same(build, clients((5, 9, 12)), epochs=2, batch_size=4, lr=0.05)
    assert not caplog.messages
