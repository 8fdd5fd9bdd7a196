"""Trivial baselines against naive loops."""

import pytest
import torch

from coterie.core.methods.ranking.references import fit_bias, popularity
from coterie.core.metrics.ranking import top_k
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

KEY = Key.from_seed(2)


def test_popularity_counts_and_ranks_for_everybody() -> None:
    train = Ragged.from_lists([[1, 2], [2], [], [2, 3, 1]])
    scores = popularity(train, 5)
    assert scores.tolist() == [0, 2, 3, 1, 0]
    assert top_k(scores.expand(2, -1), 5).tolist() == [[2, 1, 3, 0, 4]] * 2
    assert popularity(Ragged.from_lists([[], []]), 2).tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"outside 0\.\.2"):
        popularity(train, 3)


@pytest.mark.parametrize(("item_damping", "user_damping"), [(25.0, 10.0), (0.0, 0.0)])
def test_bias_model_equals_a_loop(item_damping: float, user_damping: float) -> None:
    count = torch.arange(60)
    user, item = KEY.integers(7, count), KEY.fold("item").integers(9, count)
    rating = 1 + 4 * KEY.uniform(60, dtype=torch.float64)
    model = fit_bias(user, item, rating, 8, 10, item_damping, user_damping)
    rows = list(zip(user.tolist(), item.tolist(), rating.tolist(), strict=True))
    mean = sum(r for _, _, r in rows) / 60
    of_item, of_user = {9: 0.0}, {7: 0.0}
    for i in range(9):
        rest = [r - mean for _, j, r in rows if j == i]
        of_item[i] = sum(rest) / (item_damping + len(rest)) if rest else 0.0
    for u in range(7):
        rest = [r - mean - of_item[i] for v, i, r in rows if v == u]
        of_user[u] = sum(rest) / (user_damping + len(rest)) if rest else 0.0
    expected = [[mean + of_user[u] + of_item[i] for i in range(10)] for u in range(8)]
    found = model.predict(torch.arange(8)[:, None], torch.arange(10))
    assert found.flatten().tolist() == pytest.approx([x for row in expected for x in row])


def test_bias_model_without_ratings_is_refused() -> None:
    none = torch.tensor([], dtype=torch.int64)
    with pytest.raises(ValueError, match="at least one rating"):
        fit_bias(none, none, torch.tensor([]), 1, 1)
