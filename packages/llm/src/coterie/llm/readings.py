"""The three readings of the paper: which of its open or contradictory choices a run makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.core.errors import UserError
from coterie.llm.backbone_settings import ExpertSettings, ModelSettings
from coterie.llm.settings import USER_METHODS, Settings, TrainSettings

FULLY_TRAINED = ("tiny-item", "recformer")
STAGES = {"recformer": 2}  # of fine-tuning; 1 for the others


MIXING = {
    # Of what a round changed in the adapters. The adapters themselves start from one point and stay
    # nearly parallel, so their cosines tell nobody apart.
    "recommended": {"similarity": "shifted", "similarity_on": "updates", "exponent": "paper"},
    # Eq. 3, and the exponent (t + 1)/β.
    "literal": {"similarity": "cosine", "similarity_on": "weights", "exponent": "paper"},
    # As the public code runs for RecFormer, with the exponent t + 1/β; for BIGRec it never warms
    # up, which is the method pplr-attention.
    "released": {"similarity": "shifted", "similarity_on": "weights", "exponent": "released"},
}
"""Choices of the readings for the section ``mixing``."""


def resolve(settings: Settings) -> Settings:
    """Fill every open choice (None) with that of the reading; a choice the user made stays.

    What a backbone trains by default, in how many stages, and what stands beside it is filled in
    too.

    Raises:
        UserError: the backbone cannot be fine-tuned in that many stages, or there is nothing to
            count, or too few to count with, or a setting has no effect with the others.

    Example:
        >>> resolve(Settings(reading="literal")).mixing.similarity
        'cosine'
    """
    if settings.model.trained is None:
        trained: Any = "all" if settings.model.name in FULLY_TRAINED else "lora"
        settings = replace(settings, model=replace(settings.model, trained=trained))
    if settings.model.prompt is None:
        prompt: Any = "compact" if settings.model.name == "tiny-text" else "bigrec"
        settings = replace(settings, model=replace(settings.model, prompt=prompt))
    settings = replace(settings, train=_staged(settings))
    if settings.model.expert is None:
        settings = replace(settings, model=replace(settings.model, expert="none"))
    settings = replace(settings, expert=_with_vectors(settings))
    _check_counts(settings)
    _check_sent(settings)
    _check_encoder(settings)
    mixing = settings.mixing
    open_ones: Any = {
        n: v for n, v in MIXING[settings.reading].items() if getattr(mixing, n) is None
    }
    return replace(settings, mixing=replace(mixing, **open_ones))


def _with_vectors(settings: Settings) -> ExpertSettings:
    """Fill in how much the cosine of vectors counts, where there are any."""
    expert = settings.expert
    if expert.vectors is None:
        if expert.dense is not None:
            raise UserError(
                "'expert.dense' has no effect without vectors: leave it out, or name an encoder by "
                "--expert.vectors"
            )
        return expert
    if settings.model.expert not in ("titles", "both"):
        raise UserError(
            f"'expert.vectors' has no effect with the expert {settings.model.expert}: leave it "
            "out, or choose --model.expert titles or both"
        )
    return replace(expert, dense=0.5 if expert.dense is None else expert.dense)


def _check_encoder(settings: Settings) -> None:
    """Refuse what is said of an encoder's vectors where there is none."""
    model, usual = settings.model, ModelSettings()
    if model.name == "encoder":
        return
    for name in ("pooling", "space", "decay"):
        if getattr(model, name) != getattr(usual, name):
            raise UserError(
                f"'model.{name}' has no effect on {model.name}: leave it out, or choose "
                "--model.name encoder"
            )


def _check_counts(settings: Settings) -> None:
    expert = settings.expert
    if expert.own is not None and not expert.counts_own:
        raise UserError(
            f"'expert.own' has no effect with the counts {expert.counts}: leave it out, or choose "
            "--expert.counts own or both"
        )
    if expert.counts_own and settings.model.expert == "none":
        raise UserError(
            f"'expert.counts' {expert.counts} has no effect without an expert: leave it out, or "
            "choose --model.expert titles, popularity or both"
        )
    if expert.of_all != "everybody":
        if expert.count_noise:
            raise UserError(
                f"'expert.count_noise' has no effect on the counts {expert.counts}: leave it out, "
                "or choose --expert.counts everybody or both"
            )
        return
    if settings.model.expert not in ("popularity", "both"):
        raise UserError(
            f"'expert.counts' {expert.counts} has no effect with the expert "
            f"{settings.model.expert}: leave it out, or choose --model.expert popularity or both"
        )
    if settings.method == "fedavg-head":
        raise UserError(
            f"'expert.counts' {expert.counts} does not go with fedavg-head, whose bias stays at "
            "the clients: use --expert.counts public or own"
        )
    if settings.data.clients < 2:
        raise UserError(
            f"'expert.counts' {expert.counts} needs at least two clients, whose sum hides each: "
            "use public or own, or more --data.clients"
        )


def rounds_in_vain(settings: Settings) -> list[str]:
    """Say that users as clients have numbers of rounds of their own, where others were set.

    Example:
        >>> rounds_in_vain(Settings(method="fedmf", rounds=3))
        ["'rounds' 3 had no effect on the method fedmf: say --fedmf.rounds"]
    """
    method, usual = settings.method, Settings()
    names = ("rounds", "patience", "participation")
    vain = [name for name in names if getattr(settings, name) != getattr(usual, name)]
    if method not in USER_METHODS or not vain:
        return []
    what = " and ".join(f"'{name}' {getattr(settings, name)}" for name in vain)
    theirs = " and ".join(f"--{method}.{name}" for name in vain)
    return [f"{what} had no effect on the method {method}: say {theirs}"]


def _check_sent(settings: Settings) -> None:
    """Refuse noise on what is sent where nothing is."""
    privacy, counted = settings.privacy, settings.expert.of_all == "everybody"
    if settings.method != "local" or not settings.keeps or counted:
        return
    if privacy.noise != "none" or privacy.clip is not None:
        raise UserError(
            "'privacy.noise' and 'privacy.clip' change the adapters that clients send, and in "
            "local none is sent: leave them out"
        )


def _staged(settings: Settings) -> TrainSettings:
    train, name = settings.train, settings.model.name
    most = STAGES.get(name, 1)
    stages = most if train.stages is None else train.stages
    if stages > most:
        raise UserError(f"'train.stages' is {stages}, but fine-tuning of {name} has {most}")
    return replace(train, stages=stages)
