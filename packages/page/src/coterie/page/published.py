"""The paper's own numbers, as shares of 1, and what they were measured on. Torch-free."""

from __future__ import annotations

from coterie.page.settings.networks import OF_TASK
from coterie.page.settings.run import Settings, TaskSettings

CLIENTS = 100
"""Of every task (section 5.1)."""
METHODS = (
    "fedavg",
    "fedprox",
    "scaffold",
    "feddyn",
    "dap-fl",
    "fedrecon",
    "pfedme",
    "ditto",
    "fedala",
    "fed-rod",
    "page",
)
"""The columns and rows of the paper's tables, in their order."""

# Table 1: global and local accuracy in per cent, mean and its spread.
TABLE1: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "synthetic": {
        "fedavg": (91.46, 0.07, 95.26, 1.26),
        "fedprox": (91.48, 0.05, 95.49, 0.35),
        "scaffold": (97.37, 0.08, 95.71, 0.53),
        "feddyn": (97.57, 0.07, 94.11, 1.42),
        "dap-fl": (92.19, 0.13, 94.14, 1.11),
        "pfedme": (85.59, 0.25, 90.23, 1.02),
        "ditto": (92.09, 0.17, 95.56, 1.12),
        "fedala": (85.51, 0.04, 95.42, 1.07),
        "fed-rod": (87.93, 0.21, 90.63, 1.12),
        "page": (92.67, 0.13, 96.24, 0.33),
    },
    "cifar-100": {
        "fedavg": (32.97, 0.03, 38.30, 0.44),
        "fedprox": (33.46, 0.12, 39.22, 0.77),
        "scaffold": (32.81, 0.03, 36.12, 0.81),
        "feddyn": (33.47, 0.05, 35.28, 1.11),
        "dap-fl": (32.28, 0.27, 40.72, 1.41),
        "fedrecon": (24.88, 0.14, 31.75, 0.65),
        "pfedme": (30.29, 0.03, 38.68, 0.45),
        "ditto": (31.86, 0.24, 39.93, 1.35),
        "fedala": (32.10, 0.05, 39.63, 0.84),
        "fed-rod": (31.75, 0.41, 31.47, 0.59),
        "page": (33.55, 0.14, 40.94, 0.26),
    },
    "tiny-imagenet-200": {
        "fedavg": (7.85, 0.04, 11.29, 0.74),
        "fedprox": (7.79, 0.05, 11.55, 0.93),
        "scaffold": (8.39, 0.02, 9.17, 0.94),
        "feddyn": (7.84, 0.27, 11.45, 1.14),
        "dap-fl": (8.40, 0.43, 11.75, 2.19),
        "fedrecon": (6.25, 0.25, 10.15, 1.13),
        "pfedme": (6.60, 0.08, 9.23, 0.36),
        "ditto": (7.77, 0.05, 9.59, 0.22),
        "fedala": (7.63, 0.05, 9.83, 0.66),
        "fed-rod": (8.13, 0.46, 12.34, 0.52),
        "page": (8.45, 0.17, 12.83, 0.48),
    },
    "shakespeare": {
        "fedavg": (47.52, 0.07, 40.24, 1.45),
        "fedprox": (47.29, 0.12, 40.51, 1.25),
        "scaffold": (49.14, 0.06, 39.36, 0.49),
        "feddyn": (51.68, 0.14, 42.82, 0.72),
        "dap-fl": (51.67, 0.26, 48.85, 1.38),
        "fedrecon": (38.54, 0.06, 35.61, 2.02),
        "pfedme": (43.19, 0.04, 41.99, 0.69),
        "ditto": (48.95, 0.04, 47.05, 0.47),
        "fedala": (43.45, 0.09, 46.77, 1.14),
        "fed-rod": (46.04, 0.11, 43.23, 1.17),
        "page": (51.74, 0.24, 49.27, 0.55),
    },
}

# Table 2: the round at which a method converges, in the order of METHODS.
TABLE2: dict[str, tuple[int | None, ...]] = {
    "synthetic": (902, 896, 878, 901, 900, None, 843, 491, 501, 497, 891),
    "cifar-100": (510, 497, 540, 502, 337, 641, 550, 313, 506, 401, 499),
    "tiny-imagenet-200": (430, 479, 422, 366, 402, 361, 513, 490, 523, 493, 404),
    "shakespeare": (552, 655, 546, 607, 590, 657, 642, 498, 646, 556, 602),
}

Accuracies = dict[str, dict[str, dict[str, tuple[float, float]]]]

# Table 3: global and local accuracy in per cent, by strength of the skew and method.
TABLE3: Accuracies = {
    "cifar-100": {
        "σ=0.1": {
            "page": (33.47, 40.96),
            "fedrecon": (24.13, 31.88),
            "pfedme": (30.22, 38.92),
            "ditto": (31.46, 39.93),
            "fedala": (31.55, 39.63),
            "fed-rod": (31.71, 32.19),
        },
        "σ=0.3": {
            "page": (33.61, 40.91),
            "fedrecon": (22.91, 32.91),
            "pfedme": (30.18, 39.45),
            "ditto": (30.96, 39.93),
            "fedala": (31.46, 39.64),
            "fed-rod": (31.39, 32.31),
        },
        "σ=0.5": {
            "page": (33.52, 40.93),
            "fedrecon": (21.23, 34.95),
            "pfedme": (30.09, 39.68),
            "ditto": (30.31, 39.95),
            "fedala": (31.08, 39.64),
            "fed-rod": (31.06, 32.88),
        },
        "δ=0.1": {
            "page": (32.69, 54.58),
            "fedrecon": (23.77, 47.29),
            "pfedme": (28.26, 47.23),
            "ditto": (30.59, 53.50),
            "fedala": (30.46, 53.58),
            "fed-rod": (30.53, 49.44),
        },
        "δ=0.5": {
            "page": (33.57, 40.97),
            "fedrecon": (25.24, 25.65),
            "pfedme": (31.36, 33.28),
            "ditto": (32.47, 36.46),
            "fedala": (32.27, 34.98),
            "fed-rod": (32.35, 28.18),
        },
        "δ=1": {
            "page": (33.53, 40.02),
            "fedrecon": (25.69, 20.13),
            "pfedme": (31.47, 29.62),
            "ditto": (32.79, 33.24),
            "fedala": (32.84, 30.24),
            "fed-rod": (32.16, 22.98),
        },
    },
}

# Table 4: global and local accuracy in per cent, and the round of the equilibrium.
TABLE4: dict[str, dict[str, dict[str, tuple[float, float, int]]]] = {
    "synthetic": {
        "clients": {
            "50": (91.75, 96.62, 618),
            "100": (92.67, 96.24, 891),
            "1000": (92.39, 96.43, 928),
        },
        "ratio": {"1:1": (92.67, 96.24, 891)},
    },
    "cifar-100": {
        "clients": {"100": (33.55, 40.94, 499)},
        "ratio": {
            "10:1": (35.11, 40.19, 538),
            "1:1": (33.55, 40.94, 499),
            "1:10": (31.91, 41.55, 493),
        },
    },
}

# Table 5: milliseconds per byte; of which bytes, the paper does not say.
TABLE5 = {
    "local training": 1.45e-4,
    "aggregation": 1.93e-5,
    "client agents": 6.84e-5,
    "server agent": 7.38e-5,
}


def reference(task: str, method: str) -> dict[str, float]:
    """Give the paper's global and local accuracy by the names of our measurements.

    Example:
        >>> reference("synthetic", "page")
        {'test/server_accuracy': 0.9267, 'test/personal_accuracy': 0.9624}
    """
    printed = TABLE1.get(task, {}).get(method)
    if printed is None:
        return {}
    return {
        "test/server_accuracy": round(printed[0] / 100, 6),
        "test/personal_accuracy": round(printed[2] / 100, 6),
    }


def convergence_round(task: str, method: str) -> int | None:
    """Give the paper's round of convergence (Table 2).

    Example:
        >>> convergence_round("synthetic", "page"), convergence_round("synthetic", "local")
        (891, None)
    """
    rounds = dict(zip(METHODS, TABLE2.get(task, ()), strict=False))
    return rounds.get(method)


def departures(settings: Settings) -> list[str]:
    """Say in what a run's clients, data and network are not the paper's.

    Example:
        >>> departures(Settings()), departures(Settings(data=TaskSettings(clients=5)))
        ([], ['5 clients (100)'])
    """
    data, usual = settings.data, TaskSettings()
    network = OF_TASK.get(data.name)
    found = []
    if settings.model.name not in (None, network):
        found.append(f"network {settings.model.name} ({network})")
    if data.clients not in (None, CLIENTS):
        found.append(f"{data.clients} clients ({CLIENTS})")
    if data.samples is not None:
        found.append(f"at most {data.samples} samples (all)")
    for name in ("partition", "label_skew", "quantity_skew", "feature_skew"):
        own, theirs = getattr(data, name), getattr(usual, name)
        if own != theirs:
            found.append(f"data.{name} {own} ({theirs})")
    return found
