"""Any pre-trained encoder of Hugging Face over item titles: BERT, RoBERTa, MPNet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from transformers import AutoTokenizer

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbone_settings import LoraSettings, ModelSettings
from coterie.llm.backbones.base import base_model, first_of, hides_padding
from coterie.llm.backbones.expert import cosines
from coterie.llm.backbones.hub import (
    beside,
    check_source,
    check_tokens,
    encoder_model,
    from_hub,
)
from coterie.llm.backbones.item_embedding import EmbedsItems
from coterie.llm.data.examples import Examples

_TEMPERATURE = 0.05
_FLOOR = 1e-3  # of the largest singular value: whitening does not blow up what is noise


class Encoder(EmbedsItems):
    """Score items by the cosine of their title with those of a history, divided by 0.05.

    An item is e = |W (|mean of the last states| - m)|, where |x| is x at length 1, and m and W
    centre and half-whiten the frozen network's vectors of all titles (Su et al. 2021,
    arXiv 2103.15316, with S^-1/2 to the power 1/2): both follow from public texts, and are not
    trained. A history is the sum of its items, each counting ``decay`` for every newer one.

    Titles are public and lower layers are not trained, so that their states behind the last layer
    below what is trained are computed once and kept.

    Args:
        model: of Hugging Face, with ``encoder.layer``; on an encoder without a pooler.
        texts: of all items, as tokens, each with its special ones.
        settings: how states are pooled, histories weighted, and vectors spread.
        tokenizer: which made the tokens, for an export; None leaves it out.

    Attributes:
        space: ``(h,)`` m and ``(h, h)`` W; None where vectors are left as they are.
    """

    place = "encoder.layer"
    above = ()
    targets = ("query", "value")
    items_at_once = 128

    def __init__(
        self,
        model: Any,
        texts: Sequence[tuple[int, ...]],
        settings: ModelSettings,
        tokenizer: Any = None,
    ) -> None:
        super().__init__(texts)
        self.tokenizer = tokenizer
        self.model, self.settings = model, settings
        self.hidden = int(model.config.hidden_size)
        self._pad = int(model.config.pad_token_id or 0)
        distinct = dict(zip(self.text_of.tolist(), texts, strict=True))
        self._tokens = Ragged.from_lists([list(distinct[n]) for n in range(len(distinct))])
        self._kept: Tensor | None = None
        self._had_by: set[str] = set()
        self._below = 0
        self.space: tuple[Tensor, Tensor] | None = None
        if hasattr(model.encoder, "compute_position_bias"):  # MPNet
            self.targets = ("q", "v")

    def add_lora(self, settings: LoraSettings, key: Key) -> None:
        """Add LoRA; see `Backbone.add_lora`."""
        super().add_lora(settings, key)
        self._restart()

    def use_layers(self, layers: Sequence[nn.Module]) -> None:
        """Run other layers; see `Backbone.use_layers`."""
        super().use_layers(layers)
        self._restart()

    def reads(self) -> dict[str, Tensor]:
        """Give the titles as tokens."""
        rows = self._tokens.take(self.text_of)
        return {"tokens": rows.values, "offsets": rows.offsets}

    def settle(self) -> None:
        """Place the axes of the item embeddings by the network that everybody starts from.

        Raises:
            UserError: the network does more than to let its layers follow on one another.
        """
        self._check()
        self._restart()
        self.space = None
        if self.settings.space == "raw":
            return
        was_training = self.training
        self.eval()
        with torch.no_grad(), base_model(self.model):
            texts = torch.arange(len(self._tokens))
            frozen = self._embedded_texts(texts)
        self.train(was_training)
        self.space = half_whitening(normalize(frozen, dim=1)[self.text_of])

    def embed_items(self, items: Tensor) -> Tensor:
        """Embed items ``(m,)`` by their titles, ``(m, h)`` of length 1."""
        texts, place = self.text_of[items].unique(return_inverse=True)
        return self._placed(self._embedded_texts(texts))[place]

    @property
    def below(self) -> int:
        """How many layers lie below the first that is trained: their states are kept."""
        return self._below

    @torch.no_grad()
    def states_by_layer(self, items: Tensor) -> Tensor:
        """Mean state of the title of items ``(m,)`` behind each of N layers, ``(N, m, h)``."""
        self.eval()
        texts, place = self.text_of[items].unique(return_inverse=True)
        parts, found = self._by_length(texts), []
        for part in parts:
            real = self._real(part)
            states, pooled = self._input(part, real), []
            for layer in self.layers:
                states = self._run(states, real, [layer])
                pooled.append(_mean(states, real))
            found.append(torch.stack(pooled))
        return torch.cat(found, 1)[:, torch.cat(parts).argsort()[place]]

    def formula(self) -> dict[str, str]:
        """Write out how scores follow from states, beside `space`, for files."""
        how = self.settings
        found = {"pooling": how.pooling, "decay": how.decay, "temperature": _TEMPERATURE}
        return {name: str(value) for name, value in found.items()}

    def network_loss(self, examples: Examples) -> Tensor:
        """Mean cross entropy of the next item among all, ``()``."""
        return cross_entropy(self.training_scores(examples), examples.target)

    def training_scores(self, examples: Examples) -> Tensor:
        """The same, by which histories and targets of the batch get a gradient."""
        fresh = torch.cat([examples.target, examples.history.values]).unique()
        return self._logits(examples.history, fresh)

    def network_scores(self, history: Ragged) -> Tensor:
        """Cosines divided by the temperature, ``(n, n_items)``."""
        return self._logits(history, None)

    def _logits(self, history: Ragged, fresh: Tensor | None) -> Tensor:
        """Score all items; those in ``fresh`` are embedded anew, with their gradient."""
        table = self.catalogue()
        if fresh is not None and fresh.numel():
            table = table.index_copy(0, fresh, self.embed_items(fresh))
        return cosines(table, history, self.settings.decay) / _TEMPERATURE

    def _by_length(self, texts: Tensor) -> list[Tensor]:
        """Texts ``(m,)`` some at a time, of like lengths."""
        order = self._tokens.lengths[texts].argsort(stable=True)
        return list(texts[order].split(self.items_at_once))

    def _embedded_texts(self, texts: Tensor) -> Tensor:
        """One vector for each of ascending texts ``(m,)``, ``(m, h)``."""
        parts = self._by_length(texts)
        pooled = torch.cat([self._pooled(part) for part in parts])
        return pooled[torch.cat(parts).argsort()]

    def _placed(self, pooled: Tensor) -> Tensor:
        """Put pooled states ``(m, h)`` on the axes of the frozen network's vectors."""
        vectors = normalize(pooled, dim=1)
        if self.space is None:
            return vectors
        centre, axes = self.space
        return normalize((vectors - centre) @ axes, dim=1)

    def _pooled(self, texts: Tensor) -> Tensor:
        """One vector for each of some texts ``(m,)``, ``(m, h)``."""
        real = self._real(texts)
        below = self._below_trained(texts, real)
        states = self._run(below, real, list(self.layers)[self._below :])
        if self.settings.pooling == "cls":
            return states[:, 0]
        return _mean(states, real)

    def _below_trained(self, texts: Tensor, real: Tensor) -> Tensor:
        """States ``(m, T, h)`` of texts that enter the first layer with something to train."""
        if not self._below:
            return self._input(texts, real)
        # In a simulation of clients with layers elsewhere each has these states sent once.
        passed = any(hasattr(layer, "elsewhere") for layer in list(self.layers)[: self._below])
        who = self.elsewhere if passed else ""
        if self._kept is None or who not in self._had_by:
            self._kept = self._states_below()
            self._had_by.add(who)
        place = self._tokens.offsets[texts][:, None] + torch.arange(real.shape[1])
        return self._kept[place.where(real, 0)] * real[..., None]

    @torch.no_grad()
    def _states_below(self) -> Tensor:
        """States of all tokens of all texts, ``(tokens, h)``."""
        was_training = self.training
        self.eval()
        found: Tensor | None = None
        lower = list(self.layers)[: self._below]
        for part in self._by_length(torch.arange(len(self._tokens))):
            real = self._real(part)
            states = self._run(self._input(part, real), real, lower)
            if found is None:
                found = states.new_empty(len(self._tokens.values), self.hidden)
            place = self._tokens.offsets[part][:, None] + torch.arange(real.shape[1])
            found[place[real]] = states[real]
        self.train(was_training)
        assert found is not None  # there are items
        return found

    def _real(self, texts: Tensor) -> Tensor:
        """Which places of texts hold a token, ``(m, T)`` bool; the others are padding."""
        lengths = self._tokens.lengths[texts]
        return torch.arange(int(lengths.max())) < lengths[:, None]

    def _input(self, texts: Tensor, real: Tensor) -> Tensor:
        ids = torch.full(real.shape, self._pad)
        ids[real] = self._tokens.take(texts).values
        states: Tensor = self.model.embeddings(input_ids=ids)
        return states

    def _run(self, states: Tensor, real: Tensor, layers: Sequence[nn.Module]) -> Tensor:
        """Let states ``(m, T, h)`` pass through layers."""
        mask = hides_padding(real, states)
        more = {}
        if hasattr(self.model.encoder, "compute_position_bias"):
            more["position_bias"] = self.model.encoder.compute_position_bias(states)
        for layer in layers:
            states = first_of(layer(states, attention_mask=mask, **more))
        return states

    def _restart(self) -> None:
        """Forget what other layers made, and see where training begins now."""
        trained = [
            any(p.requires_grad for p in layer.parameters())
            or getattr(layer, "trained_elsewhere", False)
            for layer in self.layers
        ]
        below = any(p.requires_grad for p in self.model.embeddings.parameters())
        self._below = 0 if below else [*trained, True].index(True)
        self._kept = None
        self._had_by.clear()
        self.forget()

    @torch.no_grad()
    def _check(self) -> None:
        """Refuse a network whose layers do not make what it makes as a whole.

        Raises:
            UserError: they do not.
        """
        texts = torch.arange(len(self._tokens))[:3]
        real, model = self._real(texts), self.model.eval()
        ids = torch.full(real.shape, self._pad)
        ids[real] = self._tokens.take(texts).values
        whole = model(input_ids=ids, attention_mask=real.long()).last_hidden_state
        other = UserError(
            f"a {type(model).__name__} does more than let its layers follow on one another: use "
            "an encoder like BERT, RoBERTa or MPNet"
        )
        try:
            parts = self._run(self._input(texts, real), real, list(self.layers))
        except (RuntimeError, TypeError, AttributeError) as error:  # of layers of another kind
            raise other from error
        if not torch.allclose(parts[real], whole[real], rtol=1e-3, atol=1e-3):
            raise other


def _mean(states: Tensor, real: Tensor) -> Tensor:
    """Mean of states ``(m, T, h)`` over tokens, ``(m, h)``."""
    weight = real.to(states)[..., None]
    return (states * weight).sum(1) / weight.sum(1)


def half_whitening(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Find the centre of vectors ``(n, h)``, and axes ``(h, h)`` along which they differ less.

    Along a principal axis of deviation s the result has sqrt(s), up to a common factor; the
    smallest s counts `_FLOOR` of the largest at least.

    Example:
        >>> x = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> centre, axes = half_whitening(x)
        >>> ((x - centre) @ axes).abs().amax(0)
        tensor([4., 2.])
    """
    centre = vectors.mean(0)
    _, s, v = torch.linalg.svd((vectors - centre).double(), full_matrices=False)
    if not bool(s.max() > 0):
        raise UserError(
            "all items have the same text, so that an encoder cannot tell them apart: choose other "
            "fields by --expert.words, or another model"
        )
    s = (s / s.max()).clamp_min(_FLOOR)
    return centre, (v.T * s.rsqrt() @ v).to(vectors)


def load_encoder(
    name_or_path: str | None, titles: Sequence[str], settings: ModelSettings
) -> Encoder:
    """Load an encoder and read the titles by its tokenizer.

    Args:
        name_or_path: a name on the hub, or a folder; None for `coterie.llm.backbones.minilm`.
        titles: of all items.
        settings: of the model.

    Raises:
        UserError: it cannot be had, is not whole, is of another kind, or pools otherwise.
    """
    if name_or_path is None:
        from coterie.llm.backbones import minilm

        if settings.pooling != "mean":
            raise UserError("all-MiniLM-L6-v2 pools by mean: leave 'model.pooling' out")
        folder = minilm.folder()
        tokenizer: Any = minilm.tokenizer(folder)
        model, source = encoder_model(str(folder)), str(folder)
        model.config.name_or_path = minilm.NAME  # wherever the files were
    else:
        check_source(name_or_path)
        model, source = encoder_model(name_or_path), name_or_path
        tokenizer = from_hub(AutoTokenizer, name_or_path)
    _check_pooling(source, settings.pooling)
    check_tokens(tokenizer, model.config.vocab_size, source, ("pad",))
    # Positions of some begin behind the padding token's number.
    places = model.config.max_position_embeddings - (model.config.pad_token_id or 0) - 1
    length = min(settings.context, places)
    tokens = tokenizer(list(titles), truncation=True, max_length=length)["input_ids"]
    return Encoder(model, [tuple(row) for row in tokens], settings, tokenizer)


def own_pooling(name_or_path: str) -> str:
    """How a model pools, by its file of sentence-transformers; mean where it has none.

    Raises:
        UserError: it pools otherwise than by mean or by the first token.
    """
    path = _pooling_file(name_or_path)
    named = ["mean"] if path is None else _named_poolings(path)
    if named not in (["mean"], ["cls"]):
        raise UserError(f"{path} pools by {_listed(named)}, not mean or cls: use another encoder")
    return named[0]


def _check_pooling(name_or_path: str, pooling: str) -> None:
    """Refuse another pooling than that which a file of sentence-transformers names.

    Raises:
        UserError: it names another one.
    """
    path = _pooling_file(name_or_path)
    named = [pooling] if path is None else _named_poolings(path)
    if named != [pooling]:
        raise UserError(
            f"{path} pools by {_listed(named)}, but 'model.pooling' is {pooling}: choose the "
            "model's own, mean or cls, or another model"
        )


def _pooling_file(name_or_path: str) -> Path | None:
    return beside(name_or_path, "1_Pooling/config.json")


def _named_poolings(path: Path) -> list[str]:
    try:
        how = json.loads(path.read_bytes())
        return [kind for kind, key in _POOLINGS.items() if how.get(key)]
    except (ValueError, AttributeError) as error:
        raise UserError(f"cannot read {path} ({error}): fetch the model again") from error


def _listed(named: Sequence[str]) -> str:
    return " and ".join(named) or "no known way"


_POOLINGS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
}
