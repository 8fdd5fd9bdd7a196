"""The paper's tables, read from published.yaml: what others measured, never a claim of ours.

Torch-free.
"""

from __future__ import annotations

from typing import Any

from coterie.core.registry.data_sets import published

TABLES: dict[str, Any] = published("coterie.msmt")
ALIEXPRESS = ("NL", "ES", "FR", "US")
TENREC = ("QK-video", "QB-video")
ABLATIONS = ("a1", "a2", "a3", "a4")
EXPERTS = (2, 3, 4, 5, 6)
_MEASURES = {"aliexpress": ("auc_ctr", "auc_ctcvr"), "tenrec": ("auc_click", "auc_like")}
_MAIN = {"aliexpress": ("table2", "table3"), "tenrec": ("table4", "table5")}
_ABLATIONS = {"aliexpress": "table6", "tenrec": "table8"}
_EXPERTS = {"aliexpress": "table7", "tenrec": "table9"}
_EXCHANGED = {"FR": "ES", "ES": "FR"}


def printed(*path: str | int) -> Any:
    """Give what the paper prints at a place of its tables, as it stands; None where it has nothing.

    Example:
        >>> printed("table2", "NL", "pf-msmtrec"), printed("table2", "NL", "fedavg")
        ([0.7316, 0.8653], None)
    """
    found: Any = TABLES
    for key in path:
        found = found.get(key, {})
    return found or None


def data_of(scenario: str) -> str | None:
    """Name the paper's data set that a scenario is of; None if it is not the paper's.

    Example:
        >>> data_of("NL"), data_of("QB-video"), data_of("gender 1")
        ('aliexpress', 'tenrec', None)
    """
    if scenario in ALIEXPRESS:
        return "aliexpress"
    return "tenrec" if scenario in TENREC else None


def reference(scenario: str, row: str) -> dict[str, float]:
    """Name the AUCs of Tables 2 to 5 as a network names its own; empty where there are none.

    Args:
        scenario: as `ALIEXPRESS` and `TENREC` have them.
        row: a network that scenarios were trained on alone or together (``mmoe``, …), a federated
            method (``fedavg``, …), ``local`` or ``pf-msmtrec``.

    Example:
        >>> reference("US", "ditto"), reference("QB-video", "aitm")
        ({'auc_ctr': 0.7089, 'auc_ctcvr': 0.8666}, {})
    """
    for table in _MAIN.get(data_of(scenario) or "", ()):
        if found := _named(table, scenario, row):
            return found
    return {}


def of_ablation(scenario: str, ablation: str) -> dict[str, float]:
    """Give the AUCs of Tables 6 and 8, as `reference`; A3's are those of the full model.

    Example:
        >>> of_ablation("NL", "a2")
        {'auc_ctr': 0.7289, 'auc_ctcvr': 0.8511}
    """
    data = data_of(scenario)
    return {} if data is None else _named(_ABLATIONS[data], scenario, ablation)


def of_experts(scenario: str, experts: int) -> dict[str, float]:
    """Give the AUCs of Tables 7 and 9, as `reference`, where Table 7's heads are set right.

    Example:
        >>> of_experts("ES", 4) == reference("ES", "pf-msmtrec")
        True
    """
    data = data_of(scenario)
    head = _EXCHANGED.get(scenario, scenario)
    return {} if data is None else _named(_EXPERTS[data], head, experts)


def _named(table: str, scenario: str, row: str | int) -> dict[str, float]:
    numbers = printed(table, _column(scenario), row) or ()
    names = _MEASURES[data_of(scenario) or "aliexpress"]
    return dict(zip(names, numbers, strict=False))


def _column(scenario: str) -> str:
    """How Tables 4 to 9 call it."""
    return "QB-article" if scenario == "QB-video" else scenario
