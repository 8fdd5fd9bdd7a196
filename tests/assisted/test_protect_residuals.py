"""What is done to residuals before they leave an organisation, against scipy and plain loops."""

import numpy as np
import pytest
import torch
from scipy import stats
from tests.assisted.small_organisations import (
    finished,
    make_organisations,
    make_run,
    make_settings,
    state_of,
)

from coterie.assisted import client as client_half
from coterie.assisted.client import Organisation
from coterie.assisted.protection import ends, protected
from coterie.assisted.settings import ModelSettings, ProtectSettings, Settings
from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(11)
DP, IP = ProtectSettings("dp", alpha=4.0), ProtectSettings("ip", thresholds=3)


@pytest.mark.parametrize("n", [1, 2, 3, 40, 1001])
def test_the_ends_are_numpys_quantiles(n) -> None:
    values = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    assert ends(values) == pytest.approx(np.quantile(values.numpy(), [0.025, 0.975]), abs=1e-15)


def test_dp_clips_to_the_ends_and_adds_laplace_noise_of_range_over_alpha() -> None:
    values = torch.linspace(-3, 5, 40_001, dtype=torch.float64)
    low, high = np.quantile(values.numpy(), [0.025, 0.975])
    noise = (protected(values, DP, KEY) - values.clamp(low, high)).numpy()
    assert stats.kstest(noise, stats.laplace(scale=(high - low) / 4).cdf).pvalue > 0.01
    quiet = protected(values, ProtectSettings("dp", alpha=1e12), KEY)
    torch.testing.assert_close(quiet, values.clamp(low, high))
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 0.02
    assert abs(np.corrcoef(noise, values.numpy())[0, 1]) < 0.02


def test_ip_is_the_mean_answer_to_thresholds_as_a_plain_loop_gives_it() -> None:
    values = torch.tensor([-4.0, -1.0, 0.0, 0.5, 3.0], dtype=torch.float64)
    a, b = np.quantile(values.numpy(), [0.025, 0.975])
    t = [a + (b - a) * KEY.fold(i).uniform(5, dtype=torch.float64) for i in range(3)]
    found = protected(values, IP, KEY)
    for place, y in enumerate(values.tolist()):
        answers = []
        for each in t:
            threshold = float(each[place])
            answers.append(2 * threshold - (b if y < threshold else a))
        assert float(found[place]) == pytest.approx(sum(answers) / 3, abs=1e-12)


def test_ip_is_right_on_average_and_clips() -> None:
    values = torch.cat([torch.linspace(0, 1, 21), torch.tensor([-9.0, 9.0])]).double()
    many = values.repeat(4000)
    a, b = ends(many)
    draws = protected(many, IP, KEY).view(4000, -1)
    error = (draws.mean(0) - values.clamp(a, b)) / (draws.std(0) / 4000**0.5)
    assert float(error.abs().max()) < 4
    assert float(draws.min()) >= 2 * a - b
    assert float(draws.max()) <= 2 * b - a
    one = protected(many, ProtectSettings("ip", thresholds=1), KEY).view(4000, -1)
    assert float((one.var(0) / draws.var(0)).mean()) == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("how", [DP, IP])
def test_no_residual_and_one_alone_pass(how) -> None:
    assert protected(torch.empty(0), how, KEY).shape == (0,)
    assert protected(torch.tensor([0.5]), how, KEY).tolist() == [0.5]


def sent(settings, data=None):
    """What each organisation sent in each round, and the residuals before."""
    found, clean = {}, {}

    class Noted(Organisation):
        def residual(self, down, mine, data, key):
            up, new = super().residual(down, mine, data, key)
            found[data.id, down.round] = up.values
            clean[data.id, down.round] = self._residual(mine, data)
            return up, new

        residual.step = Organisation.residual.step

    run = finished(make_run(settings, data, Noted(settings)))
    return found, clean, run


@pytest.mark.parametrize("how", [DP, IP])
def test_noise_is_fresh_in_each_round_and_of_each_organisation(how) -> None:
    settings = make_settings(protect=how, rounds=3)
    found, clean, run = sent(settings)
    again, _, _ = sent(settings)
    assert all(torch.equal(found[place], again[place]) for place in found)
    if how is not DP:
        return
    scaled = {}
    for place, values in found.items():
        low, high = ends(clean[place])
        scaled[place] = (values - clean[place].clamp(low, high)) / (high - low)
    everything = torch.cat(list(scaled.values()))
    assert len(everything.unique()) == len(everything)
    assert not run.journal.refused


def test_without_protection_residuals_leave_as_they_are() -> None:
    found, clean, _ = sent(make_settings())
    assert all(torch.equal(found[place], clean[place]) for place in found)


def fitted(settings, monkeypatch):
    """Targets that each organisation fitted in round 1, in the order of its pattern."""
    values = []

    def train(network, inputs, pattern, targets, plan, key):
        values.append(targets)
        return original(network, inputs, pattern, targets, plan, key)

    original = client_half.train
    monkeypatch.setattr(client_half, "train", train)
    found, clean, run = sent(settings)
    return [values[k].sort().values for k in range(3)], found, clean, run


@pytest.mark.parametrize("reading", ["recommended", "released"])
def test_an_organisation_fits_its_own_residuals_clean_but_in_the_public_code(
    reading, monkeypatch
) -> None:
    settings = make_settings(protect=DP, rounds=1, reading=reading)
    assert settings.protect.own == ("clean" if reading == "recommended" else "protected")
    targets, found, clean, run = fitted(settings, monkeypatch)
    for k in range(3):
        mine = clean[k, 1] if reading == "recommended" else found[k, 1]
        parts = [mine if j == k else found[j, 1] for j in range(3)]
        assert torch.equal(targets[k], torch.cat(parts).sort().values)
        assert state_of(run, k).sent.numel() == 0  # nothing is kept beyond the round


def test_a_run_that_is_resumed_between_rounds_draws_the_same_noise() -> None:
    settings = make_settings(protect=DP, rounds=2, reading="released")
    whole = finished(make_run(settings))
    first = make_run(settings)
    first.advance()
    second: FederatedRun = make_run(settings)
    second.load_plain(first.to_plain())
    finished(second)
    for k in range(3):
        assert torch.equal(state_of(whole, k).scores, state_of(second, k).scores)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"alpha": 3.0}, "'protect.alpha' has no effect"),
        ({"residuals": "ip", "alpha": 3.0}, "'protect.alpha' has no effect"),
        ({"residuals": "dp", "thresholds": 3}, "'protect.thresholds' has no effect"),
        ({"residuals": "dp", "alpha": 0.0}, "'protect.alpha' must be above 0"),
        ({"residuals": "ip", "thresholds": 0}, "'protect.thresholds' must be at least 1"),
    ],
)
def test_settings_that_say_nothing_are_refused(more, words) -> None:
    with pytest.raises(UserError, match=words):
        ProtectSettings(**more)


@pytest.mark.parametrize("method", ["mtal", "residuals"])
def test_whether_own_residuals_are_protected_says_nothing_where_none_is(method) -> None:
    model = ModelSettings("aae" if method == "mtal" else "autorec")
    own = ProtectSettings(own="protected")
    with pytest.raises(
        UserError, match=r"'protect\.own' has no effect with protect\.residuals none"
    ):
        Settings(method=method, model=model, protect=own)
    noise = PrivacySettings(clip=8.0, clip_by="entry", noise="laplace", scale=1.0)
    if method == "residuals":  # there they come back
        assert Settings(method=method, model=model, protect=own, privacy=noise).protect == own
        return
    with pytest.raises(UserError, match=r"'protect\.own' has no effect"):
        Settings(method=method, model=model, protect=own, privacy=noise)


def test_two_kinds_of_noise_on_residuals_are_refused() -> None:
    noise = PrivacySettings(clip=8.0, clip_by="entry", noise="laplace", scale=1.0)
    for privacy in (noise, PrivacySettings(clip=8.0)):
        with pytest.raises(UserError, match="in one way only") as refusal:
            Settings(protect=DP, privacy=privacy)
        assert "\n" not in str(refusal.value)
    with pytest.raises(UserError, match="no residual is exchanged"):
        Settings(method="joint", protect=DP)


def test_partial_alignment_sends_the_protected_values_of_common_rows() -> None:
    names = [torch.arange(12) + 100 * k for k in range(3)]
    for each in names:
        each[:6] = torch.arange(6)
    data = make_organisations(names=names)
    settings = make_settings(protect=DP, rounds=1)
    parted, clean, _ = sent(settings, data)
    whole, _, _ = sent(settings)
    for k, one in enumerate(data.each):
        common = one.train.rows < 6
        assert torch.equal(parted[k, 1], whole[k, 1][common])
        assert len(clean[k, 1]) == len(one.train)
