"""The text that a causal language model reads and writes, the same in training and inference.

The public code of PPLR indents the prompt in training and not in inference, and BIGRec's own two
copies differ by a blank; here one object writes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.core.errors import UserError, nearest

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

    Args:
        noun: one of `NOUNS`.

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

    Args:
        end: the end token as it is written in text.
    """
    return Template("", "{}" + end, "", "", "{}", "{}" + end)


def plain(title: str) -> str:
    r"""Make a title fit for one line: blanks of any kind become one space each.

    Example:
        >>> plain(" The  Big\tSleep ")
        'The Big Sleep'
    """
    return " ".join(title.split())


def _fill(pattern: str, title: str) -> str:
    return pattern.replace("{}", plain(title), 1)
