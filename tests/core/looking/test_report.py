"""A report as text: nothing is fetched, nothing is markup but its own, no client is named."""

import html.parser
import json
import re
from pathlib import Path

import pytest
from tests.core.looking.folders import make_run, scores

from coterie.core.cli.main import main
from coterie.core.looking.charts import Line, histogram, line_chart
from coterie.core.looking.facts import RunFacts
from coterie.core.looking.single import sections

FETCHES = ("src", "href", "srcset", "data", "action", "poster", "xlink:href", "background")


class Reader(html.parser.HTMLParser):
    """Collects what a page would fetch, and its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in FETCHES]


def written(tmp_path: Path, *runs: Path) -> str:
    out = tmp_path / "page.html"
    assert main(["report", *map(str, runs), "--out", str(out)]) == 0
    return out.read_text()


def part(run: Path, name: str, *others: Path) -> str:
    """The words of a section."""
    found = sections(RunFacts(run), [RunFacts(path) for path in others])
    return str(next(section for section in found if section.name == name))


def test_nothing_is_fetched(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r{i}", metrics=scores(0.7), seed=i) for i in range(2)]
    for text in (written(tmp_path, runs[0]), written(tmp_path, *runs)):
        reader = Reader()
        reader.feed(text)
        assert all(url.startswith(("#", "data:,")) for url in reader.fetched)
        assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|https?://", text)
        assert {"script", "iframe", "object", "embed"} & set(reader.tags) == set()
        assert len(text) < 150_000


@pytest.mark.parametrize("evil", ["<script>x()</script>", '"><img src=x onerror=x()>', "{{ 7*7 }}"])
def test_words_are_never_markup(tmp_path: Path, evil: str) -> None:
    run = make_run(
        tmp_path,
        "r",
        metrics=scores(0.7) | {f"test/{evil}": 1.0},
        notes=[evil],
        data={"name": f"/x/{evil}".replace("</", "<")},
        model={"name": evil},
    )
    text = written(tmp_path, run)
    assert "<script" not in text
    assert "<img" not in text
    reader = Reader()
    reader.feed(text)
    assert "49" not in re.findall(r">49<", text)
    assert "img" not in reader.tags


def test_charts_escape_what_they_are_told() -> None:
    evil = '<b>&"'
    chart = line_chart(evil, [Line(evil, [1, 2], [0.1, 0.2]), Line("b", [1], [0.1])], evil)
    assert chart is not None
    assert "<b>" not in chart.svg
    assert chart.svg.count("&lt;b&gt;&amp;") >= 2


def test_charts_without_numbers_are_none() -> None:
    nan = float("nan")
    assert line_chart("t", [Line("a", [1], [nan])], "x") is None
    assert histogram("t", [nan], "x") is None
    one = histogram("t", [0.5] * 3, "x")  # all the same
    assert one is not None
    assert "3 clients" in one.about


def test_what_never_changes_has_its_own_number_at_the_axis() -> None:
    chart = line_chart("t", [Line("a", [1, 2], [0.3, 0.3])], "round")
    assert chart is not None
    assert ">0.3</text>" in chart.svg
    for start, way in ((1, "start"), (4, "end")):  # of the word at a mark, away from the axis
        chart = line_chart("t", [Line("a", [1, 4], [0.3, 0.4])], "round", {"tested": [start]})
        assert chart is not None
        said = re.search(r'text-anchor="(\w+)"[^>]*>tested', chart.svg)
        assert said is not None
        assert said[1] == way


def test_bins_count_every_client_and_keep_to_their_side() -> None:
    from coterie.core.looking.charts import _binned

    values = [-0.3, -0.1, -1e-9, 0.0, 0.2, 0.7, 0.7]
    bins = _binned(values, 0.0)
    assert sum(one["clients"] for one in bins) == len(values)
    assert sum(one["clients"] for one in bins if one["at"] < 0) == 3
    assert all(one["to"] <= 1e-12 or one["from"] >= -1e-12 for one in bins)


def test_many_clients_are_not_shown_one_by_one(tmp_path: Path) -> None:
    few = make_run(tmp_path, "few", metrics=scores(0.7), clients=[0.5] * 3)
    many = make_run(tmp_path, "many", metrics=scores(0.7), clients=[0.5] * 30)
    for run, count in ((few, 3), (many, 30)):
        rows = [{"client": f"org{i}", "personal_accuracy": 0.5} for i in range(count)]
        (run / "clients.json").write_text(json.dumps(rows))
    assert "org2" in part(few, "clients")
    assert "org2" not in part(many, "clients")
    assert "org2" not in written(tmp_path, many)


def test_who_loses_is_said_or_how_to_see_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, "r", metrics=scores(0.7), clients=[0.5, 0.9, 0.8])
    local = make_run(tmp_path, "l", metrics=scores(0.7), clients=[0.6, 0.6, 0.6], method="local")
    other = make_run(
        tmp_path,
        "o",
        metrics=scores(0.7),
        clients=[0.6, 0.6, 0.6],
        method="local",
        digests=("data", "another"),
    )
    for others in ((), (other,)):
        said = part(run, "clients", *others)
        assert f"coterie train page --config {run}/config.yaml --method local" in said
    assert "1 of 3 clients (33%) lose by federation" in part(run, "clients", local)
    assert "each client was trained alone" in part(local, "clients")


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path, "r")
    text = written(tmp_path, run)
    assert "stands still before its end, 3 rounds are done" in text
    assert "coterie train page --run.name r --resume" in part(run, "results")
    bare = make_run(tmp_path, "bare", rounds=(), digests=None)
    assert "0 rounds are done" in written(tmp_path, bare)


def test_privacy_is_what_is_declared_and_what_was_sent(tmp_path: Path) -> None:
    run = make_run(tmp_path, "r", metrics=scores(0.7))
    said = part(run, "privacy")
    assert "parameters fitted to the client's data" in said
    assert "'bytes': '6.0 kB'" in said
    assert "'clients to server': '6.0 kB'" in said
    assert "nothing is guaranteed" in part(run, "epsilon")
    noisy = make_run(tmp_path, "n", metrics=scores(0.7), privacy={"noise": "gaussian", "scale": 2})
    csv = (noisy / "metrics.csv").read_text().splitlines()
    lines = [f"{csv[0]},privacy/epsilon", *(f"{line},{i}.5" for i, line in enumerate(csv[1:]))]
    (noisy / "metrics.csv").write_text("\n".join(lines) + "\n")
    assert "'ε spent': '2.5'" in part(noisy, "epsilon")


def test_what_was_refused_is_noted(tmp_path: Path) -> None:
    run = make_run(tmp_path, "r", metrics=scores(0.7))
    text = (run / "metrics.csv").read_text().replace("0.6,2,0", "0.6,2,4")
    (run / "metrics.csv").write_text(text)
    assert "4 answers of clients were refused" in part(run, "notes")


def test_a_paper_adds_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path, "r", metrics=scores(0.7))
    content = {
        "holds": False,
        "reasons": ["ε is above the tolerance", "leader 2 gains 3%"],
        "leaders": [1, 2],
        "n_leaders": 9,
        "rounds": 3,
        "epsilon": 0.5,
        "relative_epsilon": 0.25,
        "relative_upper": None,
        "mean_regret": 0.1,
    }
    (run / "certificate.json").write_text(json.dumps(content))
    said = part(run, "own")
    assert "as the run stands: refused" in said
    assert "'leaders tested': '2 of 9'" in said
    assert "ε is above the tolerance" in said
    assert "leader 2 gains" in said
    (run / "certificate.json").write_text(json.dumps(content | {"n_leaders": 21}))
    assert "leader 2 gains" not in part(run, "own")  # clients are many, and not named
    assert "one leader gains" in part(run, "own")
    (run / "certificate.json").write_text("{}")
    assert main(["report", str(run)]) == 2


def test_a_report_is_written_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, "r", metrics=scores(0.7))
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").is_file()
    old = (run / "report.html").read_text()
    (run / "summary.json").write_text("{")
    capsys.readouterr()
    assert main(["report", str(run)]) == 2
    assert "summary.json is damaged" in capsys.readouterr().err
    assert (run / "report.html").read_text() == old
    assert main(["report", str(run), "--out", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_bytes_are_shown_by_field_and_by_organisation(tmp_path: Path) -> None:
    run = make_run(tmp_path, "r", metrics=scores(0.7))
    assert "Clients are counted together: 500 bytes by one in a round" in part(run, "privacy")
    few = [
        {"direction": way, "field": field, "party": str(c), "messages": 1, "bytes": size * (c + 1)}
        for c in range(3)
        for way, field, size in (("up", "change", 1000), ("up", "loss", 4), ("down", "weights", 50))
    ]
    (run / "parties.json").write_text(json.dumps(few))
    said = part(run, "privacy")
    assert "{'client': '2', 'sent': '3.0 kB', 'received': '150 bytes'}" in said
    assert "'all': '6.0 kB', 'least': '1.0 kB (client 0)', 'median': '2.0 kB'" in said
    assert "counted together" not in said
    many = [few[0] | {"party": str(c), "bytes": 1000 + c} for c in range(30)]
    beside = [few[0] | {"party": "clients", "bytes": 7}]
    (run / "parties.json").write_text(json.dumps(many + beside))
    said = part(run, "privacy")
    assert "over 30 clients" in said
    assert "7 bytes more are counted for all clients together" in said
    assert "(client 29)" not in said
    (run / "parties.json").write_text("[{}]")
    assert main(["report", str(run)]) == 2


def test_what_lies_beside_runs_is_left_out_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path, name, metrics=scores(0.7), seed=i) for i, name in enumerate("ab")]
    (tmp_path / "backbones").mkdir()
    (tmp_path / "note.txt").write_text("")
    given = [str(path) for path in sorted(tmp_path.iterdir())]
    for words in (["report", *given, "--out", str(tmp_path / "page.html")], ["compare", *given]):
        assert main(words) == 0
        said = capsys.readouterr()
        lines = [line for line in (said.out + said.err).splitlines() if "is left out" in line]
        assert len(lines) == 2
    assert "2 runs" in (tmp_path / "page.html").read_text()
    assert main(["compare", str(runs[0]), str(tmp_path / "gone")]) == 2  # a name that is wrong
    assert main(["compare", str(tmp_path / "backbones")]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
