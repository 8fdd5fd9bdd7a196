"""The readings of the paper: which of its open or contradictory choices a run makes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from coterie.core.agents.settings import DDPGSettings
from coterie.core.errors import UserError
from coterie.core.settings.schema import filled, values_of
from coterie.page.settings import Settings
from coterie.page.tasks import OF_TASK

_RECOMMENDED: dict[str, Any] = {
    "start": 0.8,
    "warm_up": 0,
    "gamma": 0.0,
    "critic_lr": 0.02,
    "actor_lr": 3e-4,
    "saturation": 0.2,
    "capacity": 200,
    "noise_sigma": 0.3,
    "noise_decay": 300,
    "noise_final": 0.2,
}
"""Of the leaders' agents: they begin near the largest learning rate and number of epochs, which a
method without choices has, rather than with random rounds, and learn for one stage at a time. What
a leader does hardly moves W, one of N models, so that is nearly its best policy over many stages
too; the certificate tests it with the discount of the paper. What is best changes as W does, so
they remember 200 stages and never stop exploring."""
_RELEASED: dict[str, Any] = {"init": "fan_out", "noise_dt": 0.01}
"""Of both agents, in the public code."""
_RELEASED_OF_TASK: dict[str, dict[str, Any]] = {
    "cifar-100": {"critic_lr": 1e-3, "actor_lr": 1e-4, "tau": 0.01},
    "tiny-imagenet-200": {"critic_lr": 0.05, "actor_lr": 0.005, "tau": 0.05},
    "shakespeare": {"critic_lr": 1e-3, "actor_lr": 1e-4, "tau": 1e-3},
}
"""Of both agents, in the public code for a task; those of Synthetic are `DDPGSettings`' own."""

_OF_GAME = ("follower", "order", "utility", "server_utility", "actions")
_CHOICES = {
    "recommended": ("best-response", "after", "bounded", "aggregate", "whole"),
    "literal": ("ddpg", "after", "inverse", "mixture", "whole"),
    "released": ("ddpg", "before", "inverse", "aggregate", "clipped"),
    "decoupled": ("best-response", "after", "bounded", "aggregate", "whole"),
}
_ALPHA = 1e-3
"""Of the drift dynamic: tuned among the values of FedDyn in configs/page/tuned-synthetic.yaml."""
_NO_UPDATES = {"local": "none is sent", "central": "the server has the samples themselves"}


def choices(settings: Settings) -> dict[str, Any]:
    """Give the choices of ``settings.reading`` for the section ``game``.

    - recommended: bounded utilities; the server's is that of the model it makes, and it answers
      after it has seen the clients' models (it is the follower).
    - literal: utilities as in Definition 1, u_i = 1/f_i and u_CS = 1/Σ p_i f_i.
    - released: what the public code means: p is chosen before the clients train, actions are
      clipped (nearly always to their upper end), utilities are not bounded, and all rounds are
      played, whether the game comes to rest or not.
    - decoupled: the follower of recommended, without its price on uneven weights; leaders send what
      training free of drift gives (λ = 1, FedDyn's regularizer), and choose a personal branch that
      is never sent.
    """
    found: dict[str, Any] = dict(zip(_OF_GAME, _CHOICES[settings.reading], strict=True))
    if settings.reading == "decoupled":
        found |= {"generality": 1.0, "evenness": 0.0, "drift": "dynamic", "patience": 100}
        return found if settings.game.drift == "control" else found | {"alpha": _ALPHA}
    return found | {"evenness": 0.02, "patience": 50}


def resolve(settings: Settings) -> Settings:
    """Fill what is open: the choices of the reading, the network of the task.

    What the user chose stays.

    Raises:
        UserError: choices do not go together.

    Example:
        >>> resolve(Settings(reading="literal")).game.utility
        'inverse'
    """
    network = OF_TASK.get(settings.data.name)
    branch = {"use": settings.method == "page" and settings.reading == "decoupled"}
    found = filled(
        settings, {"game": choices(settings), "model": {"name": network}, "branch": branch}
    )
    _check(found)
    leaders, follower = _agents(settings)
    usual = asdict(DDPGSettings())
    return filled(found, {"client_agent": usual | leaders, "server_agent": usual | follower})


def _agents(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Choices of the reading for the agents of the leaders, and for that of the follower."""
    of_task = _RELEASED_OF_TASK.get(settings.data.name, {})
    match settings.reading:
        case "recommended":
            return _RECOMMENDED, of_task
        case "literal" | "decoupled":  # in the latter a follower may be an agent, leaders are none
            return of_task, of_task
        case "released":
            released = of_task | _RELEASED
            # The public code's server explores in its warm-up only.
            return released, released | {"noise_sigma": 0.0}


def idle(settings: Settings) -> list[str]:
    """Name what was set for a game and has no effect in it, but for bounds of learning rates.

    Those stand in the configs of tasks.

    Args:
        settings: of a game, resolved.

    Example:
        >>> from coterie.page.settings import GameSettings
        >>> game = GameSettings(follower="ddpg", evenness=0.1)
        >>> idle(resolve(Settings(game=game)))
        ['game.evenness']
    """
    usual = resolve(Settings(reading=settings.reading, data=settings.data))
    own, theirs = values_of(settings), values_of(usual)
    unread = ["train.weighting"]
    if not (settings.tunes_lr or settings.tunes_epochs):
        unread += [name for name in own if name.startswith("client_agent.")]
    if not settings.game.tune_epochs:
        unread += ["game.epochs_min"]
    if not settings.game.tune_p:
        unread += ["game.follower", "game.order"]
    if settings.reading == "released":
        unread += ["game.patience", "game.tolerance"]
    learns = settings.game.tune_p and settings.game.follower == "ddpg"
    if learns or not settings.game.tune_p:
        unread += ["game.steps", "game.evenness"]
    if not learns and not settings.has_leaders:
        unread += ["game.reward_ratio"]
    if not learns:
        unread += [name for name in own if name.startswith("server_agent.")]
    return [name for name in unread if own[name] != theirs[name]]


def _check(settings: Settings) -> None:
    """Refuse choices that would have no effect, or contradict each other."""
    method, privacy = settings.method, settings.privacy
    if method == "page":
        _check_ranges(settings)
        _check_game(settings)
    if settings.certify:
        _check_certificate(settings)
    if method in _NO_UPDATES and (privacy.noise != "none" or privacy.clip is not None):
        raise UserError(
            "'privacy.noise' and 'privacy.clip' change the updates that clients send, and in "
            f"{method} {_NO_UPDATES[method]}: leave them out"
        )


def _check_ranges(settings: Settings) -> None:
    game, train = settings.game, settings.train
    if game.tune_lr and game.lr_min > train.lr:
        raise UserError(f"'game.lr_min' {game.lr_min:g} is above the most, 'train.lr' {train.lr:g}")
    if game.tune_epochs and game.epochs_min > train.epochs:
        raise UserError(
            f"'game.epochs_min' {game.epochs_min} is above 'train.epochs' {train.epochs}, the most"
        )
    if game.tune_epochs and game.actions == "clipped" and game.epochs_min > 1:
        raise UserError("'game.epochs_min' has no effect on clipped actions: leave it at 1")


def _check_game(settings: Settings) -> None:
    game = settings.game
    if settings.reading == "decoupled":
        if game.reward_ratio is not None:
            raise UserError(
                "'game.reward_ratio' has no effect in the reading decoupled, where no choice of a "
                "leader moves the server's utility: weigh by game.generality"
            )
        _check_drift(settings)
    elif settings.branch.use or {game.generality, game.drift, game.alpha} != {None}:
        raise UserError(
            "'game.generality', 'game.drift', 'game.alpha' and 'branch.use' are the reading "
            "decoupled's: add --reading decoupled"
        )
    if not (game.tune_p and game.follower == "best-response"):
        return
    if game.order == "before":
        raise UserError(
            "'game.order' before does not go with a best response, which needs the clients' "
            "models: choose game.follower ddpg"
        )
    if game.server_utility == "mixture":
        raise UserError(
            "'game.server_utility' mixture is best with all weight on one client: choose "
            "aggregate, or game.follower ddpg"
        )


def _check_drift(settings: Settings) -> None:
    """Refuse an α without effect, or one by which local steps would diverge."""
    game, lr = settings.game, settings.train.lr
    if game.alpha is None:
        return
    if game.drift != "dynamic":
        raise UserError("'game.alpha' has no effect with 'game.drift' control: leave it out")
    if lr * game.alpha >= 2:
        raise UserError(
            f"'train.lr' times 'game.alpha' is {lr * game.alpha:g}, and training diverges from 2 "
            "on: lower one"
        )


def _check_certificate(settings: Settings) -> None:
    """Refuse before the first round what could not be certified after the last."""
    if settings.method != "page":
        raise UserError("only a game has an equilibrium: certify goes with --method page")
    if settings.train.participation < 1:
        raise UserError("a certificate needs all clients in every round: train.participation 1")
    if not settings.has_leaders:
        raise UserError(
            "a certificate needs leaders that choose: certify goes with game.tune_lr and a "
            "game.lr_min below train.lr, or game.tune_epochs and a game.epochs_min below "
            "train.epochs"
        )
