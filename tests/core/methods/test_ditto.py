"""Ditto against a naive loop over Algorithm 1, FedAvg, and the proximal problem of quadratics."""

import pytest
import torch
from tests.core.methods.method_cases import (
    Linear,
    Net,
    assert_same,
    client_batches,
    gradient,
    method,
    moved,
    play,
    quadratic,
    sample_data,
    start_weights,
    zeros,
)

from coterie.core.errors import UserError
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer
from coterie.core.methods.settings.any_module import DittoSettings
from coterie.core.methods.settings.fedavg import FedAvgSettings

LAM = 0.7


def naive(build, data, rounds, epochs, own_epochs, size, lr, own_lr):
    """Algorithm 1, client by client."""
    w = start_weights(build)
    n = data.lengths.tolist()
    own = {i: w for i in range(len(data))}
    for number in range(1, rounds + 1):
        total = zeros(w)
        for i in range(len(data)):
            local, v = w, own[i]
            for batch in client_batches(data, i, number, epochs, size):
                local = moved(local, gradient(build, local, batch), lr)
            for batch in client_batches(data, i, number, own_epochs, size, more=("personal",)):
                g = gradient(build, v, batch)
                v = moved(v, {k: g[k] + LAM * (v[k] - w[k]) for k in v}, own_lr)
            own[i] = v if n[i] else w
            for k in w:
                total[k] += n[i] / sum(n) * local[k]
        w = total
    return w, own


@pytest.mark.parametrize("build", [Linear, Net])
@pytest.mark.parametrize("size", [None, 4])
def test_equals_a_naive_loop(build, size):
    data = sample_data()
    options = {"epochs": 2, "personal_epochs": 3, "personal_lr": 0.03, "batch_size": size}
    played = play(*method("ditto", build, **options), data, 3, 3)
    w, own = naive(build, data, 3, 2, 3, size, 0.05, 0.03)
    assert_same(played.state.weights, w)
    kept = played.store.take(data.ids).personal
    for i, v in own.items():
        assert_same({k: rows[i] for k, rows in kept.items()}, v)


def test_the_global_model_is_fedavgs():
    data = sample_data()
    options = {"epochs": 2, "batch_size": 3, "fraction": 0.4}
    played = play(*method("ditto", Net, lam=1.0, **options), data, 3)
    settings = FedAvgSettings(lr=0.05, evaluate_every=0, **options)
    averaged = play(FedAvgServer(Net, settings), FedAvgClient(Net(), settings), data, 3)
    assert all(torch.equal(played.state.weights[k], v) for k, v in averaged.state.weights.items())


def test_personal_models_converge_to_the_proximal_problem():
    """v_k = argmin F_k(v) + lam/2 |v - w|^2 = (H_k + lam I)^-1 (b_k + lam w)."""
    data = sample_data([8, 5, 9])
    server, client = method("ditto", Linear, lam=LAM, personal_epochs=300, personal_lr=0.1)
    before = play(server, client, data, 2)
    played = play(server, client, data, 3)
    kept = played.store.take(data.ids).personal["w"]
    for c in range(3):
        hessian, right = quadratic(data, c)
        eye = torch.eye(3, dtype=torch.float64)
        exact = torch.linalg.solve(hessian + LAM * eye, right + LAM * before.state.weights["w"])
        torch.testing.assert_close(kept[c], exact, atol=1e-9, rtol=1e-9)


def test_without_pull_each_client_trains_alone():
    data = sample_data([8, 5])
    options = {"lam": 0.0, "epochs": 1, "personal_epochs": 5}
    played = play(*method("ditto", Linear, **options), data, 4)
    kept = played.store.take(data.ids).personal["w"]
    for c in range(2):
        hessian, right = quadratic(data, c)
        w = start_weights(Linear)["w"]
        for _ in range(20):
            w = w - 0.05 * (hessian @ w - right)
        torch.testing.assert_close(kept[c], w, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"lam": -1.0}, "lam"),
        ({"lam": float("nan")}, "lam"),
        ({"lam": 30.0}, "'lr' times 'lam' is 3"),
        ({"personal_epochs": 0}, "personal_epochs"),
        ({"personal_lr": 0.0}, "personal_lr"),
        ({"keep_models": False}, "keep_models"),
    ],
)
def test_settings_are_checked(wrong, name):
    with pytest.raises(UserError, match=name):
        DittoSettings(**wrong)
