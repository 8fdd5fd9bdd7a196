"""Causal language models over item titles: BIGRec (Bao et al. 2023, arXiv 2308.08434)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbone_settings import GenerationSettings, ModelSettings
from coterie.llm.backbones.base import Backbone, base_model
from coterie.llm.backbones.hub import (
    causal_model,
    check_layers,
    check_source,
    check_tokens,
    from_hub,
)
from coterie.llm.backbones.text import (
    END,
    PromptTokens,
    Template,
    bigrec_template,
    compact_template,
    pad_left,
    plain,
    train_tokenizer,
)
from coterie.llm.data.catalogue import ItemWords
from coterie.llm.data.examples import Examples

_IGNORED = -100  # the label that cross_entropy leaves out


class CausalText(Backbone):
    """Any Hugging Face causal LM that writes the title of the next item.

    Scores are BIGRec's: the generated text and all titles are embedded by the frozen model (last
    layer, last token), and the nearest title wins. Titles need not differ: items of one title get
    one score. With the grounding "words" they are compared by TF-IDF instead.

    Args:
        model: a causal LM with ``model.layers``.
        tokenizer: of the model.
        titles: of all items.
        template: of the prompt.
        generation: how a title is written.
        context: most tokens that the model reads, answer included.
        on_inputs: whether the prompt is practised too.

    Attributes:
        text: prompts and answers as tokens; ``text.cut`` counts the histories that were cut.

    Raises:
        UserError: the model has no ``model.layers``, or the context is too short for the prompt.
    """

    writes = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        titles: Sequence[str],
        template: Template,
        generation: GenerationSettings,
        context: int = 512,
        *,
        on_inputs: bool = True,
    ) -> None:
        super().__init__()
        check_layers(model)
        self.model, self.on_inputs = model, on_inputs
        self.n_items, self.hidden = len(titles), int(model.config.hidden_size)
        self.generation = generation
        context = min(context, int(model.config.max_position_embeddings))
        self.text = PromptTokens(template, tokenizer, titles, context, generation.max_new_tokens)
        self.reader = self.text
        pad = tokenizer.pad_token_id
        self._pad: int = tokenizer.eos_token_id if pad is None else pad
        self._item_vectors: Tensor | None = None

    def prepare(self) -> None:
        """Forget the titles' embeddings if they are not those of a frozen model."""
        if not hasattr(self.model, "peft_config"):
            self._item_vectors = None

    def network_loss(self, examples: Examples) -> Tensor:
        """Mean cross entropy of the next token, ``()``; BIGRec practises the prompt too.

        Of answers alone no other logits are made: all of them take gigabytes in a large vocabulary.
        """
        prompts = self.text.prompts(examples.history)
        answers = self.text.answers(examples.target)
        both = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        tokens, mask = pad_left(both, self._pad)
        # Nothing predicts the first token of a row.
        first = [1 if self.on_inputs else len(prompt) for prompt in prompts]
        rows = [[_IGNORED] * n + row[n:] for n, row in zip(first, both, strict=True)]
        labels, _ = pad_left(rows, _IGNORED)
        kept = tokens.shape[1] if self.on_inputs else 1 + max(map(len, answers))
        inputs = self._inputs(tokens, mask)
        logits = self.model(**inputs, use_cache=False, logits_to_keep=kept).logits[:, :-1].float()
        labels = labels[:, 1 - kept :]
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=_IGNORED)

    def reads(self) -> dict[str, Tensor]:
        """Give the titles as tokens."""
        rows = Ragged.from_lists(self.text.embedded(self.text.titles))
        return {"tokens": rows.values, "offsets": rows.offsets}

    def network_scores(self, history: Ragged) -> Tensor:
        """Score items by grounding, ``(n, n_items)`` float32."""
        how, parts = self.generation, [torch.empty(0, self.n_items)]
        items = None if how.grounding == "words" else self.item_vectors()
        for start in range(0, len(history), how.batch):
            part = history.take(torch.arange(len(history))[start : start + how.batch])
            texts, log_probability = self.generate(part)
            shape = (len(part), len(texts) // len(part), -1)
            if items is None:
                cosine = self._words.of_texts(texts).to(log_probability)
                distance = (2.0 - 2.0 * cosine).clamp_min(0.0).sqrt()  # of vectors of length 1
                found = nearness(distance.view(shape), log_probability, how.temperature)
            else:
                vectors = self.embed(texts).view(shape)
                found = grounding_scores(vectors, items, log_probability, how.temperature)
            parts.append(found)
        return torch.cat(parts)

    @cached_property
    def _words(self) -> ItemWords:
        return ItemWords(self.text.titles)

    @torch.no_grad()
    def generate(self, history: Ragged) -> tuple[list[str], Tensor]:
        """Write titles for histories.

        Returns:
            n * C titles, those of a history one after the other, best first, and their log
            probabilities ``(n, C)``, C being the candidates.
        """
        from transformers import GenerationConfig

        wanted = self.generation
        tokens, mask = pad_left(self.text.prompts(history), self._pad)
        config = GenerationConfig(
            num_beams=wanted.beams,
            num_return_sequences=wanted.candidates,
            max_new_tokens=wanted.max_new_tokens,
            length_penalty=wanted.length_penalty,
            # The best text takes BIGRec's full search; of many, those found first do as well.
            early_stopping=wanted.candidates > 1,
            do_sample=False,
            eos_token_id=self.text.tokenizer.eos_token_id,
            pad_token_id=self._pad,
            return_dict_in_generate=True,
            output_scores=True,
        )
        output = self.model.generate(
            input_ids=tokens, attention_mask=mask, generation_config=config
        )
        scores = getattr(output, "sequences_scores", None)
        log_probability = torch.zeros(len(history), 1) if scores is None else scores.float()
        texts = self.text.read(output.sequences[:, tokens.shape[1] :])
        return texts, log_probability.view(len(history), -1)

    def item_vectors(self) -> Tensor:
        """Embed all titles by the frozen model, ``(n_items, h)`` float32; computed once."""
        if self._item_vectors is None:
            self._item_vectors = self._embed_distinct(self.text.titles)
        return self._item_vectors

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Embed generated titles by the frozen model, ``(n, h)`` float32."""
        items = self.item_vectors()
        place = {title: number for number, title in enumerate(self.text.titles)}
        new = list(dict.fromkeys(text for text in texts if text not in place))
        place |= {text: self.n_items + number for number, text in enumerate(new)}
        table = torch.cat([items, self._embed_distinct(new)])
        return table[torch.tensor([place[text] for text in texts], dtype=torch.int64)]

    @torch.no_grad()
    def _embed_distinct(self, titles: Sequence[str]) -> Tensor:
        """Embed titles, equal ones once; ``(n, h)`` float32."""
        distinct = list(dict.fromkeys(titles))
        # Of like length, so that little is padded.
        rows = sorted(enumerate(self.text.embedded(distinct)), key=lambda row: len(row[1]))
        found: dict[str, Tensor] = {}
        was_training = self.training
        self.eval()
        with base_model(self.model):
            for start in range(0, len(rows), self.generation.batch):
                part = rows[start : start + self.generation.batch]
                tokens, mask = pad_left([row for _, row in part], self._pad)
                output = self.model.model(**self._inputs(tokens, mask), use_cache=False)
                last = output.last_hidden_state[:, -1].float()
                found.update((distinct[n], row) for (n, _), row in zip(part, last, strict=True))
        self.train(was_training)
        vectors = [found[title] for title in titles]
        return torch.stack(vectors) if vectors else torch.empty(0, self.hidden)

    def _inputs(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        position = (mask.cumsum(1) - 1).clamp_min(0)
        return {"input_ids": tokens, "attention_mask": mask, "position_ids": position}


def grounding_scores(
    generated: Tensor, items: Tensor, log_probability: Tensor, temperature: float = 1.0
) -> Tensor:
    """Score items by the `nearness` of generated text in the space of the frozen model.

    Args:
        generated: ``(n, C, h)`` embeddings of the C texts generated for each user.
        items: ``(n_items, h)`` embeddings of the titles.
        log_probability: ``(n, C)`` of the texts.
        temperature: t, in units of distance; without effect on one text.

    Returns:
        ``(n, n_items)`` float32.

    Example:
        >>> items = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> grounding_scores(torch.zeros(1, 1, 2), items, torch.zeros(1, 1)).tolist()
        [[-0.0, -5.0]]
    """
    n, candidates, hidden = generated.shape
    # Without matrix products: those lose the exact 0 of equal texts and depend on the batch.
    distance = torch.cdist(
        generated.reshape(-1, hidden), items, compute_mode="donot_use_mm_for_euclid_dist"
    ).view(n, candidates, -1)
    return nearness(distance, log_probability, temperature)


def nearness(distance: Tensor, log_probability: Tensor, temperature: float = 1.0) -> Tensor:
    """Score items by their distances ``||c - e_i||`` from the texts written for n users.

    One text c a user: ``score(i) = -||c - e_i||``, as in BIGRec. Of several, each counts by its
    probability p_c: ``score(i) = t log sum_c p_c exp(-||c - e_i|| / t)``.

    Args:
        distance: ``(n, C, n_items)`` of C texts.
        log_probability: ``(n, C)`` of the texts.
        temperature: t, in units of distance; without effect on one text.

    Returns:
        ``(n, n_items)``.

    Example:
        >>> nearness(torch.tensor([[[0.0, 5.0]]]), torch.zeros(1, 1)).tolist()
        [[-0.0, -5.0]]
    """
    if distance.shape[1] == 1:
        return -distance[:, 0]
    terms = -distance / temperature + log_probability.log_softmax(1)[:, :, None]
    return temperature * terms.logsumexp(1)


def load_causal_text(
    name_or_path: str,
    titles: Sequence[str],
    template: Template | None,
    generation: GenerationSettings,
    context: int = 512,
    *,
    on_inputs: bool = True,
) -> CausalText:
    """Load a pre-trained causal LM, as ``meta-llama/Llama-2-7b-hf``, from the hub or a folder.

    The other arguments are those of `CausalText`; without a template, it is the compact one with
    the model's own end token.

    Raises:
        UserError: it cannot be had (offline, unknown, gated), is no causal LM with
            ``model.layers``, or is not whole.
    """
    from transformers import AutoTokenizer

    check_source(name_or_path)
    tokenizer = from_hub(AutoTokenizer, name_or_path)
    model = causal_model(name_or_path)
    embeddings = model.get_input_embeddings().num_embeddings
    check_tokens(tokenizer, embeddings, name_or_path, ("eos",))
    template = template or compact_template(tokenizer.eos_token)
    return CausalText(model, tokenizer, titles, template, generation, context, on_inputs=on_inputs)


def tiny_text(
    titles: Sequence[str],
    model: ModelSettings,
    key: Key,
    generation: GenerationSettings,
    *,
    on_inputs: bool = True,
) -> CausalText:
    """Build an untrained small Llama over titles, and its tokenizer, for `pretraining.pretrain`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = train_tokenizer([plain(title) for title in titles], model.vocabulary)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=model.width,
        intermediate_size=4 * model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        max_position_embeddings=model.context,
        initializer_range=model.width**-0.5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with key.fold("tiny-text").torch_rng():
        network = on_host(lambda: LlamaForCausalLM(config))
    template = bigrec_template(model.noun) if model.prompt == "bigrec" else compact_template(END)
    return CausalText(
        network, tokenizer, titles, template, generation, model.context, on_inputs=on_inputs
    )
