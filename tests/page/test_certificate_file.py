"""Certificates written, laid out and drawn."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import asdict, fields, replace

import pytest

from coterie.core.errors import UserError
from coterie.page.certificate.certificate import Certificate, FollowerGain, Gain, LeaderGain, chance
from coterie.page.certificate.of_run import certificate_report, conclusion, plot_regrets
from coterie.page.settings import CertificateSettings

NONE = Gain(10.0, 0.0, 0.0)
CONCLUSIONS = {"holds", "reasons", "epsilon", "relative_epsilon", "relative_upper"} | {
    "mean_regret",
    "share_significant",
    "share_by_chance",
    "screened",
}
LEARNED, TRIED = {"lr": 0.1, "epochs": 5}, {"lr": 0.2, "epochs": 3}


def made(gains, follower=NONE, stage_bound=0.001, off_path=(), settings=None):
    leaders = tuple(LeaderGain(i, LEARNED, TRIED, gain, NONE) for i, gain in enumerate(gains))
    return Certificate(
        len(gains),
        20,
        settings or CertificateSettings(seeds=8),
        leaders,
        FollowerGain(None, {}, follower, NONE, stage_bound),
        off_path,
        123,
    )


def test_the_file_has_all_numbers_and_the_conclusions(tmp_path):
    off = FollowerGain(1, TRIED, NONE, NONE, None)
    for one in (made([NONE, Gain(2.0, -0.1, 0.01)], off_path=(off,)), made([])):
        one.save(tmp_path / "certificate.json", 7)
        content = json.loads((tmp_path / "certificate.json").read_text())
        assert content.pop("rounds") == 7
        drawn = {name: content.pop(name) for name in set(content) - {f.name for f in fields(one)}}
        assert content == json.loads(json.dumps(asdict(one)))
        unknown = {name for name, value in drawn.items() if value is None}
        assert unknown == {name for name in drawn if getattr(one, name) != getattr(one, name)}
        known = {name: getattr(one, name) for name in drawn.keys() - unknown}
        assert known == {name: drawn[name] for name in known}
        assert drawn.keys() == CONCLUSIONS


def test_unknown_numbers_survive_the_file(tmp_path):
    one = made([Gain(math.nan, math.nan, math.nan), NONE], stage_bound=None)
    one.save(tmp_path / "a.json", 7)
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["rounds"] == 7
    assert content["leaders"][0]["gain"]["mean"] is None
    assert content["holds"] is False
    assert content["reasons"] == ["1 of 2 leaders have no payoff to test"]
    assert content == {"rounds": 7, **one.to_dict()}


def test_regrets_are_taken_at_least_zero():
    one = made([Gain(10.0, -5.0, 0.01), Gain(-10.0, 0.1, 0.01)])
    assert one.epsilon == 0.1
    assert one.relative_epsilon == pytest.approx(0.01)
    assert one.mean_regret == pytest.approx(0.05)
    assert one.share_significant == 0.5
    assert one.relative_upper > one.relative_epsilon


@pytest.mark.parametrize(
    ("gains", "follower", "said"),
    [
        ([Gain(10.0, 0.5, 0.01)], NONE, "leader 0 gains 5.00% of a stage's payoff by"),
        ([Gain(10.0, 0.5, 0.01)], NONE, "lr 0.2, epochs 3 in place of lr 0.1, epochs 5;"),
        ([Gain(10.0, 0.1, 0.04)] * 100, NONE, "100 of 100 leaders gain more than two"),
        ([Gain(10.0, 0.0, 0.5)], NONE, "about 200 fresh seeds"),
        ([NONE], Gain(10.0, 0.5, 0.01), "the follower gains 5.00%"),
        ([NONE], Gain(10.0, math.nan, 0.01), "the follower has no payoff"),
        ([NONE], Gain(10.0, 0.0, 0.5), "of the follower, regrets are known only"),
        ([Gain(0.0, 0.1, 0.0)], NONE, "leader 0 gains inf%"),
        ([NONE, Gain(0.0, 0.0, 0.0)], NONE, "1 of 2 leaders get nothing"),
        ([], NONE, "0 of 0 leaders"),
    ],
)
def test_every_reason_to_refuse(gains, follower, said):
    one = made(gains, follower)
    assert not one.holds
    assert any(line.startswith(said) or said in line for line in one.reasons), one.reasons


def test_a_loss_need_not_be_known_better_than_that_it_is_one():
    """One that loses 50 ± 5 % has no regret; of one that loses 5 ± 5 % nobody can say."""
    assert made([NONE, Gain(10.0, -5.0, 0.5)]).holds
    assert not made([NONE, Gain(10.0, -0.5, 0.5)]).holds


def test_what_chance_gives_is_allowed():
    few = [Gain(10.0, 0.1, 0.04)] * 4 + [Gain(10.0, 0.01, 0.04)] * 96
    assert made(few).holds
    assert chance(8) * 100 == pytest.approx(4.28, abs=0.01)


def test_in_one_stage_the_bound_must_be_within_the_tolerance():
    single = CertificateSettings(horizon=1)
    assert made([NONE], stage_bound=0.1, settings=single).holds
    loose = made([NONE], stage_bound=0.5, settings=single)
    assert loose.reasons == ["the follower's answer is not shown to be within the tolerance"]
    assert made([NONE], stage_bound=0.5).holds


def test_the_report_says_verdict_reasons_and_limits(tmp_path):
    one = made([Gain(10.0, 0.5, 0.01), NONE], settings=CertificateSettings(shortlist=3))
    text = certificate_report(one).save(tmp_path).read_text()
    for part in (
        "refused",
        "ε = 0.5 (5.00% of a stage's payoff)",
        "leader 0 gains 5.00%",
        "Frank-Wolfe",
    ):
        assert part in text
    assert "Only the 3 actions" in text
    certified = made([NONE], stage_bound=None)
    assert "certified" in conclusion(certified)
    assert "without a bound" in certificate_report(certified).markdown()
    assert "leader 0, which plays lr 0.1, epochs 5; the best deviation found is lr 0.2" in text
    assert len(certificate_report(one).rows) == 3
    first = certificate_report(one).rows[0]
    assert (first["learned_lr"], first["tried_epochs"]) == (0.1, 3)
    assert "not drawn" in certificate_report(replace(one, n_leaders=5)).markdown()


@pytest.mark.parametrize("gains", [[NONE], [Gain(math.nan, math.nan, math.nan)], []])
def test_regrets_are_drawn(tmp_path, gains):
    path = plot_regrets(made(gains), tmp_path / "regrets.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert certificate_report(made(gains), figure=path).markdown()


@pytest.mark.parametrize(
    ("name", "value"),
    [("seeds", 0), ("horizon", 0), ("gamma", 1.5), ("negligible", 0.5), ("off_path", -1)],
)
def test_bad_settings_are_refused(name, value):
    with pytest.raises(UserError, match=f"certificate.{name}"):
        CertificateSettings(**{name: value})


def test_settings_and_certificates_are_read_without_torch():
    code = (
        "import sys, coterie.page.settings, coterie.page.certificate.certificate;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
