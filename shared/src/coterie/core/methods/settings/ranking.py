"""Settings of the baselines without a language model. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.settings.sections import (
    ValidationSettings,
    at_least,
    between,
    each_at_least,
    each_positive,
)


@dataclass(frozen=True)
class MFSettings:
    """MF: matrix factorisation trained in one place by BPR (Rendle et al., UAI 2009)."""

    dim: int = 64
    """Length d of the vectors."""
    lr: float = 1e-2
    """Learning rate of Adam."""
    l2: float = 1e-2
    """λ: weight of the squared norms of the rows in a batch."""
    batch_size: int = 2048
    """Triples of user, item and sampled negative in a batch."""
    epochs: int = 100
    """Most epochs."""
    patience: int = 15
    """Epochs without a better validation recall before training ends."""
    fold_in: int = 5
    """Epochs on train and validation items before the test, in which the users' vectors alone
    move: the other rows of the table read validation items too."""

    def __post_init__(self) -> None:
        _check_central("mf", self)
        at_least("mf.fold_in", self.fold_in, 0)


@dataclass(frozen=True)
class LightGCNSettings:
    """LightGCN: MF smoothed over the graph of interactions, in one place (He et al., SIGIR 2020).

    For the test, validation interactions join the graph; the parameters stay.
    """

    dim: int = 64
    """Length d of the vectors."""
    layers: int = 3
    """K: layers of propagation; 0 is MF."""
    lr: float = 1e-2
    """Learning rate of Adam."""
    l2: float = 1e-4
    """λ: half of it weighs the squared norms of the rows of E⁰ in a batch."""
    batch_size: int = 2048
    """Triples of user, item and sampled negative in a batch."""
    epochs: int = 100
    """Most epochs."""
    patience: int = 25
    """Epochs without a better validation recall before training ends."""

    def __post_init__(self) -> None:
        _check_central("lightgcn", self)
        at_least("lightgcn.layers", self.layers, 0)


@dataclass(frozen=True)
class FedMFSettings:
    """FedMF: private user vectors, summed and possibly encrypted item gradients.

    Chai et al., IEEE Intelligent Systems 2021.
    """

    dim: int = 32
    """Length d of the vectors; 100 in the public code."""
    lr: float = 3e-3
    """γ: step size of the user vectors; gradients are sums over samples, as in the paper."""
    item_lr: float = 3e-3
    """γ of the item table, whose gradients are sums over the clients."""
    lam: float = 1e-4
    """λ: weight of the squared norms of the user vectors."""
    mu: float = 1e-4
    """μ: weight of the squared norm of the item table."""
    negatives: int = 4
    """Sampled negatives for each positive, drawn afresh every round."""
    local_steps: int = 1
    """Steps on the private vector in a round, before the item gradients are taken."""
    init_std: float = 0.01
    """Standard deviation of the start. The public code starts all entries at 0.01, so all columns
    stay equal for ever."""
    transport: Literal["plain", "masked_sum", "ckks"] = "plain"
    """How item gradients reach the server: rows of the trained items in the clear, whole tables
    behind masks that cancel in the sum, or whole tables encrypted by CKKS (extra `ckks`)."""
    masks: int = 2
    """masked_sum: how many other clients each client shares masks with; even."""
    fold_in: int = 50
    """Steps on the private vector with the item table fixed: of newcomers, and of all clients
    before the test, on train and validation items, which language models read too."""
    rounds: int = 200
    """Most communication rounds."""
    patience: int = 20
    """Rounds without a better validation recall before the end."""
    participation: float = 1.0
    """Share of the clients drawn in each round; 1 in the public code."""
    validation: ValidationSettings = field(default_factory=ValidationSettings)

    def __post_init__(self) -> None:
        _check_rounds("fedmf", self)
        each_at_least(self, 1, "dim", "local_steps", prefix="fedmf.")
        each_positive(self, "lr", "item_lr", "init_std", prefix="fedmf.")
        each_at_least(self, 0, "lam", "mu", "negatives", "fold_in", prefix="fedmf.")
        if self.masks < 2 or self.masks % 2:
            raise UserError(f"'fedmf.masks' must be even and at least 2, not {self.masks}")


@dataclass(frozen=True)
class LightFRSettings:
    """LightFR: binary codes and Hamming scores, by discrete coordinate descent.

    Zhang et al., TOIS 2023.
    """

    bits: int = 64
    """f: length of the codes; a multiple of 8."""
    lam: float = 0.0
    """λ: weight of the balance of the item codes, Σ_k (Σ_i d_ik)². The paper's 0.6 outweighs the
    data many times; sampled negatives keep the codes from collapsing instead. On the built-in
    sample, weighted and with 0.6 of the clients, 1e-4 is best on validation (2 seeds)."""
    weighted: bool = False
    """Let a user's errors count |I_u| / N in the item step, as in the paper: by its share of all
    interactions. Without, every interaction counts the same."""
    negatives: int = 4
    """Sampled negatives for each positive, drawn afresh every round."""
    sweeps: int = 1
    """E: sweeps over the bits of the private code in a round."""
    bits_per_round: int = 8
    """Bits of the item codes that a round updates, in turn. 1 is exact descent; more are updated
    from the same residuals, which may overshoot but takes fewer rounds: on ML-100K 8 bits reach
    the same loss in an eighth of them."""
    fold_in: int = 3
    """Sweeps over the private code with the item codes fixed: of newcomers, and of all clients
    before the test, on train and validation items, which language models read too."""
    rounds: int = 200
    """Most communication rounds."""
    patience: int = 20
    """Rounds without a better validation recall before the end."""
    participation: float = 1.0
    """Share of the clients drawn in each round; 0.6 in the paper."""
    validation: ValidationSettings = field(default_factory=ValidationSettings)

    def __post_init__(self) -> None:
        _check_rounds("lightfr", self)
        at_least("lightfr.bits", self.bits, 8)
        if self.bits % 8:
            raise UserError(f"'lightfr.bits' must be a multiple of 8, not {self.bits}")
        each_at_least(self, 0, "lam", "negatives", "fold_in", prefix="lightfr.")
        each_at_least(self, 1, "sweeps", "bits_per_round", prefix="lightfr.")
        if self.bits % self.bits_per_round:
            raise UserError(
                f"'lightfr.bits_per_round' must divide the {self.bits} bits, "
                f"not be {self.bits_per_round}"
            )


@dataclass(frozen=True)
class FedPerGNNSettings:
    """FedPerGNN: a graph attention network on each user's star graph.

    With pseudo items, local differential privacy, and neighbours found by a third party (Wu et
    al., Nat. Commun. 2022).
    """

    dim: int = 32
    """Length d of the vectors; 256 in the paper."""
    loss: Literal["bce", "squared"] = "bce"
    """Loss of a logit against label 1 or 0; the paper's squared loss is of ratings."""
    loss_weight: float = 50.0
    """Factor on a user's mean loss. The clip and the noise are absolute: gradients far below δ
    drown in the noise, those far above are cut."""
    lr: float = 0.05
    """Step size of the private user vector."""
    item_lr: float = 1.0
    """Step size of the item table; gradients are means over the round's clients."""
    model_lr: float = 0.05
    """Step size of the network."""
    negatives: int = 4
    """Sampled negatives for each positive, drawn afresh every round."""
    dropout: float = 0.2
    """Share of a user's edges left out of its graph in a round."""
    pseudo_items: int = 1000
    """M: items without a gradient whose rows a client makes up; all there are, if fewer."""
    clip: float | None = 0.1
    """δ: largest magnitude of a coordinate of an upload; null for none."""
    noise: float = 0.2
    """λ: scale of the Laplace noise on every coordinate of an upload."""
    neighbours: int = 16
    """Most neighbours of a user: those who share the most items."""
    fold_in: int = 5
    """Steps on the private vector with all else fixed: of newcomers, and of all clients before the
    test, on train and validation items, which the other methods read too."""
    expand_after: int = 2
    """T: rounds before the third party connects the users; neighbours' vectors then stay fixed."""
    init_std: float = 0.1
    """Standard deviation of the start of all vectors."""
    rounds: int = 200
    """Most communication rounds."""
    patience: int = 20
    """Rounds without a better validation recall before the end."""
    participation: float = 0.5
    """Share of the clients drawn in each round; 128 clients in the paper."""
    validation: ValidationSettings = field(default_factory=ValidationSettings)

    def __post_init__(self) -> None:
        _check_rounds("fedpergnn", self)
        at_least("fedpergnn.dim", self.dim, 1)
        positive = ("loss_weight", "lr", "item_lr", "model_lr", "init_std", "clip")
        each_positive(self, *positive, prefix="fedpergnn.")
        counts = ("negatives", "dropout", "pseudo_items", "noise", "neighbours")
        each_at_least(self, 0, *counts, "fold_in", "expand_after", prefix="fedpergnn.")
        if self.dropout >= 1:
            raise UserError(f"'fedpergnn.dropout' must be below 1, not {self.dropout:g}")


def _check_central(name: str, settings: MFSettings | LightGCNSettings) -> None:
    each_at_least(settings, 1, "dim", "batch_size", "epochs", "patience", prefix=f"{name}.")
    each_positive(settings, "lr", prefix=f"{name}.")
    each_at_least(settings, 0, "l2", prefix=f"{name}.")


def _check_rounds(name: str, settings: FedMFSettings | LightFRSettings | FedPerGNNSettings) -> None:
    each_at_least(settings, 1, "rounds", "patience", prefix=f"{name}.")
    between(f"{name}.participation", settings.participation, 0, 1)
