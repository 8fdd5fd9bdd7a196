"""LightGCN against closed forms and a dense reference."""

import math
from functools import partial

import lightning
import pytest
import torch
from tests.core.pairs_data import PairsData

from coterie.core.methods.ranking.central import Central
from coterie.core.models.lightgcn import LightGCN, normalised_adjacency
from coterie.core.models.mf import MF
from coterie.core.models.recommender import Pairs, Triples
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

KEY = Key.from_seed(8)
EDGES = Ragged.from_lists([[0, 2], [2], [], [1, 2, 4]])
N_ITEMS, DIM = 6, 5  # item 3 and 5 and user 2 have no edge


def model(edges=EDGES, n_items=N_ITEMS, **options) -> LightGCN:
    built = LightGCN(edges, n_items, DIM, KEY, **options).double()
    built.link(edges)
    with torch.no_grad():
        built.start.weight.copy_(KEY.fold("w").normal(*built.start.weight.shape))
    return built


def triples(n=40) -> Triples:
    draw = KEY.fold("triples").fold(torch.arange(3)).uniform(n)
    return Triples((draw[0] * 4).long(), (draw[1] * N_ITEMS).long(), (draw[2] * N_ITEMS).long())


def dense_embedding(built: LightGCN) -> torch.Tensor:
    """E by the formula, entry by entry, from a dense adjacency matrix."""
    n = built.n_users + built.n_items
    a = torch.zeros(n, n, dtype=torch.float64)
    for user, items in enumerate(EDGES.tolists()):
        for item in items:
            a[user, built.n_users + item] = a[built.n_users + item, user] = 1.0
    degree = a.sum(1)
    for i in range(n):
        for j in range(n):
            if a[i, j]:
                a[i, j] /= math.sqrt(degree[i] * degree[j])
    start = built.start.weight
    layers = [torch.matrix_power(a, k) @ start for k in range(built.layers + 1)]
    return torch.stack(layers).mean(0)


@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_embedding_equals_matrix_powers(layers):
    built = model(layers=layers)
    torch.testing.assert_close(torch.cat(built.embed()), dense_embedding(built))


def test_gradient_equals_autograd_through_the_dense_formula():
    built, batch = model(l2=0.3), triples()
    built.loss(batch).backward()
    found = built.start.weight.grad.clone()
    built.start.weight.grad = None
    nodes = dense_embedding(built)
    users, items = nodes[: built.n_users], nodes[built.n_users :]
    p, i, j = users[batch.user], items[batch.positive], items[batch.negative]
    loss = -torch.log(torch.sigmoid((p * (i - j)).sum(1))).mean()
    start = built.start.weight
    rows = [batch.user, built.n_users + batch.positive, built.n_users + batch.negative]
    loss = loss + 0.3 / 2 * sum(start[row].square().sum() for row in rows) / len(batch.user)
    loss.backward()
    torch.testing.assert_close(found, built.start.weight.grad)


def test_no_layers_is_bpr_matrix_factorisation():
    built, batch = model(layers=0, l2=0.02), triples()
    mf = MF(built.n_users, N_ITEMS, DIM, KEY, l2=0.01).double()  # l2 without the half
    with torch.no_grad():
        mf.users.weight.copy_(built.start.weight[: built.n_users])
        mf.items.weight.copy_(built.start.weight[built.n_users :])
    torch.testing.assert_close(built.loss(batch), mf.loss(batch))
    users = torch.tensor([3, 0])
    torch.testing.assert_close(built.item_scores(users), mf.item_scores(users))


def test_a_single_edge_averages_both_ends():
    built = LightGCN(Ragged.from_lists([[0]]), 1, DIM, KEY, layers=1)
    users, items = built.embed()
    torch.testing.assert_close(users, items)
    torch.testing.assert_close(users[0], built.start.weight.mean(0))


def test_a_star_divides_by_the_root_of_two():
    built = LightGCN(Ragged.from_lists([[0, 1]]), 2, DIM, KEY, layers=1)
    user, first, second = built.start.weight
    torch.testing.assert_close(2 * built.embed()[0][0] - user, (first + second) / math.sqrt(2.0))


def test_adjacency_is_symmetric_with_spectral_radius_one():
    dense = normalised_adjacency(EDGES, N_ITEMS).to_dense()
    assert torch.equal(dense, dense.T)
    assert dense.dtype == torch.float64
    assert torch.linalg.eigvalsh(dense).abs().max().item() == pytest.approx(1.0, abs=1e-12)
    twice = normalised_adjacency(Ragged.from_lists([[0, 2, 0], [2], [], [1, 2, 4]]), N_ITEMS)
    assert torch.equal(dense, twice.to_dense())


def test_isolated_nodes_keep_a_share_of_their_start():
    built = model(layers=3)
    users, items = built.embed()
    torch.testing.assert_close(users[2], built.start.weight[2] / 4)
    torch.testing.assert_close(items[5], built.start.weight[built.n_users + 5] / 4)


def test_relabelling_users_and_items_changes_no_score():
    built = model()
    user_of, item_of = torch.tensor([2, 0, 3, 1]), torch.tensor([5, 3, 0, 1, 4, 2])
    rows = EDGES.tolists()
    moved = [[int(item_of.argsort()[i]) for i in rows[u]] for u in user_of.tolist()]
    other = model(Ragged.from_lists(moved))
    nodes = torch.cat([user_of, built.n_users + item_of])
    with torch.no_grad():
        other.start.weight.copy_(built.start.weight[nodes])
    expected = built.item_scores(user_of)[:, item_of]
    torch.testing.assert_close(other.item_scores(torch.arange(4)), expected)


def test_pointwise_batches_and_pairs_agree_with_scores():
    built = model()
    pairs = Pairs(torch.tensor([0, 3]), torch.tensor([4, 1]), torch.tensor([1.0, 0.0]).double())
    score = built.item_scores(torch.arange(4))
    torch.testing.assert_close(built.score(pairs.user, pairs.item), score[pairs.user, pairs.item])
    logit = score[pairs.user, pairs.item]
    expected = (torch.log1p(torch.exp(-logit[0])) + torch.log1p(torch.exp(logit[1]))) / 2
    torch.testing.assert_close(built.loss(pairs), expected)


def test_kept_embedding_follows_the_parameters():
    built = model()
    with torch.no_grad():
        before = built.item_scores(torch.tensor([0]))
        assert built.embed()[0].data_ptr() == built.embed()[0].data_ptr()
        built.start.weight.mul_(2.0)
        torch.testing.assert_close(built.item_scores(torch.tensor([0])), 4 * before)
        built.load_state_dict({"start.weight": built.start.weight / 2})
        torch.testing.assert_close(built.item_scores(torch.tensor([0])), before)
        built.link(Ragged.from_lists([[], [], [], []]))
        users, items = (part / 4 for part in (built.start.weight[:4], built.start.weight[4:]))
        torch.testing.assert_close(built.item_scores(torch.tensor([0])), users[:1] @ items.T)
    assert torch.cat(built.embed()).requires_grad


def test_wrong_graphs_are_refused():
    with pytest.raises(ValueError, match=r"outside 0\.\.1"):
        LightGCN(Ragged.from_lists([[2]]), 2, DIM, KEY)
    with pytest.raises(ValueError, match="1 users for a model of 4"):
        model().link(Ragged.from_lists([[0]]))


def test_learns_groups_under_lightning(recwarn):
    users, groups = torch.arange(60), 4
    order = KEY.fold("items").fold(users).uniform(10).argsort(1)
    items = (users % groups)[:, None] + groups * order
    parts = [
        Ragged.from_pairs(users.repeat_interleave(p.shape[1]), p.flatten(), 60)
        for p in items.split([6, 2, 2], dim=1)
    ]
    data = PairsData(users, *parts, 40, KEY, negatives=1, batch_size=128, objective="pairwise")
    module = Central(LightGCN(parts[0], 40, 8, KEY), partial(torch.optim.Adam, lr=0.02), k=10)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=data)
    (result,) = trainer.test(module, datamodule=data, verbose=False)
    assert result["test/recall@10"] > 0.9  # by chance it would be 10 of 32
