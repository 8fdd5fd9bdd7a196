"""RLP2: corrections computed by hand, for three users of PFedRec (h = q).

Items q = (1, 0), (0, 1), (2, 0), (-1, 0); the model says 1/2 everywhere (w = b = 0). With
τ = 1 / ln 3 a neighbour of cosine 1 weighs three times one of cosine 0. A remembers item 0
(y = 1, b = .6) and item 1 (y = 0, b = .3), B nothing, C item 3 as a positive.
"""

import math

import pytest
import torch
from tests.continual.stream import BACKBONES, private, settings

from coterie.continual.backbones import make_backbone
from coterie.continual.reloop import ErrorMemory
from coterie.continual.retention import score_items
from coterie.continual.settings import RLP2Settings

TABLE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
TAU = 1 / math.log(3)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def corrected(items, label, predicted, rlp2, table=TABLE, params=None, backbone="pfedrec"):
    """Probabilities of users who remember the samples of the rows given."""
    count = len(items)
    head = {"weight": torch.zeros(count, 2).double(), "bias": torch.zeros(count).double()}
    params = params or head
    memory = {"items": torch.tensor(items), "label": f64(*label), "predicted": f64(*predicted)}
    mine = private(params, params, memory, torch.ones(count))
    model = make_backbone(settings("rlp2", backbone).model)
    scores = score_items(model, params, table)
    return ErrorMemory(model, rlp2).correct(scores, mine, table), scores


USERS = {
    "items": [[0, 1], [-1, -1], [3, -1]],
    "label": [[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]],
    "predicted": [[0.6, 0.3], [0.0, 0.0], [0.2, 0.0]],
}


def close(*values):
    return pytest.approx(values, abs=2e-9)  # the order of ties


def test_label_error():
    """γ = 1, λ = .4: A's items get ȳ = 3/4, 1/4, 3/4, 1/4 (cosines 1, 0; 0, 1; 1, 0; -1, 0)."""
    found, _ = corrected(**USERS, rlp2=RLP2Settings(5, TAU, 0.4, gamma=1.0))
    assert found[0].tolist() == close(0.6, 0.4, 0.6, 0.4)
    assert found[1].tolist() == close(0.5, 0.5, 0.5, 0.5)
    assert found[2].tolist() == close(0.7, 0.7, 0.7, 0.7)


def test_neighbour_error():
    """γ = 0: λ (ȳ - b̄), with b̄ = .525 where ȳ = 3/4 and .375 where it is 1/4."""
    found, _ = corrected(**USERS, rlp2=RLP2Settings(5, TAU, 0.4, gamma=0.0))
    assert found[0].tolist() == close(0.59, 0.45, 0.59, 0.45)
    assert found[2].tolist() == close(0.82, 0.82, 0.82, 0.82)
    half, _ = corrected(**USERS, rlp2=RLP2Settings(5, TAU, 0.4, gamma=0.5))
    assert half[0].tolist() == close(0.595, 0.425, 0.595, 0.425)


def test_one_neighbour():
    """K = 1: (1 - λ) y_base + λ y of the nearest."""
    found, _ = corrected(**USERS, rlp2=RLP2Settings(1, TAU, 0.4))
    assert found[0, :3].tolist() == close(0.7, 0.3, 0.7)


def test_without_temperature_it_is_the_mean():
    rlp2 = RLP2Settings(5, 1e12, 0.3)
    found, _ = corrected([[0, 1, 2]], [[1.0, 0.0, 1.0]], [[0.5, 0.5, 0.5]], rlp2)
    assert found[0].tolist() == close(*[0.5 + 0.3 * (2 / 3 - 0.5)] * 4)


def test_a_memory_without_error_changes_nothing():
    """γ = 0 and b = y."""
    rlp2 = RLP2Settings(5, 0.1, 0.9, gamma=0.0)
    found, _ = corrected([[0, 1]], [[1.0, 0.0]], [[1.0, 0.0]], rlp2)
    assert found[0].tolist() == close(0.5, 0.5, 0.5, 0.5)


def test_the_order_of_the_memory_is_irrelevant():
    rlp2 = RLP2Settings(2, 0.3, 0.4, gamma=0.7)
    table = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)).double()
    a, _ = corrected([[4, 7, 1]], [[1.0, 0.0, 1.0]], [[0.3, 0.1, 0.8]], rlp2, table)
    b, _ = corrected([[1, 4, 7]], [[1.0, 1.0, 0.0]], [[0.8, 0.3, 0.1]], rlp2, table)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-15)


def test_memories_are_the_users_own():
    rlp2 = RLP2Settings(5, TAU, 0.4)
    both, _ = corrected(**USERS, rlp2=rlp2)
    changed = {name: [rows[0], rows[2], rows[2]] for name, rows in USERS.items()}
    other, _ = corrected(**changed, rlp2=rlp2)
    assert torch.equal(both[[0, 2]], other[[0, 2]])


def drawn_model(backbone, scale=1.0):
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(50, 2, generator=generator).double()
    draw = lambda *shape: scale * torch.randn(1, *shape, generator=generator).double()  # noqa: E731
    params = {
        "fedmf": {"user": draw(2)},
        "fedncf": {"user": draw(2), "w_user": draw(2), "w_item": draw(2), "bias": draw()},
        "pfedrec": {"weight": draw(2), "bias": draw()},
    }[backbone]
    return table, params


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize(
    ("label", "strength"),
    [
        ([[1.0, 0.0]], 0.0),  # switched off
        ([[1.0, 1.0]], 0.4),  # positives only: ȳ = 1 for every item
        ([[1.0, 1.0]], 1.0),  # ... and every probability is clamped or 1
    ],
)
def test_what_leaves_the_order_of_the_base_model(backbone, label, strength, scale):
    """Also where probabilities are equal, 0 or 1, but scores are not (scale 30)."""
    table, params = drawn_model(backbone, scale)
    rlp2 = RLP2Settings(2, 0.1, strength)
    found, scores = corrected([[0, 1]], label, [[0.5, 0.5]], rlp2, table, params, backbone)
    assert torch.equal(found.argsort(1), scores.argsort(1))
    if scale > 1:
        base = torch.sigmoid(scores.float())
        assert bool(((base == 0) | (base == 1)).any())


def test_hidden_vectors():
    """h is p∘q, [p; q] or q: a negative entry of p turns FedMF's similarity around."""
    table = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    rlp2 = RLP2Settings(5, TAU, 1.0)
    found = {}
    for backbone, params in {
        "fedmf": {"user": f64(1.0, 0.0)[None]},  # h = (1, 0) for both: cosines 1, 1
        "fedncf": {  # h = (1, 0, ±1): cosines 1 and (1 + 1 - 1) / 3
            "user": f64(1.0, 0.0)[None],
            **{name: torch.zeros(1, 2).double() for name in ("w_user", "w_item")},
            "bias": torch.zeros(1).double(),
        },
        "pfedrec": {"weight": torch.zeros(1, 2).double(), "bias": torch.zeros(1).double()},
    }.items():
        memory = ([[0, 1]], [[1.0, 0.0]], [[0.5, 0.5]])
        found[backbone], _ = corrected(*memory, rlp2, table, params, backbone)
    weight = {"fedmf": 1 / 2, "fedncf": 3 / (3 + 3 ** (1 / 3)), "pfedrec": 3 / 4}
    for backbone, expected in weight.items():
        assert float(found[backbone][0, 0]) == pytest.approx(expected, abs=2e-9)
