"""The text that a causal language model reads and writes, the same in training and inference.

The public code of PPLR indents the prompt in training and not in inference, and BIGRec's own two
copies differ by a blank; here one object writes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coterie.core.errors import UserError, nearest
from coterie.core.tensors.ragged import Ragged

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
