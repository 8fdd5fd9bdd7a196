"""Run folders as a training writes them, made by hand, for what only reads them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

CONFIG = {
    "paper": "page",
    "method": "page",
    "reading": "recommended",
    "seed": 0,
    "rounds": 3,
    "data": {"name": "synthetic", "root": None},
    "run": {"out": None, "name": None},
    "privacy": {"noise": "none", "steps": []},
    "model": {"name": "softmax"},
}
LEDGER = [
    {"step": "update", "direction": "up", "field": "change", "messages": 6, "bytes": 6000},
    {"step": "update", "direction": "up", "field": "loss", "messages": 6, "bytes": 24},
    {"step": "update", "direction": "down", "field": "weights.w", "messages": 6, "bytes": 5000},
    {"step": "update", "direction": "down", "field": "weights.b", "messages": 6, "bytes": 1000},
]


def make_run(
    root: Path,
    name: str,
    *,
    metrics: Mapping[str, float | None] | None = None,
    clients: Sequence[float] = (),
    digests: tuple[str, str] | None = ("data", "clients"),
    rounds: Sequence[float] = (0.5, 0.6, 0.55),
    notes: Sequence[str] = (),
    **changed: Any,
) -> Path:
    """Write a run; without metrics it has not come to its end.

    Args:
        root: where its folder is made.
        name: of the folder.
        metrics: final numbers.
        clients: test accuracy of each client.
        digests: of the data, and of the clients' parts; None for a run of an older version.
        rounds: validation after each round.
        notes: of the summary.
        changed: settings, a section as a dict.
    """
    folder = root / name
    folder.mkdir(parents=True)
    config = {**CONFIG, **changed}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = [
        f"{i},0,{score},2,0,{1000 * i},{1000 * i},0.5,{0.5 * i}"
        for i, score in enumerate(rounds, 1)
    ]
    head = (
        "round,block,eval/accuracy,fed/clients,fed/refused,cost/up_bytes_total,"
        "cost/down_bytes_total,cost/seconds,cost/seconds_total"
    )
    (folder / "metrics.csv").write_text("\n".join([head, *lines]) + "\n")
    if digests is not None:
        about = {
            "started": "2026-01-01T00:00:00+00:00",
            "source": "synthetic",
            "digest": dict(zip(("data", "clients"), digests, strict=True)),
            "blocks": [{"clients": 2, "samples": 100}],
            "left_out": [],
            "monitor": {"key": "eval/accuracy", "lower_is_better": False},
            "machine": "Linux, 2 cores",
            "device": "cpu",
            "commit": None,
            "versions": {"python": "3"},
        }
        (folder / "about.json").write_text(json.dumps(about))
    if metrics is None:
        return folder
    summary = {
        "metrics": {**metrics, "test/best_round": 2.0},
        "reference": {"test/server_accuracy": 0.9},
        "notes": list(notes),
        "left_out": [],
        "versions": {"python": "3"},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "ledger.json").write_text(json.dumps(LEDGER))
    if clients:
        values = np.array(clients, dtype=np.float64)
        ids = np.arange(values.size)
        names = np.array(["test/personal_accuracy"])
        np.savez(folder / "clients.npz", names=names, ids_0=ids, values_0=values)
    return folder


def scores(server: float, personal: float = 0.8) -> dict[str, float]:
    """Final numbers of a run of PAGE."""
    return {"test/server_accuracy": server, "test/personal_accuracy": personal}
