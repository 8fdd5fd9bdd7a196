"""Synthetic tasks: moments, labels and sizes against plain numpy, and draws by client alone."""

import math

import numpy as np
import pytest
import torch

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.page.data.synthetic import SIZES, Law, synthetic, synthetic_fedprox

KEY = Key.from_seed(11)
F64 = torch.float64


def sized(*counts):
    """Samples of each set, in the order of `SIZES`."""
    return dict(zip(SIZES, counts, strict=True))


def of_client(data, client):
    """Features and labels of one client, in numpy."""
    one = data.take(torch.tensor([client])).samples
    return one["x"].numpy(), one["y"].numpy()


def client_key(client):
    return KEY.fold("client").fold(torch.tensor([client]))


def normals(key, *shape):
    return key.normal(*shape, dtype=F64).numpy().reshape(shape)


def naive(part, client, n, law, d, k):
    """Draw a client's samples one by one, as the law reads."""
    mine = client_key(client)
    mean = law.beta * normals(mine.fold("centre"), 1) + normals(mine.fold("mean"), d)
    if law.alpha is None:
        weight, bias = normals(KEY.fold("weight"), d, k), normals(KEY.fold("bias"), 1, k)
    else:
        shift = law.alpha * normals(mine.fold("shift"), 1)
        weight = shift + normals(mine.fold("weight"), d, k)
        bias = shift + normals(mine.fold("bias"), 1, k)
    features, labels = [], []
    for position in range(n):
        noise = normals(mine.fold(part).fold(torch.tensor([position])), d)
        x = np.array([mean[j] + noise[j] * math.sqrt((j + 1) ** -1.2) for j in range(d)])
        scores = [sum(x[j] * weight[j, c] for j in range(d)) + bias[0, c] for c in range(k)]
        features.append(x)
        labels.append(int(np.argmax(scores)))
    return np.array(features), np.array(labels)


def test_sizes_are_those_of_the_paper_and_validation_comes_on_top():
    task = synthetic(KEY)
    parts = (task.clients.train, task.clients.valid, task.clients.test)
    assert [part.lengths.unique().tolist() for part in parts] == [[210], [45], [90]]
    assert [tuple(part.samples["x"].shape) for part in parts] == [
        (21000, 30),
        (4500, 30),
        (9000, 30),
    ]
    assert tuple(task.server_test["x"].shape) == (7500, 30)
    assert tuple(task.server_valid["x"].shape) == (2000, 30)
    assert (task.name, task.n_classes, len(task.clients)) == ("synthetic", 30, 100)
    assert task.server_test["y"].dtype == torch.int64
    assert task.server_test["x"].dtype == torch.float32
    assert set(task.server_test["y"].tolist()) <= set(range(30))


@pytest.mark.parametrize("law", [Law(), Law(6, 4, alpha=0.7, beta=2.0)], ids=["shared", "own"])
@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_samples_equal_a_naive_drawing(law, part):
    task = synthetic(KEY, 3, law=law, sizes=sized(5, 4, 3, 2, 1), dtype=F64)
    data = getattr(task.clients, part)
    for client in (0, 2):
        n = int(data.lengths[client])
        x, y = naive(part, client, n, law, law.n_features, law.n_classes)
        got_x, got_y = of_client(data, client)
        np.testing.assert_allclose(got_x, x, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(got_y, y)


def test_server_samples_come_from_every_client_in_order():
    law = Law(6, 4)
    task = synthetic(KEY, 3, law=law, sizes=sized(5, 4, 3, 2, 1), dtype=F64)
    expected = [naive("server_valid", client, 2, law, 6, 4) for client in range(3)]
    np.testing.assert_allclose(task.server_valid["x"], np.concatenate([x for x, _ in expected]))
    assert task.server_valid["y"].tolist() == np.concatenate([y for _, y in expected]).tolist()


def test_labels_of_all_clients_come_from_one_rule():
    task = synthetic(KEY, dtype=F64)
    weight, bias = normals(KEY.fold("weight"), 30, 30), normals(KEY.fold("bias"), 30)
    for samples in (task.clients.train.samples, task.server_test):
        scores = np.einsum("nd,dk->nk", samples["x"].numpy(), weight) + bias
        assert (scores.argmax(1) == samples["y"].numpy()).all()


def test_features_have_the_moments_of_the_law():
    law, n = Law(beta=1.5), 4000
    task = synthetic(KEY, 60, law=law, sizes=sized(n, 0, 0, 0, 0), dtype=F64)
    x = task.clients.train.samples["x"].reshape(60, n, 30).numpy()
    variance = x.var(1).mean(0)
    np.testing.assert_allclose(variance, np.arange(1, 31) ** -1.2, rtol=0.02)
    standardised = (x - x.mean(1, keepdims=True)) * np.arange(1, 31) ** 0.6
    correlation = np.corrcoef(standardised.reshape(-1, 30).T) - np.eye(30)
    assert np.abs(correlation).max() < 0.02
    assert abs((standardised**4).mean() - 3) < 0.05
    means = x.mean(1)
    np.testing.assert_allclose((means - means.mean(1, keepdims=True)).var(), 29 / 30, rtol=0.1)
    # The mean over 30 features has the variance of B_i, beta^2, and a 30th of that of v_ij.
    assert means.mean(1).var() == pytest.approx(1.5**2 + 1 / 30, rel=0.5)


def test_parts_of_a_client_share_its_mean_but_no_sample():
    task = synthetic(KEY, 2, sizes=sized(3000, 3000, 3000, 0, 0), dtype=F64)
    train, valid, test = (
        of_client(part, 1)[0]
        for part in (task.clients.train, task.clients.valid, task.clients.test)
    )
    np.testing.assert_allclose(train.mean(0), test.mean(0), atol=0.1)
    np.testing.assert_allclose(train.mean(0), valid.mean(0), atol=0.1)
    assert not set(train[:, 0]) & (set(test[:, 0]) | set(valid[:, 0]))
    assert np.abs(of_client(task.clients.train, 0)[0].mean(0) - train.mean(0)).max() > 0.5


@pytest.mark.parametrize("make", [synthetic, synthetic_fedprox])
@pytest.mark.parametrize("client", [0, 6])
def test_more_clients_leave_the_others_as_they_are(make, client):
    few, many = make(KEY, 7), make(KEY, 50)
    for part in ("train", "valid", "test"):
        for a, b in zip(
            of_client(getattr(few.clients, part), client),
            of_client(getattr(many.clients, part), client),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)
    n = len(few.server_test["y"])
    assert torch.equal(few.server_test["x"], many.server_test["x"][:n])


@pytest.mark.parametrize("make", [synthetic, synthetic_fedprox])
def test_the_key_decides(make):
    one, again, other = make(KEY, 4), make(KEY, 4), make(Key.from_seed(12), 4)
    assert torch.equal(one.clients.test.samples["x"], again.clients.test.samples["x"])
    assert torch.equal(one.server_valid["y"], again.server_valid["y"])
    assert not torch.equal(one.server_test["x"][:5], other.server_test["x"][:5])


def test_more_validation_leaves_training_as_it_is():
    one, other = (synthetic(KEY, 3, sizes=SIZES | {"valid": n}) for n in (0, 45))
    assert one.clients.valid.lengths.tolist() == [0, 0, 0]
    assert torch.equal(one.clients.train.samples["x"], other.clients.train.samples["x"])


def test_float32_is_float64_rounded():
    single, double = synthetic(KEY, 3), synthetic(KEY, 3, dtype=F64)
    assert torch.equal(single.server_test["x"], double.server_test["x"].float())
    assert torch.equal(single.server_test["y"], double.server_test["y"])


def test_theta_spreads_sizes_log_normally_and_keeps_the_proportions():
    task = synthetic(KEY, 1500, law=Law(2, 2), theta=0.5)
    logs = task.clients.lengths.double().log()
    assert float(logs.std()) == pytest.approx(0.5, rel=0.06)
    assert float(logs.mean()) == pytest.approx(math.log(210), abs=0.04)
    ratio = task.clients.test.lengths / task.clients.train.lengths
    np.testing.assert_allclose(ratio, 90 / 210, atol=0.03)


def test_even_tiny_clients_have_a_sample():
    task = synthetic(KEY, 200, law=Law(2, 2), theta=3.0)
    assert int(task.clients.lengths.min()) >= 1
    assert int(task.clients.test.lengths.min()) >= 1


def test_fedprox_sizes_and_split():
    task = synthetic_fedprox(KEY, 400, law=Law(2, 2, alpha=1.0))
    held = task.clients.train.lengths + task.clients.test.lengths
    assert int(held.min()) >= 50
    logs = (held - 50).clamp(min=1).double().log()
    assert float(logs.mean()) == pytest.approx(4.0, abs=0.35)
    assert float(logs.std()) == pytest.approx(2.0, abs=0.25)
    assert torch.equal(task.clients.lengths, (held.double() * 0.9 + 1e-9).long())
    assert torch.equal(task.clients.valid.lengths, task.clients.test.lengths)


def test_fedprox_defaults_and_labels_of_its_own_rules():
    task = synthetic_fedprox(KEY, 5, dtype=F64)
    assert (task.name, task.n_classes) == ("synthetic-fedprox", 10)
    assert task.clients.test.samples["x"].shape[1] == 60
    law = Law(60, 10, alpha=1.0)
    for client in range(5):
        n = int(task.clients.test.lengths[client])
        x, y = naive("test", client, n, law, 60, 10)
        got_x, got_y = of_client(task.clients.test, client)
        np.testing.assert_allclose(got_x, x, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(got_y, y)


def test_the_value_of_alpha_changes_no_label():
    small, large = (synthetic_fedprox(KEY, 8, law=Law(60, 10, alpha=a)) for a in (0.0, 5.0))
    assert torch.equal(small.clients.train.samples["y"], large.clients.train.samples["y"])


def test_own_rules_disagree_where_a_shared_one_cannot():
    """A linear model fitted to all clients is far better when they share one rule."""
    errors = []
    for alpha in (None, 1.0):
        task = synthetic(KEY, 20, law=Law(8, 3, alpha=alpha, beta=0.0), dtype=F64)
        x, y = task.clients.train.samples["x"], task.clients.train.samples["y"]
        design = torch.cat([x, torch.ones(len(x), 1, dtype=F64)], 1)
        solution = torch.linalg.lstsq(design, torch.nn.functional.one_hot(y, 3).double()).solution
        errors.append(float(((design @ solution).argmax(1) != y).double().mean()))
    assert errors[0] < errors[1] / 2


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        ("n_clients is 0", lambda: synthetic(KEY, 0)),
        ("theta is -1", lambda: synthetic(KEY, 2, theta=-1)),
        ("theta is nan", lambda: synthetic(KEY, 2, theta=float("nan"))),
        ("theta .* over 1,000,000 samples", lambda: synthetic(KEY, 100, theta=50)),
        (
            "for sizes of 10000000 .* over 1,000,000",
            lambda: synthetic(KEY, 2, sizes=SIZES | {"train": 10**7}),
        ),
        ("train is -5", lambda: synthetic(KEY, 2, sizes=SIZES | {"train": -5})),
        ("beta is -1", lambda: synthetic(KEY, 2, law=Law(beta=-1.0))),
        ("alpha is inf", lambda: synthetic(KEY, 2, law=Law(alpha=float("inf")))),
        ("n_classes is 0", lambda: synthetic(KEY, 2, law=Law(n_classes=0))),
        ("n_clients is -1", lambda: synthetic_fedprox(KEY, -1)),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(words, request_):
    with pytest.raises(UserError, match=words) as error:
        request_()
    assert "\n" not in str(error.value)
