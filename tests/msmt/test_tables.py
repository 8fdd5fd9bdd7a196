"""Every table and the figure at a size that takes seconds: rows, numbers of the runs, the cache."""

import json
from types import SimpleNamespace

import pytest
import torch
from matplotlib.image import imread

from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.settings.schema import changed
from coterie.msmt.data.describe import describe
from coterie.msmt.experiment import Experiment
from coterie.msmt.paper import PAPER
from coterie.msmt.readings import resolve
from coterie.msmt.settings import Settings
from coterie.msmt.tables import CATALOGUE, ablations, main_table, make_table, study
from coterie.msmt.tables.rows import FEDERATED_ROWS, ROWS

pytestmark = pytest.mark.long

TINY = {
    "rounds": 2,
    "data": {"rows": [16, 12], "valid_rows": 40, "test_rows": 50, "root": None},
    "model": {"embedding": 2, "experts": 3, "expert_layers": [4], "tower_layers": [4]},
    "train": {"batch_size": 16, "lr": 0.02},
    "run": {"progress": False},
}
WORLDS = ("shift 0", "shift 0.3", "shift 0.6", "shift 0.9", "teacher")
FEW = ("local", "fedavg", "pf-msmtrec")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    torch.set_num_threads(1)  # before the first run of the module, as every test has it
    return tmp_path_factory.mktemp("runs")


def configured(out, *more, data="world"):
    file = out / "tiny.yaml"
    content = {**TINY, "data": {k: v for k, v in TINY["data"].items() if v is not None}}
    file.write_text(json.dumps(content))
    return configure(PAPER, ["--config", str(file), f"--data={data}", f"--run.out={out}", *more])


def made(out, *more, seeds=(0,), **which):
    return make_table(configured(out, *more), **which, seeds=seeds, workers=0)


@pytest.fixture(scope="module")
def table_2(out):
    return made(out, "--data.shift=0.3", table=2)


@pytest.fixture(scope="module")
def of_two_seeds(out, table_2):
    """Some rows of the same table, over another seed too."""
    with pytest.MonkeyPatch.context() as patch:
        limit_rows(patch, *FEW)
        return made(out, "--data.shift=0.3", table=2, seeds=(0, 1))


def limit_rows(monkeypatch, *names):
    """Leave only some rows in tables."""
    found = main_table._table
    few = main_table._Paper("Table 3", "AliExpress", main_table.ALIEXPRESS, names)
    monkeypatch.setattr(main_table, "_table", lambda study, paper: found(study, few))


def mean(report, method, name, **where):
    (row,) = [
        row
        for row in report.rows
        if row["method"] == method
        and row["metric"] == name
        and all(row.get(key) == value for key, value in {"scenario": None, **where}.items())
    ]
    return row["mean"]


def settings_of(out, name, seed):
    some = configured(out, "--data.shift=0.3").settings
    row = ROWS[ROWS[name].of or name]
    return changed(row.settings(some), {"seed": seed})


def by_hand(settings, whose):
    """Mean test AUC, and each scenario's of ctr, in the round of the best validation AUC."""
    run, best = FederatedRun(Experiment(settings).federation()), -1.0
    while not run.finished:
        run.advance()
        score = run.journal.scalars.get(f"eval/{whose}_auc", -1.0)
        if score > best:
            best = score
            kept = run.journal.clients[f"test/{whose}_auc_ctr"][1].tolist()
            found = run.journal.scalars[f"test/{whose}_auc"], kept
    return found


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("fedavg", "global"),
        ("fedavg-own", "personal"),
        ("star", "global"),
    ],
)
def test_numbers_are_those_of_the_runs(table_2, out, name, whose):
    assert_numbers(table_2, name, [by_hand(settings_of(out, name, 0), whose)])


def test_numbers_are_means_over_seeds(of_two_seeds, out):
    every = [by_hand(settings_of(out, "pf-msmtrec", seed), "personal") for seed in (0, 1)]
    assert every[0] != every[1]
    assert_numbers(of_two_seeds, "pf-msmtrec", every)
    assert all(row["seeds"] == 2 for row in of_two_seeds.rows)


def assert_numbers(report, name, every):
    expected = sum(value for value, _ in every) / len(every)
    assert mean(report, name, "test/auc") == pytest.approx(expected, abs=1e-12)
    for place in (0, 1):
        expected = sum(values[place] for _, values in every) / len(every)
        where = {"scenario": f"scenario {place + 1}"}
        assert mean(report, name, "test/auc_ctr", **where) == pytest.approx(expected, abs=1e-12)


def test_table_2_has_every_row_and_the_bound(table_2):
    labels = [row.label for row in ROWS.values()]
    assert [line["method"] for line in table_2.view] == [*labels, "true probabilities"]
    first = table_2.view[0]
    assert list(first) == [
        *("method", "models", "ctr", "ctcvr", "mean", "validation", "best round", "CPU s"),
        *("paper: auc_ctr", "paper: auc_ctcvr"),
    ]
    lines = {line["method"]: line for line in table_2.view}
    # Means over NL, ES, FR and US.
    assert lines["MMoE"]["paper: auc_ctr"] == "0.7186"
    assert lines["FedAvg"]["paper: auc_ctcvr"] == "0.8700"
    assert "paper: auc_ctr" not in lines["FedAMP, σ absolute"]
    assert all(row["seeds"] == 1 and row["paper"] is None for row in table_2.rows)


def test_the_bound_is_that_of_the_true_probabilities(of_two_seeds, out):
    found = []
    for seed in (0, 1):
        rows = describe(Experiment(settings_of(out, "local", seed)).task)
        found += [row["ctr best AUC"] for row in rows]
    assert mean(of_two_seeds, "oracle", "test/auc_ctr") == pytest.approx(sum(found) / 4, abs=1e-7)


def test_notes_and_picture(table_2):
    notes = "\n".join(table_2.notes)
    assert "at most 2 rounds of 1 local epoch with batches of 16, lr 0.02" in table_2.notes[0]
    assert "shift 0.3, test AUC (mean of tasks), PF-MSMTrec (Fed) minus, in points:" in notes
    paying = ["FedAvg", *(f"PF-MSMTrec (Fed){m}" for m in ("", ", + embeddings (ours)"))]
    for label in [*paying, "PF-MSMTrec (Fed), server step 10 (ours)"]:
        assert f"{label} minus PF-MSMTrec (Local), in points" in notes
    assert notes.count("each scenario at its own best round of validation") == 8
    assert "for the order of the rows alone" in notes
    assert imread(table_2.figure).shape[1] > 500


def test_finished_runs_are_read_from_the_cache(table_2, out, monkeypatch):
    monkeypatch.setattr(study.Study, "train", None)
    monkeypatch.setattr(study.Study, "references", {"oracle": None})
    found = made(out, "--data.shift=0.3", table=2)
    assert found.markdown() == table_2.markdown()
    found = made(out, "--data.shift=0.3", table=3)  # a part of the same runs
    assert [row["method"] for row in found.view][:-1] == [ROWS[n].label for n in FEDERATED_ROWS]
    assert found.name == "table3-world-shift-0.3"
    found = made(out, "--data.shift=0.3", table=4)
    lines = {line["method"]: line for line in found.view}
    assert list(lines["MMoE"])[-2:] == ["paper: auc_click", "paper: auc_like"]
    assert lines["MMoE"]["paper: auc_click"] == "0.7951"


def test_generated_data_have_several_worlds(out, monkeypatch):
    limit_rows(monkeypatch, "local", "pf-msmtrec")
    report = made(out, "--rounds=1", table=3)
    columns = [f"{world}: {task}" for world in WORLDS for task in ("ctr", "ctcvr")]
    assert [name for name in report.view[0] if ": c" in name] == columns
    values = {mean(report, "pf-msmtrec", "test/auc", world=world) for world in WORLDS}
    assert len(values) == 5
    assert sum(note.startswith(WORLDS) for note in report.notes) == 5


@pytest.mark.usefixtures("table_2")  # of the same runs
def test_the_figure_has_a_plot_for_each_world(out):
    report = made(out, "--data.shift=0.3", figure=3)
    names = ["PF-MSMTrec (Fed)", "FedAvg", "FedAvg, own epoch (ours)"]
    assert [line["method"] for line in report.view][:3] == names
    assert imread(report.figure).shape[1] > 500


def test_table_6_has_the_ablations_and_ours(out, monkeypatch):
    some = ["full", *ablations.PAPERS, "no-coordination", "all-shared", "alone"]
    few = {name: ablations.VARIANTS[name] for name in some}
    monkeypatch.setattr(ablations, "VARIANTS", few)
    report = made(out, "--data.shift=0.3", table=6)
    shown = [line["variant"] for line in report.view]
    assert shown == [*(label for label, _ in few.values()), "alignment as a sum (λ · D · h1)"]
    assert report.view[0]["paper: auc_ctr"] == "0.7276"
    assert report.view[2]["paper: auc_ctr"] == "0.7253"  # A2
    assert "paper: auc_ctr" not in report.view[5]
    values = {
        name: mean(report, "pf-msmtrec", "test/auc", variant=name)
        for name in ("full", "a1", "a2", "a4", "no-coordination", "all-shared", "alone")
    }
    assert len(set(values.values())) > 4
    assert 0 < mean(report, "pf-msmtrec", "test/auc", variant="alignment-sum") < 1


def test_alignment_as_a_sum_is_as_many_times_stronger_as_there_are_numbers():
    some = changed(Settings(), {"model.embedding": 3, "model.expert_layers": (5, 2)})
    assert ablations._variant(some, "alignment-sum", 7).pf.lam == 0.5 * 7 * 3 * 5
    assert ablations._variant(some, "no-alignment", 7).pf.lam == 0
    assert ablations._variant(some, "full", 7) == some


def test_every_ablation_has_settings_of_its_own():
    every = [resolve(changed(Settings(), values)) for _, values in ablations.VARIANTS.values()]
    assert len(every) == 1 + 4 + 13
    for number, one in enumerate(every):
        assert one not in every[:number]


def test_table_7_has_numbers_of_experts(out):
    report = made(out, "--data.shift=0.3", "--rounds=1", table=7)
    assert [line["experts"] for line in report.view] == [2, 3, 4, 5, 6]
    values = {mean(report, "pf-msmtrec", "test/auc", experts=number) for number in range(2, 7)}
    assert len(values) == 5
    assert report.view[2]["paper: auc_ctcvr"] == "0.8805"
    assert any("4 experts minus" in note for note in report.notes)


def test_a_network_that_cannot_be_trained_is_left_out(out, monkeypatch):
    limit_rows(monkeypatch, "ple", "local", "pf-msmtrec")
    report = made(out, "--data.shift=0.3", "--rounds=1", "--model.experts=2", table=2)
    assert "PLE" not in [line["method"] for line in report.view]
    assert any(note.startswith("Left out: PLE: ") for note in report.notes)


def test_what_would_have_no_effect_is_refused(out):
    for flag in ("--method=fedavg", "--model.name=mmoe"):
        with pytest.raises(UserError, match="leave out --"):
            made(out, flag, table=2)
    with pytest.raises(UserError, match="coterie data"):
        made(out, table=1)


def test_without_validation_samples_no_round_can_be_chosen(out, tmp_path):
    rows = [f"{s},{p},{n % 3},{n % 2}" for s in "ab" for p in ("train", "test") for n in range(9)]
    file = tmp_path / "mine.csv"
    file.write_text("\n".join(["country,part,x,click", *rows]) + "\n")
    flags = ["--data.scenario=country", "--data.tasks=[click]", "--data.split=part"]
    mine = configure(PAPER, [f"--data={file}", *flags, f"--run.out={out}"])
    for which in ({"table": 2}, {"table": 7}, {"figure": 3}):
        with pytest.raises(UserError, match="validation samples of both classes"):
            make_table(mine, **which, seeds=(0,), workers=0)


def test_files_are_named_by_what_limits_them(out):
    def named(*more):
        made_of = study.Study(configured(out, *more), (0,), 0)
        return made_of.file("table2"), list(made_of.worlds)

    assert named() == ("table2-world", list(WORLDS))
    assert named("--data.shift=0.9") == ("table2-world-shift-0.9", ["shift 0.9"])
    assert named("--reading=literal")[0] == "table2-world-literal"
    assert named("--data.rho=-0.5") == ("table2-world-rho-0.5", ["shift 0.3"])
    other = study.Study(configured(out, data="teacher"), (0,), 0)
    assert (other.file("table7"), list(other.few_worlds)) == ("table7-teacher", ["teacher"])


def test_the_papers_scenarios_have_its_numbers(table_2, monkeypatch):
    some = SimpleNamespace(schema=SimpleNamespace(scenarios=("NL", "US")))
    monkeypatch.setattr(study.Study, "task", some)
    assert study.Study.is_papers.fget(SimpleNamespace(task=some))
    assert set(CATALOGUE.tables) == set(range(2, 10))
