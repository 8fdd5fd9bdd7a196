"""Which retention a method has on its clients."""

from __future__ import annotations

from dataclasses import replace

from coterie.continual.backbones import Backbone
from coterie.continual.retention.adaptive_replay import AdaptiveReplay
from coterie.continual.retention.base import Retention
from coterie.continual.retention.distillation import Distillation
from coterie.continual.retention.proxies import Proxies
from coterie.continual.retention.regularisation import Regularisation
from coterie.continual.retention.reloop import ErrorMemory
from coterie.continual.settings import Settings


def make_retention(settings: Settings, backbone: Backbone) -> Retention:
    """Build the client side of ``settings.method``."""
    match settings.method:
        case "ft" | "f3crec-wo-cc":
            return Retention(backbone)
        case "reg":
            return Regularisation(backbone, settings.reg)
        case "kd":
            own = replace(settings.replay, lambda_kd=settings.kd.strength)
            return Distillation(backbone, own)
        case "f3crec-wo-arm":
            return Distillation(backbone, settings.replay)
        case "rlp2":
            return ErrorMemory(backbone, settings.rlp2)
        case "spp":
            return Proxies(backbone, settings.spp)
        case "f3crec" | "f3crec-wo-sc" | "f3crec-wo-itm":
            return AdaptiveReplay(backbone, settings.replay)
