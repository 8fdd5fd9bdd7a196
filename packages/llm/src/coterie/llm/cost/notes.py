"""What to say under the table of `coterie llm cost`."""

from __future__ import annotations

from coterie.llm.cost.formulas import ModelSize
from coterie.llm.cost.token_count import CatalogueTokens, generated_tokens
from coterie.llm.settings.backbone import GenerationSettings

ENCODER_NOTE = (
    "Histories are counted in BIGRec's prompt, and the items' texts, which an encoder such as "
    "RecFormer embeds anew in every round, are not: --model.name recformer counts them."
)
TITLES_NOTE = (
    "The titles of all items, which cross once for LoRA and in every validation for --full, are "
    "not counted."
)
_KILO, _MEGA = 1e3, 1e6


def catalogue_notes(catalogue: CatalogueTokens, size: ModelSize, stages: int) -> list[str]:
    """Tell when the texts of all items cross; nothing where they never do.

    Args:
        catalogue: their tokens.
        size: of the model.
        stages: of fine-tuning.
    """
    if catalogue.training:
        end = ", and of a query."
        if stages > 1:
            end = f". In stage {stages} they are frozen, and none crosses, as in a query."
        return [
            f"Of the hidden states of a round {_mega(catalogue.training, size)} are the items' "
            f"texts, embedded anew, and of its validation as much{end}"
        ]
    if catalogue.validation:
        return [
            f"Of a validation {_mega(catalogue.validation, size)} are the items' texts, embedded "
            "anew."
        ]
    if catalogue.once:
        return [
            f"A client embeds the items' texts once, by the frozen model: "
            f"{_mega(catalogue.once, size)}, in no column."
        ]
    return []


def generation_note(how: GenerationSettings, query: float, size: ModelSize) -> str:
    """Tell within what limits a recommendation by writing titles costs.

    Args:
        how: titles are written.
        query: most tokens of one.
        size: of the model.
    """
    prompts = query - generated_tokens(0, 1, how)
    texts = (
        "the best text, no title, is"
        if how.candidates == 1
        else (f"the best {how.candidates} texts, no titles, are")
    )
    return (
        f"A query costs from {2 * prompts * size.crossing / _KILO:,.0f} kB, for {how.beams} beams "
        f"that read the prompt, up to what is shown, where all write {how.max_new_tokens} tokens "
        f"and {texts} embedded; a validation likewise. How soon texts end is not known beforehand."
    )


def _mega(tokens: float, size: ModelSize) -> str:
    return f"{2 * tokens * size.crossing / _MEGA:,.3g} MB"
