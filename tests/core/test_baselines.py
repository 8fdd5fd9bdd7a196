"""Trivial baselines."""

import pytest

from coterie.core.methods.reference.popularity import popularity
from coterie.core.metrics.ranking import top_k
from coterie.core.tensors.ragged import Ragged


def test_popularity_counts_and_ranks_for_everybody() -> None:
    train = Ragged.from_lists([[1, 2], [2], [], [2, 3, 1]])
    scores = popularity(train, 5)
    assert scores.tolist() == [0, 2, 3, 1, 0]
    assert top_k(scores.expand(2, -1), 5).tolist() == [[2, 1, 3, 0, 4]] * 2
    assert popularity(Ragged.from_lists([[], []]), 2).tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"outside 0\.\.2"):
        popularity(train, 3)
