"""Categories read off moves of tables over several uploads, clipped and behind noise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key
from coterie.msmt.attack.known import Seen
from coterie.msmt.attack.reader import CategoryReader, across, unexplained
from coterie.msmt.attack.uploads import LocalSteps

KEY = Key.from_seed(7)
NAMES = ("inputs.tables.0.weight", "tasks.1.inputs.tables.2.weight")
SIZES = {NAMES[0]: 12, NAMES[1]: 400}
FIELDS = {NAMES[0]: 0, NAMES[1]: 2}
STEPS, WIDTH, LR, DECAY = 3, 6, 0.01, 1e-4
LOCAL = LocalSteps(0, lr=LR, weight_decay=DECAY)
CLIPPED = PrivacySettings(clip=1.0)


def used(name):
    """A third of the categories."""
    return torch.arange(SIZES[name]) % 3 == 0


def uploads(rounds=3, keeps_memory=True, optimizer="adam", mu=0.0):
    """Tables before each round, and increments, by torch's optimizer; all are set anew between."""
    tables = {
        name: torch.nn.Parameter(0.3 * KEY.fold(name).normal(size, WIDTH, dtype=torch.float64))
        for name, size in SIZES.items()
    }
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]

    def make():
        return kind(tables.values(), lr=LR, weight_decay=DECAY)

    made, found = make(), []
    for number in range(rounds):
        made = made if keeps_memory else make()
        before = {name: table.detach().clone() for name, table in tables.items()}
        for step in range(STEPS):
            for name, table in tables.items():
                key = KEY.fold("gradient", number, step).fold(name)
                gradient = key.normal(*table.shape, dtype=torch.float64) * used(name)[:, None]
                table.grad = gradient + mu * (table.detach() - before[name])
            made.step()
        change = {name: table.detach() - before[name] for name, table in tables.items()}
        found.append((before, change))
        with torch.no_grad():
            for name, table in tables.items():  # what the server makes of it
                table.add_(0.1 * KEY.fold("server", number).fold(name).normal(*table.shape))
    return found


def read(
    found, privacy=None, keeps_memory=True, local=LOCAL, pull=0.0, factor=1.0, still=frozenset()
):
    reader = CategoryReader(local, privacy or PrivacySettings(), keeps_memory, still)
    for number, (before, change) in enumerate(found):
        sent = {}
        for name, value in change.items():
            key = KEY.fold("noise", number).fold(name)
            noise = 0.0 if privacy is None else privacy.scale
            sent[name] = factor * value + noise * key.normal(*value.shape, dtype=torch.float64)
        other = {"towers.0.weight": torch.ones(2, 2)}
        reader.read(Seen(0, {**before, **other}, {}, {**sent, **other}, 9, pull), STEPS)
    truth = [torch.tensor([])] * 3
    for name, field in FIELDS.items():
        truth[field] = used(name)
    return reader.found(truth)


def assert_perfect(found):
    assert (found.auc, found.precision, found.recall) == (1.0, 1.0, 1.0)
    assert found.chance == pytest.approx((4 + 134) / 412)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("keeps_memory", [True, False])
def test_plain_uploads_tell_all(rounds, keeps_memory):
    assert_perfect(read(uploads(rounds, keeps_memory), keeps_memory=keeps_memory))


def test_memory_of_the_optimizer_matters():
    wrong = read(uploads(3, True), keeps_memory=False)
    assert wrong.precision == pytest.approx(wrong.chance)


def test_uploads_that_are_clipped_tell_all_though_nobody_says_by_how_much():
    assert_perfect(read(uploads(), CLIPPED, factor=0.07))
    blind = read(uploads(), factor=0.07)
    assert blind.precision == pytest.approx(blind.chance)


@pytest.mark.parametrize(("pull", "mu"), [(0.4, 0.0), (0.0, 0.4), (0.1, 0.3)])
def test_pulls_are_computed_too(pull, mu):
    local = LocalSteps(0, lr=LR, weight_decay=DECAY, optimizer="sgd", mu=mu)
    found = uploads(optimizer="sgd", mu=0.4)
    assert_perfect(read(found, local=local, pull=pull))


@pytest.mark.parametrize("clip", [None, 9.0])
def test_behind_noise_few_unused_rows_are_found(clip):
    noise = PrivacySettings(clip=clip, noise="gaussian", scale=0.5)
    found = read(uploads(), noise)
    assert abs(found.auc - 0.5) < 0.1
    n_used, n_unused = 138, 274
    flagged = found.recall * n_used / found.precision if found.recall else 0.0
    assert flagged - found.recall * n_used <= 0.03 * n_unused  # one of 100 by the threshold
    little = read(uploads(), PrivacySettings(clip=clip, noise="gaussian", scale=0.002))
    assert little.auc > 0.99
    assert little.recall > 0.9
    assert little.precision > 0.9


def test_tables_whose_unused_rows_stay_are_read_as_such():
    found = uploads()
    for name in NAMES:
        for _, change in found:
            change[name][~used(name)] = 0.0
    assert read(found).precision < 0.5
    for privacy in (None, CLIPPED):
        assert_perfect(read(found, privacy, still=frozenset(NAMES)))


def test_without_tables_there_is_no_question():
    reader = CategoryReader(LOCAL, PrivacySettings(), True)
    reader.read(Seen(0, {}, {}, {"towers.0.weight": torch.ones(2, 2)}, 9), 1)
    assert reader.found([]) is None


def test_where_nothing_is_found_there_is_no_precision():
    before = {NAMES[0]: torch.zeros(12, WIDTH)}
    reader = CategoryReader(LOCAL, PrivacySettings(), True)
    reader.read(Seen(0, before, {}, {NAMES[0]: torch.zeros(12, WIDTH)}, 9), 1)
    found = reader.found([torch.arange(12) < 3])
    assert math.isnan(found.precision)
    assert (found.recall, found.auc) == (0.0, 0.5)


@given(st.integers(2, 6), st.floats(-3, 3), st.integers(0, 99))
def test_what_is_across_does_not_depend_on_the_share_of_the_move(width, factor, seed):
    key = Key.from_seed(seed)
    rows, moves = (key.fold(n).normal(5, width, dtype=torch.float64) for n in ("rows", "moves"))
    moves[0] = 0.0
    found = across(rows, moves)
    torch.testing.assert_close(across(rows + factor * moves, moves), found)
    torch.testing.assert_close((found * moves).sum(1), torch.zeros(5).double())
    assert torch.equal(found[0], rows[0])


@given(st.integers(0, 4), st.integers(0, 99))
def test_unexplained_is_the_residual_of_least_squares(others, seed):
    key = Key.from_seed(seed)
    by = [key.fold("by", n).normal(20, dtype=torch.float64) for n in range(others)]
    by += by[:1]  # twice the same is no harm
    values = key.fold("values").normal(20, dtype=torch.float64)
    known = np.stack([np.ones(20), *(each.numpy() for each in by)], 1)
    fitted = known @ np.linalg.lstsq(known, values.numpy(), rcond=None)[0]
    np.testing.assert_allclose(unexplained(values, by).numpy(), values.numpy() - fitted, atol=1e-10)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("rounds", [1, 4])
def test_one_unused_row_of_100_is_found_behind_noise(noise, rounds):
    count, scale = 20000, 0.2
    draws = {
        "gaussian": np.random.default_rng(0).normal,
        "laplace": np.random.default_rng(0).laplace,
    }
    reader = CategoryReader(LOCAL, PrivacySettings(noise=noise, scale=scale), True)
    before = {NAMES[0]: torch.zeros(count, WIDTH).double()}
    for _ in range(rounds):
        sent = torch.from_numpy(draws[noise](scale=scale, size=(count, WIDTH)))
        reader.read(Seen(0, before, {}, {NAMES[0]: sent}, 9), 1)
    found = reader.found([torch.ones(count, dtype=torch.bool)])  # all that is found is an alarm
    assert found.recall == pytest.approx(0.01, abs=0.0015 if noise == "gaussian" else 0.007)
