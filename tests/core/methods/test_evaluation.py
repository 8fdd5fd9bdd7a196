"""Measuring models on samples: equal to a plain loop, few models at a time where they are large."""

import pytest
import torch
import torch.nn.functional as F
from tests.core.methods.labelled_clients import CLASSES, KEY, WIDTH, Net

from coterie.core.data.samples.samples import SampleData
from coterie.core.methods.kit import evaluation
from coterie.core.methods.kit.evaluation import Evaluator

N, MODELS = 50, 7


@pytest.fixture
def samples():
    x = KEY.fold("x").normal(N, WIDTH, dtype=torch.float64)
    return {"x": x, "y": KEY.fold("y").integers(CLASSES, torch.arange(N))}


def models():
    found = []
    for number in range(MODELS):
        with KEY.fold("model", number).torch_rng():
            found.append(Net())
    return found


@pytest.mark.parametrize("numbers", [1, 3 * N * (WIDTH + 1), 1 << 22])
@pytest.mark.parametrize("batch", [N, 13])
def test_models_on_the_same_samples_equal_a_loop(samples, monkeypatch, numbers, batch):
    monkeypatch.setattr(evaluation, "_NUMBERS", numbers)
    monkeypatch.setattr(evaluation, "_BATCH", batch)
    together = []
    plain = evaluation.of_clients

    def counting(measure, params, batches, rows, *number):
        together.append(len(rows))
        return plain(measure, params, batches, rows, *number)

    monkeypatch.setattr(evaluation, "of_clients", counting)
    nets = models()
    named = [dict(net.named_parameters()) for net in nets]
    params = {name: torch.stack([one[name].detach() for one in named]) for name in named[0]}
    found = Evaluator(Net()).of_models(params, samples)
    largest = max(1, numbers // (batch * (WIDTH + 1)))  # the last batch may be smaller
    assert together[0] == min(MODELS, largest)
    with torch.no_grad():
        scores = [net(samples["x"]) for net in nets]
    for row, score in enumerate(scores):
        expected = float(F.cross_entropy(score, samples["y"]))
        assert float(found.loss[row]) == pytest.approx(expected, rel=1e-12)
        right = sum(int(s.argmax() == y) for s, y in zip(score, samples["y"], strict=True))
        assert float(found.accuracy[row]) == pytest.approx(right / N, rel=1e-12)


@pytest.mark.parametrize("numbers", [1, 40 * (WIDTH + 1), 1 << 22])
@pytest.mark.parametrize("batch", [1000, 13])
@pytest.mark.parametrize("lengths", [[20, 0, 41, 1, 13, 26, 3], [26] * MODELS])
@pytest.mark.parametrize("shared", [False, True])
def test_clients_on_their_own_samples_equal_a_loop(monkeypatch, numbers, batch, lengths, shared):
    monkeypatch.setattr(evaluation, "_NUMBERS", numbers)
    monkeypatch.setattr(evaluation, "_BATCH", batch)
    largest = []
    plain = evaluation.of_clients

    def counting(measure, params, batches, rows, number):
        largest.append(batches(number, rows)["y"].shape)
        return plain(measure, params, batches, rows, number)

    monkeypatch.setattr(evaluation, "of_clients", counting)
    x = KEY.fold("x").normal(sum(lengths), WIDTH, dtype=torch.float64)
    y = KEY.fold("y").integers(CLASSES, torch.arange(sum(lengths)))
    parts = zip(x.split(lengths), y.split(lengths), strict=True)
    data = SampleData.from_clients([{"x": x, "y": y} for x, y in parts])
    nets = models()[:1] * MODELS if shared else models()
    named = [dict(net.named_parameters()) for net in (nets[:1] if shared else nets)]
    params = {name: torch.stack([one[name].detach() for one in named]) for name in named[0]}
    found = Evaluator(Net()).of_clients(params, data)
    for count, width in largest:
        assert width <= batch
        assert count == 1 or count * width * (WIDTH + 1) <= numbers
    for row, (net, own_x, own_y) in enumerate(
        zip(nets, x.split(lengths), y.split(lengths), strict=True)
    ):
        if not lengths[row]:
            assert found.loss[row].isnan()
            assert found.accuracy[row].isnan()
            continue
        with torch.no_grad():
            score = net(own_x)
        expected = float(F.cross_entropy(score, own_y))
        assert float(found.loss[row]) == pytest.approx(expected, rel=1e-12)
        right = float((score.argmax(1) == own_y).double().mean())
        assert float(found.accuracy[row]) == pytest.approx(right, rel=1e-12)
