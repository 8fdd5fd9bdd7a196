"""Central and local training by an ordinary Trainer."""

import logging
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import lightning
import pytest
import torch
from tests.core.headed_models import FedNCFHead, HeadedModel
from tests.core.pairs_data import PairsData
from torch import Tensor
from torch.optim import SGD, Adam

from coterie.core.data.interactions.interactions import k_core
from coterie.core.data.interactions.negatives import RankingChunks
from coterie.core.data.interactions.splits import split_block, temporal_blocks
from coterie.core.data.sources.readers import read_ml_100k
from coterie.core.methods.ranking.central import Central, fit_pairwise
from coterie.core.methods.ranking.references import popularity
from coterie.core.metrics.as_torchmetrics import FullRanking
from coterie.core.models.mf import MF
from coterie.core.models.neumf import NeuMF
from coterie.core.models.recommender import Pairs
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

KEY = Key.from_seed(3)
N_USERS, N_ITEMS, N_GROUPS = 60, 40, 4
ADAM = partial(Adam, lr=0.02)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="lightning.pytorch")


def trainer(epochs: int, **options: object) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )


class Record(lightning.Callback):
    """Collect logged values of every epoch."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: lightning.Trainer, _module: object) -> None:
        self.epochs.append({name: x.item() for name, x in trainer.callback_metrics.items()})

    def of(self, name: str) -> list[float]:
        return [epoch[name] for epoch in self.epochs]


def grouped(**options: object) -> PairsData:
    """Users of 4 groups like the 10 items of their group: 6 to train on, 2 and 2 to find."""
    users = torch.arange(N_USERS)
    order = KEY.fold("items").fold(users).uniform(10).argsort(1)
    items = (users % N_GROUPS)[:, None] + N_GROUPS * order
    parts = [
        Ragged.from_pairs(users.repeat_interleave(p.shape[1]), p.flatten(), N_USERS)
        for p in items.split([6, 2, 2], dim=1)
    ]
    return PairsData(users, *parts, N_ITEMS, KEY, batch_size=128, **options)


def ndcg_of(scores: Tensor, data: PairsData) -> float:
    metric = FullRanking(10)
    for batch in data.test_dataloader():
        metric.update(scores.expand(batch.user.numel(), -1), batch.excluded, batch.targets)
    return metric.compute()["ndcg@10"].item()


MODELS = {
    "mf": lambda: MF(N_USERS, N_ITEMS, 8, KEY),
    "neumf": lambda: NeuMF(N_USERS, N_ITEMS, 8, (16, 8), KEY),
    "fedncf": lambda: HeadedModel(FedNCFHead(8, KEY, hidden=8), N_USERS, N_ITEMS, 8, KEY),
}


@pytest.mark.parametrize(
    ("name", "objective", "epochs"),
    [
        ("mf", "pointwise", 15),
        ("mf", "pairwise", 15),
        ("neumf", "pairwise", 15),
        ("fedncf", "pointwise", 25),
    ],
)
def test_training_lowers_the_loss_and_beats_popularity(
    name: str, objective: str, epochs: int
) -> None:
    data, record = grouped(objective=objective), Record()
    module = Central(MODELS[name](), ADAM, k=10)
    run = trainer(epochs, callbacks=[record])
    run.fit(module, datamodule=data)
    losses = record.of("train/loss")
    # What a model that knows the share of positives alone would reach.
    chance = {"pairwise": math.log(2), "pointwise": 0.2 * math.log(5) + 0.8 * math.log(1.25)}
    assert losses[-1] < 0.85 * chance[objective]
    assert losses[-1] < losses[0]
    (result,) = run.test(module, datamodule=data, verbose=False)
    names = ("ndcg@10", "recall@10", "hr@10", "mrr@10", "ndcg@10_worst10")
    assert set(result) == {f"test/{name}" for name in names}
    assert module.test_ranking.per_client().ndcg.numel() == N_USERS
    best_trivial = ndcg_of(popularity(data.rows.train, N_ITEMS), data)
    assert result["test/ndcg@10"] > 2 * best_trivial
    assert record.of("eval/ndcg@10")[-1] > record.of("eval/ndcg@10")[0]


def test_logged_validation_equals_the_metric_by_hand() -> None:
    data, record = grouped(chunk_size=7), Record()
    module = Central(MODELS["mf"](), ADAM, k=5)
    trainer(2, callbacks=[record]).fit(module, datamodule=data)
    metric = FullRanking(5)
    with torch.no_grad():
        metric.update(module.model.item_scores(data.rows.ids), data.rows.train, data.rows.valid)
    for name, value in metric.compute().items():
        assert record.epochs[-1][f"eval/{name}"] == pytest.approx(value.item(), abs=1e-6)
    worst = metric.per_client().ndcg.sort().values[: N_USERS // 10].mean().item()
    assert record.epochs[-1]["eval/ndcg@5_worst10"] == pytest.approx(worst, abs=1e-6)


@pytest.mark.parametrize("epochs", [1, 40])
def test_the_model_that_is_kept_has_the_score_it_is_kept_for(epochs: int) -> None:
    data = grouped()
    users, rows = torch.arange(N_USERS), data.rows
    chunks = RankingChunks(users, rows.train, rows.valid, 16)
    model = MODELS["mf"]()
    settings = SimpleNamespace(lr=0.1, batch_size=128, patience=3)
    given = settings, epochs, users, rows.train, KEY.fold("kept"), chunks, "ndcg@3"
    trained, score = fit_pairwise(model, *given)
    metric = FullRanking(3)
    with torch.no_grad():
        metric.update(model.item_scores(users), rows.train, rows.valid)
    assert score > 0
    assert metric.compute()["ndcg@3"].item() == pytest.approx(score, abs=1e-6)
    assert epochs == 1 or trained < epochs, "the best epoch is not the last"


def test_sgd_steps_equal_a_loop_by_hand() -> None:
    """Two epochs of Trainer.fit against plain parameter updates with fresh negatives."""
    data = grouped()
    module = Central(MF(N_USERS, N_ITEMS, 4, KEY).double(), partial(SGD, lr=2.0))
    twin = MF(N_USERS, N_ITEMS, 4, KEY).double()
    trainer(2, limit_val_batches=0).fit(module, datamodule=data)
    p, q = twin.users.weight.detach().clone(), twin.items.weight.detach().clone()
    for epoch in range(2):
        pairs = data.batches.draw(epoch)
        for index in torch.arange(data.batches.n_pairs).split(128):
            batch = Pairs(*(part[index] for part in pairs))
            logit = (p[batch.user] * q[batch.item]).sum(1)
            pull = (torch.sigmoid(logit) - batch.label)[:, None] / index.numel()
            dp = torch.zeros_like(p).index_add_(0, batch.user, pull * q[batch.item])
            dq = torch.zeros_like(q).index_add_(0, batch.item, pull * p[batch.user])
            p, q = p - 2.0 * dp, q - 2.0 * dq
    torch.testing.assert_close(module.model.users.weight.detach(), p, atol=1e-12, rtol=0)
    torch.testing.assert_close(module.model.items.weight.detach(), q, atol=1e-12, rtol=0)


def test_every_epoch_draws_fresh_negatives() -> None:
    seen: list[list[int]] = []

    class Spy(Central):
        def training_step(self, batch: Pairs) -> Tensor:
            if self.trainer.is_last_batch:
                seen.append(batch.item.tolist())
            return super().training_step(batch)

    trainer(3, limit_val_batches=0).fit(Spy(MODELS["mf"](), ADAM), datamodule=grouped())
    assert len(seen) == 3
    assert seen[0] != seen[1] != seen[2]


def test_runs_repeat_bit_by_bit() -> None:
    weights = []
    for _ in range(2):
        module = Central(MODELS["mf"](), ADAM)
        trainer(2).fit(module, datamodule=grouped())
        weights.append(module.model.items.weight.detach().clone())
        torch.rand(7)
    assert torch.equal(*weights)


def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """Negatives follow the number of the epoch, not that of the process's iterations."""
    straight, first, resumed = (Central(MODELS["mf"](), ADAM) for _ in range(3))
    trainer(4).fit(straight, datamodule=grouped())
    run = trainer(2)
    run.fit(first, datamodule=grouped())
    run.save_checkpoint(tmp_path / "two.ckpt")
    trainer(4).fit(resumed, datamodule=grouped(), ckpt_path=str(tmp_path / "two.ckpt"))
    wanted, found = straight.state_dict(), resumed.state_dict()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


def test_local_training_of_one_client() -> None:
    """One user's model on one user's data; the datamodule sees nobody else."""
    whole = grouped()
    one = torch.tensor([5])
    parts = [part.take(one) for part in (whole.rows.train, whole.rows.valid, whole.rows.test)]
    data = PairsData(torch.tensor([0]), *parts, N_ITEMS, KEY, batch_size=16)
    module, record = Central(MF(1, N_ITEMS, 8, KEY), ADAM), Record()
    trainer(20, callbacks=[record]).fit(module, datamodule=data)
    assert record.of("train/loss")[-1] < 0.5 * record.of("train/loss")[0]
    positives = module.model.item_scores(torch.tensor([0]))[0, parts[0].values]
    assert (positives > 0).all()


def test_validation_without_targets_logs_nothing() -> None:
    data = grouped()
    none = Ragged.from_lists([[] for _ in range(N_USERS)])
    data, run = PairsData(data.rows.ids, data.rows.train, none, none, N_ITEMS, KEY), trainer(1)
    run.fit(Central(MODELS["mf"](), ADAM), datamodule=data)
    assert set(run.callback_metrics) == {"train/loss"}


def test_diverged_training_is_refused_by_the_ranking() -> None:
    module = Central(MODELS["mf"](), partial(SGD, lr=1e30))
    with pytest.raises(ValueError, match="are NaN or infinite"):
        trainer(3).fit(module, datamodule=grouped())


@pytest.mark.real_data
def test_central_mf_beats_popularity_on_movielens(data_root: Path) -> None:
    """ML-100K, the F³CRec base block; its paper's Table 1 counts 587 users and 1,136 items."""
    stream = temporal_blocks(k_core(read_ml_100k(data_root / "ml-100k"), 10))
    block = stream.blocks[0]
    assert (block.n_users, block.n_items) == (587, 1136)
    split = split_block(stream, block, "random", 0)
    data = PairsData(
        split.ids, split.train, split.valid, split.test, block.n_items, KEY, batch_size=4096
    )
    module = Central(MF(block.n_users, block.n_items, 16, KEY), partial(Adam, lr=0.01))
    run = trainer(5)
    run.fit(module, datamodule=data)
    (result,) = run.test(module, datamodule=data, verbose=False)
    metric = FullRanking(20)
    for batch in data.test_dataloader():
        scores = popularity(split.train, block.n_items).expand(batch.user.numel(), -1)
        metric.update(scores, batch.excluded, batch.targets)
    assert result["test/ndcg@20"] > 1.3 * metric.compute()["ndcg@20"].item() > 0.15
