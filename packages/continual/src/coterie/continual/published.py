"""The paper's tables, read from published.yaml. Torch-free."""

from __future__ import annotations

from typing import Any

from coterie.core.registry.data_sets import published

TABLES: dict[str, Any] = published("coterie.continual")
METRICS = ("ndcg", "recall")


def table2(data: str, metric: str, backbone: str, method: str) -> list[float] | None:
    """Give D1, D2, D3, Avg and Improv. (per cent) of one row; None where the paper has none.

    The metric is "ndcg" or "recall", at 20.

    Example:
        >>> table2("ml-100k", "ndcg", "fedmf", "f3crec")
        [0.0933, 0.0885, 0.1284, 0.1034, 21.0]
    """
    rows = TABLES["table2"].get(data, {}).get(metric, {}).get(backbone, {})
    return rows.get(method)


def reference(data: str, backbone: str, method: str, top_k: int = 20) -> dict[str, float]:
    """Name the paper's values as a run names its own; empty where the paper has none.

    Example:
        >>> reference("ml-100k", "fedmf", "ft")["test/average/ndcg@20"]
        0.0855
    """
    found: dict[str, float] = {}
    for metric in METRICS:
        row = table2(data, metric, backbone, method) if top_k == 20 else None
        if row is not None:
            places = ("block1", "block2", "block3", "average")
            found |= {
                f"test/{place}/{metric}@{top_k}": x
                for place, x in zip(places, row[:4], strict=True)
            }
    return found
