"""FedMF: private user vectors, and a public item table that sums of gradients move (Chai et al.).

Objective: Σ_(u,i) (y_ui - <p_u, q_i>)² + λ‖P‖² + μ‖Q‖², on 1 for the items a user has and 0 for
sampled others. A round is a step of gradient descent on it; p_u never leaves the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.interactions.splits import UserRows
from coterie.core.errors import UserError
from coterie.core.methods.kit.uploads import measured
from coterie.core.methods.ranking.ckks import KeyHolder, PublicKey, pack
from coterie.core.methods.ranking.client import (
    RankingClient,
    Samples,
    UserState,
    draw_samples,
    known_items,
    products,
)
from coterie.core.methods.ranking.server import RankingServer, RankingState
from coterie.core.methods.settings.ranking import FedMFSettings
from coterie.core.metrics.ranking_report import RankingReport, Split
from coterie.core.protocol.client import Factors
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.common_secret import CommonSecret, from_fixed, pairwise_masks, to_fixed
from coterie.core.protocol.messages import Down, Reveals, Step, Up, carries, leaves
from coterie.core.protocol.uploads import Like, Number, Sum
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import FactoredRows, Rows
from coterie.core.tensors.stacked import Ragged

_KEYS = ("public_key", "wrapped_key")
_OWN = frozenset({"params"})


@dataclass(frozen=True)
class ItemTable(Down):
    """The public item table Q, in the clear or encrypted."""

    items: Tensor | None = carries("item table Q", default=None)  # (n_items, d)
    cipher: Tensor | None = carries(  # (b,) uint8
        "the item table, encrypted, in place of items", default=None
    )
    parts: Tensor | None = carries(  # (k,) int64
        "bytes of the parts of the cipher text", default=None
    )
    wrapped: Tensor | None = carries(  # (b,) uint8
        "the clients' key behind their shared secret, when serving", default=None
    )
    roster: Tensor | None = carries(  # (R,) int64
        "the clients of the round, who share masks", default=None
    )
    n_clients: int = carries("clients of the round, where uploads are protected", default=0)
    round: int = carries("rounds done", default=0)
    split: Split = carries("what is evaluated, valid or test", default="valid")


@dataclass(frozen=True)
class WrappedKey(Down):
    """The clients' private key, which one of them made, behind the secret that they share."""

    wrapped: Tensor = carries("private key behind the clients' secret")  # (b,) uint8


@dataclass(frozen=True)
class ClientKeys(Up):
    """Keys made by one client for all."""

    public: Tensor = leaves("public key", reveals=Reveals.NOTHING)  # (C, b) uint8
    wrapped: Tensor = leaves("private key behind a shared secret", reveals=Reveals.SEALED)


@dataclass(frozen=True)
class ItemGradients(Up):
    """Steps γ·∂/∂Q of a client's loss, in one of three forms."""

    rows: Rows | None = leaves(
        "steps of the trained item rows",
        reveals=Reveals.ITEMS_TOUCHED,
        depends_on=_OWN,
        expected=Like("items"),
    )
    masked: Tensor | None = leaves(  # (C, n_items, d) int64
        "steps of all item rows behind masks that cancel in the sum",
        reveals=Reveals.SEALED,
        depends_on=_OWN,
        expected=Like("items", "int64"),
    )
    cipher: Ragged | None = leaves(  # C rows of bytes
        "steps of all item rows, encrypted (CKKS)", reveals=Reveals.SEALED, depends_on=_OWN
    )
    parts: Tensor | None = leaves(  # (C, k) int64
        "bytes of the parts of the cipher text", reveals=Reveals.NOTHING, depends_on=_OWN
    )
    loss: Tensor = measured("mean squared error", _OWN)  # (C,)
    seconds: Tensor | None = leaves(  # (C,)
        "seconds of encryption", reveals=Reveals.NOTHING, depends_on=_OWN, expected=Number()
    )


MAKE_KEYS = Step("make_keys", None, ClientKeys)
JOIN = Step("join", WrappedKey, None)
UPDATE = Step("update", ItemTable, ItemGradients)
EVALUATE = Step("evaluate", ItemTable, RankingReport)
FOLD_IN = Step("fold_in", ItemTable, None)


class FedMFClient(RankingClient):
    """A user: squared loss, private vector p_u.

    Beside the arguments of `RankingClient` it takes a ``secret`` that the clients share, unknown to
    the server.
    """

    def __init__(
        self,
        settings: FedMFSettings,
        n_items: int,
        lengths: Sequence[int],
        secret: CommonSecret,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(settings, n_items, lengths, dtype)
        self.secret: CommonSecret = secret
        self.keys = KeyHolder(secret)

    def start(self, key: Key) -> dict[str, Tensor]:
        """Draw p_u."""
        vector = self.settings.init_std * key.normal(self.settings.dim, dtype=self.dtype)
        return {"vector": vector}

    def footprint(self, data: UserRows, down: Any) -> Tensor:
        """Bytes of a user's tables of samples and, if protected, of its whole item table."""
        protected = isinstance(down, ItemTable) and down.n_clients > 0
        width = 5 * self.dtype.itemsize + (24 * self.settings.dim if protected else 0)
        return torch.full((data.ids.numel(),), self.n_items * width)

    @MAKE_KEYS
    def make_keys(
        self, down: None, mine: UserState, data: UserRows, key: Key
    ) -> tuple[ClientKeys, None]:
        """Make the keys for all clients."""
        public, wrapped = self.keys.generate()
        return ClientKeys(public[None], wrapped[None]), None

    @JOIN
    def join(
        self, down: WrappedKey, mine: UserState, data: UserRows, key: Key
    ) -> tuple[None, None]:
        """Receive the clients' private key."""
        self.keys.unwrap(down.wrapped)
        return None, None

    @UPDATE
    def update(
        self, down: ItemTable, mine: UserState, data: UserRows, key: Key
    ) -> tuple[ItemGradients, UserState]:
        """Step on p_u, and give the step on Q that belongs to the same point."""
        items, seconds = self._read(down)
        samples = self._samples(key.fold("negatives"), data.train)
        vector = mine.params["vector"]
        for _ in range(self.settings.local_steps - 1):
            vector = self._step(vector, items, samples)[0]
        after, error = self._step(vector, items, samples)
        count = samples.weight.sum(1).clamp_min(1.0)
        loss = ((samples.label - vector @ items.T).square() * samples.weight).sum(1) / count
        steps = self._step_on_items(error, vector)
        new = replace(mine, params={"vector": after})
        if self.settings.transport == "plain":
            return ItemGradients(steps, None, None, None, loss, None), new
        # The server cannot apply the decay to what it cannot read: every client adds its share.
        decay = 2 * self.settings.item_lr * self.settings.mu / down.n_clients * items
        tables = steps.dense() - decay
        # A diverged user is refused for its private state; its table must still be encodable.
        tables = torch.where(tables.isfinite(), tables, 0.0)
        if self.settings.transport == "ckks":
            return self._encrypt(tables, loss, seconds), new
        assert down.roster is not None
        secret, shape = self.secret.key("masks", down.round), tuple(tables.shape[1:])
        masks = pairwise_masks(secret, down.roster, data.ids, shape, self.settings.masks)
        return ItemGradients(None, to_fixed(tables) + masks, None, None, loss, None), new

    @EVALUATE
    def evaluate(
        self, down: ItemTable, mine: UserState, data: UserRows, key: Key
    ) -> tuple[RankingReport, None]:
        """Rank all items the user does not have."""
        return self.ranked(down, mine, data), None

    @FOLD_IN
    def fold_in(
        self, down: ItemTable, mine: UserState, data: UserRows, key: Key
    ) -> tuple[None, UserState]:
        """Fit p_u of the best round to train and validation items, with Q fixed."""
        return None, replace(mine, best=self.fitted(mine.best, down, known_items(data), key))

    def scores(
        self, params: dict[str, Tensor], down: ItemTable, history: Ragged | None = None
    ) -> Tensor:
        """<p_u, q_i> for all items, ``(C, n_items)``."""
        return params["vector"] @ self._read(down)[0].T

    def factors(self, down: ItemTable, mine: UserState) -> Factors:
        """Give Q and p_u of the best round.

        Raises:
            UserError: Q is encrypted, so that only clients can read it.
        """
        if down.items is None:
            raise UserError("the item table is encrypted for the clients alone: it cannot be given")
        return products(down.items, mine.best["vector"])

    def fitted(
        self, params: dict[str, Tensor], down: ItemTable, history: Ragged, key: Key
    ) -> dict[str, Tensor]:
        """Fit p_u to items, with Q fixed."""
        vector, items = params["vector"], self._read(down)[0]
        for number in range(self.settings.fold_in):
            samples = self._samples(key.fold("fold in", number), history)
            vector = self._step(vector, items, samples)[0]
        return {"vector": vector}

    def _samples(self, key: Key, positives: Ragged) -> Samples:
        return draw_samples(key, positives, self.n_items, self.settings.negatives, self.dtype)

    def _step(self, vector: Tensor, items: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
        """One step on p_u; give also w·e, ``(C, n_items)``, from before it."""
        lr, lam = self.settings.lr, self.settings.lam
        error = samples.weight * (samples.label - vector @ items.T)
        return vector + lr * (2 * error @ items - 2 * lam * vector), error

    def _read(self, down: ItemTable) -> tuple[Tensor, float]:
        """The item table, and the seconds it took to decrypt."""
        if down.items is not None:
            return down.items, 0.0
        assert down.cipher is not None
        assert down.parts is not None
        if down.wrapped is not None:
            self.keys.unwrap(down.wrapped)
        began = time.perf_counter()
        items = self.keys.decrypt(down.cipher, down.parts)
        table = items.reshape(self.n_items, self.settings.dim).to(self.dtype)
        return table, time.perf_counter() - began

    def _step_on_items(self, error: Tensor, vector: Tensor) -> FactoredRows:
        """γ·2·w·e·p_u for each row of Q."""
        n_clients = vector.shape[0]
        owner = torch.arange(n_clients)
        return FactoredRows(owner, error, 2 * self.settings.item_lr * vector, n_clients)

    def _encrypt(self, tables: Tensor, loss: Tensor, decryption: float) -> ItemGradients:
        encrypted, seconds = [], []
        for table in tables:
            began = time.perf_counter()
            encrypted.append(self.keys.encrypt(table))
            seconds.append(decryption + time.perf_counter() - began)
        cipher, parts = pack(encrypted)
        return ItemGradients(None, None, cipher, parts, loss, loss.new_tensor(seconds))


class FedMFServer(RankingServer[ItemTable]):
    """Rounds of gradient descent on the item table Q.

    With ``transport: ckks`` the server holds Enc(Q) and adds cipher texts; it never decrypts.
    """

    settings: FedMFSettings
    evaluate, fold_in = EVALUATE, FOLD_IN
    _introduced = False

    @property
    def averages(self) -> bool:  # type: ignore[override]
        """Only what is in plain sight can be compared."""
        return self.settings.transport == "plain"

    @property
    def sums(self) -> bool:  # type: ignore[override]
        """Nor is there noise on what is hidden, or another mask."""
        return self.averages

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
        made = cohort.part(torch.tensor([0])).ask(MAKE_KEYS, None).up
        if made is None:
            raise UserError("the client that makes the keys for all did not answer")
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
        """Train on a share of the clients, then validate where it is due."""
        self._introduce(state.public, cohort)
        return super().round(state, cohort, key)

    def validate(self, state: RankingState, cohort: Cohort) -> None:
        """Measure the model of the round just done."""
        self._introduce(state.public, cohort)
        super().validate(state, cohort)

    def test(self, state: RankingState, cohort: Cohort) -> None:
        """Test the best round on all clients."""
        self._introduce(state.best, cohort)
        super().test(state, cohort)

    def train(self, state: RankingState, cohort: Cohort, key: Key) -> dict[str, Tensor]:
        """Q <- (1 - 2γμ) Q + Σ_u γ·2·w·e·p_u."""
        if self.settings.transport == "ckks":
            return self._train_encrypted(state, cohort)
        replies = self.trained(cohort, UPDATE, self._training(state, cohort), Sum())
        if (total := replies.total) is None:
            return state.public
        items = state.public["items"]
        if total.rows is not None:
            decay = 2 * self.settings.item_lr * self.settings.mu
            return {"items": items - decay * items + total.rows.sum()}
        if replies.failed or total.masked is None:  # masks of those who failed are still in the sum
            return state.public
        return {"items": items + from_fixed(total.masked, self.dtype)}

    def table(self, public: dict[str, Tensor], split: Split = "valid") -> ItemTable:
        """Send Q, or Enc(Q)."""
        if self.settings.transport != "ckks":
            return ItemTable(public["items"], split=split)
        return ItemTable(None, public["cipher"], public["parts"], split=split)

    def serve(self, state: RankingState, user: int | None, cohort: Cohort) -> ItemTable:
        """Give the table of the best round, and to whom can open it, the key."""
        down = self.table(state.best, "test")
        if self.settings.transport != "ckks":
            return down
        return replace(down, wrapped=state.best["wrapped_key"])

    def _training(self, state: RankingState, cohort: Cohort) -> ItemTable:
        down = replace(self.table(state.public), round=state.round)
        match self.settings.transport:
            case "plain":
                return down
            case "masked_sum":
                return replace(down, roster=cohort.ids, n_clients=len(cohort))
            case _:
                return replace(down, n_clients=len(cohort))

    def _train_encrypted(self, state: RankingState, cohort: Cohort) -> dict[str, Tensor]:
        """Add cipher texts to Enc(Q)."""
        public = state.public
        server_key = PublicKey(public["public_key"])
        down = self._training(state, cohort)
        total = self.trained(cohort, UPDATE, down, server_key.sum()).total
        if total is None:
            return public
        cohort.journal.scalar("cost/encryption_seconds", total.seconds)
        cipher, parts = server_key.add(public["cipher"], public["parts"], total.cipher)
        return public | {"cipher": cipher, "parts": parts}

    def _introduce(self, public: dict[str, Tensor], cohort: Cohort) -> None:
        """Hand the clients' key to all of them, once in a process: it is in no checkpoint."""
        if self.settings.transport == "ckks" and not self._introduced:
            cohort.ask(JOIN, WrappedKey(public["wrapped_key"]))
            self._introduced = True
