"""What the folder of a run tells, read from its files when it is asked for. Torch-free.

A run that is being trained is seen as its files stand. What is damaged is a `UserError` that names
the file; what an older version did not write yet is empty.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper, find_paper
from coterie.core.run.lasting import MORE, fixed
from coterie.core.run.lock import holder
from coterie.core.run.metrics_file import read_metrics
from coterie.core.run.runfolder import ABOUT, MEASURED, PARTIES
from coterie.core.settings.configuration import read_text, read_yaml
from coterie.core.tables.report import read_saved

State = Literal["finished", "training", "unfinished"]
Digested = Literal["data", "clients"]
PerClient = tuple[NDArray[np.int64], NDArray[np.float64]]
_OF_ONE_PLACE = ("run.", "logger.", "trainer.", "engine.", "data.root")


@dataclass(frozen=True)
class RunFacts:
    """A run as its folder tells it.

    Args:
        path: the folder.

    Raises:
        UserError: there is no run in it, or its ``config.yaml`` is damaged.
    """

    path: Path

    def __post_init__(self) -> None:
        _ = self.config

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings by dotted keys, and ``paper``."""
        file = self.path / "config.yaml"
        if not file.is_file():
            raise UserError(
                f"{self.path} is not the folder of a run: it has no config.yaml; leave it out"
            )
        found = flat(read_yaml(str(file), read_text(file)))
        if not isinstance(found.get("paper"), str):
            raise UserError(f"{file} does not name its paper, as 'paper: f3crec'")
        return found

    @property
    def name(self) -> str:
        """Of the folder."""
        return self.path.name

    @cached_property
    def paper(self) -> Paper:
        """The paper of the run.

        Raises:
            UserError: it is not installed.
        """
        return find_paper(self.config["paper"])

    @property
    def method(self) -> str:
        """What was trained."""
        return str(self.config.get("method"))

    @property
    def data(self) -> str:
        """Name of the data, without folders."""
        return str(self.config.get("data.name")).rstrip("/").rpartition("/")[2]

    @property
    def seed(self) -> Any:
        """Of the run."""
        return self.config.get("seed")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that make its numbers: no seed, place, speed, logger."""
        kept = {"rounds": self.config.get("rounds")} | fixed(self.config)
        left_out = ["seed", "paper"]
        if not self.config.get(MORE):  # as in runs of before there was the setting
            left_out.append(MORE)
        return {
            key: value
            for key, value in kept.items()
            if key not in left_out and not key.startswith(_OF_ONE_PLACE)
        }

    @cached_property
    def state(self) -> State:
        """Whether it came to its end, is being trained, or stands still before it."""
        if (self.path / "summary.json").is_file():
            return "finished"
        return "unfinished" if holder(self.path) is None else "training"

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.state == "finished"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """``summary.json``; empty before the end."""
        return self._mapping("summary.json")

    @property
    def metrics(self) -> dict[str, float]:
        """The final numbers; NaN for what nobody could measure, empty before the end."""
        return _numbers(self.path / "summary.json", self.summary.get("metrics") or {})

    @property
    def reference(self) -> dict[str, float]:
        """The paper's numbers of the same names."""
        return _numbers(self.path / "summary.json", self.summary.get("reference") or {})

    @cached_property
    def about(self) -> dict[str, Any]:
        """``about.json``: data, machine, versions; empty for runs of older versions."""
        return self._mapping(ABOUT)

    def digest(self, of: Digested) -> str | None:
        """Digest of the data, or of what each client has of them; None where it is not known."""
        return (self.about.get("digest") or {}).get(of)

    @property
    def monitor(self) -> str | None:
        """Name of what rounds are chosen by, as ``eval/ndcg@20``; None where it is not known."""
        return (self.about.get("monitor") or {}).get("key")

    @cached_property
    def history(self) -> dict[str, list[float]]:
        """One number a round by name, as ``metrics.csv`` has it; NaN where a round has none."""
        columns, lines = read_metrics(self.path)
        try:
            return {name: [float(line[name] or "nan") for line in lines] for name in columns}
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.path / 'metrics.csv'} is damaged: {error}") from None

    @property
    def rounds(self) -> int:
        """Rounds that are done."""
        return int((self.history.get("round") or [0])[-1])

    def last(self, name: str) -> float:
        """The newest number of a name; NaN where there is none."""
        known = [value for value in self.history.get(name, []) if value == value]
        return known[-1] if known else math.nan

    def total(self, name: str) -> float:
        """Sum over the rounds; NaN where it was never noted."""
        known = [value for value in self.history.get(name, []) if value == value]
        return math.fsum(known) if known else math.nan

    @cached_property
    def ledger(self) -> list[dict[str, Any]]:
        """``ledger.json``: bytes by step, direction and field; empty before the end."""
        return self._rows("ledger.json", ("step", "direction", "field", "messages", "bytes"))

    @cached_property
    def parties(self) -> list[dict[str, Any]]:
        """``parties.json``: bytes by direction, field and organisation; empty for users."""
        return self._rows(PARTIES, ("direction", "field", "party", "messages", "bytes"))

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """``clients.json``: the final test of organisations; empty where clients are many."""
        return self._rows("clients.json", ())

    @cached_property
    def measured(self) -> dict[str, PerClient]:
        """What every client measured in the final test: name -> ids and values, both ``(R,)``."""
        path = self.path / MEASURED
        if not path.is_file():
            return {}
        try:
            with np.load(path, allow_pickle=False) as file:
                return {
                    str(name): (
                        file[f"ids_{number}"].astype(np.int64),
                        file[f"values_{number}"].astype(np.float64),
                    )
                    for number, name in enumerate(file["names"])
                }
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} is damaged: {error}") from None

    def _mapping(self, name: str) -> dict[str, Any]:
        return read_saved(self.path / name) or {}

    def _rows(self, name: str, needed: tuple[str, ...]) -> list[dict[str, Any]]:
        path = self.path / name
        if not path.is_file():
            return []
        try:
            found = json.loads(read_text(path))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged: {error}") from None
        fit = isinstance(found, list) and all(
            isinstance(row, dict) and row.keys() >= set(needed) for row in found
        )
        if not fit:
            raise UserError(f"{path} is damaged: it holds no table")
        return list(found)


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted keys; sections have one level.

    Example:
        >>> flat({"seed": 0, "data": {"name": "sample"}})
        {'seed': 0, 'data.name': 'sample'}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            found[str(key)] = value
    return found


def _numbers(path: Path, found: Any) -> dict[str, float]:
    try:
        return {
            str(name): math.nan if value is None else float(value) for name, value in found.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
