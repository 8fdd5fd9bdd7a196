"""The normal distribution of samples, against dense algebra and scipy."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from coterie.assisted.samples import gaussian
from coterie.assisted.samples.gaussian import DIAGONAL, IMAGE, OWN, covariance
from coterie.assisted.samples.gaussian_model import Gaussian
from coterie.assisted.samples.matrix import Samples
from coterie.core.data.interactions.cells import Cells
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(4)
NOISE = 0.6
SIZE = 15


def drawn(samples=80, size=SIZE, share=0.5):
    """Samples of which a part is rated; they lie near three directions."""
    load = KEY.fold("load").normal(size, 3, dtype=torch.float64)
    values = KEY.fold("samples").normal(samples, 3, dtype=torch.float64) @ load.T
    values += 0.7 * KEY.fold("noise").normal(samples, size, dtype=torch.float64)
    rated = KEY.fold("rated").uniform(samples, size) < share
    rated[3] = False
    return Cells.from_pairs(*rated.nonzero(as_tuple=True), values[rated], samples, size)


def trained(cells, rank, steps):
    params = gaussian.begin(cells.n_columns, rank, KEY, torch.float64)
    for _ in range(steps):
        found = gaussian.statistic(params, cells, NOISE)
        params = gaussian.moved(params, found.values, found.samples)
    return params


def dense_statistic(s, cells):
    """A by inverses of whole matrices, -2 log density without its constant, and n."""
    s, total, loss, count = s.numpy(), np.zeros((len(s), len(s))), 0.0, 0
    for at, r in zip(*parts(cells), strict=True):
        if not len(at):
            continue
        k = s[np.ix_(at, at)] + NOISE * np.eye(len(at))
        inverse = np.linalg.inv(k)
        total[np.ix_(at, at)] += inverse - np.outer(inverse @ r, inverse @ r)
        density = multivariate_normal(np.zeros(len(at)), k).logpdf(r)
        loss += -2 * density - len(at) * np.log(2 * np.pi)
        count += 1
    return total, loss, count


def parts(cells):
    lengths = cells.columns.lengths.tolist()
    return (
        [one.numpy() for one in cells.columns.values.split(lengths)],
        [one.numpy() for one in cells.values.split(lengths)],
    )


@pytest.mark.parametrize(("rank", "steps"), [(3, 0), (3, 6), (SIZE, 4)])
def test_statistic_is_that_of_whole_inverses(rank, steps):
    cells = drawn()
    params = trained(cells, rank, steps)
    found = gaussian.statistic(params, cells, NOISE)
    a, loss, count = dense_statistic(covariance(params), cells)
    directions = params[gaussian.DIRECTIONS].numpy()
    np.testing.assert_allclose(found.values[IMAGE], a @ directions, atol=1e-9)
    np.testing.assert_allclose(found.values[DIAGONAL], np.diag(a), atol=1e-9)
    assert float(found.loss) == pytest.approx(loss, rel=1e-10)
    assert found.samples == count == 79


def test_statistics_of_parts_add_up_to_that_of_all():
    cells = drawn()
    params = trained(cells, 4, 3)
    whole = gaussian.statistic(params, cells, NOISE)
    each = [gaussian.statistic(params, cells.take(torch.arange(80)[k::3]), NOISE) for k in range(3)]
    for name, value in whole.values.items():
        torch.testing.assert_close(sum(one.values[name] for one in each), value)
    assert sum(one.samples for one in each) == whole.samples


def test_a_step_is_exact_where_the_directions_span_everything():
    """But for what of S has no room in U: its eigenvalues beside the diagonal are not positive."""
    cells = drawn()
    params = trained(cells, SIZE, 2)
    s = covariance(params).numpy()
    a, _, count = dense_statistic(torch.from_numpy(s), cells)
    expected = s - s @ a @ s / count
    found = gaussian.statistic(params, cells, NOISE)
    later = gaussian.moved(params, found.values, found.samples)
    own = params[OWN].numpy()
    lengths, vectors = np.linalg.eigh(expected - np.diag(own))
    low = (vectors * lengths.clip(0)) @ vectors.T
    off = ~np.eye(SIZE, dtype=bool)
    np.testing.assert_allclose(covariance(later).numpy()[off], low[off], atol=1e-9)
    np.testing.assert_allclose(np.diag(covariance(later)), np.diag(expected), atol=1e-9)


def test_variances_are_exact_with_few_directions_as_well():
    cells = drawn(size=40)
    params = trained(cells, 2, 5)
    assert params[gaussian.DIRECTIONS].shape[1] == 12 < 40
    s = covariance(params).numpy()
    a, _, count = dense_statistic(torch.from_numpy(s), cells)
    found = gaussian.statistic(params, cells, NOISE)
    later = covariance(gaussian.moved(params, found.values, found.samples))
    np.testing.assert_allclose(np.diag(later), np.diag(s - s @ a @ s / count), atol=1e-9)


def test_steps_raise_the_likelihood():
    cells = drawn(samples=200)
    losses, params = [], gaussian.begin(SIZE, 3, KEY, torch.float64)
    for _ in range(25):
        found = gaussian.statistic(params, cells, NOISE)
        losses.append(float(found.loss))
        params = gaussian.moved(params, found.values, found.samples)
    assert all(later < sooner for sooner, later in pairwise(losses))


def test_what_is_expected_is_the_conditional_mean():
    cells = drawn()
    params = trained(cells, 3, 5)
    s, own = covariance(params).numpy(), drawn(samples=6)
    missing = (own.to_dense(float("nan")).isnan()).nonzero(as_tuple=True)
    zeros = torch.zeros(len(missing[0]), dtype=torch.float64)
    asked = Cells.from_pairs(missing[1], missing[0], zeros, SIZE, 6)
    samples = Samples(own.transposed(), 0, 6, are_columns=True)
    found = gaussian.expected(params, samples.own, samples.asked(asked), NOISE)
    for row, sample, value in zip(asked.rows, asked.columns.values, found, strict=True):
        at, r = (part[int(sample)] for part in parts(own))
        k = s[np.ix_(at, at)] + NOISE * np.eye(len(at))
        assert float(value) == pytest.approx(float(s[int(row), at] @ np.linalg.solve(k, r)))
    assert bool((found[asked.columns.values == 3] == 0).all())


def test_the_model_is_the_steps_in_units_of_the_residuals():
    cells = drawn()
    big = Cells(cells.columns, 100 * cells.values, cells.n_columns)
    outputs = []
    for factor, given in ((1.0, cells), (100.0, big)):
        model = Gaussian(given, NOISE, 3, steps=2)
        now = model.begin(KEY)
        for _ in range(3):
            now = model.train(now, KEY)
        samples = Samples(given.transposed(), 0, given.n_rows, are_columns=True)
        asked = samples.asked(drawn(share=0.9).transposed())
        outputs.append(model.outputs(now.params, samples.own, asked) / factor)
        assert now.epochs == 6
    torch.testing.assert_close(*outputs)
    unit = cells.values.square().mean().sqrt()
    steps = trained(Cells(cells.columns, cells.values / unit, SIZE), 3, 6)
    torch.testing.assert_close(covariance(now.params), covariance(steps))


def test_no_samples_leave_everything_as_it_is():
    none = torch.empty(0, dtype=torch.int64)
    empty = Cells.from_pairs(none, none, torch.empty(0), 4, SIZE)
    model = Gaussian(empty, NOISE, 3, steps=2)
    now = model.begin(KEY)
    later = model.train(now, KEY)
    assert all(torch.equal(value, later.params[name]) for name, value in now.params.items())
    assert float(later.loss) == 0.0
