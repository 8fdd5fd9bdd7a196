"""Tables as LaTeX, read back by a small reader of LaTeX that knows nothing of the writer."""

# ruff: noqa: RUF001

import random
import re
from pathlib import Path

import pytest

from coterie.core.cli.main import main
from coterie.core.tables.latex import _MATHS, _PLAIN, escape, latex_table
from coterie.core.tables.report import Report

SPECIAL = "\\{}$&#%_~^"
COMMANDS = {
    r"\textbackslash": "\\",
    r"\textasciitilde": "~",
    r"\textasciicircum": "^",
    r"\textless": "<",
    r"\textgreater": ">",
    r"\textbar": "|",
    r"\textasciigrave": "`",
    r"\alpha": "α",
    r"\pm": "±",
    r"\Delta": "Δ",
    **{rf"\{one}": one for one in "{}$&#%_"},
}
TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|[{}$&]|[^\\{}$&]", re.DOTALL)


def read(latex):
    """What LaTeX prints: a stack of groups, maths on and off, commands by their names."""
    shown, depth, maths, tokens = [], 0, False, TOKEN.findall(latex)
    assert "".join(tokens) == latex
    for token in tokens:
        assert token not in ("&", "#", "%", "_", "~") or maths, latex
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
            assert depth >= 0, latex
        elif token == "$":
            maths = not maths
        else:
            shown.append(COMMANDS.get(token, token))
    assert depth == 0, latex
    assert not maths, latex
    return "".join(shown)


def test_any_text_reads_back_as_it_was():
    draw = random.Random(0)
    letters = SPECIAL + "ab <>|`-'.,:;()[]*+=/@!?12" + "αΔ±"
    for _ in range(3000):
        text = "".join(draw.choices(letters, k=draw.randrange(12)))
        assert read(escape(text)) == text


def test_nothing_that_ends_a_line_is_taken_for_an_argument():
    lines = latex_table([{"a": "[2pt]"}, {"a": "*"}]).splitlines()
    assert not any(line.startswith(("[", "*")) for line in lines)


def test_two_hyphens_stay_two():
    assert escape("--lr---x") == "-{}-lr-{}-{}-x"


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("F³CRec, AESM²", "F$^{3}$CRec, AESM$^{2}$"),
        ("10⁻¹²", "10$^{-12}$"),
        ("x₀₁", "x$_{01}$"),
        ("Ελ", r"$\mathrm{E}$$\lambda$"),
        ("é ą Ž", r"\'{e} \texttt{U+0105} \v{Z}"),
        ("e\u0301", r"\'{e}"),
        ("a\nb\tc\x00", "a b c "),
        ("Ångström, Łódź", r"\r{A}ngstr\"{o}m, \L{}\'{o}d\'{z}"),
        ("猫", r"\texttt{U+732B}"),
        ("p ≤ .05 − 1", r"p $\le$ .05 $-$ 1"),
    ],
)
def test_letters_and_signs(text, latex):
    assert escape(text) == latex


def test_everything_printed_is_ascii():
    everything = "".join(chr(code) for code in range(1, 0x3000) if not 0xD800 <= code < 0xE000)
    assert escape(everything).isascii()
    assert all(escape(one).isascii() for one in (*_PLAIN, *_MATHS))


ROWS = [
    {"data": "a", "method": "FT", "NDCG": ".0921 ± .0029 (.0855)", "RMSE": 0.95, "n": 1234},
    {"data": "a", "method": "F³CRec", "NDCG": ".0982 ± .0028 (.1034)", "RMSE": 1.02, "n": None},
    {"data": "b", "method": "FT", "NDCG": "-", "RMSE": -0.5, "n": 1, "more": "up 50 % & on"},
    {"data": "b", "method": "F³CRec", "NDCG": ".05", "RMSE": float("nan"), "n": 2},
]
BETTER = {"NDCG": "max", "RMSE": "min"}


def cells_of(latex):
    """The cells of every line of a table, found by its rules; also its columns."""
    [sides] = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", latex)
    body = latex.split(r"\toprule")[1].split(r"\bottomrule")[0].replace(r"\midrule", "")
    lines = [line for line in re.split(r"(?<!\\)\\\\\s", body) if line.strip()]
    return sides, [re.split(r"(?<!\\) & ", line.strip()) for line in lines]


def test_a_table_has_its_rows_and_columns():
    sides, lines = cells_of(latex_table(ROWS, "A & B", "table 2_x", ["λ is 50 %."]))
    assert sides == "llrrrl"
    assert [len(line) for line in lines] == [6] * 5
    assert lines[0] == ["data", "method", "NDCG", "RMSE", "n", "more"]
    assert lines[1][2] == r".0921 $\pm$ .0029 (.0855)"
    assert lines[3][2:] == ["--", "$-$0.5", "1", r"up 50 \% \& on"]
    assert lines[4][3] == "--"
    text = latex_table(ROWS, "A & B", "table 2_x", ["λ is 50 %."])
    assert r"\caption{A \& B}" in text
    assert r"\label{tab:table-2-x}" in text
    assert r"$\lambda$ is 50 \%." in text
    assert text.count(r"\begin") == text.count(r"\end") == 3
    read(text.replace(" & ", "").replace("% \\usepackage", ""))


def bold(latex):
    return re.findall(r"\\textbf\{([^ }]*)", latex)


def test_the_best_of_a_column_is_bold():
    assert bold(latex_table(ROWS)) == []
    assert bold(latex_table(ROWS, better={"NDCG": "max"})) == [".0982"]
    assert bold(latex_table(ROWS, better={"RMSE": "min"})) == ["$-$0.5"]
    assert bold(latex_table(ROWS, better={"RMSE": "max"})) == ["1.02"]
    assert bold(latex_table(ROWS, better={"missing": "max", "method": "max"})) == []


def test_each_group_of_rows_has_a_best_one_and_ties_share():
    assert bold(latex_table(ROWS, better=BETTER, within=["data"])) == [
        "0.95",
        ".0982",
        "$-$0.5",
        ".05",
    ]
    assert bold(latex_table([{"a": 1.0}, {"a": 1.0}, {"a": 0.0}], better={"a": "max"})) == ["1"] * 2


def test_what_is_of_no_group_is_no_rival():
    rows = [{"by": "mf", "a": 1.0}, {"by": "", "a": 3.0}, {"by": "mf", "a": 2.0}]
    assert bold(latex_table(rows, better={"a": "max"}, within=["by"])) == ["2"]
    assert bold(latex_table(rows, better={"a": "max"})) == ["3"]


def test_no_rows_are_no_table():
    assert latex_table([]) == latex_table([{}]) == ""


def test_a_report_is_kept_in_both_forms(tmp_path: Path):
    report = Report("table2", "Table 2", ROWS, better=BETTER, within=["data"])
    path = report.save(tmp_path / "tables")
    assert path.read_text() == report.markdown()
    assert path.with_suffix(".tex").read_text() == report.latex()
    assert len(bold(report.latex())) == 4


def test_what_crosses_the_boundary_as_latex(capsys):
    assert main(["privacy", "f3crec", "--latex"]) == 0
    sides, lines = cells_of(capsys.readouterr().out)
    assert main(["privacy", "f3crec", "--markdown"]) == 0
    written = capsys.readouterr().out.splitlines()
    assert len(lines) == len(written) - 1  # without the line below the heading
    assert {len(line) for line in lines} == {len(sides)}
