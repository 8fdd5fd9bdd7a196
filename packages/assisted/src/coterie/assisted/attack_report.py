"""The attack on a run: what is attacked, its table, for people and programs, and its figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coterie.assisted.attack import (
    Overheard,
    overhear,
    rating_scale,
    share_of_pattern,
    shares_of_labels,
    shares_of_ratings,
)
from coterie.assisted.experiment import Experiment
from coterie.assisted.rating_privacy import epsilon_of_rating
from coterie.assisted.readings import resolve
from coterie.assisted.settings import RESIDUAL_STEP, ProtectSettings, Settings
from coterie.core.errors import UserError
from coterie.core.privacy.accountant import epsilon, price
from coterie.core.protocol.journal import Release
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tables.dots import Dots
from coterie.core.tables.paired import Spread
from coterie.core.tables.pictures import plot_panels
from coterie.core.tables.report import Report

NO_GUARANTEE = "no guarantee"


def protections(settings: Settings, clip: float, each: float) -> dict[str, Settings]:
    """Settings to attack, by name: the run's own first, marked by a star.

    Args:
        settings: of the run.
        clip: public bound of a residual for noise with a guarantee.
        each: ε of that noise in a round.
    """
    noise = PrivacySettings(
        clip=clip, clip_by="entry", noise="laplace", scale=2 * clip / each, steps=(RESIDUAL_STEP,)
    )
    listed = {
        "none": (ProtectSettings(), PrivacySettings()),
        "dp-100": (ProtectSettings("dp", alpha=100.0), PrivacySettings()),
        "dp-10": (ProtectSettings("dp"), PrivacySettings()),
        "dp-1": (ProtectSettings("dp", alpha=1.0), PrivacySettings()),
        "ip-10": (ProtectSettings("ip"), PrivacySettings()),
        f"laplace, clip {clip:g}": (ProtectSettings(), noise),
    }
    name = settings.protect.name
    if name == "none":
        name = settings.privacy.noise
    return {f"{name} *": settings} | {
        other: resolve(replace(settings, protect=protect, privacy=privacy))
        for other, (protect, privacy) in listed.items()
        if other != name
    }


def guarantee(settings: Settings, span: float) -> str:
    """Say what differential privacy residuals have; dp and ip have none.

    Args:
        settings: how they are protected.
        span: of the scale of ratings: highest less lowest.

    Example:
        >>> guarantee(Settings(protect=ProtectSettings("dp")), span=4.0)
        'no guarantee'
    """
    privacy, once = settings.privacy, settings.method == "residuals"
    rounds = 1 if once else settings.rounds  # in which residuals are sent
    someone = torch.tensor([0])
    residuals = [Release(RESIDUAL_STEP, 1, someone, someone, 1)]
    one, every = (epsilon(privacy, price(privacy, residuals * count)) for count in (1, rounds))
    if not math.isfinite(one) or one == 0:
        return NO_GUARANTEE
    if privacy.clip_by != "entry":
        what, end = "an organisation", ""
    else:
        rating = epsilon_of_rating(settings, span)
        known = math.isfinite(rating)
        end = f", of a rating {rating:.3g} in round 1" if known else ", of a rating none"
        what, end = "a residual", end.removesuffix(" in round 1") if once else end
    if once:
        return f"ε {one:.3g} of {what}{end}"
    return f"ε {one:.3g} of {what} a round, {every:.3g} in {rounds}{end}"


# The attack on a run: its table, for people and programs, and its figure.

NAME = "attack"
MOST_VALUES = 200
"""Most different ratings that count as a scale."""
_EXPLICIT = {
    "nothing guessed": "certain",
    "mean guessed": "guessed",
    "(most frequent)": "frequent",
    "mean known": "known",
    "(mean, rounded)": "rounded",
    "weighed": "weighed",
    "(frequencies)": "unheard",
}
_IMPLICIT = {"labels": "labels", "(most frequent)": "frequent"}
_PANELS = {
    "guessed": ("ratings, mean of the column guessed (%)", "frequent"),
    "weighed": ("ratings, mean known, noise weighed (%)", "unheard"),
    "labels": ("labels (%)", "frequent"),
}


def attack(
    experiment: Experiment,
    reader: int | None,
    draws: int,
    each: float,
    told: Callable[[str], None] = lambda name: None,
) -> list[dict[str, Any]]:
    """Attack a run with its own protections and with others; a row for each, and for two counts.

    Args:
        experiment: the run.
        reader: number of an organisation; None for the server.
        draws: how often the same residuals are received, beside once.
        each: ε of the noise with a guarantee, in a round.
        told: called when one is done.

    Raises:
        UserError: ratings have no scale.
    """
    explicit = experiment.settings.data.feedback == "explicit"
    scale = rating_scale(experiment.organisations.each)
    if len(scale) > MOST_VALUES:
        raise UserError(
            f"ratings have {len(scale):,} different values, and what is read is a scale of at most "
            f"{MOST_VALUES}: round the ratings, or attack a run of implicit feedback"
        )
    # |2 (R - F)| for F on the scale, and |R - σ(F)|: bounds that no data change.
    clip = 2 * float(scale[-1] - scale[0]) if explicit else 1.0
    rows = []
    for name, settings in protections(experiment.settings, clip, each).items():
        heard = overhear(experiment, settings, draws, reader)
        said = guarantee(settings, float(scale[-1] - scale[0]))
        for count in sorted({1, draws}):
            about = {"residuals": name, "guarantee": said, "draws": count}
            rows.append(about | _row(heard, count, scale if explicit else None))
        told(name)
    return rows


def report(rows: Sequence[Mapping[str, Any]], reader: str, folder: Path) -> Report:
    """Lay the rows out, and draw them into a folder.

    Raises:
        UserError: the folder cannot be written.
    """
    return Report(
        name=NAME,
        title=f"Ratings that {reader} recovers from the residuals of round 1",
        rows=rows,
        view=[_shown(row) for row in rows],
        first=("seen", "differential privacy"),
        notes=_notes(rows),
        figure=draw(rows, folder / f"{NAME}.png"),
    )


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> Path | None:
    """Draw what is recovered under each protection, beside the guess without residuals.

    Raises:
        UserError: the file cannot be written.
    """
    panels = [
        Dots(label, _groups(rows, share, trivial), bounds=(0.0, None))
        for share, (label, trivial) in _PANELS.items()
        if share in rows[0]
    ]
    return plot_panels(panels, "Recovered from the residuals of round 1", path)


def _row(heard: Sequence[Overheard], draws: int, scale: Any) -> dict[str, Any]:
    counted = {"cells": sum(len(one.ratings) for one in heard), "pattern": share_of_pattern(heard)}
    if scale is None:
        return counted | shares_of_labels(heard, draws)
    return counted | shares_of_ratings(heard, draws, scale)


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    columns = _IMPLICIT if "labels" in row else _EXPLICIT
    shares = {name: f"{100 * row[key]:.1f} %" for name, key in columns.items()}
    about = {"residuals": row["residuals"], "seen": _seen(row)}
    return about | shares | {"differential privacy": row["guarantee"]}


def _notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    first = rows[0]
    return [
        f"* the run itself. {first['cells']:,} cells are read; that they are rated is known of "
        f"{100 * first['pattern']:.1f} % of all training cells, whatever protects the residuals.",
        "In brackets: what a guess without any residual gets.",
        "The mean of several draws is what a reader has of noise that is fresh in each round, as "
        "far as residuals stay as they are.",
        "The first readers are simple: a share below the guess is no proof that nothing leaks. Who "
        "weighs knows the means, how noise is drawn, and how frequent ratings are where means are "
        "about the same.",
        "What dp and ip clip to depends on the data, so they guarantee nothing.",
    ]


def _groups(
    rows: Sequence[Mapping[str, Any]], share: str, trivial: str
) -> dict[str, dict[str, Spread]]:
    groups: dict[str, dict[str, Spread]] = {}
    for row in rows:
        group = groups.setdefault(row["residuals"], {})
        group[_seen(row)] = _bar(row[share])
    for row in rows:
        groups[row["residuals"]]["without residuals"] = _bar(row[trivial])
    return groups


def _seen(row: Mapping[str, Any]) -> str:
    return "one draw" if row["draws"] == 1 else f"mean of {row['draws']} draws"


def _bar(share: float) -> Spread:
    return Spread(100 * share, math.nan, 1)
