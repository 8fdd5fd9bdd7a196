"""Who shares items with whom, as the third party of FedPerGNN finds it."""

import torch
from tests.core.methods.ranking.few_users import N_ITEMS

from coterie.core.methods.ranking.user_graphs import Announcement, ThirdParty, item_tokens
from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.tensors.stacked import Ragged

SECRET = CommonSecret()


def announce(rows):
    items = Ragged.from_lists(rows)
    vectors = torch.arange(2.0 * len(rows)).reshape(-1, 2) + 1
    return Announcement(item_tokens(SECRET, items, N_ITEMS), vectors)


def test_users_who_share_an_item_get_exactly_each_others_vector():
    announced = announce([[0, 1], [1, 2], [3], []])
    found = ThirdParty(3).match(announced)
    assert found.known.tolist() == [[True, False, False]] * 2 + [[False] * 3] * 2
    assert torch.equal(found.vectors[0, 0], announced.vector[1])
    assert torch.equal(found.vectors[1, 0], announced.vector[0])
    assert found.vectors[2:].abs().sum() == 0


def test_neighbours_are_those_with_the_most_items_in_common():
    rows = [[0, 1, 2, 3], [0], [0, 1, 2], [2, 3], [8], [0, 1]]
    announced = announce(rows)
    found = ThirdParty(3).match(announced)
    for u, mine in enumerate(rows):
        shared = [len({*mine} & {*other}) if v != u else 0 for v, other in enumerate(rows)]
        best = sorted(range(6), key=lambda v: -shared[v])[:3]
        best = [v for v in best if shared[v]]
        assert found.known[u].tolist() == [k < len(best) for k in range(3)]
        assert torch.equal(found.vectors[u, : len(best)], announced.vector[best])
