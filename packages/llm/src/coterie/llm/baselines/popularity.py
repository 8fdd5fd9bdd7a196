"""Popularity: the users of the organisations measured on one ranking for all of them."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from coterie.core.methods.popularity import popularity
from coterie.llm.data.client_data import FederatedData
from coterie.llm.quality import measure_users


def measure_popularity(
    data: FederatedData, split: Literal["valid", "test"]
) -> list[dict[str, Tensor]]:
    """Rank by the number of interactions of all users before validation, or before the test.

    Returns:
        What `measure_users` gives for each of the K organisations.
    """
    testing = split == "test"
    counts = popularity(data.split.before_test() if testing else data.split.train, data.n_items)
    queries = data.clients.test if testing else data.clients.valid
    return [measure_users(lambda part: counts.expand(len(part), -1), of_one) for of_one in queries]
