"""One run of assisted learning: its data, its two halves, its description."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from coterie.assisted.data.make import make
from coterie.assisted.data.organisations import Organisations
from coterie.assisted.keys import CLIENT_COLUMNS
from coterie.assisted.readings import resolve
from coterie.assisted.routes import check_common
from coterie.assisted.settings.run import Settings
from coterie.assisted.sums import check_sum
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import Experiment as BaseExperiment


class Experiment(BaseExperiment[Settings]):
    """Build everything that `coterie train mtal` runs.

    Args:
        settings: as the user gave them; the reading's choices are filled in.
    """

    paper = "mtal"

    def __init__(self, settings: Settings) -> None:
        super().__init__(resolve(settings))

    @cached_property
    def organisations(self) -> Organisations:
        """What organisations hold."""
        how, settings = self.settings.data, self.settings
        partition = "whole" if settings.method == "joint" else how.domains
        dtype = getattr(torch, settings.engine.dtype)
        released = settings.reading == "released"
        found = make(how, settings.seed, partition, released=released, dtype=dtype)
        if settings.method == "mtal":
            rows = {one.id: one.rows for one in found.each}
            check_common(rows)
            if settings.protect.sum:
                check_sum(rows)
        return found

    @property
    def blocks(self) -> list[Organisations]:
        """The organisations' data: there is one block."""
        return [self.organisations]

    def describe_data(self) -> list[dict[str, Any]]:
        """Count the ratings of every organisation."""
        return [
            {
                "organisation": one.domain.name,
                "columns": one.train.n_columns,
                "train": len(one.train),
                "valid": len(one.valid),
                "test": len(one.test),
            }
            for one in self.organisations.each
        ]

    def notes(self, module: FederatedRun) -> list[str]:
        """Say how many rounds were without outputs."""
        lost = sum(row.get("mtal/dropped", 0.0) > 0 for row in module.history)
        if not lost:
            return []
        return [
            f"in {lost} of {len(module.history)} rounds nobody had its peers' outputs: an "
            "organisation did not answer, and masks cancel in the sum of all only"
        ]

    def client_columns(self) -> tuple[str, ...]:
        """Name what is shown of every organisation."""
        return CLIENT_COLUMNS

    def client_table(self, module: FederatedRun) -> list[dict[str, Any]]:
        """Give the test of every organisation."""
        rows = [{"client": one.id, "domain": one.domain.name} for one in self.organisations.each]
        for name, (ids, values) in module.client_results.items():
            for client, value in zip(ids.tolist(), values.tolist(), strict=True):
                rows[client][name.removeprefix("test/")] = value
        return rows
