"""The client half of F³CRec and its baselines (Algorithm 1). Never imports the server half."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.continual.backbones import Backbone, Params, make_backbone
from coterie.continual.batches import Batches, draw_batches, draw_samples, plan_of
from coterie.continual.compiling import pays
from coterie.continual.local_training import LocalTraining, Trained
from coterie.continual.messages import (
    END_BLOCK,
    EVALUATE,
    KEEP_BEST,
    START_BLOCK,
    UPDATE,
    ClientState,
    EndedBlock,
    EvaluationTable,
    ItemTable,
    ItemUpdate,
    LookBack,
    StreamReport,
)
from coterie.continual.proxies import Proxies
from coterie.continual.reloop import ErrorMemory
from coterie.continual.retention import (
    AdaptiveReplay,
    Distillation,
    LeaveOut,
    Regularisation,
    Retention,
    score_items,
)
from coterie.continual.settings import DISTILLING, Settings, resolve
from coterie.continual.touched_training import TOUCHED_BYTES, TouchedTraining
from coterie.core.data.interactions.splits import UserRows
from coterie.core.errors import UserError
from coterie.core.metrics.ranking import ScoreRows, copies_of
from coterie.core.metrics.ranking_report import RankingReport, rank_blocks
from coterie.core.protocol.card import Card
from coterie.core.protocol.client import Client, Factors, RecommendsItems
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

# Measured: what a step holds beside one table (n_items) for each batch and the samples themselves.
_OTHER_TABLES = 4
SAMPLE_BYTES = 64
_STATE_BYTES = 2048  # of a user's private state and lists while it ranks, from above
_USER_BYTES = 1024


class ContinualClient(Client[ClientState, UserRows], RecommendsItems[ClientState]):
    """A user: trains on the current block's own data, remembers through its retention method.

    Every step is stacked over a chunk of C users and treats each alone.

    Args:
        settings: with the reading's choices resolved.
    """

    concurrent = True

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.backbone = make_backbone(settings.model)
        self.retention = make_retention(settings, self.backbone)
        length = settings.replay.leave_out_n if settings.leaves_out else 0
        self.leave_out = LeaveOut(length, n_blocks=settings.data.n_blocks)
        self.dtype = getattr(torch, settings.engine.dtype)

    def enrol(self, data: UserRows, key: Key) -> ClientState:
        """Initialise Φ_u of new users (Algorithm 2, lines 2 and 7)."""
        return self._newcomer(self.backbone.start(key, self.settings.model.dim, self.dtype))

    def _newcomer(self, params: Params) -> ClientState:
        """Give users with parameters that have finished no block, and remember nothing."""
        n_users = next(iter(params.values())).shape[0]
        blocks = torch.zeros(n_users, dtype=torch.int64)
        memory, left_out = self.retention.empty(params), self.leave_out.empty(n_users)
        return ClientState(params, tree.clone(params), memory, blocks, blocks - 1, left_out)

    def widened(self, private: ClientState) -> ClientState:
        """Make room for what is left out in blocks that came since."""
        return replace(private, left_out=self.leave_out.widened(private.left_out))

    def work(self, data: UserRows) -> Tensor:
        """Local samples of each user, ``(C,)``."""
        return data.train.lengths

    def footprint(self, data: UserRows, down: Any) -> Tensor:
        """Bytes of a user's score tables and samples, ``(C,)``."""
        if down is None:
            return torch.full_like(data.train.lengths, _STATE_BYTES)
        if isinstance(down, EvaluationTable) and not self.retention.corrects:
            # Items are ranked a block of users at a time: what counts is who they are.
            return (data.train.lengths * SAMPLE_BYTES).add_(_STATE_BYTES)
        model = self.settings.model
        samples = data.train.lengths * (1 + model.negatives) * model.epochs
        if isinstance(down, ItemTable) and self._on_touched(down):
            if down.block > 0:
                batches = samples.div(model.batch_size, rounding_mode="floor") + model.epochs
                samples = samples + batches * self.retention.listed
            return samples * TOUCHED_BYTES + _USER_BYTES
        n_items = max((table.shape[0] for _, table in tree.tensors(down)), default=0)
        tables = samples.div(model.batch_size, rounding_mode="floor").add_(_OTHER_TABLES)
        # In place: a list of all users is 8 MB for a million of them.
        return tables.mul_(n_items * self.dtype.itemsize).add_(samples.mul_(SAMPLE_BYTES))

    @START_BLOCK
    def start_block(
        self, down: LookBack, mine: ClientState, data: UserRows, key: Key
    ) -> tuple[None, ClientState]:
        """Look back at earlier blocks before training on a new one (Eq. 1)."""
        memory = self.retention.at_block_start(mine, down, data)
        params = mine.params
        if self.settings.restart_private:
            params = self.backbone.start(key, self.settings.model.dim, self.dtype)
        return None, replace(mine, params=params, memory=memory)

    @UPDATE
    def update(
        self, down: ItemTable, mine: ClientState, data: UserRows, key: Key
    ) -> tuple[ItemUpdate, ClientState]:
        """Train locally: Algorithm 1, ClientUpdate(u, Q_g, t)."""
        mine = replace(mine, memory=self.retention.before_training(mine, down, data, key))
        trained = self._trained(down, mine, data, key)
        pulled = None if trained.shrink is None else 1.0 - trained.shrink
        up = ItemUpdate(trained.rows, pulled, trained.loss, trained.replayed)
        return up, replace(mine, params=trained.params)  # line 17

    def _trained(self, down: ItemTable, mine: ClientState, data: UserRows, key: Key) -> Trained:
        """Lines 1 to 16: Q_u starts from Q_g, Φ_u from the latest private parameters."""
        n_items, own = down.items.shape[0], key.fold("batches")
        item_lr = self.item_lr(n_items)
        rehearsal = self.retention.replay(mine, down.round, key)
        start = (self.backbone, down.items, mine.params)
        if self._on_touched(down):
            model = self.settings.model
            plan = plan_of(data.train, n_items, model.negatives, model.batch_size)
            room = None if rehearsal is None else rehearsal.room()
            draws = draw_samples(own, plan, model.epochs, in_order=False, room=room)
            return TouchedTraining(*start, draws, item_lr, rehearsal).run()
        batches, pull = (
            self._draw(own, data.train, n_items),
            self.retention.pull(mine, down, item_lr),
        )
        return LocalTraining(*start, batches, item_lr, rehearsal, pull).run()

    def _on_touched(self, down: ItemTable) -> bool:
        """Whether training moves touched items alone, and a compiled loop pays for it."""
        return pays(self.settings, down.items) and not (self.retention.pulls and down.block > 0)

    @EVALUATE
    def evaluate(
        self, down: EvaluationTable, mine: ClientState, data: UserRows, key: Key
    ) -> tuple[StreamReport, None]:
        """Rank all items the user has not trained on in this block (section 5.1)."""
        seen = self._seen(mine, data)
        if down.split == "valid":
            found = self._rank(self._scoring(mine.params, down.items), data.valid, seen, down.items)
            return StreamReport(found.recall, found.ndcg, None, None), None
        score, seen = self._chosen_scoring(mine, down.items), (*seen, data.valid)
        found = self._rank(score, data.test, seen, down.items)
        if data.earlier is None:
            return StreamReport(found.recall, found.ndcg, None, None), None
        new = without(data.test, data.earlier, down.items.shape[0])
        unseen = self._rank(score, new, (*seen, data.earlier), down.items)
        return StreamReport(found.recall, found.ndcg, unseen.recall, unseen.ndcg), None

    def _seen(self, mine: ClientState, data: UserRows) -> tuple[Ragged, ...]:
        """What is not ranked: train items and what is left out."""
        if not self.leave_out.length:
            return (data.train,)
        return data.train, self.leave_out.rows(mine.left_out)

    def _scoring(self, params: Params, table: Tensor) -> ScoreRows:
        """Score all items for some of the users."""
        vector, offset = self.backbone.query(params)
        return lambda rows: torch.addmm(offset[rows, None], vector[rows], table.T)

    def _chosen_scoring(self, mine: ClientState, table: Tensor) -> ScoreRows:
        """Score all items by the best round and what the method corrects."""
        if not self.retention.corrects:
            return self._scoring(mine.best, table)
        scores = score_items(self.backbone, mine.best, table)
        corrected = self.retention.correct(scores, mine, table)
        # A correction may hide that a model has diverged.
        hidden = ~scores.sum(1, keepdim=True).isfinite()
        return copies_of(corrected.masked_fill(hidden, torch.nan))

    def _rank(
        self, score: ScoreRows, targets: Ragged, seen: tuple[Ragged, ...], table: Tensor
    ) -> RankingReport:
        return rank_blocks(score, targets, (self.settings.top_k,), seen, table.shape[0])

    @KEEP_BEST
    def keep_best(
        self, down: None, mine: ClientState, data: UserRows, key: Key
    ) -> tuple[None, ClientState]:
        """Keep the parameters of the round that was the best on validation so far."""
        return None, replace(mine, best=tree.clone(mine.params))

    @END_BLOCK
    def end_block(
        self, down: EndedBlock, mine: ClientState, data: UserRows, key: Key
    ) -> tuple[RankingReport, ClientState]:
        """Carry parameters to the next block and note what is worth keeping of this one.

        Reports the validation of what will be tested: of the best round, with what the method has
        just noted to correct it.
        """
        if self.settings.carry == "best":
            mine = replace(mine, params=tree.clone(mine.best))
        mine = replace(mine, memory=self.retention.at_block_end(mine, down.items, data, key))
        score, seen = self._chosen_scoring(mine, down.items), self._seen(mine, data)
        report = self._rank(score, data.valid, seen, down.items)
        left_out = mine.left_out
        if self.leave_out.length:
            chosen = score_items(self.backbone, mine.best, down.items)
            left_out = self.leave_out.noted(left_out, mine.blocks, chosen, data.train)
        last = torch.full_like(mine.blocks, down.block)
        return report, replace(mine, blocks=mine.blocks + 1, last=last, left_out=left_out)

    def predict(self, down: ItemTable, mine: ClientState) -> Tensor:
        """Score all items with the parameters of the best round, ``(C, n_items)``."""
        scores = score_items(self.backbone, mine.best, down.items)
        return self.retention.correct(scores, mine, down.items)

    def factors(self, down: ItemTable, mine: ClientState) -> Factors:
        """Give the item table, and v_u and c_u of the best round.

        Raises:
            UserError: the method corrects scores by what a user remembers.
        """
        if self.retention.corrects:
            raise UserError(
                f"{self.settings.method} corrects the scores by what a user remembers, so they are "
                "no products of vectors that another program could be given"
            )
        return Factors(down.items, *self.backbone.query(mine.best))

    def adapt(self, down: ItemTable, history: Ragged, key: Key) -> ClientState:
        """Fit Φ_u of newcomers to their items by local epochs with the item table fixed."""
        params = self.backbone.start(key, self.settings.model.dim, self.dtype)
        for epoch in range(self.settings.adapt_epochs):
            batches = self._draw(key.fold("adapt", epoch), history, down.items.shape[0])
            params = LocalTraining(self.backbone, down.items, params, batches, 0.0).run().params
        return self._newcomer(params)

    def _draw(self, key: Key, train: Ragged, n_items: int) -> Batches:
        model = self.settings.model
        return draw_batches(
            key,
            train,
            n_items,
            negatives=model.negatives,
            batch_size=model.batch_size,
            epochs=model.epochs,
            dtype=self.dtype,
        )

    def item_lr(self, n_items: int) -> float:
        """Learning rate of item rows; times |I| it makes up for clients that touch few rows."""
        scale = n_items if self.settings.model.item_lr_scale == "num_items" else 1
        return self.backbone.item_lr * scale


def without(targets: Ragged, had: Ragged, n_items: int) -> Ragged:
    """Take out the items that users had."""
    cells, gone = (rows.rows * n_items + rows.values for rows in (targets, had))
    kept = ~torch.isin(cells, gone)
    return Ragged.from_pairs(targets.rows[kept], targets.values[kept], len(targets))


def make_retention(settings: Settings, backbone: Backbone) -> Retention:
    """Build what ``settings.method`` remembers on its clients."""
    if settings.method in DISTILLING and not settings.distils:
        return Retention(backbone)
    match settings.method:
        case "ft" | "f3crec-wo-cc":
            return Retention(backbone)
        case "reg":
            return Regularisation(backbone, settings.reg)
        case "kd":
            own = replace(settings.replay, lambda_kd=settings.kd.strength)
            return Distillation(backbone, own)
        case "f3crec-wo-arm":
            return Distillation(backbone, settings.replay)
        case "rlp2":
            return ErrorMemory(backbone, settings.rlp2)
        case "spp":
            return Proxies(backbone, settings.spp)
        case "f3crec" | "f3crec-wo-sc" | "f3crec-wo-itm":
            return AdaptiveReplay(backbone, settings.replay)


def make_client(card: Card, folder: Path | None = None) -> ContinualClient:
    """Make the client half from the public card alone.

    Example:
        >>> make_client(Card("f3crec", {"method": "ft", "model.dim": 8})).settings.model.dim
        8
    """
    return ContinualClient(resolve(card.read(Settings)))
