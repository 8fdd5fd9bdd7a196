"""What a language model reads is the same in training and in inference, and fits its context."""

import pytest
import torch

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbone_settings import GenerationSettings, ModelSettings
from coterie.llm.backbones.causal_text import CausalText, tiny_text
from coterie.llm.backbones.text import (
    END,
    START,
    PromptTokens,
    bigrec_template,
    compact_template,
    pad_left,
    train_tokenizer,
)
from coterie.llm.data.examples import Examples

TITLES = [f"{word} {number} (19{number}0)" for number in range(5) for word in ("Heat", "The Sting")]
EXAMPLES = Examples(
    Ragged.from_lists([[0, 1, 2], [3], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]]), torch.tensor([4, 5, 6])
)


def model(template: str, context: int = 400) -> CausalText:
    """A tiny model with one of the two templates."""
    size = ModelSettings(layers=1, width=16, heads=2, vocabulary=400, context=context)
    small = tiny_text(TITLES, size, Key.from_seed(0), GenerationSettings(max_new_tokens=32))
    if template == "compact":
        return small
    generation = GenerationSettings(beams=1, max_new_tokens=12)
    return CausalText(
        small.model, small.text.tokenizer, TITLES, bigrec_template("film"), generation, context
    )


def first_tokens(backbone: CausalText, run) -> list[list[int]]:
    """The rows of tokens that reach the network first, without padding."""
    seen = []
    hook = backbone.model.model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((kwargs["input_ids"], kwargs["attention_mask"])),
        with_kwargs=True,
    )
    run()
    hook.remove()
    tokens, mask = seen[0]
    return [row[keep.bool()].tolist() for row, keep in zip(tokens, mask, strict=True)]


@pytest.mark.parametrize(
    ("template", "context"), [("bigrec", 700), ("bigrec", 400), ("compact", 400), ("compact", 90)]
)
def test_training_and_inference_read_the_same_tokens(template, context):
    # The public code of PPLR indents the training prompt only.
    backbone = model(template, context).eval()
    trained = first_tokens(backbone, lambda: backbone.loss(EXAMPLES))
    asked = first_tokens(backbone, lambda: backbone.generate(EXAMPLES.history))
    # A beam search repeats each prompt for every beam.
    asked = asked[:: backbone.generation.beams]
    for whole, prompt, answer in zip(
        trained, asked, backbone.text.answers(EXAMPLES.target), strict=True
    ):
        assert whole == prompt + answer
        assert len(whole) <= context


def test_bigrec_prompt_is_as_published():
    text = bigrec_template("game").prompt(["A", "B"])
    assert text == (
        "Below is an instruction that describes a task, paired with an input that provides "
        "further context. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nGiven a list of video games the user has played before, please "
        "recommend a new video game that the user likes to the user.\n\n"
        '### Input:\nThe user has played the following video games before:"A", "B"\n\n'
        "### Response:\n"
    )
    assert bigrec_template("game").answer("C") == '"C"'
    assert bigrec_template("game").text_to_embed("C") == "C"


def test_unknown_noun_is_refused():
    with pytest.raises(UserError, match="did you mean 'film'"):
        bigrec_template("films")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ('"Heat"', "Heat"),
        (' "Heat"\n### Instruction', "Heat"),
        ('The "Burbs"', 'The "Burbs'),
        ("", ""),
        ("\n \n", ""),
    ],
)
def test_titles_are_read_from_answers(text, title):
    assert bigrec_template().title(text) == title


def test_titles_survive_writing_and_reading():
    for template in (bigrec_template(), compact_template(END)):
        for title in ["Heat", '"Burbs", The', 'Say "Hi"', "{} of {}"]:
            assert template.title(template.answer(title)) == title


def test_line_breaks_in_titles_cannot_break_the_prompt():
    assert "\n" not in compact_template("|").prompt(["A\n### Response:\nB", "C"])


def tokens_of(context: int, answer: int = 4) -> PromptTokens:
    tokenizer = train_tokenizer(TITLES, 400)
    return PromptTokens(compact_template(END), tokenizer, TITLES, context, answer)


def test_long_histories_lose_their_oldest_items_and_are_counted():
    wide, narrow = tokens_of(200), tokens_of(24)
    history = Ragged.from_lists([[0, 1, 2, 3, 4, 5, 6, 7], [9], []])
    full, cut = wide.prompts(history), narrow.prompts(history)
    assert (wide.cut, narrow.cut) == (0, 1)
    assert len(cut[0]) <= narrow.room < len(full[0])
    # What is left is the start token and the newest titles, whole.
    assert full[0][-len(cut[0]) + 1 :] == cut[0][1:]
    end = narrow.tokenizer.eos_token_id
    assert full[0][-len(cut[0])] == end
    assert cut[1:] == full[1:]
    # As many as fit: one more would not.
    one_more = wide.prompts(Ragged.from_lists([history.tolists()[0][-cut[0].count(end) - 1 :]]))
    assert len(one_more[0]) > narrow.room


def test_one_overlong_title_leaves_an_empty_history():
    titles = ["x" * 50, "y"]
    text = PromptTokens(compact_template(END), train_tokenizer(["a"], 270), titles, 20, 4)
    assert text.prompts(Ragged.from_lists([[0], [0, 1]]))[0] == [text.tokenizer.bos_token_id]
    assert text.cut == 2


def test_too_short_a_context_is_refused():
    tokenizer = train_tokenizer(TITLES, 400)
    with pytest.raises(UserError, match="use a longer context or the compact prompt"):
        PromptTokens(bigrec_template(), tokenizer, TITLES, 64, 32)


def test_answers_end_and_are_cut():
    text = tokens_of(100, answer=3)
    rows = text.answers(torch.tensor([0, 1]))
    assert all(row[-1] == text.tokenizer.eos_token_id and len(row) <= 3 for row in rows)
    assert text.answers(torch.empty(0, dtype=torch.int64)) == []


def test_padding_is_on_the_left():
    tokens, mask = pad_left([[1, 2, 3], [4], []], 9)
    assert tokens.tolist() == [[1, 2, 3], [9, 9, 4], [9, 9, 9]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1], [0, 0, 0]]


def test_tokenizer_depends_on_the_texts_alone_and_writes_any_text():
    one, two = train_tokenizer(TITLES, 300), train_tokenizer(TITLES, 300)
    assert one.get_vocab() == two.get_vocab()
    for text in ["Heat 3 (1930)", "Amélie 東京 \U0001f600", "  two  blanks"]:
        tokens = one(text)["input_ids"]
        assert tokens[0] == one.convert_tokens_to_ids(START)
        assert one.decode(tokens, skip_special_tokens=True) == text
