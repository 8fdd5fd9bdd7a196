"""A reader who weighs noise against how frequent ratings are, against scipy and plain loops."""

import numpy as np
import pytest
import torch
from scipy import stats
from tests.assisted.test_residuals_once import settings

from coterie.assisted.protection import ends, protected
from coterie.assisted.settings import DomainSettings, ProtectSettings
from coterie.assisted.weighing import Law, frequencies, law_of, most_likely
from coterie.core.privacy.noise import laplace
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(7)
STARS = torch.arange(1.0, 6.0).double()
LAPLACE = PrivacySettings(clip=4.0, clip_by="entry", noise="laplace", scale=2.0)


def drawn(n=4000):
    """Ratings, of which 4 is the most frequent, and means of their columns."""
    chances = torch.tensor([0.06, 0.11, 0.27, 0.34, 0.22]).double()
    edges = chances.cumsum(0)[:-1].contiguous()
    ratings = STARS[torch.bucketize(KEY.fold("r").uniform(n, dtype=torch.float64), edges)]
    return ratings, 3.0 + KEY.fold("m").uniform(n, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_likelihoods_are_those_of_scipy_but_for_a_constant(kind):
    law, sent = Law(-3.0, 3.0, kind, 0.7), torch.tensor([[0.5, -4.0], [1.5, 2.0]]).double()
    clean = torch.tensor([[0.0, -5.0], [1.0, 8.0], [-2.0, 0.3]]).double()
    of_scipy = (stats.laplace if kind == "laplace" else stats.norm).logpdf
    found = law.likelihood(sent, clean[:, None]).numpy()
    expected = of_scipy(sent.numpy(), clean.clamp(-3, 3).numpy()[:, None], 0.7)
    np.testing.assert_allclose(found - found[0, 0, 0], expected - expected[0, 0, 0], atol=1e-12)


def test_answers_to_thresholds_vary_as_is_said():
    values = torch.linspace(-2.0, 3.0, 11).double().repeat(20_000)
    low, high = ends(values)
    answers = protected(values, ProtectSettings("ip", thresholds=4), KEY).view(20_000, -1)
    law = Law(low, high, "ip", 4.0)
    expected = law._variance(values[:11].clamp(low, high))
    np.testing.assert_allclose(answers.var(0), expected, rtol=0.05)


def test_the_most_likely_rating_is_that_of_a_plain_loop():
    ratings, means = drawn(200)
    noise = laplace(Key(KEY.state.reshape(1)), 400, torch.float64)[0].view(2, 200) * 2.0
    sent = (2 * (ratings - means)).clamp(-4, 4) + noise
    prior = frequencies(ratings, means, STARS)
    law = law_of(settings(privacy=LAPLACE), torch.empty(0))
    found = most_likely(sent, means, STARS, 2.0, law, prior)
    groups = np.round((means.numpy() - 1) / 0.5)
    for n in range(200):
        same = ratings.numpy()[groups == groups[n]]
        posterior = []
        for rating in range(1, 6):
            share = ((same == rating).sum() + 1) / (len(same) + 5)
            middle = np.clip(2 * (rating - float(means[n])), -4, 4)
            likely = stats.laplace.logpdf(sent[:, n].numpy(), middle, 2.0).sum()
            posterior.append(np.log(share) + likely)
        assert float(found[n]) == 1 + int(np.argmax(posterior))


@pytest.mark.parametrize("scale", [0.2, 2.0, 20.0])
def test_who_weighs_does_no_worse_than_who_hears_nothing_and_than_who_rounds(scale):
    ratings, means = drawn()
    noise = laplace(Key(KEY.state.reshape(1)), len(ratings), torch.float64) * scale
    sent = (2 * (ratings - means)).clamp(-4, 4) + noise
    prior = frequencies(ratings, means, STARS)
    found = most_likely(sent, means, STARS, 2.0, Law(-4.0, 4.0, "laplace", scale), prior)
    right = float((found == ratings).double().mean())
    rounded = ((sent[0] / 2 + means).round().clamp(1, 5) == ratings).double().mean()
    unheard = (STARS[prior.argmax(0)] == ratings).double().mean()
    assert right > max(float(rounded), float(unheard)) - 0.005
    if scale == 20.0:
        assert right == pytest.approx(float(unheard), abs=0.01)  # nothing is left to be heard


def test_the_law_is_that_of_the_settings():
    residuals = torch.linspace(-3, 5, 101).double()
    low, high = ends(residuals)
    dp = law_of(settings(protect=ProtectSettings("dp", alpha=4.0)), residuals)
    assert dp == Law(low, high, "laplace", (high - low) / 4)
    ip = law_of(settings(protect=ProtectSettings("ip", thresholds=3)), residuals)
    assert ip == Law(low, high, "ip", 3.0)
    assert law_of(settings(privacy=LAPLACE), residuals) == Law(-4.0, 4.0, "laplace", 2.0)
    assert law_of(settings(), residuals) == Law()
    scale = DomainSettings(scale=(1.0, 5.0))
    middle = ProtectSettings(centre="receiver")
    alone = settings(privacy=LAPLACE, data=scale, protect=middle)
    assert law_of(alone, residuals) == Law(-4.0, 4.0, "laplace", 2.0)


def test_without_noise_everything_is_read():
    ratings, means = drawn(100)
    sent = 2 * (ratings - means)[None] + 1e-7
    prior = frequencies(ratings, means, STARS)
    assert torch.equal(most_likely(sent, means, STARS, 2.0, Law(), prior), ratings)
