"""What is printed fits the width there is, with every word and number whole."""

import json
import math
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from coterie.core.cli import command
from coterie.core.cli.main import main
from coterie.core.privacy.releases import UNITS
from coterie.core.registry.papers import find_paper, papers
from coterie.core.run.experiment import Experiment
from coterie.core.run.runfolder import Summary
from coterie.core.settings.base import BaseSettings
from coterie.core.tables.report import Report
from coterie.core.terminal import facts, folded, table, width
from coterie.core.training.train import show_data, show_results

WORD = r"[^\s,;:()]+"
FIXED = {
    "list": "Data sets (coterie data shows which are here) Presets title reference package methods "
    "variants none",
    "data": "counts terms here yes no users items interactions",
    "doctor": "ok look All is well. See what says look.",
    "privacy": f"What crosses the boundary in of content reveals depends on noise {UNITS}",
}
# Rows of real benchmarks: what one row has and another lacks makes 17 columns.
SPEED = {
    **{"seconds a round": 0.00588, "seconds a validation": 0.005265, "seconds a test": 0.005463},
    **{"data and state MB": 0.7841, "a round adds MB": 133.2, "a validation adds MB": 9.241},
    **{"a test adds MB": 6.685, "peak MB": 396.1, "clients": 1000},
    **{"reference adds MB": 50.137088, "adds MB": 66.65216},
}
BENCH = [
    {
        "name": "base block, FedMF, 587 clients, 46,490 positives, random data of ML-100K's size, "
        "beside a loop by hand on touched rows",
        **{"unit": "CPU ms a round", "ours": 5.048123, "reference": 160.2, "ratio": 31.73},
        "max_abs_diff": 8.941e-08,
    },
    {
        "name": "  its matrix products at 97 GFLOP/s",
        **{"unit": "CPU ms a round", "ours": None, "reference": 1.728, "ratio": None},
        "max_abs_diff": None,
    },
    {"name": "1,000 clients", "unit": "clients a CPU second", "ours": 170123.4, **SPEED},
    {"name": "4,000,000 samples of a file", "unit": "samples a CPU s", "ours": 6993345.302199048},
]
each_width = pytest.mark.parametrize("columns", ["80", "120", None])


@pytest.fixture
def room(columns, monkeypatch):
    """Columns of a line; None where nobody tells, as in a pipe."""
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
        return 80
    monkeypatch.setenv("COLUMNS", columns)
    return int(columns)


def words_in(document):
    """Every word of a JSON document, and its numbers as a table has them."""
    if isinstance(document, dict):
        return set().union(*map(words_in, document), *map(words_in, document.values()))
    if isinstance(document, list):
        return set().union(*map(words_in, document))
    if isinstance(document, str):
        return set(re.findall(WORD, document))
    return set(re.findall(WORD, command.cell(document)))


def check(text, room, known):
    """No line is longer, but for a word that is; no word is cut."""
    for line in text.splitlines():
        assert cell_len(line) <= room or " " not in line, line
        assert line == line.rstrip()
    printed = {word for word in re.findall(WORD, text) if set(word) != {"-"}}
    assert printed - known == set()
    return printed


@each_width
@pytest.mark.parametrize(
    "argv", ["list", "data", "doctor", *(f"privacy {name}" for name in papers())]
)
def test_commands_fit_and_lose_nothing(argv, room, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "a-folder-of-data-sets-with-a-name-so-long"))
    assert main([*argv.split(), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(argv.split()) == 0
    fixed = set(re.findall(WORD, FIXED[argv.split()[0]]))
    told = words_in(document) | fixed | {argv.split()[-1]}
    printed = check(capsys.readouterr().out, room, told)
    rows = document if isinstance(document, list) else document["papers"] + document["data"]
    absent = {"-", "yes", "no", argv.split()[-1]}
    lost = set().union(*(words_in(list(row.values())) for row in rows)) - printed - absent
    assert lost <= {word for word in lost if word.isdigit() and argv == "doctor"}  # free space


@each_width
def test_a_benchmark_has_fewer_columns_not_narrower_ones(room, capsys):
    command.print_report(
        Report("bench", "Speed of f3crec", BENCH), Path("runs/f3crec/bench/bench.md")
    )
    text = capsys.readouterr().out
    fixed = f"Speed of f3crec Left out at {room} columns Shown by --json and in bench.md. Written"
    known = words_in(BENCH) | set(
        re.findall(WORD, f"{fixed} to runs/f3crec/bench/bench.md and bench.tex MB.")
    )
    check(text, room, known)
    head = text.splitlines()[1].split()
    assert head[:5] == ["name", "unit", "ours", "reference", "ratio"]
    left = re.search(r"Left out at \d+ columns: (.*?)\. Shown", " ".join(text.split()))
    named = left[1].split(", ")
    assert len(named) < 17 - 4
    assert list(dict.fromkeys(n for row in BENCH for n in row))[-len(named) :] == named
    assert "6.993e+06" in text  # whole, as the table of the file has it
    assert re.search(r"^  its matrix", text, re.MULTILINE)  # it belongs to the row above


@each_width
def test_a_table_of_a_paper_fits(room, capsys):
    rows = [
        {
            "method": f"method-{k}",
            "data": "ml-100k",
            **{f"block {b}": "0.1234 ± 0.0012" for b in range(9)},
        }
        for k in range(3)
    ]
    notes = [
        "Means and standard deviations over 5 seeds; what is printed in brackets is the paper's."
    ]
    command.print_report(Report("table2", "Table 2", rows, notes=notes), Path("table2.md"))
    fixed = f"Table 2 Left out at {room} columns Shown by --json and in table2.md. Written to 8."
    known = words_in([rows, notes, fixed, "table2.md and table2.tex"])
    check(capsys.readouterr().out, room, known)


@each_width
def test_a_run_fits(room, capsys):
    columns = ("users", "items", "interactions", "sparsity", "repeats", "test users", "valid users")

    class Described(Experiment):
        def describe_data(self):
            return [
                {"block": k, **{name: 10.0**k for name in columns}, "last": 1} for k in range(9)
            ]

    show_data(find_paper("page"), Described(BaseSettings(method="mine")))
    note = "on a data set of which the paper says nothing, so that there is nothing to compare with"
    summary = Summary(1, {"test/average/recall@20_unseen": 0.5}, {}, 1, 1, 1.0, [note])
    show_results(Path("runs/f3crec/sample-f3crec-fedmf-seed0"), summary)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= room
    assert any("100,000,000" in line.split() for line in lines)
    assert any(line.startswith("Note: on a data set") for line in lines)


def test_columns_wins_over_the_terminal_which_wins_over_80(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    code = "from coterie.core.terminal import width; print(width())"
    ask = [sys.executable, "-c", code]
    assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "80\n"
    ours, theirs = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 97, 0, 0))
    for env, expected in ({}, b"97"), ({"COLUMNS": "61"}, b"61"):
        subprocess.run(ask, stdout=theirs, env=os.environ | env, check=True)
        assert os.read(ours, 100).strip() == expected
    os.close(ours)
    os.close(theirs)
    monkeypatch.setenv("COLUMNS", "many")
    assert width() > 0


def test_a_word_that_is_too_long_has_a_line_of_its_own():
    path = "/a/folder/" + "x" * 90
    lines = folded(f"kept in {path} for now", 80, "kernels  ok  ")
    assert [line.strip() for line in lines] == ["kernels  ok  kept in", path, "for now"]
    assert facts("", {"folder": path}, 80) == ["  folder", path]
    fits = "y" * 75
    assert folded(f"in {fits} now", 80, "kernels  ok  ")[1] == " " * 5 + fits
    rows = [{"name": "a", "folder": path, "size": "7"}]
    assert [line.strip() for line in table(rows, 80)] == ["name    a", "folder", path, "size    7"]


def test_wide_characters_count_as_two():
    lines = folded("日本 語の 映画", 10)
    assert lines == ["日本 語の", "映画"]
    shown = table([{"title": "日本", "rank": "1"}, {"title": "ab", "rank": "2"}], 20, {"rank"})
    assert {cell_len(line) for line in shown} == {len("title  rank")}


def test_narrow_rooms_give_facts_and_whole_numbers():
    rows = [{"users": "123,456,789", "recall": "0.1234"}, {"users": "5", "recall": "0.5"}]
    for room in range(1, 19):
        printed = " ".join(table(rows, room)).split()
        assert printed == [
            "users",
            "123,456,789",
            "recall",
            "0.1234",
            "users",
            "5",
            "recall",
            "0.5",
        ]
    assert table(rows, 20, {"users", "recall"}) == [
        *("      users  recall", "-----------  ------", "123,456,789  0.1234"),
        "          5     0.5",
    ]


def test_nothing_is_printed_of_no_rows(capsys):
    assert table([], 80) == table([{}], 80) == []
    command.print_rows([], title="Empty")
    assert capsys.readouterr().out == "Empty\n"


def test_one_document_in_which_nan_is_null(capsys):
    rows = [{"a": math.nan, "b": [math.inf, 1.5]}, {"c": "x\ny"}]
    command.print_rows(iter(rows), "not printed", as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"a": None, "b": [None, 1.5]}, {"c": "x\ny"}]
    command.print_rows([], as_json=True)
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ("data x.csv --columns user=u", "--data.columns"),
        ("data x.csv --min_rating 4", "--data.min_rating"),
        ("data x.csv --min_interactions 2", "--data.min_interactions"),
        ("privacy f3crec --steps update", "--privacy.steps"),
        ("assisted attack runs/mtal/x", "--run"),
    ],
)
def test_another_name_of_a_flag_is_refused_with_the_right_one(argv, name, capsys):
    assert main(argv.split()) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert name in line
