r"""Tables as LaTeX: a ``table`` with a booktabs ``tabular`` that any engine compiles. Torch-free.

What a cell holds is text, never markup: characters with a meaning in LaTeX are escaped, Greek and
mathematical ones become commands of plain LaTeX, and letters with accents are put together.
"""

# ruff: noqa: RUF001
from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

Better = Mapping[str, Literal["max", "min"]]
"""Column -> which of its values is the best one."""
PREAMBLE = r"% \usepackage{booktabs}"

_PLAIN = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "[": "{[}",  # behind the end of a line it would begin an argument
    "]": "{]}",
    "*": "{*}",  # the same
    "`": r"\textasciigrave{}",
    "–": "--",
    "—": "---",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "ı": r"\i{}",
    "§": r"\S{}",
    "¶": r"\P{}",
    "©": r"\copyright{}",
    "€": r"\texttt{EUR}",
    "\N{NO-BREAK SPACE}": "~",
    "\N{NARROW NO-BREAK SPACE}": r"\,",
    "\N{THIN SPACE}": r"\,",
    "\N{SOFT HYPHEN}": r"\-",
}
_MATHS = {
    "−": "-",
    "±": r"\pm",
    "∓": r"\mp",
    "×": r"\times",
    "·": r"\cdot",
    "÷": r"\div",
    "≤": r"\le",
    "≥": r"\ge",
    "≠": r"\ne",
    "≈": r"\approx",
    "≡": r"\equiv",
    "∼": r"\sim",
    "∞": r"\infty",
    "√": r"\surd",
    "∑": r"\sum",
    "∏": r"\prod",
    "∂": r"\partial",
    "∇": r"\nabla",
    "∆": r"\Delta",
    "∈": r"\in",
    "∉": r"\notin",
    "⊂": r"\subset",
    "∪": r"\cup",
    "∩": r"\cap",
    "∘": r"\circ",
    "⊗": r"\otimes",
    "⊕": r"\oplus",
    "‖": r"\Vert",
    "⟨": r"\langle",
    "⟩": r"\rangle",
    "⌊": r"\lfloor",
    "⌋": r"\rfloor",
    "⌈": r"\lceil",
    "⌉": r"\rceil",
    "←": r"\leftarrow",
    "→": r"\rightarrow",
    "↑": r"\uparrow",
    "↓": r"\downarrow",
    "↔": r"\leftrightarrow",
    "⇒": r"\Rightarrow",
    "′": "'",
    "″": "''",
    "°": r"^{\circ}",
    "µ": r"\mu",
    "ℓ": r"\ell",
    "ϕ": r"\phi",
    "ϵ": r"\epsilon",
    "✓": r"\surd",
}
_NAMES = (
    *("alpha", "beta", "gamma", "delta", "varepsilon", "zeta", "eta", "theta", "iota", "kappa"),
    *("lambda", "mu", "nu", "xi", "o", "pi", "rho", "varsigma", "sigma", "tau", "upsilon"),
    *("phi", "chi", "psi", "omega"),
)
"""Of the small Greek letters, in their order in Unicode."""
_CAPITALS = "ΓΔΘΛΞΠΣΥΦΨΩ"
"""Greek capitals that are no Latin ones."""
_LATIN = dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧ", "ABEZHIKMNOPTX", strict=True))
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱᵀ", "0123456789+-()niT", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ᵢⱼₙₖₜₛ", "0123456789+-()ijnkts", strict=True))
_ACCENTS = dict(
    zip(
        "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0323\u0327",
        ["`", "'", "^", "~", "=", "u", ".", '"', "r", "H", "v", "d", "c"],
        strict=True,
    )
)
_NUMBER = re.compile(r"\s*([+\-−]?(?:\d[\d,]*)?\.?\d+(?:[eE][+-]?\d+)?)(?![\w.,])")
_MISSING = ("", "-")


def _greek() -> dict[str, str]:
    found = {}
    for number, name in enumerate(_NAMES):
        small, capital = chr(0x3B1 + number), chr(0x391 + number)
        found[small] = name if name == "o" else rf"\{name}"
        if capital in _CAPITALS:
            found[capital] = rf"\{name.capitalize()}"
        elif name != "varsigma":
            found[capital] = rf"\mathrm{{{_LATIN[capital]}}}"
    return found


_MATHS |= _greek()


def escape(text: str) -> str:
    r"""Write text so that LaTeX prints it; what plain LaTeX has no letter for, as its code point.

    Example:
        >>> print(escape("50 % of F³CRec_α: .1 ± .02, Müller [1]"))
        50 \% of F$^{3}$CRec\_$\alpha$: .1 $\pm$ .02, M\"{u}ller {[}1{]}
        >>> print(escape("寿司"))
        \texttt{U+5BFF}\texttt{U+53F8}
    """
    written: list[str] = []
    for part in _parts(text):
        command = _of(part)
        if command.startswith("-") and written and written[-1].endswith("-"):
            command = "{}" + command  # two of them would be a dash
        written.append(command)
    return "".join(written)


def _parts(text: str) -> Iterable[str]:
    """Letters with their accents, runs of raised or lowered figures, and single characters."""
    raised, lowered = "".join(map(re.escape, _RAISED)), "".join(_LOWERED)
    plain = unicodedata.normalize("NFC", _printable(text))
    return re.findall(rf"[{raised}]+|[{lowered}]+|.[\u0300-\u036f]*", plain, re.DOTALL)


def _printable(text: str) -> str:
    return "".join(" " if unicodedata.category(one) in ("Cc", "Zl", "Zp") else one for one in text)


def _of(part: str) -> str:
    """LaTeX of one part of a text."""
    if part[0] in _RAISED:
        return f"$^{{{''.join(map(_RAISED.__getitem__, part))}}}$"
    if part[0] in _LOWERED:
        return f"$_{{{''.join(map(_LOWERED.__getitem__, part))}}}$"
    if part in _PLAIN:
        return _PLAIN[part]
    if part in _MATHS:
        return f"${_MATHS[part]}$"
    return part if part.isascii() else _accented(part)


def _accented(part: str) -> str:
    """A letter with its accents, each a command; a code point for what is none."""
    apart = unicodedata.normalize("NFD", part)
    letter, marks = apart[0], apart[1:]
    known = all(mark in _ACCENTS for mark in marks)
    inner = _PLAIN.get(letter, letter)
    if not (letter.isascii() or letter in _PLAIN) or not known:
        return "".join(_PLAIN.get(one) or _coded(one) for one in part)
    for mark in marks:
        inner = rf"\{_ACCENTS[mark]}{{{inner}}}"
    return inner


def _coded(character: str) -> str:
    if character.isascii():
        return character
    if character in _MATHS:
        return f"${_MATHS[character]}$"
    return rf"\texttt{{U+{ord(character):04X}}}"


def latex_table(
    rows: Sequence[Mapping[str, Any]],
    caption: str = "",
    label: str = "",
    notes: Sequence[str] = (),
    better: Better | None = None,
    within: Sequence[str] = (),
) -> str:
    r"""Write rows as a LaTeX table; empty for no rows.

    Columns of numbers stand to the right. The best of a column is bold, by what it begins with: of
    ``.1034 ± .0028 (.1034)``, .1034.

    Args:
        rows: by column.
        caption: above the table.
        label: by which the text refers to it, as ``\ref{tab:LABEL}``.
        notes: lines below the table.
        better: of which columns the best value is bold, and which it is; a column of the same
            name may be missing.
        within: columns by which the rows fall into groups, each with a best value of its own; a row
            that lacks one of them is of no group, and no rival.

    Example:
        >>> print(latex_table([{"method": "FT", "NDCG": 0.5}], better={"NDCG": "max"}), end="")
        % \usepackage{booktabs}
        \begin{table}
        \centering
        \begin{tabular}{lr}
        \toprule
        method & NDCG \\
        \midrule
        FT & \textbf{0.5} \\
        \bottomrule
        \end{tabular}
        \end{table}
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        return ""
    texts = [{name: cell(row.get(name)) for name in columns} for row in rows]
    best = _best(texts, better or {}, within)
    sides = "".join("r" if _is_numeric(texts, name) else "l" for name in columns)
    lines = [PREAMBLE, r"\begin{table}", r"\centering"]
    lines += [rf"\caption{{{escape(caption)}}}"] * bool(caption)
    lines += [rf"\label{{tab:{_slug(label)}}}"] * bool(label)
    lines += [
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        _line(map(escape, columns)),
        r"\midrule",
    ]
    for number, row in enumerate(texts):
        lines.append(_line(_cell(row[name], (number, name) in best) for name in columns))
    lines += [r"\bottomrule", r"\end{tabular}"]
    if notes:
        shown = [f"{escape(note)}\\par" for note in notes]
        lines += ["", r"\begin{minipage}{\linewidth}", r"\footnotesize", *shown, r"\end{minipage}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def cell(value: Any) -> str:
    """Write a value as the tables of a report have it; ``-`` where there is none.

    Example:
        >>> cell(0.123456), cell(None), cell("± 1"), cell(float("nan"))
        ('0.1235', '-', '± 1', '-')
    """
    if value is None or value != value:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def leading(text: str) -> float | None:
    """The number that a cell begins with; None for one that begins otherwise.

    Example:
        >>> leading(".0982 ± .0028 (.1034)"), leading("-1,234.5"), leading("3 of 4"), leading("v1")
        (0.0982, -1234.5, 3.0, None)
    """
    found = _NUMBER.match(text)
    return float(found[1].replace(",", "").replace("−", "-")) if found else None


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(text: str, best: bool) -> str:
    if text in _MISSING:
        return "--"
    signed = text[0] in "-−" and leading(text) is not None
    written = "$-$" + escape(text[1:]) if signed else escape(text)
    return rf"\textbf{{{written}}}" if best else written


def _is_numeric(texts: Sequence[Mapping[str, str]], name: str) -> bool:
    known = [row[name] for row in texts if row[name] not in _MISSING]
    return bool(known) and all(leading(text) is not None for text in known)


def _best(
    texts: Sequence[Mapping[str, str]], better: Better, within: Sequence[str]
) -> set[tuple[int, str]]:
    """Rows and columns of the best values; all that share the first place."""
    found: set[tuple[int, str]] = set()
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, row in enumerate(texts):
        groups.setdefault(tuple(row.get(name, "") for name in within), []).append(number)
    rivals = [members for labels, members in groups.items() if not set(labels) & set(_MISSING)]
    for name, end in better.items():
        for members in rivals:
            values = {n: leading(texts[n].get(name, "")) for n in members}
            known = {n: value for n, value in values.items() if value is not None}
            first = (max if end == "max" else min)(known.values(), default=None)
            found |= {(n, name) for n, value in known.items() if value == first}
    return found


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9:.-]+", "-", text).strip("-")
