"""How F³CRec compares with another method: paired over seeds, and over users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coterie.continual.tables.runs import RunResult
from coterie.continual.tables.study import NAMES, averages, validations
from coterie.core.tables.paired import ALPHA, Comparison, compare, holm, p_text


@dataclass(frozen=True)
class Contrast:
    """Of two methods.

    Attributes:
        seeds: pairs are the runs of one seed, values the means over blocks.
        users: pairs are (block, user), values the user's mean over seeds; None for validation.
        p: over seeds, adjusted for the number of methods compared (Holm).
    """

    seeds: Comparison
    users: Comparison | None
    p: float = float("nan")

    @property
    def verdict(self) -> str:
        """Say in a word whether the difference is more than noise."""
        if not self.p <= ALPHA:  # NaN too: one seed tells nothing
            return "within noise"
        return "better" if self.seeds.difference > 0 else "worse"

    def __str__(self) -> str:
        return f"{self.seeds.difference:+.4f}, p {p_text(self.p)}: {self.verdict}"

    def sentence(self, first: str, second: str, metric: str) -> str:
        """Say it in full."""
        s, u = self.seeds, self.users
        over_users = f", over {u.n} users p {p_text(u.p)}" if u else ""
        return (
            f"{metric}: {first} - {second} = {s.difference:+.4f} "
            f"(95 % interval {s.low:+.4f} to {s.high:+.4f}), paired t-test over {s.n} seeds "
            f"p {p_text(s.p)} (Holm {p_text(self.p)}){over_users}: {self.verdict}."
        )


def over_others(results: Mapping[str, Sequence[RunResult]], metric: str) -> dict[str, Contrast]:
    """Compare F³CRec with each of the other methods on the test.

    Args:
        results: of the methods, one a seed, in the same order of seeds.
        metric: as "ndcg@20".
    """
    own, others = _split(results)
    return _adjusted(
        {
            name: Contrast(
                compare(averages(own, metric), averages(runs, metric)),
                compare(user_means(own, metric), user_means(runs, metric)),
            )
            for name, runs in others.items()
        }
    )


def over_others_on_validation(
    results: Mapping[str, Sequence[RunResult]],
) -> dict[str, Contrast]:
    """Compare F³CRec with each of the others by what chooses settings: validation NDCG."""
    own, others = _split(results)
    return _adjusted(
        {
            name: Contrast(compare(validations(own), validations(runs)), None)
            for name, runs in others.items()
        }
    )


def differences(found: Mapping[str, Contrast]) -> dict[str, Comparison]:
    """Give the comparisons over seeds, under the methods' printed names."""
    return {NAMES[method]: contrast.seeds for method, contrast in found.items()}


def _split(
    results: Mapping[str, Sequence[RunResult]],
) -> tuple[Sequence[RunResult], dict[str, Sequence[RunResult]]]:
    return results["f3crec"], {m: runs for m, runs in results.items() if m != "f3crec"}


def _adjusted(found: Mapping[str, Contrast]) -> dict[str, Contrast]:
    adjusted = holm([contrast.seeds.p for contrast in found.values()])
    return {
        name: replace(contrast, p=p)
        for (name, contrast), p in zip(found.items(), adjusted, strict=True)
    }


def user_means(results: Sequence[RunResult], metric: str) -> NDArray[np.float64]:
    """Mean over seeds for every user of every block after the first, NaN without a test item."""
    column = metric.partition("@")[0]
    blocks = [block for block in results[0].users if block != "0"]
    seeds = [np.concatenate([r.users[block][column] for block in blocks]) for r in results]
    # A user has a test item in all seeds or, with random splits too, in none.
    return np.mean(seeds, axis=0)


def best_of(results: Mapping[str, Sequence[RunResult]], metric: str) -> str:
    """Name the method with the highest mean."""
    return max(results, key=lambda name: np.mean(averages(results[name], metric)))


def noise_note(found: Mapping[str, Contrast], metric: str) -> str:
    """Name the methods from which F³CRec cannot be told apart."""
    within = [NAMES[name] for name, c in found.items() if c.verdict == "within noise"]
    return f"{metric}: within noise of F³CRec: {', '.join(within) or 'none'}."
