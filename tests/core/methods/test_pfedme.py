"""pFedMe against a naive loop over Algorithm 1 and the Moreau envelope of quadratics."""

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
    play,
    quadratic,
    sample_data,
    start_weights,
    zeros,
)

from coterie.core.errors import UserError
from coterie.core.methods.settings.any_module import PFedMeSettings

LAM, K, ETA, LR, BETA, DECAY = 2.0, 3, 0.1, 0.04, 0.8, 0.02


def naive(build, data, chosen, epochs, size, weighting, limit=None):
    """Algorithm 1: all clients train, ``chosen`` are heard."""
    w = start_weights(build)
    n, theta = data.lengths.tolist(), {}
    for number, members in enumerate(chosen, 1):
        total, weights = zeros(w), 0
        for i in range(len(data)):
            local = personal = w
            step = "update" if i in members else "personalise"
            for batch in client_batches(data, i, number, epochs, size, step)[:limit]:
                for _ in range(K):
                    g = gradient(build, personal, batch)
                    slope = {
                        k: g[k] + DECAY * v + LAM * (v - local[k]) for k, v in personal.items()
                    }
                    personal = moved(personal, slope, LR)
                local = {k: v - ETA * LAM * (v - personal[k]) for k, v in local.items()}
            theta[i] = personal
            if i in members:
                weight = n[i] if weighting == "samples" else int(n[i] > 0)
                weights += weight
                for k in w:
                    total[k] += weight * local[k]
        w = {k: (1 - BETA) * w[k] + BETA * total[k] / weights for k in w}
    return w, theta


def options(**more):
    fixed = {"lam": LAM, "inner_steps": K, "lr": ETA, "personal_lr": LR, "beta": BETA}
    return fixed | {"weight_decay": DECAY} | more


@pytest.mark.parametrize(
    ("build", "size", "weighting"),
    [(Linear, 4, "samples"), (Net, None, "samples"), (Net, 4, "equal")],
)
def test_equals_a_naive_loop(build, size, weighting):
    data = sample_data()
    chosen = options(epochs=2, batch_size=size, weighting=weighting)
    played = play(*method("pfedme", build, **chosen), data, 2, 3)
    w, theta = naive(build, data, [range(10)] * 2, 2, size, weighting)
    assert_same(played.state.weights, w)
    kept = played.store.take(data.ids).personal
    for i, model in theta.items():
        assert_same({k: v[i] for k, v in kept.items()}, model)


def test_all_clients_train_and_some_are_heard():
    data = sample_data()
    chosen = options(epochs=2, batch_size=3, fraction=0.4)
    played = play(*method("pfedme", Net, **chosen), data, 2)
    members = []
    for number in range(1, 3):
        draws = KEY.fold("round", number).fold("sample").fold(data.ids)
        members.append(draws.uniform(dtype=torch.float64).argsort()[:4].tolist())
    w, theta = naive(Net, data, members, 2, 3, "samples")
    assert_same(played.state.weights, w)
    kept = played.store.take(data.ids)
    assert kept.rounds.tolist() == [2] * 10
    for i, model in theta.items():
        assert_same({k: v[i] for k, v in kept.personal.items()}, model)
    assert [journal.scalars["fed/clients"] for journal in played.journals] == [4, 4]


def test_a_number_of_mini_batches_of_its_own():
    """R = 5 mini-batches: several epochs of a small client, a part of one of a large client."""
    data = sample_data()
    chosen = options(local_rounds=5, batch_size=2)
    played = play(*method("pfedme", Net, **chosen), data, 2, 4)
    w, _ = naive(Net, data, [range(10)] * 2, 5, 2, "samples", limit=5)
    assert_same(played.state.weights, w)


def test_theta_converges_to_the_proximal_point():
    """With many steps, theta = argmin f + lam/2 |theta - w|^2; w moves along the envelope."""
    data = sample_data([8, 5, 9])
    chosen = {"inner_steps": 150, "personal_lr": 0.1, "lr": 0.1, "lam": LAM, "weighting": "equal"}
    server, client = method("pfedme", Linear, **chosen)
    start = server.begin(KEY).weights["w"]
    played = play(server, client, data, 1)
    kept = played.store.take(data.ids).personal["w"]
    eye, mean = torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for c in range(3):
        hessian, right = quadratic(data, c)
        exact = torch.linalg.solve(hessian + LAM * eye, right + LAM * start)
        torch.testing.assert_close(kept[c], exact, atol=1e-9, rtol=1e-9)
        mean += (start - 0.1 * LAM * (start - exact)) / 3
    torch.testing.assert_close(played.state.weights["w"], mean, atol=1e-9, rtol=1e-9)


def test_one_local_round_finds_the_optimum_of_the_envelopes():
    """With R = 1 the server descends on mean F_i(w), F_i(w) = min f_i + lam/2 |theta - w|^2.

    The gradient of F_i is lam (w - theta_i(w)), linear in w for quadratics.
    """
    data = sample_data([8, 5, 9])
    chosen = {"inner_steps": 25, "personal_lr": 0.2, "lr": 0.6, "lam": LAM, "weighting": "equal"}
    played = play(*method("pfedme", Linear, **chosen), data, 28)
    left, right_side = torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)
    for c in range(3):
        hessian, right = quadratic(data, c)
        inverse = torch.linalg.inv(hessian + LAM * eye)
        left += eye - LAM * inverse
        right_side += inverse @ right
    best = torch.linalg.solve(left, right_side)
    assert float((played.state.weights["w"] - best).norm()) < 1e-6


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"lam": 0.0}, "lam"),
        ({"inner_steps": 0}, "inner_steps"),
        ({"local_rounds": 0}, "local_rounds"),
        ({"beta": 0.0}, "beta"),
        ({"personal_lr": float("nan")}, "personal_lr"),
        ({"personal_lr": 0.2}, "'personal_lr' times 'lam' is 3"),
        ({"lr": 0.2}, "'lr' times 'lam' is 3"),
    ],
)
def test_settings_are_checked(wrong, name):
    with pytest.raises(UserError, match=name):
        PFedMeSettings(**wrong)
