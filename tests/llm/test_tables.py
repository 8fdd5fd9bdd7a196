"""Tables and figures of PPLR: published numbers, what is kept of a run, reports on the sample."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.core.errors import UserError
from coterie.core.methods.settings.any_module import FedAMPOptions
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tables.result import RunResult
from coterie.core.tables.study import fingerprint
from coterie.llm.backbone_settings import ModelSettings, PretrainSettings
from coterie.llm.experiment import Experiment
from coterie.llm.paper import PAPER
from coterie.llm.settings import (
    FederatedDataSettings,
    FedMFSettings,
    MixingSettings,
    Settings,
    TrainSettings,
    TuningSettings,
)
from coterie.llm.tables import costs, figures, main_table, make_table, partitions
from coterie.llm.tables.figures import rounds_to, shares
from coterie.llm.tables.main_table import extents
from coterie.llm.tables.study import (
    Study,
    essential,
    imbalances,
    over_others,
    plain,
    train,
    verdict_note,
    worst,
)

pytestmark = pytest.mark.long

TINY = {
    "rounds": 1,
    "model.name": "tiny-item",
    "model.width": 8,
    "model.layers": 1,
    "pretrain.steps": 3,
    "data.stride": 30,
    "data.shots": 50,
    "data.valid_users": 10,
    "data.max_history": 5,
    "fedmf.rounds": 1,
    "lightfr.rounds": 1,
    "fedpergnn.rounds": 1,
    "mf.epochs": 1,
    "lightgcn.epochs": 1,
}


def flags(**changes):
    return [f"--{name}={value}" for name, value in {**TINY, **changes}.items()]


def tiny(method="pplr", **changes):
    model, pretrain = ModelSettings(width=8, layers=1), PretrainSettings(steps=3)
    data = replace(Settings().data, stride=30)
    settings = Settings(method=method, rounds=2, model=model, pretrain=pretrain, data=data)
    return replace(settings, **changes)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def make(out):
    def made(seeds=(0, 1), **which):
        configuration = configure(PAPER, flags(**{"run.out": out}))
        return make_table(configuration, **which, seeds=seeds, workers=0)

    return made


# Published numbers


def test_table_1_is_complete_and_more_items_find_more():
    for groups in main_table.TABLES["table1"].values():
        assert list(groups) == ["none", "BIGRec", "RecFormer"]
        assert list(groups["none"]) == ["mf", "lightgcn", "fedmf", "lightfr", "fedpergnn"]
        for name in ("BIGRec", "RecFormer"):
            assert list(groups[name]) == ["central", "fedavg", "fedprox", "pplr"]
        for group in groups.values():
            for row in group.values():
                assert 0 < row[0] < row[1] < 1
                assert all(0 < value < 1 for value in row[2:])


def test_published_imbalances_follow_from_their_clients_but_for_the_known_mistake():
    half, wrong = 0.5e-4, set()
    for data, methods in main_table.TABLES["table3"].items():
        for method, row in methods.items():
            best, worst, printed = max(row["clients"]), min(row["clients"]), row["imbalance"]
            low = (best - half) / (worst + half) - 1 - 0.005
            high = (best + half) / (worst - half) - 1 + 0.005
            if not low <= printed <= high:
                wrong.add((data, method))
    assert wrong == set(map(tuple, main_table.TABLES["wrong_imbalances"]))
    central = main_table.table3("microlens", "central")
    assert central is not None
    assert math.isnan(central[1])


def test_table_3_and_table_1_tell_of_the_same_runs():
    for data, methods in main_table.TABLES["table3"].items():
        for method, row in methods.items():
            overall = main_table.TABLES["table1"][data]["BIGRec"][method][0]
            assert min(row["clients"]) <= overall <= max(row["clients"])


# What a result depends on


@pytest.mark.parametrize(
    ("method", "change", "matters"),
    [
        ("pplr", {"mixing": MixingSettings(alpha=0.5)}, True),
        ("fedavg", {"mixing": MixingSettings(alpha=0.5)}, False),
        ("pplr-attention", {"mixing": MixingSettings(beta=1.0)}, False),
        ("pplr-heating", {"mixing": MixingSettings(similarity="cosine")}, False),
        ("fedprox", {"train": TrainSettings(mu=0.5)}, True),
        ("fedavg", {"train": TrainSettings(mu=0.5)}, False),
        ("fedavg", {"reading": "literal"}, False),
        ("pplr", {"reading": "literal"}, True),
        ("fedavg-tuned", {"tuning": TuningSettings(epochs=3)}, True),
        ("fedavg", {"tuning": TuningSettings(epochs=3)}, False),
        ("fedamp", {"fedamp": FedAMPOptions(lam=0.3)}, True),
        ("pplr", {"fedamp": FedAMPOptions(lam=0.3)}, False),
        ("fedavg", {"data": FederatedDataSettings(skew=0.3)}, False),
        ("fedavg", {"data": FederatedDataSettings(partition="genres")}, True),
        ("mf", {"data": FederatedDataSettings(skew=0.3)}, False),
        ("local", {"seed": 1}, True),
        ("local", {"fedmf": FedMFSettings(dim=3)}, False),
        ("fedmf", {"fedmf": FedMFSettings(dim=3)}, True),
        ("fedmf", {"model": ModelSettings(width=32)}, False),
    ],
)
def test_the_fingerprint_changes_with_what_the_method_reads(method, change, matters):
    keep = plain if method == "mf" else lambda settings, name: essential(settings)
    how = {"method": method} if method != "mf" else {}
    first = fingerprint(keep(Settings(**how), method), "data")
    second = fingerprint(keep(Settings(**how, **change), method), "data")
    assert (first != second) == matters


def test_the_fingerprint_changes_with_the_data_and_not_with_the_folder():
    settings = essential(Settings())
    assert fingerprint(settings, "a") != fingerprint(settings, "b")
    moved = replace(settings, run=replace(settings.run, out="elsewhere"))
    assert fingerprint(settings, "a") == fingerprint(moved, "a")
    assert plain(Settings(model=ModelSettings(width=32)), "mf") == plain(Settings(), "mf")


# A run


def test_a_result_is_what_the_run_measured(tmp_path):
    settings = replace(tiny(), run=replace(Settings().run, out=str(tmp_path)))
    experiment = Experiment(settings)
    module = FederatedRun(experiment.federation())
    while not module.finished:
        module.advance()
    result = train(settings)
    again = tmp_path / "result.json"
    result.write(again)
    for found in (result, RunResult.read(again)):
        assert found.metrics["test/recall@10"] == module.results["test/recall@10"]
        ids, values = module.client_results["test/ndcg@20"]
        assert ids.tolist() == [0, 1, 2, 3, 4]
        assert found.clients["test/ndcg@20"] == pytest.approx(values.tolist(), nan_ok=True)
        best = found.metrics["best_round"]
        scores = [round["eval/recall@10"] for round in module.history]
        assert found.metrics["valid/recall@10"] == max(scores) == scores[int(best) - 1]
        known = [v for v in found.clients["test/recall@10"] if v == v]
        if min(known) > 0:
            assert imbalances([found])[0] == pytest.approx(max(known) / min(known) - 1)
        assert worst([found]) == [min(known)]
        assert len(found.course["pplr/warmup"]) == 2
    # One adapter of d float32 each way; up also the loss and an int64, down the round.
    d = Experiment(settings).backbone
    numbers = sum(p.numel() for p in d.parameters())
    assert result.metrics["trained"] == numbers
    assert result.metrics["up"] == 4 * numbers + 4 + 8
    assert result.metrics["down"] == 4 * numbers


@pytest.mark.usefixtures("own_backbones")
def test_a_run_that_pre_trains_its_backbone_is_one_that_reads_it(tmp_path):
    settings = replace(tiny("central"), run=replace(Settings().run, out=str(tmp_path)))
    first = train(settings)
    assert list(tmp_path.rglob("*.safetensors"))
    second = train(settings)
    assert first.clients == second.clients
    assert first.course == second.course


def test_users_are_averaged_by_organisation():
    data = Experiment(tiny()).data
    users = torch.arange(data.client_of.numel())
    values = torch.rand(users.numel(), generator=torch.Generator().manual_seed(0)).double()
    values[data.client_of < 0] = torch.nan
    values[:10] = torch.nan
    client = data.client_of.numpy()
    expected = [float(np.nanmean(values.numpy()[client == c])) for c in range(5)]
    assert data.means(data.client_of[users], values).tolist() == pytest.approx(expected)


# Comparisons


def results_of(*clients):
    """One run for each list of Recall@10 of the clients."""
    return [
        RunResult(
            {"test/recall@10": float(np.mean(c)), "test/ndcg@10": 0.1}, {"test/recall@10": list(c)}
        )
        for c in clients
    ]


def test_pplr_is_compared_by_paired_tests_over_seeds_adjusted_by_holm():
    runs = {
        "pplr": results_of([0.3, 0.2], [0.4, 0.2], [0.35, 0.2]),
        "fedavg": results_of([0.28, 0.1], [0.38, 0.1], [0.34, 0.1]),
        "fedprox": results_of([0.3, 0.2], [0.4, 0.19], [0.35, 0.21]),
    }
    found = over_others(runs, ("fedavg", "fedprox"))
    means = {name: [r.metrics["test/recall@10"] for r in part] for name, part in runs.items()}
    p = {o: stats.ttest_rel(means["pplr"], means[o]).pvalue for o in ("fedavg", "fedprox")}
    contrast = found["R@10"]["fedavg"]
    assert contrast.found.p == pytest.approx(p["fedavg"])
    assert contrast.p == pytest.approx(min(1, 2 * p["fedavg"]))
    assert contrast.verdict == "better"
    unequal = [imbalances(runs[name]) for name in ("pplr", "fedavg")]
    expected = stats.ttest_rel(*unequal)
    assert found["imbalance"]["fedavg"].found.p == pytest.approx(expected.pvalue)
    assert found["imbalance"]["fedavg"].found.difference < 0
    assert found["imbalance"]["fedavg"].verdict == "better"  # less is
    assert found["R@10 of each client"]["fedavg"].found.n == 6
    note = verdict_note("tiny-item", found)
    assert "NOT better" in note
    assert "than FedProx in R@10, N@10, imbalance" in note


def test_an_infinite_imbalance_is_compared_by_its_finite_image():
    runs = {
        "pplr": results_of([0.3, 0.0], [0.4, 0.2]),
        "fedavg": results_of([0.2, 0.1], [0.2, 0.2]),
    }
    (found,) = [g for name, g in over_others(runs, ("fedavg",)).items() if "worst / best" in name]
    assert found["fedavg"].found.difference == pytest.approx(np.mean([0 - 0.5, 0.5 - 1]))
    assert imbalances(runs["pplr"])[0] == math.inf


def test_extents_and_shares_are_of_the_rounds_that_were_made():
    short = RunResult(course={"pplr/warmup": [[0.5, 0.7]], "eval/recall@10": [[0.1, 0.3]]})
    long = RunResult(
        course={
            "pplr/warmup": [[0.6, float("nan")], [0.9, 1.0]],
            "eval/recall@10": [[0.1, 0.2], [0.3, 0.5], [0.1, 0.1]],
        }
    )
    first, second = extents([short, long], "pplr/warmup")
    assert (first.mean, first.low, first.high) == pytest.approx((0.6, 0.5, 0.7))
    assert (second.mean, second.low, second.high) == pytest.approx((0.95, 0.9, 1.0))
    assert shares(long) == pytest.approx([0.375, 1.0, 1.0])
    assert rounds_to(shares(long), 0.95) == 2


# Reports on the sample


def test_table_1_has_all_rows_and_is_read_from_the_cache(make, out, monkeypatch):
    report = make(table=1)
    assert [line["method"] for line in report.view] == [
        *("popularity", "own popularity", "titles", "titles + popularity"),
        *("titles + all counts", "titles + own counts", "MF", "LightGCN"),
        *("FedMF", "LightFR", "FedPerGNN", "FedPerGNN without noise"),
        *("untrained", "central", "+FedAvg", "+FedProx", "+local only", "+PPLR"),
    ]
    assert any(
        "PPLR is NOT better" in note or "better in everything" in note for note in report.notes
    )
    assert any("round 1: s " in note for note in report.notes)
    recalls = [row for row in report.rows if row["metric"] == "test/recall@10"]
    assert len(recalls) == 18
    assert all(row["seeds"] == 2 and 0 <= row["mean"] <= 1 for row in recalls)
    files = list((out / "pplr" / "tables" / "cache").iterdir())
    assert len(files) >= 2 * 18  # other tables' runs are there too
    monkeypatch.setattr(Study, "train", None)
    assert make(table=1).markdown() == report.markdown()
    path = report.save(out)
    assert "| tiny-item | +PPLR |" in path.read_text()


def test_popularity_is_that_of_the_command_train(make, out):
    rows = make(table=1, seeds=(0,)).rows
    (found,) = [
        row["mean"]
        for row in rows
        if row["method"] == "popularity" and row["metric"] == "test/recall@10"
    ]
    settings = configure(PAPER, flags(**{"run.out": out})).settings
    experiment = Experiment(settings)
    module = FederatedRun(experiment.federation())
    while not module.finished:
        module.advance()
    assert experiment.final_metrics(module)["test/popularity/recall@10"] == pytest.approx(found)


def test_table_3_has_every_client(make):
    report = make(table=3)
    assert [line["method"] for line in report.view] == ["central", "+FedAvg", "+PPLR"]
    assert all(f"client {c}" in line for line in report.view for c in (1, 5))
    assert report.figure.read_bytes().startswith(b"\x89PNG")


def test_table_4_has_every_partition_and_method(make, monkeypatch):
    monkeypatch.setattr(partitions, "METHODS", ("fedavg", "local", "fedavg-head", "pplr"))
    report = make(table=4, seeds=(0,))
    assert [(line["partition"], line["method"]) for line in report.view] == [
        (kind, name)
        for kind in ("k-means", "genres", "shops, δ = 0.1", "shops, δ = 1")
        for name in (
            *("popularity", "own popularity", "titles + all counts", "titles + own counts"),
            *("+FedAvg", "+local only", "+FedAvg, local head", "+PPLR"),
        )
    ]
    means = {
        (row["partition"], row["method"]): row["mean"]
        for row in report.rows
        if row["metric"] == "test/recall@10"
    }
    for line in report.view:
        kind = line["partition"]
        gap = means[kind, "local"] - means[kind, "fedavg"]
        assert float(line["local - FedAvg"]) == pytest.approx(gap, abs=6e-5)
        compared = line["method"].startswith("+") and line["method"] != "+FedAvg"
        assert (line["minus FedAvg"] is not None) == compared
    # What the partitions do to the data reaches the runs.
    assert len({means[kind, "fedavg"] for kind in partitions.PARTITIONS}) == 4
    assert report.figure.read_bytes().startswith(b"\x89PNG")
    assert "nan" not in report.markdown()


def test_files_are_named_by_the_clients_they_are_of(out):
    def name(*words):
        return Study(configure(PAPER, [*flags(**{"run.out": out}), *words]), (0,), 0).file("table4")

    usual, shops = name(), ["--data.partition", "shops"]
    assert name("--data.partition", "genres") == f"{usual}-genres"
    assert name(*shops, "--data.skew", "1") == f"{usual}-shops-1"
    assert name(*shops, "--data.skew", "0.1") == f"{usual}-shops-0.1"


def test_table_4_of_one_partition(out, monkeypatch):
    monkeypatch.setattr(partitions, "METHODS", ("fedavg", "local", "pplr"))
    words = flags(**{"run.out": out, "data.partition": "shops", "data.skew": 0.5})
    report = make_table(configure(PAPER, words), table=4, seeds=[0, 1], workers=0)
    assert {line["partition"] for line in report.view} == {"shops, δ = 0.5"}
    assert len(report.view) == 3 + 4
    assert any("without training, finds" in note for note in report.notes)
    assert {r["seeds"] for r in report.rows if r["metric"] == "test/recall@10"} == {2}


def test_methods_are_compared_with_fedavg_by_paired_tests_adjusted_by_holm():
    runs = {
        "fedavg": results_of([0.28, 0.1], [0.38, 0.1], [0.34, 0.1]),
        "local": results_of([0.3, 0.2], [0.4, 0.2], [0.35, 0.2]),
        "pplr": results_of([0.28, 0.1], [0.37, 0.09], [0.34, 0.12]),
    }
    found = partitions.over_base(runs)
    means = {name: [r.metrics["test/recall@10"] for r in part] for name, part in runs.items()}
    contrast = found["R@10"]["local"]
    expected = stats.ttest_rel(means["local"], means["fedavg"])
    assert contrast.found.difference == pytest.approx(np.mean(means["local"]) - 0.65 / 3)
    assert contrast.found.p == pytest.approx(expected.pvalue)
    assert contrast.p == pytest.approx(min(1, 2 * expected.pvalue))
    assert contrast.verdict == "better"
    assert found["R@10 of the worst client"]["local"].found.difference == pytest.approx(0.1)
    note = partitions.verdict("here", found, runs)
    assert note.startswith("here: better than FedAvg: local only in R@10; local only in R@10 of")
    assert note.endswith("PPLR's R@10 is number 2 of 3.")


def test_table_2_gives_the_costs_of_every_k(out):
    configuration = configure(PAPER, flags(**{"run.out": out, "model.layers": 4}))
    report = make_table(configuration, table=2, seeds=[0], workers=0)
    assert [line["k"] for line in report.view] == ["all (FedAvg)", "1", "2"]
    assert any("FedAvg" in note for note in report.notes)


@pytest.mark.parametrize("figure", [1, 3, 4, 5, 6])
def test_figures_are_drawn(make, figure, monkeypatch):
    monkeypatch.setattr(costs, "ATTACKER", replace(costs.ATTACKER, steps=3))
    monkeypatch.setattr(figures, "CLIENTS", (2, 5))
    monkeypatch.setattr(figures, "ALPHAS", (0.5, 0.7))
    monkeypatch.setattr(figures, "BETAS", (5.0,))
    report = make(figure=figure)
    assert report.figure is not None
    assert report.figure.read_bytes().startswith(b"\x89PNG")
    assert report.rows
    assert report.view
    assert "nan" not in report.markdown()


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ({"table": 5}, "pplr has no table 5: choose 1 to 4"),
        ({"figure": 2}, "figure 2 of pplr shows no results: choose 1, 3, 4, 5 or 6"),
        ({}, "name a table or a figure, as --table 1"),
        ({"table": 1, "figure": 1}, "name a table or a figure, as --table 1"),
    ],
)
def test_an_unknown_table_is_one_clear_line(make, which, message):
    with pytest.raises(UserError) as error:
        make(**which)
    assert str(error.value) == message


def test_without_words_there_is_no_row_of_titles(make, monkeypatch):
    monkeypatch.setattr("coterie.llm.tables.study.has_words", lambda items: False)
    report = make(table=1, seeds=(0,))
    assert "titles + popularity" not in [line["method"] for line in report.view]
    assert any("neither titles nor genres" in note for note in report.notes)


def test_what_stands_beside_a_backbone_is_told_apart_from_it(out):
    """Untrained, the row of the backbone alone is that of a table without an expert."""

    def study(*words):
        return Study(configure(PAPER, [*flags(**{"run.out": out}), *words]), (0, 1), 0)

    beside = ["--model.expert", "both", "--expert.counts", "both"]
    alone = study().untrained("alone", "tiny-item")
    found = study(*beside).untrained("beside", "tiny-item")
    assert list(alone) == ["untrained"]
    assert list(found) == ["untrained-alone", "untrained"]
    for mine, theirs in zip(found["untrained-alone"], alone["untrained"], strict=True):
        assert mine.metrics["test/recall@10"] == theirs.metrics["test/recall@10"]
    recalls = [[run.metrics["test/ndcg@20"] for run in found[name]] for name in found]
    assert recalls[0] != recalls[1]
