"""Models of pairs: broadcast biases, side information, and cells in the rows of some users."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.core.models.mf import MF
from coterie.core.models.neumf import GMF, MLP, NeuMF
from coterie.core.models.recommender import NO_SIDES, Sides
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(7)
USERS, ITEMS, DIM = 5, 7, 4
LAYERS = (2 * DIM, 6, 3)
X = KEY.fold("x").normal(USERS, 3, dtype=torch.float64)
Y = KEY.fold("y").normal(ITEMS, 2, dtype=torch.float64)
SIDES = {
    "no sides": NO_SIDES,
    "users": Sides(X, None),
    "items": Sides(None, Y),
    "both": Sides(X, Y),
}
MODELS = {
    "mf": lambda sides: MF(USERS, ITEMS, DIM, KEY, sides=sides),
    "mf additive": lambda sides: MF(USERS, ITEMS, DIM, KEY, "additive", sides=sides),
    "mf broadcast": lambda sides: MF(USERS, ITEMS, DIM, KEY, "broadcast", sides=sides),
    "gmf": lambda sides: GMF(USERS, ITEMS, DIM, KEY, sides, offset=True),
    "mlp": lambda sides: MLP(USERS, ITEMS, LAYERS, KEY, sides, offset=True),
    "neumf": lambda sides: NeuMF(USERS, ITEMS, DIM, LAYERS, KEY, sides, offset=True),
}


def spread(model):
    """Float64 parameters of order one: at N(0, 0.01²) all scores are about 0."""
    model.double()
    with torch.no_grad():
        for index, value in enumerate(model.parameters()):
            value.copy_(KEY.fold("spread", index).normal(*value.shape, dtype=torch.float64))
    return model


def grid(model):
    """Scores of all pairs, one pair at a time."""
    return torch.stack(
        [
            torch.stack([model.score(torch.tensor(u), torch.tensor(i)) for i in range(ITEMS)])
            for u in range(USERS)
        ]
    )


@pytest.mark.parametrize("sides", SIDES.values(), ids=SIDES)
@pytest.mark.parametrize("name", MODELS)
def test_cells_equal_pairs_one_by_one(name, sides):
    model = spread(MODELS[name](sides))
    user = torch.tensor([4, 0, 2])
    row, item = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([6, 1, 1, 0, 3, 6])
    all_pairs = grid(model)
    torch.testing.assert_close(model.score_cells(user, row, item), all_pairs[user[row], item])
    torch.testing.assert_close(model.item_scores(user), all_pairs[user])
    names = [n for n, p in model.named_parameters() if "side" in n]
    assert len(names) == 2 * len(sides) * (2 if name == "neumf" else 1)


@pytest.mark.parametrize("name", MODELS)
def test_cells_have_the_gradient_of_pairs(name):
    model = spread(MODELS[name](SIDES["both"]))
    user, row, item = torch.tensor([3, 1]), torch.tensor([0, 0, 1]), torch.tensor([2, 5, 2])
    pull, parameters = torch.tensor([0.3, -2.0, 1.0]).double(), list(model.parameters())
    found = torch.autograd.grad(model.score_cells(user, row, item), parameters, pull)
    expected = torch.autograd.grad(model.score(user[row], item), parameters, pull)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_broadcast_biases_expand_as_published():
    """<p + b 1, q + c 1> + m = <p, q> + c Σp + b Σq + d b c + m."""
    model = spread(MF(USERS, ITEMS, DIM, KEY, "broadcast"))
    p, q = model.users.weight, model.items.weight
    b, c = model.user_bias.weight, model.item_bias.weight
    expected = p @ q.T + p.sum(1, keepdim=True) @ c.T + b @ q.sum(1, keepdim=True).T
    expected = expected + DIM * b @ c.T + model.offset
    torch.testing.assert_close(grid(model), expected)


@pytest.mark.parametrize("biases", ["additive", "broadcast"])
def test_biases_of_zero_change_nothing(biases):
    plain, biased = MF(USERS, ITEMS, DIM, KEY), MF(USERS, ITEMS, DIM, KEY, biases, offset=3.5)
    torch.testing.assert_close(grid(plain) + 3.5, grid(biased))


def test_sides_of_mf_as_published():
    """With p' = p + b 1 and q' = q + c 1: <p', q'> + <p', W x> + <q', W' y> + m."""
    model = spread(MF(USERS, ITEMS, DIM, KEY, "broadcast", sides=SIDES["both"]))
    p = model.users.weight + model.user_bias.weight
    q = model.items.weight + model.item_bias.weight
    of_x, of_y = model.user_side.map, model.item_side.map
    expected = (p[:, None] * q).sum(-1) + (p * F.linear(X, of_x.weight, of_x.bias)).sum(-1)[:, None]
    expected = expected + (q * F.linear(Y, of_y.weight, of_y.bias)).sum(-1) + model.offset
    torch.testing.assert_close(grid(model), expected)


class PlainNCF(nn.Module):
    """MLP and NCF as printed: everything is concatenated, nothing is split or shared."""

    def __init__(self, model):
        super().__init__()
        self.gmf, self.mlp = getattr(model, "gmf", None), getattr(model, "mlp", model)
        self.out = model.out

    def forward(self, user, item):
        z = [self.mlp.users.weight[user], self.mlp.items.weight[item]]
        z += [self.mlp.user_side.map(X[user]), self.mlp.item_side.map(Y[item])]
        z = torch.cat(z)
        for layer in (self.mlp.first, *self.mlp.rest):
            z = torch.relu(layer(z))
        if self.gmf is not None:
            p, q = self.gmf.users.weight[user], self.gmf.items.weight[item]
            mf = p * q + p * self.gmf.user_side.map(X[user]) + q * self.gmf.item_side.map(Y[item])
            z = torch.cat([mf, z])
        return self.out(z)[0]


@pytest.mark.parametrize("name", ["mlp", "neumf"])
def test_mlp_and_neumf_equal_plain_networks(name):
    model = spread(MODELS[name](SIDES["both"]))
    plain = PlainNCF(model)
    expected = [[plain(u, i).item() for i in range(ITEMS)] for u in range(USERS)]
    torch.testing.assert_close(grid(model).detach(), torch.tensor(expected, dtype=torch.float64))


def test_the_first_layer_has_a_block_of_its_own_for_each_side():
    widths = [MLP(USERS, ITEMS, LAYERS, KEY, sides).first.in_features for sides in SIDES.values()]
    assert widths == [2 * DIM, 3 * DIM, 3 * DIM, 4 * DIM]


def test_features_are_no_part_of_a_state_dict():
    state = MF(USERS, ITEMS, DIM, KEY, sides=SIDES["both"]).state_dict()
    assert sorted(n for n in state if "side" in n) == [
        "item_side.map.bias",
        "item_side.map.weight",
        "user_side.map.bias",
        "user_side.map.weight",
    ]


def test_pretraining_takes_the_offsets_too():
    gmf = spread(GMF(USERS, ITEMS, DIM, KEY, SIDES["both"], offset=True))
    mlp = spread(MLP(USERS, ITEMS, LAYERS, KEY, SIDES["both"], offset=True))
    model = NeuMF(USERS, ITEMS, DIM, LAYERS, KEY, SIDES["both"], offset=True).double()
    model.pretrain(gmf, mlp, alpha=0.25)
    torch.testing.assert_close(grid(model), 0.25 * grid(gmf) + 0.75 * grid(mlp))
