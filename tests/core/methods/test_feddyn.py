"""FedDyn against a naive loop over Algorithm 1 and the global optimum of quadratics."""

import pytest
import torch
from tests.core.methods.method_cases import (
    KEY,
    Linear,
    Net,
    assert_same,
    client_batches,
    gradient,
    method,
    moved,
    optimum,
    play,
    quadratic,
    sample_data,
    start_weights,
    zeros,
)

from coterie.core.errors import UserError
from coterie.core.methods.settings.any_module import FedDynSettings

ALPHA, LR = 0.3, 0.05


def naive(build, data, chosen, epochs, size, weighting):
    """Algorithm 1, client by client, with autograd on the penalised objective itself."""
    cloud = start_weights(build)
    h, own, trained = zeros(cloud), {i: zeros(cloud) for i in range(len(data))}, {}
    n = data.lengths.tolist()
    m = sum(n_i > 0 for n_i in n)
    mean = cloud
    for number, members in enumerate(chosen, 1):
        members = [i for i in members if n[i]]
        for i in members:
            alpha = ALPHA / (n[i] / (sum(n) / m)) if weighting == "samples" else ALPHA
            w = cloud
            for batch in client_batches(data, i, number, epochs, size):
                free = {k: v.clone().requires_grad_() for k, v in w.items()}
                penalty = sum(
                    alpha / 2 * (free[k] - cloud[k]).square().sum() - (own[i][k] * free[k]).sum()
                    for k in w
                )
                more = torch.autograd.grad(penalty, list(free.values()))
                g = gradient(build, w, batch)
                w = moved(w, {k: g[k] + p for k, p in zip(w, more, strict=True)}, LR)
            own[i] = {k: own[i][k] - alpha * (w[k] - cloud[k]) for k in w}
            trained[i] = w
        h = {k: h[k] - ALPHA / m * sum(trained[i][k] - cloud[k] for i in members) for k in h}
        mean = {k: sum(trained[i][k] for i in members) / len(members) for k in h}
        cloud = {k: mean[k] - h[k] / ALPHA for k in h}
    return cloud, mean, h, own, trained


@pytest.mark.parametrize(
    ("build", "size", "weighting"),
    [(Linear, 4, "samples"), (Net, None, "samples"), (Net, 4, "equal")],
)
def test_equals_a_naive_loop(build, size, weighting):
    data = sample_data()
    options = {"epochs": 2, "batch_size": size, "weighting": weighting}
    server, client = method("feddyn", build, **options)
    played = play(server, client, data, 2, 3)
    cloud, mean, h, own, trained = naive(build, data, [range(10)] * 2, 2, size, weighting)
    assert_same(played.state.weights, cloud)
    assert_same(played.state.h, h)
    assert_same(server.model(played.state), mean)
    kept = played.store.take(data.ids)
    for i in trained:
        assert_same({k: v[i] for k, v in kept.gradient.items()}, own[i])
        assert_same({k: v[i] for k, v in kept.personal.items()}, trained[i])


@pytest.mark.parametrize("weighting", ["samples", "equal"])
def test_some_clients(weighting):
    data = sample_data()
    options = {"epochs": 2, "batch_size": 3, "weighting": weighting, "fraction": 0.4}
    played = play(*method("feddyn", Net, **options), data, 3)
    chosen = []
    for number in range(1, 4):
        draws = KEY.fold("round", number).fold("sample").fold(data.ids)
        chosen.append(draws.uniform(dtype=torch.float64).argsort()[:4].sort().values.tolist())
    cloud, mean, h, _, _ = naive(Net, data, chosen, 2, 3, weighting)
    assert_same(played.state.weights, cloud)
    assert_same(played.state.mean, mean)
    assert_same(played.state.h, h)


@pytest.mark.parametrize(
    ("weighting", "fraction"), [("samples", 1), ("equal", 1), ("samples", 0.5)]
)
def test_converges_to_the_global_optimum(weighting, fraction):
    data = sample_data([8, 5, 9, 20])
    share = [n / 42 for n in data.lengths.tolist()]
    best = optimum(data, share if weighting == "samples" else [0.25] * 4)
    options = {"epochs": 8, "lr": 0.1, "weighting": weighting, "fraction": fraction}
    server, client = method("feddyn", Linear, alpha=1.0, **options)
    played = play(server, client, data, 60 if fraction == 1 else 110)
    assert float((server.model(played.state)["w"] - best).norm()) < 1e-6
    # Then h_i is the gradient of the client's (weighted) loss there.
    kept = played.store.take(data.ids)
    weight = data.lengths / 10.5 if weighting == "samples" else torch.ones(4)
    for c in range(4):
        hessian, right = quadratic(data, c)
        torch.testing.assert_close(
            kept.gradient["w"][c] * weight[c],
            (hessian @ best - right) * weight[c],
            atol=1e-5,
            rtol=1e-5,
        )


def test_one_exact_round_is_the_proximal_point():
    """With h_i = 0, w_i = (H_i + alpha I)^-1 (b_i + alpha W)."""
    data = sample_data([8, 5])
    server, client = method("feddyn", Linear, alpha=0.8, epochs=250, lr=0.1, weighting="equal")
    start = server.begin(KEY).weights["w"]
    played = play(server, client, data, 1)
    kept = played.store.take(data.ids).personal["w"]
    for c in range(2):
        hessian, right = quadratic(data, c)
        eye = torch.eye(3, dtype=torch.float64)
        exact = torch.linalg.solve(hessian + 0.8 * eye, right + 0.8 * start)
        torch.testing.assert_close(kept[c], exact, atol=1e-9, rtol=1e-9)


def test_alpha_is_checked():
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="alpha"):
            FedDynSettings(alpha=wrong)
