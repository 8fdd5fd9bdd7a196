"""Whole runs on the built-in sample by the command line, and what a user can get wrong."""

import json
import socket
import time
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import replace
from functools import cache
from io import StringIO

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper
from coterie.core.run.driver import FederatedRun
from coterie.core.run.runfolder import default_name
from coterie.core.settings.configuration import configure
from coterie.llm.experiment import Experiment

pytestmark = pytest.mark.long

SMALL = ["--rounds", "2", "--model.width", "16", "--pretrain.steps", "20", "--logger.wandb", "off"]
SMALL += ["--data.shots", "100", "--data.valid_users", "20", "--data.max_history", "5"]
SPLIT = ["--model.layers", "3", "--lora.dropout", "0"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def train(runs, name, *flags):
    out = ["--run.out", str(runs), "--run.name", name, "--run.progress", "false"]
    assert main(["train", "pplr", *SMALL, *out, *flags]) == 0
    return runs / "pplr" / name


@pytest.fixture(scope="module")
def printed(runs):
    """What a finished run, "plain", has printed."""
    with redirect_stdout(StringIO()) as out:
        train(runs, "plain")
    return out.getvalue()


@pytest.fixture(scope="module")
def plain(runs, printed):
    """A finished run."""
    return runs / "pplr" / "plain"


@pytest.fixture(scope="module")
def of_users(runs):
    """Give a finished run of a method of users."""
    return cache(lambda name: train(runs, name, "--method", name, f"--{name}.rounds", "2"))


def metrics(run):
    return json.loads((run / "summary.json").read_text())["metrics"]


def error(capsys, *argv):
    assert main(["train", "pplr", *SMALL, *argv]) == 2
    err = capsys.readouterr().err
    assert err.count("error: ") == 1
    return err.splitlines()[-1]  # before it may stand that the backbone is pre-trained


def settings(runs, *flags):
    return configure(find_paper("pplr"), [*SMALL, "--run.out", str(runs), *flags]).settings


def test_a_run_prints_every_client_and_popularity(plain, printed):
    run = plain
    for word in ("client", "test/popularity/recall@10", "test/imbalance", "ndcg@20"):
        assert word in printed
    clients = json.loads((run / "clients.json").read_text())
    assert [row["client"] for row in clients] == [0, 1, 2, 3, 4]
    found = metrics(run)
    total = sum(row["test_users"] for row in clients)
    overall = sum(row["recall@10"] * row["test_users"] for row in clients) / total
    assert found["test/recall@10"] == pytest.approx(overall)
    recalls = [row["recall@10"] for row in clients]
    assert found["test/imbalance"] == pytest.approx(max(recalls) / min(recalls) - 1)


def test_a_run_is_measured_again_and_recommends(runs, plain, capsys):
    run = plain
    assert main(["evaluate", "--run", str(run), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["test/recall@10"] == metrics(run)["test/recall@10"]
    experiment = Experiment(settings(runs))
    of_client = int((experiment.data.client_of == 2).nonzero()[0])
    name = experiment.interactions.user_names[of_client]
    assert main(["recommend", "--run", str(run), "--user", name, "--top", "3"]) == 0
    public = int((experiment.data.client_of == -1).nonzero()[0])
    name = experiment.interactions.user_names[public]
    assert main(["recommend", "--run", str(run), "--user", name]) == 2
    assert "public" in capsys.readouterr().err


def test_the_same_run_twice_is_the_same(runs, plain):
    assert metrics(train(runs, "again")) == metrics(plain)


def test_a_killed_run_goes_on_to_the_same_end(runs, plain):
    whole = metrics(plain)
    half = Experiment(settings(runs))
    module = FederatedRun(half.federation())
    module.advance()
    checkpoint = deepcopy(module.to_plain())
    later = FederatedRun(Experiment(settings(runs)).federation())
    later.load_plain(checkpoint)
    later.advance()
    assert later.finished
    assert later.results["test/recall@10"] == whole["test/recall@10"]


@pytest.mark.parametrize("trained", ["lora", "all"])
def test_a_split_run_ends_as_the_whole_one(runs, trained):
    flags = [*SPLIT, "--model.trained", trained, "--engine.dtype", "float64"]
    whole, split = (
        FederatedRun(Experiment(settings(runs, *flags, *more)).federation())
        for more in ([], ["--split.k", "1"])
    )
    for module in (whole, split):
        while not module.finished:
            module.advance()
    assert split.results == pytest.approx(whole.results, abs=1e-12)
    one, other = split.server_state, whole.server_state
    both = torch.cat([one.rows, one.middle.part.rows], dim=1)
    torch.testing.assert_close(both.sum(1), other.rows.sum(1), rtol=0, atol=1e-6)
    assert both.shape == other.rows.shape
    fields = {(row["direction"], row["field"]) for row in split.ledger.rows()}
    assert {("up", "activations"), ("up", "gradients"), ("down", "gradients")} <= fields
    assert one.rows.shape[1] < other.rows.shape[1]


def test_a_split_run_goes_on_from_its_checkpoint(runs):
    flags = [*SPLIT, "--split.k", "1", "--train.keep_optimizer", "true"]
    whole = FederatedRun(Experiment(settings(runs, *flags)).federation())
    whole.advance()
    checkpoint = deepcopy(whole.to_plain())
    whole.advance()
    later = FederatedRun(Experiment(settings(runs, *flags)).federation())
    later.load_plain(checkpoint)
    later.advance()
    one, other = later.server_state, whole.server_state
    assert torch.equal(one.rows, other.rows)
    assert torch.equal(one.middle.part.rows, other.middle.part.rows)


def test_what_is_not_finite_does_not_reach_the_server_s_layers(runs):
    experiment = Experiment(settings(runs, *SPLIT, "--split.k", "1"))
    module = FederatedRun(experiment.federation())
    module.advance()
    before = module.server_state
    broken = before.rows.clone()
    broken[1, 0] = torch.nan  # of the client's part
    module.server_state = replace(before, rows=broken)
    module.advance()
    after = module.server_state.rows
    assert torch.equal(after[1, 1:], before.rows[1, 1:])
    others = torch.tensor([0, 2, 3, 4])
    assert bool(after[others].isfinite().all())
    assert bool((after[others] != before.rows[others]).any(1).all())


@pytest.mark.parametrize("method", ["fedmf", "lightfr", "fedpergnn"])
def test_methods_of_users_are_measured_by_the_same_organisations(of_users, plain, method):
    run = of_users(method)
    found = metrics(run)
    clients = json.loads((run / "clients.json").read_text())
    whole = json.loads((plain / "clients.json").read_text())
    assert [row["test_users"] for row in clients] == [row["test_users"] for row in whole]
    total = sum(row["test_users"] for row in clients)
    overall = sum(row["recall@10"] * row["test_users"] for row in clients) / total
    assert found["test/recall@10"] == pytest.approx(overall)
    own = metrics(plain)
    assert found["test/popularity/recall@10"] == own["test/popularity/recall@10"]


def test_mistakes_are_one_line(capsys, tmp_path):
    out = ["--run.out", str(tmp_path)]
    assert "k in 1..1" in error(capsys, *out, "--model.layers", "3", "--split.k", "2")
    assert "at least 3" in error(capsys, *out, "--split.k", "1")
    assert "--model.path" in error(capsys, *out, "--model.name", "llama")
    assert "hf download" in error(
        capsys, *out, "--model.name", "llama", "--model.path", "nobody/nothing"
    )
    assert "does not go with tiny-item" in error(capsys, *out, "--model.path", "nowhere")
    file = tmp_path / "recformer.bin"
    torch.save({}, file)
    published = ["--model.name", "recformer", "--model.path", str(file)]
    assert str(tmp_path / "base") in error(
        capsys, *out, *published, "--model.base", str(tmp_path / "base")
    )
    assert "9999 clients" in error(capsys, *out, "--data.clients", "9999")
    assert "split.secret" in error(
        capsys, *out, "--model.layers", "3", "--split.k", "1", "--split.server", "127.0.0.1:1"
    )
    assert "'data.span'" in error(capsys, *out, "--data.span", "3")
    assert not list(tmp_path.rglob("summary.json"))


def test_one_client_and_many_run(runs):
    for clients in (1, 12):
        flags = ["--data.clients", str(clients), "--rounds", "1"]
        found = metrics(train(runs, f"clients{clients}", *flags))
        assert 0 <= found["test/recall@10"] <= 1


@pytest.mark.usefixtures("own_backbones")
def test_a_backbone_read_from_the_cache_is_the_one_that_was_trained(tmp_path):
    rounds = []
    for _ in range(2):
        module = FederatedRun(Experiment(settings(tmp_path)).federation())
        module.advance()
        rounds.append(module.server_state.rows)
    assert torch.equal(*rounds)


@pytest.mark.usefixtures("own_backbones")
def test_a_backbone_pre_trained_on_other_lengths_is_another_one(tmp_path):
    for longest in ("10", "5"):
        flags = ["--data.max_history", longest, "--data.min_history", "1", "--data.span", "20"]
        _ = Experiment(settings(tmp_path, *flags)).backbone
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2


def test_the_attack_on_item_rows(runs, plain, of_users, capsys):
    """Recovers who has what from plain FedMF; elsewhere says what leaves instead."""
    masked = ["--method", "fedmf", "--fedmf.rounds", "1", "--fedmf.transport", "masked_sum"]
    masks = train(runs, "attack-masks", *masked)

    def attacked(run):
        capsys.readouterr()
        code = main(["privacy", "pplr", "--attack", str(run), "--scales", "0", "100", "--json"])
        return code, capsys.readouterr()

    code, found = attacked(of_users("fedmf"))
    assert code == 0
    rows = json.loads(found.out)
    auc = {(row["noise"], row["scorer"]): row["auc"] for row in rows}
    assert auc[0, "norm"] > 0.9
    # Squared loss: negatives hardly move a new table, against what sets the sign of this scorer.
    assert abs(auc[0, "direction"] - 0.5) > 0.4
    assert all(abs(auc[100, scorer] - 0.5) < 0.1 for scorer in ("norm", "direction"))
    for run, words in (
        (masks, "masked_sum"),
        (of_users("lightfr"), "votes on their bits"),
        (of_users("fedpergnn"), "noisy"),
    ):
        code, said = attacked(run)
        assert code == 2
        assert "item rows do leave" in said.err
        assert words in said.err
        assert said.err.count("\n") == 1
    code, said = attacked(plain)
    assert code == 2
    assert "no item rows leave" in said.err


def test_a_server_that_is_gone_is_noticed_before_anything_is_built(runs, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr("coterie.llm.experiment.make_backbone", lambda *_: 1 / 0)
    monkeypatch.setattr("coterie.llm.experiment.build", lambda *_: 1 / 0)
    (runs / "secret").write_text("s" * 64)
    split = ["--split.k", "1", "--split.server", f"127.0.0.1:{port}"]
    split += ["--split.secret", str(runs / "secret")]
    since = time.monotonic()
    with pytest.raises(UserError, match=f"no split server answers at .*:{port}"):
        Experiment(settings(runs, *SPLIT, *split)).federation()
    assert time.monotonic() - since < 10


def test_a_run_is_named_by_what_its_method_reads(runs):
    paper = find_paper("pplr")
    for method, named in (
        ("fedmf", False),
        ("lightfr", False),
        ("fedpergnn", False),
        ("pplr", True),
    ):
        assert ("tiny-item" in default_name(paper, settings(runs, "--method", method))) == named
