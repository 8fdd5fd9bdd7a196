"""The paper's tables, read from published.yaml."""

from __future__ import annotations

from typing import Any

from coterie.core.registry.published import published

TABLES: dict[str, Any] = published("coterie.llm")
# Name of a data set here -> in the paper.
DATA_SETS = {"amazon-games": "Games", "microlens": "MicroLens", "amazon-books": "Book"}
# Backbone here -> the paper's nearest.
BACKBONES = {"tiny-text": "BIGRec", "recformer": "RecFormer", "": "none"}
COLUMNS = ("recall@10", "recall@20", "ndcg@10", "ndcg@20")


def table1(data: str, backbone: str, method: str) -> list[float] | None:
    """Give a row of Table 1, or None; ``backbone`` is "" for methods without one.

    Example:
        >>> table1("amazon-games", "recformer", "pplr")[0]
        0.0175
    """
    name = BACKBONES.get(backbone, backbone)
    return TABLES["table1"].get(DATA_SETS.get(data, ""), {}).get(name, {}).get(method)


def table3(data: str, method: str) -> tuple[list[float], float] | None:
    """Give a row of Table 3: five clients and the imbalance, NaN where it is printed wrong.

    Example:
        >>> table3("microlens", "central")[1]
        nan
    """
    row = TABLES["table3"].get(DATA_SETS.get(data, ""), {}).get(method)
    if row is None:
        return None
    return row["clients"], float("nan") if printed_wrong(data, method) else row["imbalance"]


def printed_wrong(data: str, method: str) -> bool:
    """Say whether the imbalance in a row of Table 3 does not follow from its clients."""
    return [DATA_SETS.get(data, ""), method] in TABLES["wrong_imbalances"]
