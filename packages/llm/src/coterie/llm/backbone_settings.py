"""Settings of the backbone and its split; a docstring is its field's ``--help``. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.settings.sections import at_least, between, each_at_least

BackboneName = Literal["tiny-item", "tiny-text", "llama", "recformer", "encoder"]
Field = Literal["titles", "genres", "brands"]
"""What may be known of an item in words."""
Whose = Literal["public", "everybody", "own", "both"]
"""Whose interactions are counted: of the public users, of all users together, of the client's own
users alone, of all and of its own."""


@dataclass(frozen=True)
class ModelSettings:
    """The backbone, one frozen network that all clients share."""

    name: BackboneName = "tiny-item"
    """tiny-item: a small Llama over item tokens, pre-trained in seconds on a public slice;
    tiny-text: one over titles; llama: any causal language model of Hugging Face, with BIGRec's
    prompt and grounding; recformer: a Longformer over titles, brands and categories; encoder: any
    pre-trained encoder of Hugging Face (BERT, RoBERTa, MPNet) that embeds each title."""
    path: str | None = None
    """Hugging Face name or folder of a llama or an encoder, or file of a published RecFormer; a
    RecFormer without one is small and pre-trained on the public slice, an encoder without one is
    all-MiniLM-L6-v2, of the extra coterie-llm[minilm] or the hub."""
    base: str = "allenai/longformer-base-4096"
    """Hugging Face name or folder of the Longformer whose shape and tokenizer a published RecFormer
    has."""
    noun: Literal["film", "game", "book", "product"] = "film"
    """What the items are called in the prompt of a llama."""
    prompt: Literal["bigrec", "compact"] | None = None
    """How a backbone that writes text reads a history: BIGRec's instruction, or titles alone, each
    closed by the end token; default: compact for tiny-text, else bigrec."""
    context: int = 192
    """Most tokens that a backbone over text reads; longer histories lose their oldest items."""
    vocabulary: int = 2000
    """Most tokens of the tokenizer of a tiny backbone over text."""
    width: int = 64
    """Hidden size h of a tiny backbone."""
    layers: int = 2
    """Number N of layers of a tiny backbone."""
    heads: int = 2
    """Attention heads of a tiny backbone."""
    pooling: Literal["mean", "cls"] = "mean"
    """How an encoder's last states become one vector: their mean, or the first token's."""
    space: Literal["raw", "half"] = "half"
    """An encoder's vectors as they are, or half-whitened: spread evenly over more axes. Whole
    whitening is not offered: it finds less, and small steps of training destroy it."""
    decay: float = 0.8
    """Of a history that an encoder reads the newest item counts 1, the one before it this, and so
    on."""
    trained: Literal["lora", "all"] | None = None
    """What a client trains (section 3.1): low-rank adapters, or all parameters; default: all for
    tiny-item and recformer, as the paper does with RecFormer, else lora."""
    items: Literal["drawn", "words"] = "drawn"
    """What the item embeddings of tiny-item start from, before they are pre-trained: random
    numbers, or a truncated SVD of the words (TF-IDF) that ``expert.words`` names."""
    expert: Literal["none", "popularity", "titles", "both"] | None = None
    """What is added to the scores of the backbone (BIGRec's injection): the public users' counts
    of the items, as a trained bias; how alike the words of items are; both; default: none."""

    def __post_init__(self) -> None:
        each_at_least(self, 1, "width", "layers", "heads", prefix="model.")
        each_at_least(self, 1, "context", "vocabulary", prefix="model.")
        between("model.decay", self.decay, 0, 1)
        if self.name == "llama" and self.path is None:
            raise UserError(
                "'model.path' is missing: name the llama, as --model.path meta-llama/Llama-2-7b-hf"
            )
        if self.name.startswith("tiny") and self.path is not None:
            raise UserError(
                f"'model.path' does not go with {self.name}, which is made here: leave it out, or "
                "choose --model.name llama, encoder or recformer"
            )
        if self.width % (2 * self.heads):
            raise UserError(
                f"'model.width' {self.width} must be a multiple of twice 'model.heads' {self.heads}"
            )

    @property
    def is_given(self) -> bool:
        """Whether the network comes pre-trained, and is not made here."""
        return self.path is not None or self.name == "encoder"


@dataclass(frozen=True)
class ExpertSettings:
    """What stands beside the backbone where ``model.expert`` is not none.

    The scores become scale * (cosine of words + bias) + backbone * its own; with ``vectors``,
    dense * their cosine is added to that of words.
    """

    scale: float = 10.0
    """Factor of cosine and bias."""
    backbone: float = 0.1
    """Factor of the backbone's own scores."""
    popularity: float = 0.1
    """The bias starts from this times log(1 + count), of whom ``counts`` names."""
    decay: float = 0.8
    """Of a history the newest item counts 1, the one before it this, and so on."""
    words: tuple[Field, ...] = ()
    """What the items are compared by; default: titles, or genres where there are none."""
    min_items: int = 1
    """Words, and pairs of words, that fewer items have are left out of the comparison."""
    vectors: str | None = None
    """Encoder whose vectors of the same words are compared too, beside the words themselves:
    minilm for all-MiniLM-L6-v2 (of the extra coterie-llm[minilm] or the hub), or a Hugging Face
    name or folder; pooled as the model says (by mean if it does not), half-whitened, never trained;
    default: none."""
    dense: float | None = None
    """Factor of the cosine of these vectors, where that of words has 1; default: 0.5."""
    counts: Whose = "public"
    """Whose interactions count. public, everybody: the bias starts from them; those of all are
    summed over the organisations behind masks, before the first round and, of what came since,
    before the test. own: each client adds log(1 + count) of its own users, which never leaves it
    and is in no adapter; both: everybody's and that."""
    own: float | None = None
    """Factor of log(1 + count) of the client's own users; default: that of the best validation
    before the first round, if its gain is above one standard error, else 0."""
    count_noise: float = 0.0
    """Standard deviation of Gaussian noise in each count of that sum; every organisation adds its
    part."""

    def __post_init__(self) -> None:
        between("expert.scale", self.scale, 0, float("inf"))
        between("expert.decay", self.decay, 0, 1)
        at_least("expert.min_items", self.min_items, 1)
        for name in ("backbone", "popularity", "count_noise", "own", "dense"):
            at_least(f"expert.{name}", getattr(self, name), 0)

    @property
    def of_all(self) -> Literal["public", "everybody"] | None:
        """Whose counts the bias starts from, of those that are not the client's own."""
        if self.counts == "own":
            return None
        return "public" if self.counts == "public" else "everybody"

    @property
    def counts_own(self) -> bool:
        """Whether each client's own counts are in its scores."""
        return self.counts in ("own", "both")


@dataclass(frozen=True)
class PretrainSettings:
    """How a small backbone is trained on the public slice, before adapters are added to it."""

    steps: int = 400
    """Most optimizer steps."""
    batch: int = 64
    """Examples in a step."""
    lr: float = 3e-3
    """Learning rate of AdamW, reached after the warm-up; it falls to 0 as a cosine."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    warmup: int = 20
    """Steps in which the learning rate rises."""
    check_every: int = 25
    """Steps between two looks at the held-out examples."""
    patience: int = 4
    """Looks without a better loss before training stops."""

    def __post_init__(self) -> None:
        each_at_least(self, 0, "steps", "warmup", prefix="pretrain.")
        each_at_least(self, 1, "batch", "check_every", "patience", prefix="pretrain.")
        between("pretrain.lr", self.lr, 0, float("inf"))
        at_least("pretrain.weight_decay", self.weight_decay, 0)


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters; the defaults are BIGRec's."""

    rank: int = 8
    """Rank r of the factors A and B."""
    alpha: float = 16.0
    """Scale: the product of the factors counts alpha / rank."""
    dropout: float = 0.05
    """Dropout before A."""
    top: int | None = None
    """Layers with LoRA, counted from the last; default: all."""
    targets: tuple[str, ...] = ()
    """Names of the linear modules with LoRA; default: query and value projections."""

    def __post_init__(self) -> None:
        each_at_least(self, 1, "rank", "top", prefix="lora.")
        between("lora.alpha", self.alpha, 0, float("inf"))
        if not 0 <= self.dropout < 1:
            raise UserError(f"'lora.dropout' must be from 0 to below 1, not {self.dropout:g}")


@dataclass(frozen=True)
class GenerationSettings:
    """How a causal language model writes a title; the defaults are BIGRec's."""

    beams: int = 4
    """Beams of the search; 1 is greedy."""
    candidates: int = 1
    """How many of the best texts are grounded, at most `beams`; the paper takes 1."""
    max_new_tokens: int = 128
    """Most tokens of a text, end token included."""
    length_penalty: float = 1.0
    """Beams are compared by log probability / length ** this."""
    grounding: Literal["states", "words"] = "states"
    """What a written title and those of the items are compared by: the last state of the frozen
    model (BIGRec), or their words (TF-IDF), where a model is too small to embed titles."""
    temperature: float = 1.0
    """Of several candidates: the distance that counts as much as e times the probability."""
    batch: int = 64
    """Histories that are read at once."""

    def __post_init__(self) -> None:
        each_at_least(self, 1, "beams", "candidates", "batch", prefix="generation.")
        at_least("generation.max_new_tokens", self.max_new_tokens, 2)
        between("generation.temperature", self.temperature, 0, float("inf"))
        if self.candidates > self.beams:
            raise UserError(
                f"'generation.candidates' is {self.candidates}, above the {self.beams} beams: "
                "raise 'generation.beams'"
            )


@dataclass(frozen=True)
class SplitSettings:
    """The flexible storage strategy (section 3.2): which layers are the server's."""

    k: int | None = None
    """Layers that a client holds below the server's; it also holds the last one. Default: all
    layers are the client's."""
    server: str | None = None
    """host:port of `coterie llm serve`; default: the server's layers are in this process."""
    secret: str | None = None
    """File from which the tokens of clients and coordinator follow, written by the server."""
    ca: str | None = None
    """Certificate that the server's must follow from (PEM); without, only this machine is talked
    to."""
    cert: str | None = None
    """Certificate of the clients, where the server demands one (PEM)."""
    key: str | None = None
    """Key of that certificate."""
    wire: Literal["float32", "bfloat16"] | None = None
    """Number format of what crosses; default: the model's."""
    deadline: float = 120.0
    """Seconds in which the server must answer."""

    def __post_init__(self) -> None:
        at_least("split.k", self.k, 1)
        between("split.deadline", self.deadline, 0, float("inf"))
        if self.k is None and self.server is not None:
            raise UserError("'split.server' needs 'split.k', the number of the client's layers")
