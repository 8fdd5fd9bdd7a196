"""What W&B's own variables of the environment ask for. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.core.errors import UserError, nearest
from coterie.core.settings.config_files import Source

_MODES = {
    "online": "online",
    "run": "online",  # W&B's older word
    "shared": "online",
    "offline": "offline",
    "dryrun": "offline",  # the same
    "disabled": "off",
}
_TRUE = ("true", "1", "yes", "on", "t", "y")


def wandb_mode(environment: Mapping[str, str]) -> list[Source]:
    """Read ``WANDB_MODE``, or ``WANDB_DISABLED``, as a source of settings; none if neither is set.

    Raises:
        UserError: the mode is none of W&B's.

    Example:
        >>> wandb_mode({"WANDB_MODE": "disabled"})[0].values, wandb_mode({})
        ({'logger.wandb': 'off'}, [])
    """
    if environment.get("WANDB_DISABLED", "").strip().lower() in _TRUE:
        return [Source("WANDB_DISABLED", {"logger.wandb": "off"})]
    word = environment.get("WANDB_MODE", "").strip().lower()
    if not word:
        return []
    if word not in _MODES:
        hint = nearest(word, _MODES)
        raise UserError(f"WANDB_MODE in the environment is '{word}': {hint}, or unset it")
    return [Source("WANDB_MODE", {"logger.wandb": _MODES[word]})]
