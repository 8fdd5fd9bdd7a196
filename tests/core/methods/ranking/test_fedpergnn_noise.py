"""FedPerGNN: all that the reported ε is of is clipped and gets noise."""

import pytest
import torch
from scipy import stats
from tests.core.methods.ranking.few_users import CLIENTS, KEY, group_users
from tests.core.methods.ranking.test_fedpergnn import build

CLIP, SCALE = 0.01, 0.2


@pytest.mark.parametrize("pseudo_items", [0, 3])
def test_every_coordinate_of_every_gradient_is_clipped_and_hidden(pseudo_items):
    """Rows, W and attention alike."""
    data, n_items = group_users(500)
    server, client = build(n_items)
    down = server.table(server.begin(KEY).public)
    keys = CLIENTS.fold(data.ids)
    mine = client.enrol(data, keys.fold("enrol"))

    def uploaded(**options):
        half = build(n_items, pseudo_items=pseudo_items, **options)[1]
        up = half.update(down, mine, data, keys)[0]
        return {"items": up.items.values, "weight": up.weight, "attention": up.attention}

    bare, clipped, noisy = uploaded(), uploaded(clip=CLIP), uploaded(clip=CLIP, noise=SCALE)
    for name, values in bare.items():
        assert torch.equal(clipped[name], values.clamp(-CLIP, CLIP)), name
        assert 0 < (values.abs() > CLIP).double().mean() < 1, name  # some are clipped, not all
        noise = (noisy[name] - clipped[name]).flatten()
        assert bool((noise != 0).all()), name
        assert noise.var().item() == pytest.approx(2 * SCALE**2, rel=0.15), name
        assert stats.kstest(noise.numpy(), stats.laplace(scale=SCALE).cdf).pvalue > 1e-3, name
        assert noise.unique().numel() > 0.99 * noise.numel(), name  # each has its own
