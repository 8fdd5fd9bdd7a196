"""Modules with measures of their own: AUC over all samples of a client, by scikit-learn."""

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.core.methods.labelled_clients import (
    KEY,
    WIDTH,
    Net,
    boundary_holds,
    built,
    labelled,
    loaded,
    run,
    samples_of,
)
from tests.core.methods.plain_federation import central, halves
from torch import nn
from torch.nn import functional as F

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.federation.selection import best_of
from coterie.core.methods.dap_fl import DapFLClient, DapFLServer, DapFLSettings
from coterie.core.methods.fedavg import FedAvgSettings
from coterie.core.methods.kit import evaluation
from coterie.core.methods.kit.evaluation import (
    ACCURACY,
    Evaluator,
    MeasuresItself,
    Quality,
    monitor_of,
)
from coterie.core.methods.kit.model_messages import GlobalModel
from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.metrics.monitor import Monitor
from coterie.core.run.driver import FederatedRun

GENERAL = {"epochs": 1, "batch_size": 4, "lr": 0.3}
LENGTHS = [6, 0, 9, 4]


def area(scores, labels) -> float:
    """AUC by scikit-learn; NaN for samples of one class."""
    return float(roc_auc_score(labels, scores)) if 0 < labels.sum() < len(labels) else math.nan


class Ranker(nn.Module):
    """Scores for a click, measured by AUC and by the mean score of all samples."""

    monitor = Monitor("eval/auc", digits=6)
    measure_names = ("auc", "mean")

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, 1))
        self.double()

    def forward(self, batch):
        return self.layers(batch["x"])[:, 0]

    def loss(self, batch):
        return F.binary_cross_entropy_with_logits(self(batch), batch["y"].double())

    def predictions(self, batch):
        return {"scores": self(batch), "labels": batch["y"]}

    def measures(self, predictions):
        scores, labels = predictions["scores"], predictions["labels"]
        auc = torch.tensor(area(scores.numpy(), labels.numpy()), dtype=torch.float64)
        return {"mean": scores.float().mean(), "auc": auc}


class Erring(Ranker):
    """Chosen by what is the lower the better."""

    monitor = Monitor("eval/mean", lower_is_better=True)


class Normed(Ranker):
    """Scores that depend on the mode of the module."""

    def __init__(self):
        super().__init__()
        self.layers.insert(1, nn.BatchNorm1d(3).double())
        self.layers.insert(2, nn.Dropout(0.5))


def clicked(lengths, part="train", of_one_class=()):
    data = labelled(lengths, part)
    y = (data.samples["y"] > 1).long()
    for c in of_one_class:
        y[data.offsets[c] : data.offsets[c + 1]] = 1
    return SampleData(data.ids, {"x": data.samples["x"], "y": y}, data.offsets)


def clients(of_one_class=()):
    """Client 1 has nothing to measure on."""
    others = [clicked([14, 0, 23, 8], part, of_one_class) for part in ("valid", "test")]
    return SplitSamples(clicked(LENGTHS), *others)


HELD = ServerSamples(clicked([15], "server").samples, clicked([9], "reported").samples)


@pytest.fixture
def _batches_of_five(monkeypatch):
    monkeypatch.setattr(evaluation, "_BATCH", 5)


def by_sklearn(weights, samples) -> dict[str, float]:
    with torch.no_grad():
        scores = loaded(built(Ranker), weights)(samples)
    return {"auc": area(scores, samples["y"]), "mean": float(scores.mean())}


def stack(models):
    return {name: torch.stack([one[name] for one in models]) for name in models[0]}


def models(count):
    found = []
    for number in range(count):
        with KEY.fold("model", number).torch_rng():
            found.append({n: v.detach() for n, v in Ranker().named_parameters()})
    return found


@pytest.mark.usefixtures("_batches_of_five")
@pytest.mark.parametrize("same", [False, True])
def test_auc_is_of_all_samples_and_not_a_mean_over_batches(same):
    data, each = clicked([14, 0, 23, 4]), models(4)
    each = each[:1] if same else each
    found = Evaluator(built(Ranker)).of_clients(stack(each), data).values
    assert list(found) == ["auc", "mean"]
    means = []
    for c in range(4):
        samples = samples_of(data, c)
        if not len(samples["y"]):
            assert found["auc"][c].isnan()
            assert found["mean"][c].isnan()
            continue
        expected = by_sklearn(each[0 if same else c], samples)
        assert float(found["auc"][c]) == pytest.approx(expected["auc"], abs=1e-12)
        assert float(found["mean"][c]) == pytest.approx(expected["mean"], abs=1e-6)
        parts = [{n: v[i : i + 5] for n, v in samples.items()} for i in range(0, 14, 5)]
        means.append([by_sklearn(each[0 if same else c], part)["auc"] for part in parts])
    batch_wise = torch.tensor(means[0]).nanmean()
    assert abs(float(found["auc"][0] - batch_wise)) > 0.01
    assert found["auc"].dtype == found["mean"].dtype == torch.float64


@pytest.mark.usefixtures("_batches_of_five")
def test_models_on_the_servers_samples():
    each = models(3)
    found = Evaluator(built(Ranker)).of_models(stack(each), HELD.valid).values
    for row, weights in enumerate(each):
        expected = by_sklearn(weights, HELD.valid)["auc"]
        assert float(found["auc"][row]) == pytest.approx(expected, abs=1e-12)
    none = Evaluator(built(Ranker)).of_models(stack(each), {}).values
    assert [bool(v.isnan().all()) and len(v) == 3 for v in none.values()] == [True, True]


def test_it_is_measured_in_evaluation_mode():
    """By the running statistics that come with the parameters, and without dropout."""
    module, data = built(Normed), clicked([12])
    state = {n: v[None].double() * 1.5 + 0.1 for n, v in module.state_dict().items()}
    found = Evaluator(module.train()).of_clients(state, data).values["mean"]
    other = built(Normed)
    other.load_state_dict({n: v[0] for n, v in state.items()})
    with torch.no_grad():
        expected = other.eval()(data.samples).float().mean()
    assert float(found[0]) == pytest.approx(float(expected), rel=1e-6)
    assert module.training


@pytest.mark.usefixtures("_batches_of_five")
@pytest.mark.parametrize(
    ("chosen_by", "count"),
    [(("server", "personal"), 2), (("global",), 1), (("server", "global", "personal"), 3)],
)
def test_rounds_measure_what_the_module_says(chosen_by, count):
    data = clients(of_one_class=[3])
    server, client, _ = halves("fedavg", Ranker, HELD, **GENERAL, chosen_by=chosen_by)
    made = run(server, client, data, 2)
    scalars, kept = made.journals[-1].scalars, made.private(data.ids).personal
    for prefix, part in (("eval", "valid"), ("test", "test")):
        who = {"server": [by_sklearn(made.state.weights, getattr(HELD, part))]}
        who["global"], who["personal"] = [], []
        for c in (0, 2, 3):
            samples = samples_of(getattr(data, part), c)
            who["global"].append(by_sklearn(made.state.weights, samples))
            who["personal"].append(by_sklearn({n: v[c] for n, v in kept.items()}, samples))
        assert [math.isnan(one["auc"]) for one in who["global"]] == [False, False, True]
        means = {}
        for model, found in who.items():
            for name in ("auc", "mean"):
                known = [one[name] for one in found if not math.isnan(one[name])]
                means[model, name] = sum(known) / len(known)
                shown = scalars[f"{prefix}/{model}_{name}"]
                assert shown == pytest.approx(means[model, name], abs=1e-6)
        for name in ("auc", "mean"):
            expected = sum(means[model, name] for model in chosen_by) / count
            assert scalars[f"{prefix}/{name}"] == pytest.approx(expected, abs=1e-6)
    assert not [name for name in scalars if "accuracy" in name or name.endswith("_loss")]
    ids, values = made.journals[-1].clients["eval/personal_auc"]
    assert ids.tolist() == [0, 1, 2, 3]
    assert values.isnan().tolist() == [False, True, False, True]


def test_a_measure_that_no_client_has_is_not_noted():
    data = clients(of_one_class=[0, 2, 3])
    server, client, _ = halves("fedavg", Ranker, **GENERAL)
    scalars = run(server, client, data, 1).journals[0].scalars
    assert not [name for name in scalars if "auc" in name]
    assert "eval/mean" in scalars


@pytest.mark.parametrize("build", [Ranker, Erring])
def test_the_best_round_is_that_of_the_modules_monitor(build):
    server, client, _ = halves("local", build, **GENERAL | {"rounds": 4})
    run_ = FederatedRun(Federation(server, client, [clients()], monitor=server.monitor))
    while not run_.finished:
        run_.advance()
    assert server.monitor is build.monitor
    scores = [row[build.monitor.key] for row in run_.history]
    assert len(set(scores)) == 4
    best = min(scores) if build is Erring else max(round(score, 6) for score in scores)
    found = best_of(run_.history, server.monitor)
    assert found.score == pytest.approx(best, abs=1e-6)
    other = best_of(run_.history, ACCURACY)
    assert (other.round, math.isnan(other.score)) == (0, True)
    assert run_.results["test/auc"] == run_.history[-1]["test/auc"]


def test_a_single_measure_is_averaged_like_several():
    class Single(Ranker):
        measure_names = ("auc",)

    data = clients()
    server, client, _ = halves("fedavg", Single, HELD, **GENERAL)
    scalars = run(server, client, data, 1).journals[0].scalars
    for prefix in ("eval", "test"):
        both = [scalars[f"{prefix}/{who}_auc"] for who in ("server", "personal")]
        assert scalars[f"{prefix}/auc"] == pytest.approx(sum(both) / 2, rel=1e-12)


def test_central_training_measures_them_too():
    data = clients()
    server, client, _ = central(Ranker, data.train, HELD, **GENERAL)
    made = run(server, client, data, 1)
    scalars = made.journals[0].scalars
    expected = by_sklearn(made.state.weights, HELD.test)["auc"]
    assert scalars["test/server_auc"] == pytest.approx(expected, abs=1e-12)
    assert scalars["test/auc"] == scalars["test/server_auc"]  # there is no personal one


def test_reports_depend_on_what_they_declare():
    data = clients(of_one_class=[3])
    server, client, _ = halves("ditto", Ranker, HELD, **GENERAL)
    made = run(server, client, data, 1)
    down = GlobalModel(made.state.weights)
    boundary_holds(client, {"evaluate": down}, made.private(data.ids), data)


def test_other_modules_are_measured_as_before():
    assert isinstance(built(Ranker), MeasuresItself)
    assert not isinstance(built(Net), MeasuresItself)
    assert monitor_of(built(Net)) == ACCURACY == Monitor("eval/accuracy")
    data = SplitSamples(*(labelled([6, 4], part) for part in ("train", "valid", "test")))
    server, client, _ = halves("fedavg", Net, **GENERAL)
    made = run(server, client, data, 1)
    scalars = made.journals[0].scalars
    assert scalars["eval/accuracy"] == scalars["eval/personal_accuracy"]
    assert not {"test/accuracy", "eval/loss", "test/loss"} & set(scalars)
    assert server.monitor == ACCURACY


def test_accuracy_that_cannot_be_told_is_nan():
    found = Quality({"loss": torch.zeros(2)})
    assert found.accuracy.isnan().tolist() == [True, True]
    assert found.loss.tolist() == [0.0, 0.0]


def test_who_is_chosen_by_is_someone():
    with pytest.raises(UserError, match="chosen_by"):
        FedAvgSettings(chosen_by=())


def test_dap_fl_needs_a_loss_among_the_measures():
    settings = DapFLSettings(**GENERAL)
    with pytest.raises(UserError, match="loss") as caught:
        run(DapFLServer(Ranker, settings), DapFLClient(built(Ranker), settings), clients(), 1)
    assert "\n" not in str(caught.value)
