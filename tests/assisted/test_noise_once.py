"""Noise on residuals that are sent once: who fits it, how often it is drawn, what it guarantees."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.assisted.small_organisations import finished
from tests.assisted.test_residuals_once import (
    column_means,
    kept_by,
    organisations,
    plain_network,
    rows_that_differ,
    settings,
)
from tests.flaky import FlakyHosts, once
from tests.hosted import TakenApart

from coterie.assisted.client_halves import client_half
from coterie.assisted.experiment import Experiment
from coterie.assisted.messages import Turn
from coterie.assisted.rating_privacy import epsilon_of_rating, remark, sensitivity
from coterie.assisted.readings import resolve
from coterie.assisted.samples.autorec import PRESENCE, AutoRec
from coterie.assisted.server_halves import server_half
from coterie.assisted.settings import DomainSettings, ModelSettings, ProtectSettings, Settings
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.privacy.build import middleware
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import PrivacySettings

LAPLACE = PrivacySettings(
    clip=4.0, clip_by="entry", noise="laplace", scale=0.8, steps=("residual",)
)
SCALE = DomainSettings(scale=(1.0, 5.0))
BACK = {
    "dp": {"protect": ProtectSettings("dp", own="protected")},
    "laplace": {"protect": ProtectSettings(own="protected"), "privacy": LAPLACE},
}


def noisy(**more):
    return settings(**({"privacy": LAPLACE} | more))


def run_of(how, data):
    """A run with its noise; its server notes what organisations send."""
    client, server = client_half(how), server_half(how)
    layers = middleware(how.privacy, client.steps())
    run = FederatedRun(
        Federation(server, client, [data], how.seed, rounds=how.rounds, middleware=layers)
    )
    return run, noted(server)


def noted(server):
    """Residuals as the server gets them, of each time that it asks."""
    found, ask = [], server.residuals

    def residuals(state, cohort):
        replies = ask(state, cohort)
        found.append({k: up.values.clone() for k, up in replies.ups.items()})
        return replies

    server.residuals = residuals
    return found


@pytest.mark.parametrize("how", BACK)
def test_models_fit_what_was_sent_and_predict_from_clean_residuals(how):
    data = organisations()
    run, sent = run_of(settings(**BACK[how]), data)
    run.advance()
    client, first, digests = run.federation.client, 0, set()
    for one in data.each:
        mine, width = kept_by(run, one.id), one.train.n_columns
        own = slice(first, first + width)
        fitted, given = client.fitted(mine, one)[""].matrix, client.samples(mine, one)[""]
        digests.add(fitted.values.numpy().tobytes())
        clean = 2 * (one.train.to_dense(float("nan")).numpy() - column_means(one.train))
        np.testing.assert_allclose(given.own.to_dense(float("nan")).T, clean, atol=1e-12)
        table = fitted.to_dense(float("nan"))[:, own]
        assert torch.equal(table[~table.isnan()], sent[0][one.id])
        others = [torch.cat([m[:, : own.start], m[:, own.stop :]], 1) for m in dense(fitted, given)]
        assert torch.equal(others[0].nan_to_num(99.0), others[1].nan_to_num(99.0))
        first += width
    assert len(digests) == 1  # all fit the same


def test_predictions_are_made_from_clean_residuals():
    """F = F⁰ + η f by numpy, with members that have fitted what was sent."""
    data = organisations()
    run, _ = run_of(noisy(protect=ProtectSettings(own="protected")), data)
    run.advance()
    client = run.federation.client
    for one in data.each:
        mine, table = kept_by(run, one.id), one.train.to_dense(float("nan")).numpy()
        params = mine.learned.params | {"eta": torch.tensor(0.7)}
        size = float(client.fitted(mine, one)[""].matrix.values.square().mean().sqrt())
        x = np.nan_to_num(2 * (table - column_means(one.train)).T / size + PRESENCE) * (1 - 0.4)
        members = [
            {n.removeprefix("autorec/"): v[k] for n, v in params.items() if "autorec/" in n}
            for k in range(2)
        ]
        f = size * np.mean([plain_network(each, x) for each in members], 0)
        scores = column_means(one.train) + 0.7 * f.T
        asked = ~one.test.to_dense(float("nan")).isnan().numpy()
        found = client.of(mine, one)[1].predict(params, one.test)
        np.testing.assert_allclose(found, scores[asked], rtol=1e-6)


def dense(fitted, given):
    return [each.to_dense(float("nan")) for each in (fitted, given.matrix)]


def test_what_all_fit_is_trained_once(monkeypatch):
    counted, kept = [], AutoRec._each
    monkeypatch.setattr(AutoRec, "_each", lambda *given: counted.append(1) or kept(*given))
    numbers = {}
    for own in ("clean", "protected"):
        counted.clear()
        run, _ = run_of(noisy(rounds=2, protect=ProtectSettings(own=own)), organisations())
        finished(run)
        numbers[own] = len(counted)
    assert numbers == {"clean": 3 + 2 * 3, "protected": 3 + 2}  # three begin, two rounds


def test_of_rows_that_nobody_else_has_nothing_was_sent():
    data = rows_that_differ()
    run, sent = run_of(noisy(protect=ProtectSettings(own="protected")), data)
    run.advance()
    one, mine, client = data.each[2], kept_by(run, 2), run.federation.client
    fitted, clean = (
        each.matrix.to_dense(float("nan"))[:, -one.train.n_columns :]
        for each in (client.fitted(mine, one)[""], client.samples(mine, one)[""])
    )
    assert torch.equal(fitted[:4].nan_to_num(99.0), clean[:4].nan_to_num(99.0))
    assert torch.equal(fitted[4:][~fitted[4:].isnan()], sent[0][2])


def test_who_sends_residuals_of_the_middle_sends_ratings_and_noise():
    how = noisy(data=SCALE, protect=ProtectSettings(centre="receiver"))
    quiet = replace(how, privacy=replace(LAPLACE, scale=1e-9))
    data = organisations()
    for given, atol in ((quiet, 1e-6), (how, math.inf)):
        run, sent = run_of(given, data)
        run.advance()
        for one in data.each:
            exact = 2 * (one.train.values - 3)
            torch.testing.assert_close(sent[0][one.id], exact, rtol=0, atol=atol)
            found = run.federation.client.samples(kept_by(run, one.id), one)[""].matrix
            columns = found.to_dense(float("nan")).nanmean(0)
            torch.testing.assert_close(columns.nan_to_num(), torch.zeros_like(columns))
            clean = run_of(settings(), data)[0]
            clean.advance()
            expected = clean.federation.client.samples(kept_by(clean, one.id), one)[""].matrix
            torch.testing.assert_close(found.values, expected.values, rtol=0, atol=atol)
    assert not torch.allclose(found.values, expected.values, atol=0.1)


def test_labels_are_sent_of_a_half():
    how = settings(feedback="implicit", protect=ProtectSettings("dp", alpha=1e9, centre="receiver"))
    data = organisations(binary=True)
    run, sent = run_of(how, data)
    run.advance()
    for one in data.each:
        torch.testing.assert_close(sent[0][one.id], one.train.values - 0.5, rtol=0, atol=1e-6)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("bound", [0.5, 2.0, 4.0, 8.0])
def test_no_rating_moves_residuals_by_more_than_is_said(order, bound):
    generator, worst = torch.Generator().manual_seed(3), 0.0
    said = sensitivity(bound, 8.0, order, alone=False)
    for n in [1, 2, 3, 5, 17, 400]:
        for ends in range(20):
            ratings = torch.randint(1, 6, (n,), generator=generator).double()
            before, after = ratings.clone(), ratings
            before[0], after[0] = (1.0, 5.0) if ends else (5.0, 1.0)
            pair = [(2 * (r - r.mean())).clamp(-bound, bound) for r in (before, after)]
            worst = max(worst, float((pair[0] - pair[1]).norm(p=order)))
    assert worst <= said + 1e-9
    assert worst > 0.6 * said or bound < 1  # then few ratings are near enough to the mean
    assert sensitivity(bound, 8.0, order, alone=True) == min(2 * bound, 8.0)


def test_who_shares_a_mean_with_a_rating_moves_with_it():
    """Its own residual alone, where receivers take means off."""
    data = organisations()
    one = data.each[0]
    values = one.train.values.clone()
    values[0] = 6 - values[0] if float(values[0]) != 3 else 5.0
    train = replace(one.train, values=values)
    other = replace(one, domain=replace(one.domain, train=train))
    in_column = int((one.train.columns.values == one.train.columns.values[0]).sum())
    assert 1 < in_column < len(values)
    for centre, start, wanted in (
        ("sender", "mean", in_column),
        ("sender", "constant", len(values)),
        ("receiver", "mean", 1),
    ):
        how = noisy(data=SCALE, protect=ProtectSettings(centre=centre), start=start)
        sent = []
        for each in (one, other):
            client = client_half(how)
            run, _ = run_of(client.settings, data)
            run.advance()
            mine = replace(kept_by(run, 0), scores=client.own(each)[0].base.at(each.train))
            secret = run.secret.fold(torch.tensor([0]))
            up, _ = client.residual(Turn(1, len(values)), mine, each, secret)
            sent.append(up.values)
        moved = (sent[0] - sent[1]).abs()
        assert int((moved > 0).sum()) == wanted
        said = sensitivity(LAPLACE.clip, 8.0, order=1, alone=centre == "receiver")
        assert float(moved.sum()) <= said + 1e-9


def test_the_epsilon_of_a_rating_is_that_of_all_that_it_moves():
    own = noisy()
    assert epsilon_of_rating(own, 4.0) == pytest.approx(20.0)  # (2·4 + 8) / .8, not 10
    assert remark(noisy(data=SCALE), 4.0) == (
        "the ε of one rating is 20: privacy/epsilon is that of one residual"
    )
    assert remark(own, 4.0) == (  # the range is that of the data, which the next rating may leave
        "the ε of one rating is 20 (if none can be outside of those that are there: data.scale "
        "says): privacy/epsilon is that of one residual"
    )
    alone = noisy(data=SCALE, protect=ProtectSettings(centre="receiver"))
    assert epsilon_of_rating(alone, 4.0) == pytest.approx(10.0)
    whole = noisy(privacy=replace(LAPLACE, clip=8.0))
    assert epsilon_of_rating(whole, 4.0) == pytest.approx(20.0)  # nothing is clipped either way
    labels = noisy(feedback="implicit", privacy=replace(LAPLACE, clip=1.0))
    assert epsilon_of_rating(labels, 1.0) == pytest.approx(2 / 0.8)
    nothing = (
        noisy(start="bias"),
        settings(),
        settings(protect=ProtectSettings("dp")),
        noisy(privacy=replace(LAPLACE, clip_by="upload")),
        resolve(Settings(method="mtal", privacy=replace(LAPLACE, steps=("fit",)))),
    )
    assert all(math.isinf(epsilon_of_rating(each, 4.0)) for each in nothing)
    assert not any(remark(each, 4.0) for each in nothing)
    rounds = resolve(Settings(privacy=LAPLACE))
    assert "of later rounds, which are made of fits, there is none" in remark(rounds, 4.0)


def test_a_resumed_run_sends_no_residual_again():
    how, data = noisy(rounds=3), organisations()
    (whole, sent), (second, none) = (run_of(how, data) for _ in range(2))
    whole.advance()
    second.load_plain(whole.to_plain())
    for run in (whole, second):
        finished(run)
    assert (len(sent), none) == (1, [])
    assert whole.results == second.results
    (other, again) = run_of(how, data)
    other.advance()  # a run that begins once more, as its first round did not end
    assert all(torch.equal(again[0][k], sent[0][k]) for k in sent[0])


@pytest.mark.long
@pytest.mark.parametrize("how", ["dp", "laplace"])
def test_a_round_that_is_tried_again_sends_the_same_noise_or_counts_it_twice(how, tmp_path):
    """Organisation 2 misses the first try, so that what precedes residuals differs in the second;
    organisation 1 is lost after it has sent its residuals, so that there is a second."""
    small = {"domains": "uniform", "count": 3}
    given = settings(rounds=1, **BACK[how])
    given = replace(given, data=replace(given.data, **small))
    experiment = Experiment(given)
    apart = TakenApart.of(experiment, tmp_path, list(torch.arange(3).split(1)))
    with FlakyHosts(apart.folders, min_clients=0.6, patience=2, **apart.known) as hosts:
        hosts.hosts[2].fault = once("pattern", 1, "lost")
        hosts.hosts[1].fault = once("receive", 1, "lost")
        run = apart.over(hosts)
        sent = noted(run.federation.server)
        run.advance()
        spent = [one for one in run.journal.releases if one.step == "residual"]
    assert [sorted(each) for each in sent] == [[0, 1], [0, 1, 2]]
    assert len(spent) == 2  # so that ε counts both
    for k in (0, 1):
        assert torch.equal(sent[0][k], sent[1][k]) == (how == "dp")


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"method": "mtal", "privacy": LAPLACE}, "no effect with the method mtal"),
        ({}, "would send the ratings themselves"),
        ({"privacy": replace(LAPLACE, steps=("fit",))}, "would send the ratings themselves"),
        ({"privacy": LAPLACE}, r"set data.scale, as \[1,5\]"),
        ({"privacy": LAPLACE, "data": SCALE, "start": "bias"}, "start bias has others: set"),
    ],
)
def test_residuals_of_the_middle_are_refused_where_they_make_no_sense(chosen, said):
    base = {"method": "residuals", "protect": ProtectSettings(centre="receiver")}
    base |= {"model": ModelSettings("aae" if "method" in chosen else "autorec")}
    with pytest.raises(UserError, match=said) as refused:
        Settings(**(base | chosen))
    assert "\n" not in str(refused.value)


def test_uploads_of_each_organisation_have_noise_of_their_own():
    run, sent = run_of(noisy(), organisations())
    run.advance()
    noise = []
    for one in run.federation.blocks[0].each:
        clean = run.federation.client._residual(kept_by(run, one.id), one).clamp(-4, 4)
        noise.append(sent[0][one.id] - clean)
    every = torch.cat(noise)
    assert len(every.unique()) == len(every)
