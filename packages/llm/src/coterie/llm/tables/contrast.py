"""How PPLR compares with another method: paired over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.core.tables.paired import ALPHA, Comparison, compare, holm, p_text
from coterie.llm.tables.runs import RunResult
from coterie.llm.tables.study import NAMES, column

Values = Callable[[Sequence[RunResult]], list[float]]


@dataclass(frozen=True)
class Contrast:
    """PPLR minus another method.

    Attributes:
        other: that method.
        measure: what is compared.
        found: over pairs.
        higher: whether more is better.
        pairs: what the pairs are.
        p: adjusted for the number of methods compared (Holm).
    """

    other: str
    measure: str
    found: Comparison
    higher: bool = True
    pairs: str = "seeds"
    p: float = float("nan")

    @property
    def verdict(self) -> str:
        """Say in a word whether the difference is more than noise."""
        if not self.p <= ALPHA:  # NaN too: one seed tells nothing
            return "not better, within noise"
        return "better" if (self.found.difference > 0) == self.higher else "worse"

    def __str__(self) -> str:
        f = self.found
        interval = f" ({f.low:+.4f} to {f.high:+.4f}; p {p_text(f.p)}, Holm {p_text(self.p)})"
        detail = interval if f.n > 1 else ""
        return f"{_plain(self.other)} {f.difference:+.4f}{detail}, {self.verdict}"


def contrasts(results: Mapping[str, Sequence[RunResult]], others: Sequence[str]) -> list[Contrast]:
    """Compare PPLR with other methods in Recall@10, NDCG@10, imbalance and the worst client.

    The imbalance is infinite where the worst client finds nothing. If that happens in any run, its
    monotone image worst / best = 1 / (1 + imbalance), which is always finite, is tested instead.
    """
    own = results["pplr"]
    runs = {name: results[name] for name in others}
    finite = all(np.isfinite(r.imbalance()) for group in (own, *runs.values()) for r in group)
    inequality: tuple[str, Values, bool] = (
        ("imbalance", lambda part: [r.imbalance() for r in part], False)
        if finite
        else ("worst / best client (imbalance is not finite)", _evenness, True)
    )
    measures: list[tuple[str, Values, bool, str]] = [
        ("R@10", lambda part: column(part, "test/recall@10"), True, "seeds"),
        ("N@10", lambda part: column(part, "test/ndcg@10"), True, "seeds"),
        (*inequality, "seeds"),
        ("R@10 of the worst client", lambda part: [r.worst() for r in part], True, "seeds"),
        ("R@10 of each client", _every_client, True, "clients and seeds (not independent)"),
    ]
    found = []
    for name, values, higher, pairs in measures:
        group = [
            Contrast(other, name, compare(values(own), values(part)), higher, pairs)
            for other, part in runs.items()
        ]
        adjusted = holm([contrast.found.p for contrast in group])
        found += [replace(c, p=p) for c, p in zip(group, adjusted, strict=True)]
    return found


def comparison_notes(backbone: str, found: Sequence[Contrast]) -> list[str]:
    """Write out the comparisons, a line for each measure."""
    lines: dict[str, list[Contrast]] = {}
    for contrast in found:
        lines.setdefault(contrast.measure, []).append(contrast)
    return [
        f"{backbone}, {measure}, PPLR minus: {'; '.join(map(str, group))}. "
        f"Paired t-test over {group[0].found.n} {group[0].pairs}, 95 % interval."
        for measure, group in lines.items()
    ]


def verdict_note(backbone: str, found: Sequence[Contrast]) -> str:
    """Say plainly where PPLR is not better."""
    lost = [c for c in found if c.verdict != "better"]
    if not lost:
        return f"{backbone}: PPLR is better in everything tested."
    of = {
        name: ", ".join(c.measure for c in lost if c.other == name)
        for name in dict.fromkeys(c.other for c in lost)
    }
    text = "; ".join(f"than {_plain(name)} in {what}" for name, what in of.items())
    return f"{backbone}: PPLR is NOT better {text}."


def _evenness(results: Sequence[RunResult]) -> list[float]:
    return [result.evenness() for result in results]


def _every_client(results: Sequence[RunResult]) -> list[float]:
    return [value for result in results for value in result.clients["test/recall@10"]]


def _plain(method: str) -> str:
    return NAMES[method].lstrip("+")
