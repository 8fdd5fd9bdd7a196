"""The texts of items and histories that language models read and write, as tokens.

The public code of PPLR indents the prompt in training and not in inference, and BIGRec's own two
copies differ by a blank; here one object writes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coterie.core.errors import UserError, nearest
from coterie.core.tensors.stacked import Ragged
from coterie.llm.data.catalogue import Catalogue

NOUNS = {
    "film": ("movie", "watched"),
    "game": ("video game", "played"),
    "book": ("book", "read"),
    "product": ("product", "bought"),
}
"""What the items are called, and what users do with them."""


@dataclass(frozen=True)
class Template:
    """How a history and a recommended title are written.

    Attributes:
        before: text ahead of the history.
        item: one title, with ``{}`` in its place.
        between: text between two titles.
        after: text behind the history, ahead of the response.
        response: the recommended title, with ``{}`` in its place; the end token follows.
        embedded: a title whose last token's state is its embedding, with ``{}`` in its place.
    """

    before: str
    item: str
    between: str
    after: str
    response: str
    embedded: str

    def prompt(self, titles: Sequence[str]) -> str:
        """Write a history, oldest title first.

        Example:
            >>> compact_template("</s>").prompt(["Alien", "Heat"])
            'Alien</s>Heat</s>'
        """
        items = self.between.join(_fill(self.item, title) for title in titles)
        return self.before + items + self.after

    def answer(self, title: str) -> str:
        """Write the recommended title, without the end token."""
        return _fill(self.response, title)

    def text_to_embed(self, title: str) -> str:
        """Write a title so that its last token can stand for it."""
        return _fill(self.embedded, title)

    def title(self, text: str) -> str:
        """Read the title from a generated answer: its first line, without the quotation marks.

        Example:
            >>> bigrec_template("film").title(' "Alien"')
            'Alien'
        """
        lines = text.strip().splitlines()
        first = lines[0].strip() if lines else ""
        opening, closing = self.response.split("{}")
        return first.removeprefix(opening).removesuffix(closing).strip()


def bigrec_template(noun: str = "film") -> Template:
    """Build BIGRec's instruction, in Alpaca's wrapper (Bao et al. 2023, arXiv 2308.08434).

    Raises:
        UserError: the noun is unknown.
    """
    if noun not in NOUNS:
        raise UserError(f"'{noun}' is no noun for items: {nearest(noun, NOUNS)}")
    one, done = NOUNS[noun]
    before = (
        "Below is an instruction that describes a task, paired with an input that provides "
        "further context. Write a response that appropriately completes the request.\n\n"
        f"### Instruction:\nGiven a list of {one}s the user has {done} before, please recommend a "
        f"new {one} that the user likes to the user.\n\n"
        f"### Input:\nThe user has {done} the following {one}s before:"
    )
    return Template(before, '"{}"', ", ", "\n\n### Response:\n", '"{}"', "{}")


def compact_template(end: str) -> Template:
    """Build a prompt of titles alone, each closed by the end token, for models of small context.

    A history then reads as a row of answers, so every title in it is practised as an answer, and
    the state after a title's end token tells what tends to follow it.
    """
    return Template("", "{}" + end, "", "", "{}", "{}" + end)


class PromptTokens:
    """Writes histories and answers as rows of tokens.

    Args:
        template: of the text.
        tokenizer: a Hugging Face tokenizer with an end token.
        titles: of all items.
        context: most tokens that the model reads.
        answer: most tokens of an answer, end token included; this room stays free behind every
            prompt, in training as in inference, so that both cut a history alike.

    Attributes:
        cut: number of histories so far that the context could not hold, so that they lost items.

    Raises:
        UserError: the context cannot even hold the prompt of an empty history.
    """

    def __init__(
        self, template: Template, tokenizer: Any, titles: Sequence[str], context: int, answer: int
    ) -> None:
        self.template, self.tokenizer = template, tokenizer
        self.titles = [plain(title) for title in titles]
        self.context, self.answer = context, answer
        self.cut = 0
        needed = len(self._encode([template.prompt([])])[0])
        if needed > self.room:
            raise UserError(
                f"a context of {context} tokens leaves {self.room} for the prompt, which takes "
                f"{needed} without a history: use a longer context or the compact prompt"
            )

    @property
    def room(self) -> int:
        """Most tokens of a prompt."""
        return self.context - self.answer

    def prompts(self, history: Ragged) -> list[list[int]]:
        """Write each history as a prompt of at most `room` tokens; too old items are left out."""
        items = history.tolists()
        rows = self._encode([self._text(row) for row in items])
        long = [number for number, row in enumerate(rows) if len(row) > self.room]
        self.cut += len(long)
        while long:
            for number in long:
                items[number] = items[number][1:]
            shorter = self._encode([self._text(items[number]) for number in long])
            for number, row in zip(long, shorter, strict=True):
                rows[number] = row
            long = [number for number in long if len(rows[number]) > self.room]
        return rows

    def answers(self, item: Tensor) -> list[list[int]]:
        """Write items, ``(n,)`` int64, as answers with the end token, cut to `answer` tokens."""
        texts = [self.template.answer(self.titles[number]) for number in item.tolist()]
        rows = self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        return [[*row[: self.answer - 1], self.tokenizer.eos_token_id] for row in rows]

    def embedded(self, titles: Sequence[str]) -> list[list[int]]:
        """Write titles as they are embedded; of an overlong one the end is kept."""
        texts = [self.template.text_to_embed(title) for title in titles]
        return [row[-self.context :] for row in self._encode(texts)]

    def read(self, tokens: Tensor) -> list[str]:
        """Read the titles from generated answers, ``(n, T)`` int64."""
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [self.template.title(text) for text in texts]

    def _text(self, items: list[int]) -> str:
        return self.template.prompt([self.titles[number] for number in items])

    def _encode(self, texts: list[str]) -> list[list[int]]:
        rows = self.tokenizer(texts)["input_ids"] if texts else []
        # A model reads at least one token; a tokenizer without a start token may give none.
        return [row or [self.tokenizer.eos_token_id] for row in rows]


def pad_left(rows: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor]:
    """Pad rows of tokens on the left.

    Returns:
        Tokens and attention mask, each ``(n, longest)`` int64.

    Example:
        >>> pad_left([[5, 6], [7]], filler=0)[0].tolist()
        [[5, 6], [0, 7]]
    """
    parts = [torch.tensor(row, dtype=torch.int64) for row in rows]
    real = [torch.ones_like(part) for part in parts]
    tokens, mask = (
        pad_sequence(padded, batch_first=True, padding_value=value, padding_side="left")
        for padded, value in ((parts, filler), (real, 0))
    )
    return tokens, mask


def plain(title: str) -> str:
    r"""Make a title fit for one line: blanks of any kind become one space each.

    Example:
        >>> plain(" The  Big\tSleep ")
        'The Big Sleep'
    """
    return " ".join(title.split())


def _fill(pattern: str, title: str) -> str:
    return pattern.replace("{}", plain(title), 1)


PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """Train a byte-level BPE tokenizer, a `PreTrainedTokenizerFast` that puts ``<s>`` ahead.

    It depends on the texts alone. Of the ``vocabulary`` 256 bytes and 4 special tokens are there.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    # Words end at blanks only, so that " (1996)" is one token and not three.
    words = pre_tokenizers.Split(Regex(r" ?\S+|\s+"), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, START, END, UNKNOWN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, tokenizer.token_to_id(START))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )


# Items as "key value" tokens, and histories as rows of items, newest first.

START_TYPE, KEY_TYPE, VALUE_TYPE, PAD_TYPE = range(4)
TOKEN_TYPES = 4
Attributes = tuple[tuple[str, str], ...]
"""Names and values of an item's attributes, in RecFormer's order: title, brand, category."""


@dataclass(frozen=True)
class Limits:
    """How much text is read; the defaults are those of the public fine-tuning.

    Attributes:
        attributes: most attributes of an item.
        attribute_tokens: most tokens of an attribute, its name included.
        items: most items of a history.
        tokens: most tokens of a history, start token included.
    """

    attributes: int = 3
    attribute_tokens: int = 32
    items: int = 50
    tokens: int = 1024


@dataclass(frozen=True)
class Encoded:
    """B sequences of T tokens, padded on the right; each ``(B, T)`` int64.

    Attributes:
        token: numbers in the vocabulary.
        item: 0 at the start token, then the place of the item, 1 = newest.
        kind: `START_TYPE`, `KEY_TYPE`, `VALUE_TYPE` or `PAD_TYPE`.
        mask: 1 at tokens, 0 at padding.
    """

    token: Tensor
    item: Tensor
    kind: Tensor
    mask: Tensor


class ItemTokens:
    """Writes histories as sequences of tokens.

    Args:
        attributes: of all items.
        tokenizer: a Hugging Face tokenizer with a start and a padding token.
        limits: how much is read.

    Attributes:
        cut: number of histories so far that lost their oldest items or tokens to the limits.
    """

    def __init__(self, attributes: Sequence[Attributes], tokenizer: Any, limits: Limits) -> None:
        self.limits, self.cut, self.tokenizer = limits, 0, tokenizer
        self.start: int = tokenizer.bos_token_id
        self.pad: int = tokenizer.pad_token_id
        self.items = [self._flatten(item, tokenizer) for item in attributes]

    def encode(self, history: Ragged, multiple: int = 1) -> Encoded:
        """Write histories; the number of tokens is padded to a multiple of ``multiple``."""
        rows = [self._row(items) for items in history.tolists()]
        longest = max((len(row) for row in rows), default=1)
        width = -(-longest // multiple) * multiple
        filler = (self.pad, 0, PAD_TYPE, 0)
        padded = [row + [filler] * (width - len(row)) for row in rows]
        table = torch.tensor(padded, dtype=torch.int64).view(len(rows), width, 4)
        return Encoded(*table.unbind(2))

    def _row(self, items: list[int]) -> list[tuple[int, int, int, int]]:
        newest = items[::-1][: self.limits.items]
        row = [(self.start, 0, START_TYPE, 1)]
        for place, item in enumerate(newest, start=1):
            row += [(token, place, kind, 1) for token, kind in self.items[item]]
        self.cut += len(newest) < len(items) or len(row) > self.limits.tokens
        return row[: self.limits.tokens]

    def _flatten(self, item: Attributes, tokenizer: Any) -> tuple[tuple[int, int], ...]:
        """Tokens of an item with their kinds: every attribute's name, then its value."""
        flat: list[tuple[int, int]] = []
        for name, value in item[: self.limits.attributes]:
            tokens = [(token, KEY_TYPE) for token in _ids(tokenizer, name)]
            tokens += [(token, VALUE_TYPE) for token in _ids(tokenizer, value)]
            flat += tokens[: self.limits.attribute_tokens]
        return tuple(flat)


def item_attributes(items: Catalogue) -> list[Attributes]:
    """Read the attributes of every item; those without a value are left out.

    Raises:
        UserError: the source has no titles.
    """
    titles, n = items.require_titles(), items.n_items
    categories = [" ".join(names) for names in items.genres or [[]] * n]
    rows = zip(titles, items.brands or [""] * n, categories, strict=True)
    named = (zip(("title", "brand", "category"), row, strict=True) for row in rows)
    return [tuple((n, plain(v)) for n, v in row if v and plain(v)) for row in named]


def texts(attributes: Iterable[Attributes]) -> list[str]:
    """List all names and values, to train a tokenizer on."""
    return [text for item in attributes for pair in item for text in pair]


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
