"""One run of federated continual recommendation: its data, its two halves, its description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch

from coterie.continual.by_trainer import standalone
from coterie.continual.client import SAMPLE_BYTES, ContinualClient, make_client
from coterie.continual.messages import UPDATE, ItemTable
from coterie.continual.paper import CLIENT_COLUMNS
from coterie.continual.published import reference
from coterie.continual.settings import Settings, resolve
from coterie.core.data.interactions.canonical import data_digest
from coterie.core.data.interactions.interactions import Dropped, Interactions
from coterie.core.data.interactions.splits import (
    Block,
    Stream,
    UserRows,
    earlier_items,
    split_block,
)
from coterie.core.data.sources.later_files import load_stages
from coterie.core.errors import UserError
from coterie.core.federation.federation import Earlier
from coterie.core.privacy.attack import AttackReport, attack_curve
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import Need, RecommendsToUsers
from coterie.core.settings.schema import values_of
from coterie.core.standalone import Standalone
from coterie.core.tensors.keys import Key

FEW_REPEATS = 0.01
"""Share of repeated interactions below which leaving them out is not worth a word."""


class Experiment(RecommendsToUsers[Settings]):
    """Build everything that `coterie train f3crec` runs.

    Args:
        settings: as the user gave them; the reading's choices are filled in.
    """

    paper = "f3crec"

    def __init__(self, settings: Settings) -> None:
        super().__init__(resolve(settings))

    @cached_property
    def stages(self) -> list[Stream]:
        """The stream as it was at first, and after each file that was added."""
        return load_stages(self.settings.data, self.settings.data.fractions)

    @cached_property
    def stream(self) -> Stream:
        """The interactions after filtering, cut into blocks."""
        stream = self.stages[-1]
        smallest, values = stream.blocks[0].n_items, values_of(self.settings)
        for key in ("replay.top_n", "spp.n_slow", "spp.n_fast", "model.negatives", "top_k"):
            if (count := values[key]) > smallest:
                raise UserError(
                    f"'{key}' {count} exceeds the {smallest} items of the first block: choose less"
                )
        return stream

    @cached_property
    def blocks(self) -> list[UserRows]:
        """What the clients of each block may read."""
        return [self._block_data(block) for block in self.stream.blocks]

    @property
    def interactions(self) -> Interactions:
        """The filtered interactions; users and items numbered by first appearance in time."""
        return self.stream.interactions

    def earlier(self) -> list[Earlier]:
        """Say what the stream was before each file that was added."""
        return [
            Earlier(len(stage.blocks), partial(data_digest, stage.interactions))
            for stage in self.stages[:-1]
        ]

    def left_out(self) -> list[Dropped]:
        """Count what filters left out, and what counts once within a block."""
        of = len(self.interactions)
        parts = [part for own in self.blocks for part in (own.train, own.valid, own.test)]
        again = of - sum(part.values.numel() for part in parts)
        why = "of an item that the user has in the same block before"
        return [*self.interactions.dropped, Dropped(why, again, of)]

    def describe_data(self) -> list[dict[str, int | float]]:
        """Tabulate the blocks as the paper's Table 1 does."""
        return self.stream.statistics()

    def public(self) -> dict[str, Any]:
        """Give the numbers of items that are known in each block, I^0, …, I^T."""
        return {"n_items": [block.n_items for block in self.stream.blocks]}

    def client(self) -> ContinualClient:
        """Build the client half."""
        return make_client(self.card)

    def needs(self) -> list[Need]:
        """Estimate tables, private parameters and the samples of a round."""
        settings, model = self.settings, self.settings.model
        number = getattr(torch, settings.engine.dtype).itemsize
        data, each = self.interactions, (1 + model.negatives) * model.epochs
        most = max(int(block.train.lengths.max()) for block in self.blocks) * each
        found = [
            Need(
                "the embeddings of users and items",
                ("model.dim",),
                memory=2 * (data.n_users + data.n_items) * model.dim * number,
                operations=self.stream.blocks[0].n_users * each * model.dim,
            ),
            Need(
                "the local samples of one user",
                ("model.epochs", "model.negatives"),
                memory=most * SAMPLE_BYTES,
                steps=most // model.batch_size,
            ),
        ]
        if settings.method == "rlp2":
            memory = data.n_users * settings.rlp2.capacity * number
            found.append(Need("the error memory of all users", ("rlp2.capacity",), memory))
        return found

    def standalone(self, client: int | None, network: str | None) -> Standalone[Any, Any, Any]:
        """Give the backbone, or BPR-MF, trained on all blocks and measured on the last one."""
        newest = self.stream.blocks[-1]
        sizes = newest.n_users, newest.n_items
        return standalone(self.settings, self.blocks, sizes, client, network)

    def client_columns(self) -> tuple[str, ...]:
        """Name a client's measurements at the cutoff of the run."""
        return tuple(name.replace("@20", f"@{self.settings.top_k}") for name in CLIENT_COLUMNS)

    def attack(self, module: FederatedRun, scales: Sequence[float]) -> dict[float, AttackReport]:
        """Attack one upload of every client of the newest block, behind several Laplace scales.

        The server guesses which items are positives, among all items it knows (section 5.6).
        """
        cohort = module.newest_cohort()
        state = module.server_state
        down = ItemTable(state.best, block=state.block)
        up = cohort.ask(UPDATE, down).up
        assert up is not None  # the clients are there, and what diverges raises
        data = module.newest_data
        keys = Key.from_seed(self.settings.seed).fold("attack").fold(cohort.ids)
        return attack_curve(up.items.wire(), down.items, data.train, scales, keys)

    def reference(self) -> dict[str, float]:
        """The paper's Table 2 for this method, backbone and data; its averages are of 3 blocks."""
        settings = self.settings
        found = reference(settings.data.name, settings.model.name, settings.method, settings.top_k)
        return {n: v for n, v in found.items() if "/average/" not in n or not settings.data.more}

    def final_metrics(self, module: FederatedRun) -> dict[str, float]:
        """Give validation and tests of all blocks, and their averages."""
        return self.with_averages(module.results)

    def shown(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Leave validation and the second protocol out, but for their averages."""
        return {n: v for n, v in metrics.items() if "/block" not in n or not _is_aside(n)}

    def notes(self, module: FederatedRun) -> list[str]:
        """Say which blocks were not tested, and if what is left out is what users came back for."""
        return [*self._untested(module), *self._left_out()]

    def _untested(self, module: FederatedRun) -> list[str]:
        metric, ended = f"ndcg@{self.settings.top_k}", module.block + (not module.block_open)
        missing = [t for t in range(ended) if f"test/block{t}/{metric}" not in module.results]
        if not missing:
            return []
        named = ", ".join(map(str, missing))
        return [f"nothing to test in block {named}: not measured, averages are over the others"]

    def _left_out(self) -> list[str]:
        if not self.settings.leaves_out:
            return []
        blocks, shares = self.stream.blocks, self.stream.repeats()
        again = sum(share * len(block) for share, block in zip(shares, blocks, strict=True))
        repeats = again / sum(map(len, blocks[1:]))  # the first block has none
        if repeats < FEW_REPEATS:
            return []
        return [
            f"{repeats:.0%} of what users had in later blocks they had before; what 'replay.use' "
            f"{self.settings.replay.use} leaves out of that is never found: see 'distil'"
        ]

    def with_averages(self, results: Mapping[str, float]) -> dict[str, float]:
        """Average over the blocks after the first that were measured, as the paper's tables do."""
        later, averages = range(1, len(self.stream.blocks)), {}
        for name in ("ndcg", "recall"):
            metric = f"{name}@{self.settings.top_k}"
            for split, kind in (("test", metric), ("test", f"{metric}_unseen"), ("valid", metric)):
                values = [results.get(f"{split}/block{t}/{kind}") for t in later]
                known = [value for value in values if value is not None]
                if known:  # of what nobody measured there is no average
                    averages[f"{split}/average/{kind}"] = sum(known) / len(known)
        return dict(results) | averages

    def _block_data(self, block: Block) -> UserRows:
        data = self.settings.data
        order = data.base_order if block.index == 0 else data.block_order
        assert order is not None
        assert data.ties is not None
        seed = self.settings.seed if data.split_seed is None else data.split_seed
        own = split_block(self.stream, block, order, seed, data.ties)
        return replace(own, earlier=earlier_items(self.stream, block, own.ids))


def _is_aside(name: str) -> bool:
    """Whether a measurement is of validation, or of the second protocol."""
    return name.startswith("valid/") or name.endswith("_unseen")
