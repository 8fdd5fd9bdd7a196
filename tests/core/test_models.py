"""Models: closed-form gradients, invariances, and shapes."""

import math

import pytest
import torch
from tests.core.headed_models import FedMFHead, FedNCFHead, HeadedModel, PFedRecHead
from torch import nn
from torch.func import functional_call, vmap

from coterie.core.models.mf import MF
from coterie.core.models.neumf import GMF, MLP, NeuMF
from coterie.core.models.recommender import Pairs, Recommender, Triples, bpr
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(5)
USERS, ITEMS, DIM = 4, 6, 4
MODELS = {
    "mf": lambda key: MF(USERS, ITEMS, DIM, key),
    "biased mf": lambda key: MF(USERS, ITEMS, DIM, key, biases="additive"),
    "gmf": lambda key: GMF(USERS, ITEMS, DIM, key),
    "mlp": lambda key: MLP(USERS, ITEMS, (2 * DIM, 4, 3), key),
    "neumf": lambda key: NeuMF(USERS, ITEMS, DIM, (2 * DIM, 4), key),
    "fedmf": lambda key: HeadedModel(FedMFHead(), USERS, ITEMS, DIM, key),
    "fedncf": lambda key: HeadedModel(FedNCFHead(DIM, key), USERS, ITEMS, DIM, key),
    "fedncf hidden": lambda key: HeadedModel(FedNCFHead(DIM, key, 2), USERS, ITEMS, DIM, key),
    "pfedrec": lambda key: HeadedModel(PFedRecHead(DIM, key), USERS, ITEMS, DIM, key),
}


def spread(model: Recommender, key: Key = KEY) -> Recommender:
    """Parameters of order one in float64: at N(0, 0.01²) all scores are about 0."""
    model.double()
    with torch.no_grad():
        for index, value in enumerate(model.parameters()):
            value.copy_(key.fold("spread", index).normal(*value.shape, dtype=torch.float64))
    return model


@pytest.fixture(params=MODELS)
def build(request: pytest.FixtureRequest):
    return MODELS[request.param]


def test_start_depends_on_the_key_alone(build) -> None:
    before = torch.random.get_rng_state()
    first = build(KEY).state_dict()
    torch.rand(3)
    again, other = build(KEY).state_dict(), build(Key.from_seed(6)).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    torch.random.set_rng_state(before)
    build(KEY)
    assert torch.equal(before, torch.random.get_rng_state())


def test_tables_start_from_a_narrow_normal() -> None:
    model = NeuMF(2000, 10, 16, (32, 8), KEY)
    for table in (model.gmf.users, model.mlp.users):
        assert table.weight.mean().item() == pytest.approx(0, abs=3e-4)
        assert table.weight.std().item() == pytest.approx(0.01, rel=0.03)
    assert not torch.equal(model.gmf.users.weight, model.mlp.users.weight)


def test_item_scores_equal_scores_of_pairs(build) -> None:
    model = spread(build(KEY))
    users = torch.tensor([3, 0, 3])
    one_by_one = [[model.score(u, torch.tensor(i)).item() for i in range(ITEMS)] for u in users]
    expected = torch.tensor(one_by_one, dtype=torch.float64)
    torch.testing.assert_close(model.item_scores(users), expected)
    grid = model.score(users[:, None], torch.arange(ITEMS))
    torch.testing.assert_close(grid, expected)


def test_pointwise_loss_and_gradient_equal_the_closed_form(build) -> None:
    """dL/ds of mean BCE is (sigmoid(s) - y) / B; the rest is the chain rule through score."""
    model = spread(build(KEY))
    user, item = torch.tensor([0, 1, 1, 3]), torch.tensor([5, 0, 0, 2])
    label = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    parameters = list(model.parameters())
    score = model.score(user, item)
    p = 1 / (1 + (-score).exp())
    expected = -(label * p.log() + (1 - label) * (1 - p).log()).mean()
    loss = model.loss(Pairs(user, item, label))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pull = (p - label).detach() / 4
    wanted = torch.autograd.grad(score, parameters, pull, allow_unused=True)
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, atol=1e-12)


def test_rows_outside_the_batch_have_no_gradient(build) -> None:
    model = spread(build(KEY))
    pairs = Pairs(torch.tensor([1]), torch.tensor([2]), torch.ones(1, dtype=torch.float64))
    model.loss(pairs).backward()
    for part in model.modules():
        if isinstance(part, nn.Embedding) and part.weight.grad is not None:
            row = 2 if part.num_embeddings == ITEMS else 1
            others = [i for i in range(part.num_embeddings) if i != row]
            assert not part.weight.grad[others].any()


def test_mf_gradient_by_hand() -> None:
    """s = <p, q> + b_u + b_i + m; dL/dp = (sigmoid(s) - y) q, and so on."""
    model = spread(MF(1, 1, 3, KEY, biases="additive"))
    zero = torch.tensor([0])
    model.loss(Pairs(zero, zero, torch.ones(1, dtype=torch.float64))).backward()
    p, q = model.users.weight[0].tolist(), model.items.weight[0].tolist()
    biases = model.user_bias.weight.item() + model.item_bias.weight.item() + model.offset.item()
    s = sum(a * b for a, b in zip(p, q, strict=True)) + biases
    pull = 1 / (1 + math.exp(-s)) - 1
    assert model.users.weight.grad[0].tolist() == pytest.approx([pull * b for b in q])
    assert model.items.weight.grad[0].tolist() == pytest.approx([pull * a for a in p])
    for bias in (model.user_bias.weight, model.item_bias.weight, model.offset):
        assert bias.grad.item() == pytest.approx(pull)


def test_mf_l2_penalises_the_rows_of_the_batch() -> None:
    plain = spread(MF(3, 5, 2, KEY, "additive"))
    pulled = spread(MF(3, 5, 2, KEY, "additive", l2=0.3))
    pairs = Pairs(torch.tensor([0, 0]), torch.tensor([1, 4]), torch.tensor([1.0, 0.0]).double())
    triples = Triples(torch.tensor([2]), torch.tensor([1]), torch.tensor([3]))

    def norm(part: nn.Embedding, *rows: int) -> float:
        return sum(part.weight[row].square().sum().item() for row in rows)

    of_pairs = sum(
        norm(a, 0) + norm(b, 1, 4) / 2
        for a, b in [(plain.users, plain.items), (plain.user_bias, plain.item_bias)]
    )
    of_triples = sum(
        norm(a, 2) + norm(b, 1, 3)
        for a, b in [(plain.users, plain.items), (plain.user_bias, plain.item_bias)]
    )
    for batch, expected in ((pairs, of_pairs), (triples, of_triples)):
        extra = pulled.loss(batch) - plain.loss(batch)
        assert extra.item() == pytest.approx(0.3 * expected, rel=1e-12)


def test_bpr_starts_at_ln_two_and_has_the_published_gradient() -> None:
    x = torch.tensor([0.7, -2.0, 0.0], dtype=torch.float64, requires_grad=True)
    assert bpr(x, x).item() == pytest.approx(math.log(2))
    bpr(x, torch.zeros(3, dtype=torch.float64)).backward()
    expected = [-(1 - 1 / (1 + math.exp(-v))) / 3 for v in x.tolist()]
    assert x.grad.tolist() == pytest.approx(expected)


def test_bpr_ignores_what_shifts_all_items_of_a_user() -> None:
    model = spread(MF(2, 3, 2, KEY, biases="additive"))
    batch = Triples(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([2, 2]))
    before = model.loss(batch).item()
    with torch.no_grad():
        model.offset += 3.0
        model.user_bias.weight -= 1.5
    assert model.loss(batch).item() == pytest.approx(before, rel=1e-12)


def test_mf_scores_survive_a_joint_rotation() -> None:
    model = spread(MF(USERS, ITEMS, DIM, KEY))
    before = model.item_scores(torch.arange(USERS))
    rotation = torch.linalg.qr(KEY.fold("turn").normal(DIM, DIM, dtype=torch.float64)).Q
    with torch.no_grad():
        for part in (model.users, model.items):
            part.weight.copy_(part.weight @ rotation)
    torch.testing.assert_close(model.item_scores(torch.arange(USERS)), before)


def test_mlp_equals_a_network_on_concatenated_vectors() -> None:
    model = spread(MLP(USERS, ITEMS, (8, 5, 3), KEY))
    user, item = torch.tensor([0, 3]), torch.tensor([4, 4])
    z = torch.cat([model.users.weight[user], model.items.weight[item]], dim=1)
    for layer in (model.first, *model.rest):
        z = torch.relu(z @ layer.weight.T + layer.bias)
    torch.testing.assert_close(model.score(user, item), z @ model.out.weight[0])


@pytest.mark.parametrize("layers", [(8,), (7, 3), ()])
def test_mlp_refuses_impossible_layers(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="two widths or more, the first even"):
        MLP(2, 2, layers, KEY)


def test_pretrained_neumf_is_the_weighted_sum_of_its_parts() -> None:
    gmf, mlp = spread(GMF(USERS, ITEMS, 3, KEY)), spread(MLP(USERS, ITEMS, (8, 4), KEY.fold("m")))
    model = NeuMF(USERS, ITEMS, 3, (8, 4), KEY).double()
    model.pretrain(gmf, mlp, alpha=0.25)
    users = torch.arange(USERS)
    expected = 0.25 * gmf.item_scores(users) + 0.75 * mlp.item_scores(users)
    torch.testing.assert_close(model.item_scores(users), expected)
    with torch.no_grad():
        model.gmf.users.weight += 1.0
    assert not torch.equal(gmf.users.weight, model.gmf.users.weight)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.pretrain(GMF(USERS, ITEMS, 5, KEY), mlp)


def test_fedncf_without_hidden_layer_ranks_the_same_for_any_user_vector() -> None:
    q, p = KEY.normal(ITEMS, DIM), KEY.fold("p").normal(2, DIM)
    additive, deep = FedNCFHead(DIM, KEY)(p, q), FedNCFHead(DIM, KEY, hidden=8)(p, q)
    shift = additive[1] - additive[0]
    torch.testing.assert_close(shift, shift[:1].expand(ITEMS))
    assert (deep[1] - deep[0]).std().item() > 1e-3


def test_fedncf_equals_layers_on_concatenated_vectors() -> None:
    head = FedNCFHead(DIM, KEY, hidden=DIM // 2)
    p, q = KEY.normal(DIM), KEY.fold("q").normal(ITEMS, DIM)
    z = head.input(torch.cat([p.expand(ITEMS, DIM), q], dim=1)).relu()
    torch.testing.assert_close(head(p, q), head.out(z)[:, 0])


def test_pfedrec_steps_by_hand() -> None:
    """d = 1: q = 1, w = b = 0, y = 1, rate 1 -> w = b = 0.5, then dq = -(1 - sigmoid(1)) 0.5."""
    model = HeadedModel(PFedRecHead(1, KEY), 1, 1, 1, KEY)
    zero = torch.tensor([0])
    with torch.no_grad():
        model.items.weight.fill_(1.0)
        for value in model.head.parameters():
            value.zero_()
    pairs = Pairs(zero, zero, torch.ones(1))
    model.loss(pairs).backward()
    torch.optim.SGD(model.head.parameters(), lr=1.0).step()
    assert [model.head.out.weight.item(), model.head.out.bias.item()] == [0.5, 0.5]
    model.zero_grad()
    model.loss(pairs).backward()
    expected = -(1 - 1 / (1 + math.exp(-1))) * 0.5
    assert model.items.weight.grad.item() == pytest.approx(expected)
    assert model.users.weight.numel() == 0


@pytest.mark.parametrize("name", ["fedmf", "fedncf", "fedncf hidden", "pfedrec"])
def test_heads_run_stacked_over_clients(name: str) -> None:
    """vmap over clients with heads of their own equals a loop over the clients."""
    heads = [MODELS[name](KEY.fold(c)).head for c in range(3)]
    stack = {
        key: torch.stack([dict(head.named_parameters())[key] for head in heads])
        for key, _ in heads[0].named_parameters()
    }
    p, q = KEY.normal(3, DIM), KEY.fold("q").normal(3, ITEMS, DIM)
    one = heads[0]
    found = vmap(lambda w, u, i: functional_call(one, w, (u, i)))(stack, p, q)
    expected = torch.stack([head(p[c], q[c]) for c, head in enumerate(heads)])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["fedmf", "fedncf", "fedncf hidden", "pfedrec"])
def test_heads_take_leading_axes(name: str) -> None:
    head = MODELS[name](KEY).head
    p, q = KEY.normal(2, 3, DIM), KEY.fold("q").normal(2, 3, ITEMS, DIM)
    for items in (q, q[0, 0]):
        found = head(p, items)
        assert found.shape == (2, 3, ITEMS)
        last = items[1, 2] if items.dim() == 4 else items
        torch.testing.assert_close(found[1, 2], head(p[1, 2], last))
