"""The generated data set."""

import itertools

import numpy as np
import torch
from scipy.sparse.linalg import svds

from coterie.core.data.interactions.interactions import k_core
from coterie.core.data.interactions.splits import split_block, temporal_blocks
from coterie.core.data.sources.sample import generate


def recall_at_20(score, train, test):
    """Naive loop in numpy."""
    values = []
    for row, known, wanted in zip(score, train.tolists(), test.tolists(), strict=True):
        if wanted:
            row = row.copy()
            row[known] = -np.inf
            values.append(len(set(np.argsort(-row)[:20]) & set(wanted)) / len(wanted))
    return float(np.mean(values))


def test_shape_and_determinism():
    data, again = generate(), generate()
    assert torch.equal(data.item, again.item)
    assert data.titles == again.titles
    assert data.n_users == 300
    assert 395 <= data.n_items <= 400  # a film that nobody watched is left out
    assert 11_000 < len(data) < 13_000
    assert len(set(data.titles)) == data.n_items
    assert all(data.genres)
    assert bool((data.time[1:] >= data.time[:-1]).all())
    assert set(data.rating.tolist()) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    pairs = data.user * data.n_items + data.item
    assert pairs.unique().numel() == len(data)
    assert not torch.equal(generate(1).item[:1000], data.item[:1000])


def test_popularity_is_skewed():
    counts = torch.bincount(generate().item).sort(descending=True).values
    assert int(counts[:80].sum()) > 0.4 * int(counts.sum())


def test_users_and_items_arrive_and_old_users_stay():
    stream = temporal_blocks(k_core(generate(), 5))
    users = [block.n_users for block in stream.blocks]
    items = [block.n_items for block in stream.blocks]
    assert users == sorted(set(users))
    assert items == sorted(set(items))
    for before, block in itertools.pairwise(stream.blocks):
        splits = split_block(stream, block, "random", 0)
        assert int((splits.ids < before.n_users).sum()) > 100


def test_matrix_factorisation_clearly_beats_popularity():
    stream = temporal_blocks(k_core(generate(), 5))
    block = stream.blocks[0]
    splits = split_block(stream, block, "random", 0)
    matrix = splits.train.mask(block.n_items).double().numpy()
    left, scale, right = svds(matrix, k=8, random_state=0)
    popularity = np.tile(matrix.sum(0), (len(splits.ids), 1))
    factors = recall_at_20((left * scale) @ right, splits.train, splits.test)
    assert factors > 1.5 * recall_at_20(popularity, splits.train, splits.test)


def test_tastes_drift():
    """The genres of an old user's late films differ more from the early ones than by chance."""
    data = generate()
    genre = [names[0] for names in data.genres]
    numbers = {name: number for number, name in enumerate(sorted(set(genre)))}
    of_item = torch.tensor([numbers[name] for name in genre])
    half = data.time > data.time.double().quantile(0.5)
    within, across = [], []
    for user in range(data.n_users):
        rows = (data.user == user).nonzero().squeeze(1)
        if min(int(half[rows].sum()), int((~half[rows]).sum())) < 20:
            continue
        kinds = of_item[data.item[rows]]
        late = half[rows]
        odd = torch.arange(rows.numel()) % 2 == 1
        across.append(distance(kinds[late], kinds[~late], len(numbers)))
        within.append(distance(kinds[odd], kinds[~odd], len(numbers)))
    assert len(across) > 30
    assert np.mean(across) > 1.3 * np.mean(within)


def distance(a, b, n):
    shares = [torch.bincount(kinds, minlength=n) / kinds.numel() for kinds in (a, b)]
    return float((shares[0] - shares[1]).abs().sum()) / 2
