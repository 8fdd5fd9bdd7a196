"""The two stages of fine-tuning a RecFormer: item embeddings anew in every round, then frozen."""

import io
import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.llm.every_backbone import make
from tests.llm.exported import read_adapter
from tests.llm.organisations import organisations, settings

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.federation.selection import BestRound
from coterie.core.privacy.check import assert_non_interference
from coterie.core.registry.papers import find_paper
from coterie.core.run.driver import FederatedRun
from coterie.core.run.serving import open_run
from coterie.core.settings.sections import LoggerSettings, RunSettings
from coterie.core.tensors.keys import Key
from coterie.core.tensors.saved import save
from coterie.core.training.opening import reopened
from coterie.core.training.train import train
from coterie.llm.algorithm import PPLR
from coterie.llm.backbone import halves_of
from coterie.llm.backbone_settings import ModelSettings, PretrainSettings, SplitSettings
from coterie.llm.client import Organisation
from coterie.llm.data.examples import newest
from coterie.llm.messages import Adapters
from coterie.llm.quality import measure_users
from coterie.llm.ranks_with import frozen_items
from coterie.llm.readings import resolve
from coterie.llm.settings import FederatedDataSettings, Settings, TrainSettings
from coterie.llm.trained_run import TrainedRun

pytestmark = pytest.mark.usefixtures("rounds_alone")

# All twelve items but the history are within the first ten, so Recall@10 is 1 in every round: the
# first round is the best, and patience decides when a stage ends.
LONG = {"patience": 9, "train": {"lr": 0.02, "patience_frozen": 9}}
PATIENCE = {"rounds": 9, "patience": 2, "train": {"lr": 0.02, "patience_frozen": 3}}


def data():
    return organisations(sizes=(5, 3, 4), users=(2, 1, 1))


def module(k=None, dtype=torch.float64, **more):
    chosen = settings(
        model=ModelSettings(name="recformer"), split=SplitSettings(k=k), **(PATIENCE | more)
    )
    model = make("recformer", rank=None).to(dtype)
    halves = halves_of(model, chosen)
    client = Organisation(chosen, model, halves.channel if halves else None)
    return FederatedRun(
        Federation(
            server=PPLR(chosen, 3, client.adapter.row(), halves),
            client=client,
            blocks=[data()],
            seed=5,
            rounds=18,
            monitor=PPLR.monitor,
        )
    )


@pytest.fixture(scope="module")
def ended():
    """A whole run and a split one, each with its states after the rounds, and what resumes it;
    what was seen of the whole one after each round: clients' catalogues, and the stage if told."""
    found = {"seen": []}
    for k in (None, 1):
        one, states, plains = module(k), [], []
        while not one.finished:
            states += run(one, 1)
            plains.append(plain(one))
            if k is None:
                found["seen"].append((catalogues(one), one.journal.scalars.get("fed/stage")))
        found[k] = one, states, plains
    return found


def run(one, rounds=99):
    """Advance; give the server's states after the rounds."""
    found = []
    while not one.finished and len(found) < rounds:
        one.advance()
        found.append(one.server_state)
    return found


def plain(one):
    """What a checkpoint has of a run, as bytes."""
    file = io.BytesIO()
    torch.save(one.to_plain(), file)
    return file.getvalue()


def resumed(data, k=None, **more):
    """A new run that goes on from there."""
    one = module(k, **more)
    one.load_plain(torch.load(io.BytesIO(data), weights_only=False))
    return one


def catalogues(one):
    return [one.store.take(torch.tensor([client])).catalogue for client in range(3)]


def expected_catalogue(row):
    model = make("recformer", rank=None).double()
    client = Organisation(settings(), model)
    client.load(row)
    return model.catalogue()


def test_stage_2_goes_on_from_the_best_round_with_frozen_items(ended):
    _, states, _ = ended[None]
    assert [state.stage for state in states[:3]] == [1, 1, 1]
    assert not torch.equal(states[2].rows, states[0].rows)
    for before, after in pairwise(states[2:]):
        assert not torch.equal(after.rows, before.rows)
    kept, stages = zip(*ended["seen"], strict=True)
    assert kept[:3] == ([None] * 3,) * 3
    assert stages[3:] == (2, 2, 2)  # the patience of stage 2 counts from its beginning
    assert states[-1].began == 3
    kept = kept[3:]
    for client in range(3):
        torch.testing.assert_close(
            kept[0][client], expected_catalogue(states[0].rows[client]), rtol=0, atol=0
        )
        assert all(torch.equal(later[client], kept[0][client]) for later in kept)
    assert not torch.equal(kept[0][0], kept[0][1])


def test_the_first_round_of_stage_2_trains_from_the_best_rows(ended):
    one, first, _ = ended[None]
    again = module(train=PATIENCE["train"] | {"stages": 1})
    again.server_state = replace(first[2], rows=first[0].rows, chosen=BestRound(3))
    again.block, again.block_open, again.block_round = 0, True, 3
    again.exchange = one.exchange  # with the items frozen
    again.advance()
    assert torch.equal(again.server_state.rows, first[3].rows)
    assert not torch.equal(first[0].rows, first[2].rows)


def test_one_stage_ends_by_the_patience_of_the_first():
    one = module(train=PATIENCE["train"] | {"stages": 1})
    assert len(run(one)) == 3
    assert catalogues(one) == [None] * 3
    assert "fed/stage" not in one.journal.scalars


def test_the_rounds_of_stage_1_can_be_used_up():
    one = module(rounds=1)
    assert [state.stage for state in run(one)] == [1, 2]
    assert one.results["test/best_round"] == 1


@pytest.mark.parametrize(("after", "k"), [(3, None), (4, None), (3, 1), (5, 1)])
def test_a_run_resumed_in_stage_2_ends_as_one_that_was_not(after, k, ended):
    whole, states, plains = ended[k]
    later = resumed(plains[after - 1], k)
    assert torch.equal(run(later)[-1].rows, states[-1].rows)
    assert later.results == whole.results
    assert all(map(torch.equal, catalogues(later), catalogues(whole)))


@pytest.fixture(scope="module")
def long():
    """What resumes a run of three rounds a stage, after each of its rounds."""
    one, found = module(rounds=3, **LONG), []
    while not one.finished:
        run(one, 1)
        found.append(plain(one))
    return found


@pytest.mark.parametrize(
    ("done", "wanted", "why"),
    [
        (2, 4, None),
        (2, 2, None),  # a run of 2 would begin its second stage now too
        (2, 1, "it has done 2 already"),
        (3, 4, None),  # the first stage is over, but the second has not begun
        (4, 5, "its first stage of fine-tuning had another number"),
        (4, 3, "its first stage of fine-tuning had another number"),
        (6, 2, "its first stage of fine-tuning had another number"),
        (6, 5, "what was done at the end of its last round cannot be taken back"),
    ],
)
def test_another_number_of_rounds_is_refused_from_stage_2_on(tmp_path, long, done, wanted, why):
    first = resumed(long[done - 1], rounds=3, **LONG)
    save({"federation": first.to_plain()}, tmp_path / "checkpoints" / "last.ckpt")
    later = module(rounds=wanted, **LONG).federation
    if why is None:
        assert not reopened(later, tmp_path, wanted)
        return
    # A complete run has nothing to go on with; any other goes on without the flag.
    leave = "" if first.finished else "leave the flag out, or "
    told = f"with 'rounds' {wanted}: {why}; {leave}start a new run"
    with pytest.raises(UserError, match=told):
        reopened(later, tmp_path, wanted)


def both(state):
    """The rows of both halves."""
    return torch.cat([state.rows, state.middle.part.rows], dim=1)


def steps(state):
    return int(state.middle.part.optimizer.steps[0])


def test_a_split_run_goes_through_both_stages_as_the_whole_one(ended):
    (whole, states, _), (split, halves, _) = ended[None], ended[1]
    assert len(states) == len(halves) == 6
    for mine, theirs in zip(catalogues(whole), catalogues(split), strict=True):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(states[-1].rows.sum(1), both(halves[-1]).sum(1))
    assert torch.equal(halves[-1].best, halves[0].rows)


def test_the_optimizer_of_both_halves_starts_anew_in_stage_2():
    kept = LONG | {"rounds": 2, "train": LONG["train"] | {"keep_optimizer": True}}
    (whole, split) = (module(k, **kept) for k in (None, 1))
    mine, theirs = run(whole), run(split)
    assert [state.stage for state in mine] == [state.stage for state in theirs]
    assert mine[-1].stage == 2
    assert len(theirs) == 4
    assert steps(theirs[1]) == steps(theirs[-1])  # 2 rounds each
    # Adam makes whole steps of gradients that are rounding alone.
    torch.testing.assert_close(mine[-1].rows.sum(1), both(theirs[-1]).sum(1), rtol=1e-5, atol=0)


def unscored(state):
    """The best round as if nothing had been measured in it."""
    return BestRound(state.chosen.round)


def best_in_stage(plains, stage, k):
    """A finished run whose best round is of that stage."""
    one = resumed(plains[2 if stage == 2 else -1], k)
    if stage == 2:  # after the last round of the first
        one.server_state = replace(one.server_state, chosen=unscored(one.server_state))
        run(one)
    assert one.server_state.best_stage == stage
    return one


@pytest.mark.parametrize("k", [None, 1])
@pytest.mark.parametrize("stage", [1, 2])
def test_what_is_served_scores_as_the_test_did(stage, k, ended):
    one = best_in_stage(ended[k][2], stage, k)
    client, server, state = one.federation.client, one.federation.server, one.server_state
    for number, queries in enumerate(data().test):
        items = frozen_items(one, number)
        assert (items is not None) == (stage == 2)
        row = server.served(state, number)
        values = measure_users(
            lambda part, n=number, r=row, i=items: client.score(n, r, part.history, i), queries
        )
        tested = one.client_results["test/ndcg@10"][1][number]
        assert float(values["ndcg@10"].mean()) == float(tested)
    assert one.retest()["test/ndcg@10"] == one.results["test/ndcg@10"]


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A short run on the sample whose best round is of stage 2."""
    real = PPLR._next_stage

    def from_nothing(self, state, cohort):
        begun = real(self, state, cohort)
        return replace(begun, chosen=unscored(begun))

    monkeypatch.setattr(PPLR, "_next_stage", from_nothing)
    chosen = Settings(
        rounds=1,
        model=ModelSettings("recformer", trained="lora", layers=1, width=16, context=32),
        data=FederatedDataSettings(shots=60, max_history=3, span=3),
        pretrain=PretrainSettings(steps=3),
        logger=LoggerSettings(wandb="off"),
        run=RunSettings(out=str(tmp_path), name="a", progress=False),
    )
    train(find_paper("pplr"), chosen)
    return tmp_path / "pplr" / "a"


def test_a_saved_run_scores_and_exports_as_it_was_tested(saved, tmp_path):
    experiment, one = open_run(saved)
    assert one.server_state.best_stage == 2
    results = json.loads((saved / "summary.json").read_text())["metrics"]
    assert one.retest()["test/ndcg@20"] == results["test/ndcg@20"]
    user = int((experiment.data.client_of == 1).nonzero()[0])
    [(_, scores)] = experiment.score_users(one, torch.tensor([user]))
    history = newest(experiment.data.split.before_test().take(torch.tensor([user])), 3)
    client, row = one.federation.client, one.server_state.best[1]
    assert torch.equal(client.score(1, row, history, catalogues(one)[1]), scores)
    assert not torch.equal(client.score(1, row, history), scores)
    trained = TrainedRun(saved)
    assert torch.equal(trained.backbone(1).scores(history), scores)
    argv = ["llm", "export", "--run", str(saved), "--client", "1", "--to", str(tmp_path / "e")]
    assert main(argv) == 0
    fresh = trained.start()
    read_adapter(tmp_path / "e", fresh)
    assert torch.equal(fresh.scores(history), scores)


def test_item_embeddings_never_leave(ended):
    one, states, _ = ended[None]
    rows = [row for row in one.ledger.rows() if row["step"] == "freeze"]
    assert {row["direction"] for row in rows} == {"down"}
    mine, client = one.store.take(torch.tensor([1])), one.federation.client
    alone, key = data()[1], Key.from_seed(1).fold(1)
    down = Adapters(states[-1].rows[1])
    assert_non_interference(client, "update", down, mine, alone, key)


def test_stages_that_a_backbone_has_not_are_refused():
    with pytest.raises(UserError, match=r"'train\.stages' is 2, but fine-tuning of tiny-item"):
        resolve(Settings(train=TrainSettings(stages=2)))
    assert resolve(Settings()).train.stages == 1
    recformer = Settings(model=ModelSettings(name="recformer"))
    assert resolve(recformer).train.stages == 2
