"""Runs beside each other: groups, tests against scipy, and what is refused or warned of."""

import json
from pathlib import Path

import pytest
from scipy import stats
from tests.core.looking.folders import make_run, scores

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.looking.comparison import compared
from coterie.core.looking.facts import RunFacts

OURS, THEIRS = (0.70, 0.74, 0.69, 0.75), (0.60, 0.66, 0.61, 0.62)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Four seeds of two methods; those of the paper come last."""
    return [
        make_run(
            tmp_path,
            f"{method}{seed}",
            metrics=scores(value),
            method=method,
            seed=seed,
            digests=(f"data{seed}", f"clients{seed}"),
        )
        for method, values in (("fedavg", THEIRS), ("page", OURS))
        for seed, value in enumerate(values)
    ]


def test_seeds_are_grouped_and_tested_in_pairs(runs: list[Path]) -> None:
    found = compared([RunFacts(path) for path in reversed(runs)])
    assert [group.label for group in found.groups] == ["page", "fedavg"]
    assert found.groups[0].seeds == [0, 1, 2, 3]
    assert found.differing == {"method": ["page", "fedavg"]}
    assert found.warnings == []
    tested = {one.metric: one.contrasts["fedavg"] for one in found.tested}
    contrast = tested["test/server_accuracy"]
    assert contrast.found.p == pytest.approx(stats.ttest_rel(OURS, THEIRS).pvalue)
    assert (contrast.verdict, contrast.found.n) == ("better", 4)
    assert found.spread(found.groups[1], "test/server_accuracy").mean == pytest.approx(0.6225)


def test_holm_is_over_groups(runs: list[Path], tmp_path: Path) -> None:
    third = [
        make_run(tmp_path, f"local{seed}", metrics=scores(value), method="local", seed=seed)
        for seed, value in enumerate(reversed(OURS))
    ]
    for path in third:
        (path / "about.json").unlink()
    found = compared([RunFacts(path) for path in (*runs, *third)])
    (tested, *_) = found.tested
    alone = stats.ttest_rel(OURS, THEIRS).pvalue
    assert tested.contrasts["fedavg"].p == pytest.approx(2 * alone)


def test_pairs_are_of_common_seeds_only(runs: list[Path]) -> None:
    found = compared([RunFacts(path) for path in (*runs[1:4], *runs[4:7])])
    assert found.tested[0].contrasts["fedavg"].found.n == 2
    assert found.tested[0].contrasts["fedavg"].verdict == "not tested"
    assert found.warnings == [
        "page and fedavg have 2 seeds in common: nothing is tested below 3, train more by --seed"
    ]


def test_other_data_are_not_tested(runs: list[Path]) -> None:
    _of_one_method(runs)
    about = json.loads((runs[1] / "about.json").read_text())
    for of, words in (("data", "have other data"), ("clients", "clients that hold other data")):
        changed = about | {"digest": about["digest"] | {of: "another"}}
        (runs[1] / "about.json").write_text(json.dumps(changed))
        found = compared([RunFacts(path) for path in runs])
        assert [one.contrasts for one in found.tested] == [{}, {}]
        assert any(words in line and "seed 1" in line for line in found.warnings)
        assert found.metrics  # they are still shown


def _of_one_method(runs: list[Path]) -> None:
    """Let the groups differ by a constant: what their clients hold has the same form then."""
    for path in runs[:4]:
        text = (path / "config.yaml").read_text()
        (path / "config.yaml").write_text(text.replace("method: fedavg", "method: page\nlr: 0.1"))


def test_methods_may_hold_the_same_rows_in_other_forms(runs: list[Path]) -> None:
    about = json.loads((runs[1] / "about.json").read_text())
    changed = about | {"digest": about["digest"] | {"clients": "as texts"}}
    (runs[1] / "about.json").write_text(json.dumps(changed))
    found = compared([RunFacts(path) for path in runs])
    assert found.tested[0].contrasts["fedavg"].found.n == 4
    (line,) = found.warnings
    assert "hold their data in other forms" in line
    for path in runs[:4]:  # cut by other settings they are other rows
        text = (path / "config.yaml").read_text()
        (path / "config.yaml").write_text(
            text.replace("name: synthetic", "name: synthetic\n  skew: 2")
        )
    found = compared([RunFacts(path) for path in runs])
    assert found.tested[0].contrasts == {}


def test_another_data_set_is_not_tested(runs: list[Path], tmp_path: Path) -> None:
    other = make_run(tmp_path, "o", metrics=scores(0.1), data={"name": "mnist"}, method="local")
    found = compared([RunFacts(path) for path in (*runs, other)])
    assert set(found.tested[0].contrasts) == {"fedavg"}
    assert any("data.name: synthetic and mnist" in line for line in found.warnings)


def test_what_is_weak_is_said(runs: list[Path], tmp_path: Path) -> None:
    more = [
        make_run(tmp_path, "open", method="fedavg", seed=9),
        make_run(tmp_path, "old", metrics=scores(0.7), method="local", seed=0, digests=None),
        make_run(tmp_path, "again", metrics=scores(0.1), seed=0),
        make_run(tmp_path, "paper", metrics=scores(0.2), reading="paper", seed=0, digests=None),
    ]
    found = compared([RunFacts(path) for path in (*runs, *more, runs[0])])
    said = "\n".join(found.warnings)
    for words in (
        f"{more[0]} is unfinished after 3 rounds",
        "2 of 11 runs do not say which data they had",
        f"{more[2]} is left out: it has the settings and the seed of {runs[4]}",
        "differ in how they are measured (reading)",
        f"{runs[0]} was given more than once",
    ):
        assert words in said
    assert found.groups[0].of(0).path == runs[4]


def test_a_finished_run_stands_for_an_unfinished_one(runs: list[Path], tmp_path: Path) -> None:
    open_ = make_run(tmp_path, "open", seed=0)
    found = compared([RunFacts(path) for path in (open_, *runs)])
    assert found.groups[0].of(0).path == runs[4]


def test_several_papers_are_refused(runs: list[Path], tmp_path: Path) -> None:
    other = make_run(tmp_path, "other", metrics=scores(0.1), paper="mtal")
    with pytest.raises(UserError, match=r"different papers \(page, mtal\)"):
        compared([RunFacts(runs[4]), RunFacts(other)])


def test_groups_of_one_method_are_told_apart(tmp_path: Path) -> None:
    paths = [
        make_run(tmp_path, f"m{i}", metrics=scores(0.5), model={"name": name}, rounds_=i)
        for i, name in enumerate(("softmax", "mlp"))
    ]
    labels = [group.label for group in compared([RunFacts(path) for path in paths]).groups]
    assert labels == ["page model.name=softmax rounds_=0", "page model.name=mlp rounds_=1"]


def test_the_terminal_has_80_columns(
    runs: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["compare", *map(str, runs)]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    for words in ("method   page  fedavg", "0.7200 ± 0.0294", "A - B", "better", "change (update)"):
        assert words in said


def test_forms_for_programs_and_papers(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--json", *map(str, runs)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["groups"][0]["metrics"]["test/server_accuracy"] == list(OURS)
    assert found["tests"][0]["verdict"] == "better"
    assert main(["compare", "--markdown", *map(str, runs)]) == 0
    assert "| server accuracy | 0.7200 ± 0.0294 |" in capsys.readouterr().out
    assert main(["compare", "--markdown", "--json", *map(str, runs)]) == 2


def test_mistakes_are_one_line(
    tmp_path: Path, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["compare"], ["compare", str(tmp_path)], ["compare", "gone"]):
        assert main(words) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
