"""The attack on runs: what is overheard is what a run sends; the command."""

import json
import math
from dataclasses import replace

import pytest
import torch
from tests.assisted import small_organisations as small
from tests.assisted.test_exchange import partly_common

from coterie.assisted.attack import overhear, shares_of_ratings
from coterie.assisted.attack_report import NO_GUARANTEE, attack, guarantee, protections, report
from coterie.assisted.experiment import Experiment
from coterie.assisted.readings import resolve
from coterie.assisted.settings import (
    DomainSettings,
    ModelSettings,
    ProtectSettings,
    Settings,
    TrainSettings,
)
from coterie.core.cli.main import main
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.driver import FederatedRun
from coterie.core.run.runfolder import RunFolder
from coterie.core.settings.sections import LoggerSettings, PrivacySettings, RunSettings

SMALL = {"model": ModelSettings(hidden=4, code=2), "train": TrainSettings(epochs=1)}
NOISE = PrivacySettings(clip=8.0, clip_by="entry", noise="laplace", scale=2.0, steps=("residual",))
PROTECTED = {
    "none": {},
    "dp": {"protect": ProtectSettings("dp")},
    "ip": {"protect": ProtectSettings("ip", thresholds=3)},
    "noise": {"privacy": NOISE},
    "sum": {"protect": ProtectSettings(sum=True)},
}
ONCE = {"method": "residuals", "model": ModelSettings("autorec", hidden=4, code=2, members=1)}


def make_settings(**more):
    data = {"domains": "uniform", "count": 3} | more.pop("data", {})
    return resolve(Settings(data=DomainSettings(**data), **(SMALL | more)))


def sent_in_round_1(settings):
    """What leaves in a run that trains, as the server gets it."""
    experiment = Experiment(settings)
    federation = experiment.federation()
    relay = federation.server
    found = {}
    ask = relay.residuals

    def residuals(state, cohort):
        replies = ask(state, cohort)
        found.update({k: up.values for k, up in replies.ups.items()})
        return replies

    relay.residuals = residuals
    FederatedRun(federation).advance()
    return found


def test_residuals_of_one_number_give_all_ratings_away_but_for_one_guess() -> None:
    """An organisation that has both ends of the scale is read whole, whatever its columns have."""
    settings = make_settings(**(ONCE | {"start": "constant"}))
    heard = overhear(Experiment(settings), settings, 1)
    scale = torch.arange(1.0, 6.0, dtype=torch.float64)
    spans = [one.ratings.min() == 1 and one.ratings.max() == 5 for one in heard]
    assert any(spans)
    for one, spanning in zip(heard, spans, strict=True):
        assert len(one.base.unique()) == 1
        assert shares_of_ratings([one], 1, scale)["certain"] == float(spanning)
    usual = make_settings(**ONCE)
    columns = overhear(Experiment(usual), usual, 1)
    assert 0 < shares_of_ratings(columns, 1, scale)["certain"] < 1


@pytest.mark.filterwarnings("ignore:noise and privacy")
@pytest.mark.parametrize(
    ("name", "once"),
    [(name, False) for name in PROTECTED] + [(name, True) for name in PROTECTED if name != "sum"],
)
def test_what_is_overheard_is_what_a_run_sends_bit_by_bit(name, once) -> None:
    settings = make_settings(seed=4, **(PROTECTED[name] | (ONCE if once else {})))
    sent = sent_in_round_1(settings)
    heard = overhear(Experiment(settings), settings, 3)
    assert len(heard) == len(sent) == 3
    for k, one in enumerate(heard):
        assert torch.equal(one.residuals[0], sent[k].double())
        exact = 2 * (one.ratings - one.base)
        noisy = name in ("dp", "ip", "noise")
        assert torch.allclose(one.residuals[0], exact, atol=1e-5) != noisy
        assert torch.equal(one.residuals[0], one.residuals[1]) != noisy
        assert torch.equal(one.residuals[1], one.residuals[2]) != noisy
        assert one.held == len(one.ratings)


def test_residuals_of_the_middle_are_read_with_nothing_to_be_guessed() -> None:
    """What noise leaves of them is the same for who guesses and who knows the columns' means."""
    settings = make_settings(
        **ONCE,
        data={"scale": (1.0, 5.0)},
        privacy=replace(NOISE, scale=0.3),
        protect=ProtectSettings(centre="receiver"),
    )
    heard = overhear(Experiment(settings), settings, 1)
    scale = torch.arange(1.0, 6.0).double()
    found = shares_of_ratings(heard, 1, scale)
    read = torch.cat([(one.residuals[0] / 2 + 3).round().clamp(1, 5) for one in heard])
    exact = float((read == torch.cat([one.ratings for one in heard])).double().mean())
    assert found["guessed"] == found["known"] == pytest.approx(exact, abs=2e-3)
    assert 0.9 < exact < 1


def test_a_reader_gets_the_rows_that_it_knows_of_the_others() -> None:
    settings = make_settings(data={"common": 0.4})
    experiment = Experiment(settings)
    server, peer = overhear(experiment, settings, 1), overhear(experiment, settings, 1, reader=1)
    assert (len(server), len(peer)) == (3, 2)
    for mine, theirs in zip((server[0], server[2]), peer, strict=True):
        assert torch.equal(mine.residuals, theirs.residuals)  # all common rows are known to all
        assert 0 < len(theirs.ratings) < theirs.held
    each = experiment.organisations.each
    names = [set(one.rows.tolist()) for one in each]
    shared = names[0] & names[1]
    wanted = [name in shared for name in each[0].rows[each[0].train.rows].tolist()]
    assert torch.equal(peer[0].ratings, each[0].train.values[torch.tensor(wanted)].double())


def test_a_reader_does_not_get_rows_that_only_others_share() -> None:
    settings = small.make_settings()
    experiment = Experiment(settings)
    experiment.__dict__["organisations"] = partly_common()  # 0 to 5 of all, 6 to 8 of 0 and 1
    each = experiment.organisations.each
    for reader, above in ((None, (9, 9, 6)), (0, (9, 6)), (2, (6, 6))):
        heard = overhear(experiment, settings, 1, reader)
        others = [one for one in each if one.id != reader]
        for one, theirs, row in zip(others, heard, above, strict=True):
            wanted = one.train.rows < row
            assert torch.equal(theirs.ratings, one.train.values[wanted])
            assert torch.equal(theirs.columns, one.train.columns.values[wanted])
            exact = 2 * (theirs.ratings - theirs.base)
            torch.testing.assert_close(theirs.residuals[0], exact)


def test_the_protections_are_the_runs_own_and_the_list() -> None:
    plain = make_settings(protect=ProtectSettings(sum=True))
    found = protections(plain, 8.0, 1.0)
    names = ["none *", "dp-100", "dp-10", "dp-1", "ip-10", "laplace, clip 8"]
    assert list(found) == names
    assert found["none *"] is plain
    assert found["dp-1"].protect.alpha == 1.0
    assert found["laplace, clip 8"].privacy.scale == 16
    own = protections(make_settings(protect=ProtectSettings("dp", alpha=3.0)), 8.0, 1.0)
    assert list(own) == ["dp-3 *", "none", *names[1:]]
    listed = protections(make_settings(protect=ProtectSettings("ip")), 8.0, 1.0)
    assert list(listed) == ["ip-10 *", "none", "dp-100", "dp-10", "dp-1", names[-1]]
    noise = protections(make_settings(privacy=NOISE), 8.0, 1.0)
    assert next(iter(noise)) == "laplace *"


def test_epsilon_is_claimed_for_a_public_clip_alone() -> None:
    found = protections(make_settings(rounds=7), 8.0, 0.5)
    said = {name: guarantee(each, 4.0) for name, each in found.items()}
    assert said.pop("laplace, clip 8") == (
        "ε 0.5 of a residual a round, 3.5 in 7, of a rating 0.5 in round 1"
    )
    assert set(said.values()) == {NO_GUARANTEE}
    others = PrivacySettings(clip=8.0, clip_by="entry", noise="laplace", scale=2.0, steps=("fit",))
    assert guarantee(make_settings(privacy=others), 4.0) == NO_GUARANTEE
    whole = PrivacySettings(clip=3.0, noise="laplace", scale=2.0)
    assert guarantee(make_settings(privacy=whole), 4.0).startswith("ε 3 of an organisation a round")


def test_residuals_that_are_sent_once_have_the_epsilon_of_one_round() -> None:
    clipped = replace(NOISE, clip=4.0)
    once = make_settings(**ONCE, rounds=7, privacy=clipped)
    assert guarantee(once, 4.0) == "ε 4 of a residual, of a rating 8"
    assert guarantee(replace(once, start="bias"), 4.0) == "ε 4 of a residual, of a rating none"


def stored(tmp_path, **more):
    settings = make_settings(
        run=RunSettings(out=str(tmp_path), progress=False),
        logger=LoggerSettings(wandb="off"),
        **more,
    )
    return RunFolder.create(find_paper("mtal"), settings).path


@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
def test_the_command_writes_and_prints_the_same(tmp_path, capsys, feedback, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # sentences in one line
    run = stored(tmp_path, data={"feedback": feedback}, protect=ProtectSettings("dp", alpha=3.0))
    assert main(["assisted", "attack", "--run", str(run), "--draws", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    kept = json.loads((run / "attack.json").read_text())
    assert kept["rows"] == rows
    assert [row["residuals"] for row in rows[::2]][:2] == ["dp-3 *", "none"]
    assert [row["draws"] for row in rows] == [1, 2] * 7
    assert rows[-1]["residuals"] == (
        "laplace, clip 8" if feedback == "explicit" else "laplace, clip 1"
    )
    share, trivial = ("known", "rounded") if feedback == "explicit" else ("labels", "frequent")
    none = next(row for row in rows if row["residuals"] == "none")
    assert none[share] == none["pattern"] == 1
    assert 0 < none[trivial] < 1
    assert (run / "attack.png").read_bytes().startswith(b"\x89PNG")
    assert main(["mtal", "attack", "--run", str(run), "--draws", "1", "--reader", "1"]) == 0
    printed, page = capsys.readouterr().out, (run / "attack.md").read_text()
    for text in (printed, page):
        assert "organisation 1" in text
        assert "no guarantee" in text
        assert "private" not in text
        assert "dp-3 *" in text
    assert str(run / "attack.md") in printed


def test_mistakes_are_one_line(tmp_path, capsys) -> None:
    run = stored(tmp_path)
    alone = stored(tmp_path, method="alone")
    (tmp_path / "empty").mkdir()
    wrong = {
        "there is no run": ["--run", str(tmp_path / "nowhere")],
        "not the folder of a run": ["--run", str(tmp_path / "empty")],
        "nothing is exchanged": ["--run", str(alone)],
        "no organisation '9'": ["--run", str(run), "--reader", "9"],
        "--epsilon must be": ["--run", str(run), "--epsilon", "0"],
        "are required: --run": [str(run)],
    }
    for words, argv in wrong.items():
        assert main(["assisted", "attack", *argv]) == 2, words
        captured = capsys.readouterr()
        assert words in captured.err
        assert captured.err.count("\n") == 1
        assert not captured.out
    assert not (run / "attack.md").exists()


def test_residuals_that_are_sent_once_are_read_once(tmp_path, capsys) -> None:
    run = stored(tmp_path, **ONCE, privacy=NOISE)
    assert main(["assisted", "attack", "--run", str(run), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["draws"] for row in rows} == {1}
    assert rows[0]["guarantee"] == "ε 8 of a residual, of a rating 8"
    assert main(["assisted", "attack", "--run", str(run), "--draws", "10"]) == 2
    error = capsys.readouterr().err
    assert "sends residuals once: leave --draws out" in error
    assert error.count("\n") == 1


def test_the_run_of_another_paper_is_refused(tmp_path, capsys) -> None:
    paper = find_paper("f3crec")
    settings = replace(load(paper.settings)(), run=RunSettings(out=str(tmp_path)))
    run = RunFolder.create(paper, settings).path
    assert main(["assisted", "attack", "--run", str(run)]) == 2
    assert "a run of f3crec" in capsys.readouterr().err


def test_ratings_without_a_scale_are_refused(tmp_path, capsys, monkeypatch) -> None:
    from coterie.assisted import attack_report as module

    monkeypatch.setattr(module, "MOST_VALUES", 3)
    assert main(["assisted", "attack", "--run", str(stored(tmp_path))]) == 2
    assert "different values" in capsys.readouterr().err


def test_the_report_shows_each_number_beside_its_guess(tmp_path) -> None:
    experiment = Experiment(make_settings())
    done = []
    rows = attack(experiment, None, 2, 1.0, done.append)
    assert done == list(dict.fromkeys(row["residuals"] for row in rows))
    found = report(rows, "the server", tmp_path)
    for shown, row in zip(found.view, rows, strict=True):
        assert shown["mean guessed"] == f"{100 * row['guessed']:.1f} %"
        assert shown["(most frequent)"] == f"{100 * row['frequent']:.1f} %"
        assert shown["mean known"] == f"{100 * row['known']:.1f} %"
        assert shown["(mean, rounded)"] == f"{100 * row['rounded']:.1f} %"
        assert all(math.isfinite(row[name]) for name in ("certain", "guessed", "known"))
    assert found.figure.is_file()
