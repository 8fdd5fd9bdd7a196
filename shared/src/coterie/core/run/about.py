"""What a run is of, written when it begins, and what every client measured, written at its end.

``about.json`` has the data with their digests and sizes, what rounds are chosen by, machine and
versions: whoever looks at a run, unfinished or not, has it without loading a checkpoint or data.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from coterie.core.data.interactions.interactions import in_words
from coterie.core.federation.ledger import CLIENTS
from coterie.core.federation.parties import Parties
from coterie.core.files import replacing, write_json, writing
from coterie.core.metrics.monitor import Monitor
from coterie.core.run.checkpoint import Bound
from coterie.core.run.experiment import Experiment
from coterie.core.run.origin import commits
from coterie.core.run.runfolder import ABOUT, MEASURED, PARTIES, versions


def write_about(
    folder: Path, experiment: Experiment[Any], bound: Bound, monitor: Monitor | None
) -> None:
    """Write ``about.json``; a run that goes on keeps when it was started.

    Args:
        folder: of the run.
        experiment: that is run.
        bound: digests of its data, `coterie.core.run.checkpoint.bound_to`.
        monitor: what rounds are chosen by, if by anything.

    Raises:
        UserError: the disk is full, or the folder cannot be written.
    """
    chosen = None
    if monitor is not None:
        chosen = {"key": monitor.key, "lower_is_better": monitor.lower_is_better}
    content = {
        "started": _started(folder / ABOUT) or datetime.now(UTC).isoformat(timespec="seconds"),
        "source": experiment.source,
        "digest": {"data": bound["ids"], "clients": bound["data"]},
        "blocks": experiment.describe_data(),
        "left_out": in_words(experiment.left_out()),
        "monitor": chosen,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": str(experiment.device),
        "commit": commits()["coterie"],
        "versions": versions(),
    }
    write_json(folder / ABOUT, content)


def write_measured(folder: Path, measured: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Write what every client measured in the final test, ``clients.npz``; nothing for nothing.

    It holds ``names`` and for the i-th of them ``ids_i`` and ``values_i``, both ``(R,)``.

    Raises:
        UserError: the disk is full, or the folder cannot be written.
    """
    if not measured:
        return
    arrays: dict[str, Any] = {"names": np.array(list(measured))}
    for number, (ids, values) in enumerate(measured.values()):
        arrays[f"ids_{number}"] = ids.cpu().numpy()
        arrays[f"values_{number}"] = values.cpu().double().numpy()  # NumPy has no bfloat16
    with writing(folder), replacing(folder / MEASURED) as temporary:
        np.savez_compressed(temporary, **arrays)


def write_parties(folder: Path, parties: Parties) -> None:
    """Write what each client sent and received, ``parties.json``.

    There is none where users are counted together, or a part of the run was not counted.

    Raises:
        UserError: the disk is full, or the folder cannot be written.
    """
    rows = parties.rows() or []
    if {row["party"] for row in rows} <= {CLIENTS}:
        (folder / PARTIES).unlink(missing_ok=True)  # of an earlier end of this run
        return
    write_json(folder / PARTIES, rows)


def _started(path: Path) -> str | None:
    """When the run was first started; None where nobody wrote it down."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
