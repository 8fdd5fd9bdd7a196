"""Each client's own counts: in its scores, in no adapter, their strength by validation."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from safetensors.torch import load_file
from tests.llm.exported import export_adapter
from tests.llm.organisations import N_ITEMS, cohort_of, organisations

from coterie.core.errors import UserError
from coterie.core.metrics.as_torchmetrics import FullRanking
from coterie.core.registry.papers import find_paper
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tensors.keys import Key
from coterie.core.training.train import train
from coterie.llm.algorithm import PPLR
from coterie.llm.backbone_settings import ExpertSettings, LoraSettings, ModelSettings
from coterie.llm.backbones.expert import make_expert
from coterie.llm.backbones.tiny_item import TinyItem
from coterie.llm.client import Organisation
from coterie.llm.data.catalogue import Catalogue
from coterie.llm.experiment import Experiment
from coterie.llm.export import EXPERT
from coterie.llm.messages import Candidate, StrengthReport, Strengths
from coterie.llm.own_counts import STRENGTHS, ask_strength, compare, own_counts
from coterie.llm.readings import resolve
from coterie.llm.settings import FederatedDataSettings, Settings
from coterie.llm.tables.references import start_run
from coterie.llm.trained_run import TrainedRun

KEY = Key.from_seed(0)
TITLES = [f"item {n}" for n in range(N_ITEMS)]
ITEMS = Catalogue(N_ITEMS, "test", titles=TITLES, popularity=[3] * N_ITEMS)


def made(expert="both", counts="own", own=None, **more):
    """An organisation over random data, and its settings."""
    how = resolve(
        Settings(
            model=ModelSettings(expert=expert),
            expert=ExpertSettings(counts=counts, own=own, scale=3.0),
            data=FederatedDataSettings(clients=3, max_history=4, span=4),
            **more,
        )
    )
    backbone = TinyItem(N_ITEMS, width=8, layers=2, heads=2, context=4, key=KEY)
    backbone.add_lora(LoraSettings(rank=2, dropout=0.0), KEY)
    backbone.expert = make_expert(expert, ITEMS, how.expert)
    return Organisation(how, backbone), how


@pytest.mark.parametrize("split", ["valid", "test"])
def test_counts_are_of_the_clients_users_before_what_is_asked(split):
    data = organisations()[1]
    counted = Counter(data.had.tolist())
    if split == "test":
        counted.update(data.newer.tolist())
    expected = [math.log1p(counted[item]) for item in range(N_ITEMS)]
    assert own_counts(data, split, N_ITEMS).tolist() == pytest.approx(expected)
    assert len(set(expected)) > 1


def plain_scores(client, history):
    client.load(client.start)
    return client.backbone.scores(history)


@pytest.mark.parametrize("expert", ["titles", "popularity", "both"])
def test_a_client_ranks_by_its_own_counts(expert):
    client, _ = made(expert)
    for data in map(organisations().__getitem__, range(3)):
        for split in ("valid", "test"):
            queries = getattr(data, split)
            asked = Candidate(client.start, split, own=0.7)
            report, _ = client.evaluate(asked, client.enrol(data, KEY), data, KEY)
            scores = plain_scores(client, queries.history)
            scores = scores + 3.0 * 0.7 * own_counts(data, split, N_ITEMS)
            metric = FullRanking(k=10)
            metric.update(scores, queries.seen, queries.targets)
            found = metric.compute()
            assert float(report.recall[0]) == pytest.approx(float(found["recall@10"]))
            assert float(report.ndcg[0]) == pytest.approx(float(found["ndcg@10"]))


def test_they_are_of_the_client_whose_turn_it_is():
    """And of nobody where no strength is said."""
    client, _ = made()
    data, history = organisations(), organisations()[0].test.history
    before = plain_scores(client, history)
    own = [client.own_bias(0.5, data[c], "test") for c in range(3)]
    scores = [client.score(c, client.start, history, own=own[c]) for c in range(3)]
    for c in range(3):
        torch.testing.assert_close(scores[c], (before + 3.0 * own[c]).float())
    assert not torch.equal(own[0], own[1])
    assert torch.equal(client.score(1, client.start, history), before)
    assert client.own_bias(0.0, data[0], "test") is None


def test_they_are_in_no_adapter_and_nothing_that_is_sent():
    client, _ = made()
    names = client.adapter.names
    client.load(client.start, own=torch.ones(N_ITEMS))
    assert not [n for n in (*names, *client.backbone.state_dict()) if n.endswith("own")]
    assert client.adapter.size == client.start.numel()
    assert torch.equal(client.adapter.row(), client.start)


class Answers:
    """A cohort of clients whose users' recalls are known, ``(n, 5)`` each."""

    def __init__(self, clients):
        self.ids, self.clients = torch.arange(len(clients)), clients

    def ask(self, step, down):
        assert step.name == "weigh"
        ups = {}
        for c, users in enumerate(self.clients):
            found = compare(torch.tensor(users, dtype=torch.float64).reshape(-1, 5).T)
            ups[c] = StrengthReport(found.recall, found.squares, torch.tensor(found.users))
        return type("Replies", (), {"ups": ups})


def asked(clients):
    return ask_strength(Answers(clients), torch.zeros(len(clients), 1))


GOOD, LATE = [0.1, 0.2, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.9, 0.1]
DIVERGED = [[math.inf] * 5] * 4


@pytest.mark.parametrize(
    ("clients", "place"),
    [
        ([[GOOD], [GOOD, [0.5, 0.4, 0.38, 0.1, 0.1]]], 0),  # gains of .2, .2, -.12: by chance
        ([[GOOD] * 9, [[0.5, 0.4, 0.1, 0.1, 0.1]]], 2),
        ([[[0.1, 0.2, 0.2, 0.2, 0.1]] * 3], 1),  # of equal ones the least
        ([[[0.5, 0.4, 0.3, 0.2, 0.1]] * 9], 0),
        ([[GOOD]], 0),  # one user has no spread
        ([[], [LATE] * 2], 3),
        ([[], []], 0),
        ([DIVERGED, [LATE] * 2], 3),
        ([DIVERGED], 0),
    ],
)
def test_the_strength_is_that_of_the_best_validation_of_all_users(clients, place):
    assert asked(clients) == STRENGTHS[place]


def test_a_strength_is_chosen_where_it_gains_more_than_its_standard_error():
    found = []
    for seed in range(20):
        made = np.random.default_rng(seed)
        users = made.normal(0.3, 0.1, (30, 5)) + made.choice([0.0, 0.02], 5)
        gains = (users - users[:, :1])[:, 1:]
        best = int(gains.mean(0).argmax())
        good = gains[:, best].mean() > scipy.stats.sem(gains[:, best])
        assert asked([users[:4], users[4:]]) == (STRENGTHS[best + 1] if good else 0.0)
        found.append(good)
    assert 3 < sum(found) < 17


def test_the_gain_of_one_user_is_its_standard_error_however_users_are_shared_out():
    plain, gains = [0.1] * 5, [0.1, 0.1, 0.6, 0.1, 0.1]
    for n in range(2, 130):
        users = [gains] + [plain] * (n - 1)
        assert asked([users]) == asked([users[: n // 3], users[n // 3 :]]) == 0.0
        assert asked([users[1:], [gains, gains]]) > 0  # above: the root of 2 errors


def test_what_a_client_reports_is_its_validation_with_each_strength():
    client, _ = made()
    data = organisations(users=(9, 9, 9))[1]
    down = Strengths(client.start, torch.tensor(STRENGTHS, dtype=torch.float64))
    report, _ = client.weigh(down, client.enrol(data, KEY), data, KEY)
    assert int(report.users) == len(data.valid) > 1
    recalls = []  # of each user alone
    for user in range(len(data.valid)):
        alone = replace(data, valid=data.valid.take(torch.tensor([user])))
        asked = [Candidate(client.start, "valid", own=strength) for strength in STRENGTHS]
        each = [client.evaluate(one, client.enrol(data, KEY), alone, KEY)[0] for one in asked]
        recalls.append([float(one.recall[0]) for one in each])
    users = np.array(recalls)
    assert report.recall.tolist() == pytest.approx(users.mean(0))
    gains = users - users[:, :1]
    assert report.squares.tolist() == pytest.approx((gains**2).mean(0))
    assert gains.any()


def test_a_client_without_users_to_validate_on_is_not_refused():
    client, how = made()
    data = organisations(users=(3, 0, 4))
    cohort = cohort_of(client, data)
    server = PPLR(how, 3, client.start)
    state = server.start_block(server.begin(KEY), 0, cohort, KEY)
    assert cohort.journal.refused == []
    assert state.own in STRENGTHS


def test_a_strength_that_is_given_is_not_asked_for():
    client, how = made(own=0.2)
    server, cohort = PPLR(how, 3, client.start), cohort_of(client, organisations())
    assert server.start_block(server.begin(KEY), 0, cohort, KEY).own == 0.2
    assert "weigh" not in {row["step"] for row in cohort.ledger.rows()}


FLAGS = ["--data.partition", "shops", "--data.skew", "0.1", "--rounds", "2", "--data.clients", "3"]
FLAGS += ["--pretrain.steps", "5", "--model.expert", "both", "--data.shots", "60"]
FLAGS += ["--expert.words", "[genres]", "--model.width", "8", "--model.layers", "1"]


def experiment(tmp_path, *more):
    words = [*FLAGS, "--run.out", str(tmp_path), "--logger.wandb", "off", *more]
    return Experiment(configure(find_paper("pplr"), words).settings)


@pytest.mark.parametrize("counts", ["own", "both"])
def test_a_run_goes_on_with_its_strength_and_recommends_by_it(tmp_path, counts):
    made = experiment(tmp_path, "--expert.counts", counts)
    whole, later = (FederatedRun(made.federation()) for _ in "ab")
    whole.advance()
    assert whole.server_state.own > 0  # in shops
    later.load_plain(whole.to_plain())
    for run in (whole, later):
        while not run.finished:
            run.advance()
    assert later.results == whole.results
    data = made.data
    user = data.clients.test[1].user[:1]
    [(_, scores)] = made.score_users(whole, user)
    counted = whole.server_state.own * own_counts(data.clients[1], "test", data.n_items)
    whole.server_state = replace(whole.server_state, own=0.0)
    [(_, bare)] = made.score_users(whole, user)
    scale = made.settings.expert.scale
    torch.testing.assert_close(scores - bare, (scale * counted).float()[None], atol=1e-4, rtol=0)


def test_counts_that_are_only_own_leave_the_bias_alone(tmp_path):
    """It starts from nothing, and nobody is asked for counts."""
    made = experiment(tmp_path, "--expert.counts", "own")
    assert not bool(made.backbone.expert.bias.any())
    run = FederatedRun(made.federation())
    run.advance()
    assert "count" not in {row["step"] for row in run.ledger.rows()}
    assert run.server_state.counts is None


def test_the_untrained_row_of_the_tables_is_what_a_run_starts_from(tmp_path):
    for counts in ("public", "both"):
        more = ["--train.lr", "1e-12", "--engine.dtype", "float64"]
        made = experiment(tmp_path, "--expert.counts", counts, *more)
        run = FederatedRun(made.federation())
        while not run.finished:
            run.advance()
        found = start_run(made.settings)
        for name in ("recall@10", "ndcg@20"):
            start = run.history[0][f"start/{name}"]
            assert found.metrics[f"valid/{name}"] == pytest.approx(start, rel=1e-9)
        # Steps of 1e-12 change no rank.
        assert found.metrics["test/recall@10"] == pytest.approx(run.results["test/recall@10"])


def test_an_export_has_them(tmp_path):
    made = experiment(
        tmp_path, "--expert.counts", "both", "--model.trained", "lora", "--run.name", "a"
    )
    train(
        find_paper("pplr"), replace(made.settings, run=replace(made.settings.run, progress=False))
    )
    trained = TrainedRun(tmp_path / "pplr" / "a")
    backbone = trained.backbone(1)
    counted = backbone.expert.own.clone()
    assert bool(counted.any())
    examples = trained.examples(1, 4)
    export_adapter(backbone, examples, made.interactions, tmp_path / "there")
    written = load_file(tmp_path / "there" / EXPERT)["own"]
    assert torch.equal(written, counted)
    assert torch.equal(backbone.expert.own, counted)


def test_a_backbone_by_itself_has_none(tmp_path):
    made = experiment(tmp_path, "--expert.counts", "own")
    with pytest.raises(UserError, match=r"'expert\.counts' own is of clients"):
        made.standalone(1, None)


def test_settings_without_effect_are_refused():
    for expert, counts, own, said in (
        ("none", "own", None, "'expert.counts' own has no effect without an expert"),
        ("both", "public", 0.2, "'expert.own' has no effect with the counts public"),
        ("titles", "both", None, "no effect with the expert titles"),
    ):
        with pytest.raises(UserError, match=said):
            made(expert, counts, own)
    with pytest.raises(UserError, match="both does not go with fedavg-head"):
        made("both", "both", method="fedavg-head")
    made("both", "own", method="fedavg-head")
