"""FedMF, the server half: it adds the steps of the clients to the item table, encrypted or not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.core.federation.cohort import Cohort, Replies
from coterie.core.federation.folds import Sum
from coterie.core.tensors.keys import Key
from coterie.llm.baselines.ckks import PublicKey
from coterie.llm.baselines.fedmf import FedMFClient, ItemTable, WrappedKey
from coterie.llm.baselines.ranking_server import RankingServer, RankingState
from coterie.llm.baselines.secure_sum import from_fixed
from coterie.llm.baselines.settings import FedMFSettings

_KEYS = ("public_key", "wrapped_key")


class FedMFServer(RankingServer):
    """Rounds of gradient descent on the item table Q.

    With ``transport: ckks`` the server holds Enc(Q) and adds cipher texts; it never decrypts.

    Args:
        settings: of FedMF.
        n_items: number of items.
        lengths: the k of Recall@k and NDCG@k.
        dtype: of all parameters.
    """

    def __init__(
        self,
        settings: FedMFSettings,
        n_items: int,
        lengths: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(settings, lengths)
        self.settings, self.n_items, self.dtype = settings, n_items, dtype
        self._introduced = False

    def start(self, key: Key) -> dict[str, Tensor]:
        """Draw Q."""
        keys = key.fold("items").fold(torch.arange(self.n_items))
        items = self.settings.init_std * keys.normal(self.settings.dim, dtype=self.dtype)
        public = {"items": items}
        if self.settings.transport == "ckks":
            nothing = torch.empty(0, dtype=torch.uint8)
            public |= {"cipher": nothing, "parts": nothing.long()}
            public |= dict.fromkeys(_KEYS, nothing)
        return public

    def open(self, public: dict[str, Tensor], cohort: Cohort) -> dict[str, Tensor]:
        """Let one client make the keys for all, and encrypt Q."""
        if self.settings.transport != "ckks" or not len(cohort):
            return public
        made = cohort.part(torch.tensor([0])).ask("make_keys", None).up
        cipher, parts = PublicKey(made.public[0]).encrypt(public["items"])
        public = {
            "items": public["items"][:0],
            "cipher": cipher,
            "parts": parts,
            "public_key": made.public[0],
            "wrapped_key": made.wrapped[0],
        }
        self._introduce(public, cohort)
        return public

    def round(self, state: RankingState, cohort: Cohort, key: Key) -> RankingState:
        """Train on a share of the clients, then validate on all."""
        self._introduce(state.public, cohort)
        return super().round(state, cohort, key)

    def test(self, state: RankingState, cohort: Cohort) -> None:
        """Test the best round on all clients."""
        self._introduce(state.best, cohort)
        super().test(state, cohort)

    def train(self, state: RankingState, cohort: Cohort, key: Key) -> dict[str, Tensor]:
        """Q <- (1 - 2γμ) Q + Σ_u γ·2·w·e·p_u."""
        transport = self.settings.transport
        fold = PublicKey(state.public["public_key"]).sum() if transport == "ckks" else Sum()
        replies = cohort.ask("update", self._training(state, cohort), reduce=fold)
        self.report_training(cohort, replies)
        if replies.total is None:
            return state.public
        if transport == "ckks":
            return self._add_encrypted(state.public, cohort, replies)
        items = state.public["items"]
        if transport == "plain":
            decay = 2 * self.settings.item_lr * self.settings.mu
            return {"items": items - decay * items + replies.total["rows"]}
        if replies.failed:  # the masks of those who failed are still in the sum
            return state.public
        return {"items": items + from_fixed(replies.total["masked"], self.dtype)}

    def table(self, public: dict[str, Tensor], split: str = "valid") -> ItemTable:
        """Send Q, or Enc(Q)."""
        if self.settings.transport != "ckks":
            return ItemTable(public["items"], split=split)
        return ItemTable(None, public["cipher"], public["parts"], split=split)

    def serve(self, state: RankingState, user: int | None, cohort: Cohort) -> ItemTable:
        """Give the table of the best round, and to whom can open it, the key."""
        down = self.table(state.best, "test")
        if self.settings.transport != "ckks":
            return down
        return ItemTable(None, down.cipher, down.parts, state.best["wrapped_key"], split="test")

    def _training(self, state: RankingState, cohort: Cohort) -> ItemTable:
        down, number = self.table(state.public), state.round
        match self.settings.transport:
            case "plain":
                return ItemTable(down.items, round=number)
            case "masked_sum":
                ids = cohort.ids
                return ItemTable(down.items, roster=ids, n_clients=len(cohort), round=number)
            case _:
                return ItemTable(None, down.cipher, down.parts, n_clients=len(cohort), round=number)

    def _add_encrypted(
        self, public: dict[str, Tensor], cohort: Cohort, replies: Replies
    ) -> dict[str, Tensor]:
        cohort.journal.scalar("cost/encryption_seconds", float(replies.total["seconds"]))
        server_key = PublicKey(public["public_key"])
        cipher, parts = server_key.add(public["cipher"], public["parts"], replies.total["cipher"])
        return public | {"cipher": cipher, "parts": parts}

    def _introduce(self, public: dict[str, Tensor], cohort: Cohort) -> None:
        """Hand the clients' key to all of them, once in a process: it is in no checkpoint."""
        if self.settings.transport == "ckks" and not self._introduced:
            cohort.ask("join", WrappedKey(public["wrapped_key"]))
            self._introduced = True


def fedmf(
    settings: FedMFSettings,
    n_items: int,
    lengths: Sequence[int],
    secret: Key,
    dtype: torch.dtype = torch.float32,
) -> tuple[FedMFServer, FedMFClient]:
    """Build both halves.

    Args:
        settings: of FedMF.
        n_items: number of items.
        lengths: the k of Recall@k and NDCG@k; the first decides on the best round.
        secret: of the clients, unknown to the server; used where uploads are protected.
        dtype: of all parameters.
    """
    client = FedMFClient(settings, n_items, lengths, secret, dtype)
    return FedMFServer(settings, n_items, lengths, dtype), client
