"""The paper's Tables 1 and 3 as printed, and the mistake in Table 3. Torch-free."""

from __future__ import annotations

# Name of a data set here -> in the paper.
DATA_SETS = {"amazon-games": "Games", "microlens": "MicroLens", "amazon-books": "Book"}
# Backbone here -> the paper's nearest.
BACKBONES = {"tiny-text": "BIGRec", "recformer": "RecFormer"}
COLUMNS = ("recall@10", "recall@20", "ndcg@10", "ndcg@20")

Row = tuple[float, float, float, float]

# data set -> (backbone, "" without one) -> method -> R@10, R@20, N@10, N@20.
TABLE_1: dict[str, dict[str, dict[str, Row]]] = {
    "Games": {
        "": {
            "mf": (0.0101, 0.0164, 0.0070, 0.0090),
            "lightgcn": (0.0153, 0.0234, 0.0101, 0.0127),
            "fedmf": (0.0065, 0.0108, 0.0044, 0.0058),
            "lightfr": (0.0088, 0.0139, 0.0051, 0.0069),
            "fedpergnn": (0.0145, 0.0229, 0.0093, 0.0121),
        },
        "BIGRec": {
            "central": (0.0194, 0.0316, 0.0127, 0.0164),
            "fedavg": (0.0145, 0.0257, 0.0093, 0.0126),
            "fedprox": (0.0143, 0.0255, 0.0090, 0.0123),
            "pplr": (0.0158, 0.0274, 0.0104, 0.0139),
        },
        "RecFormer": {
            "central": (0.0193, 0.0360, 0.0117, 0.0169),
            "fedavg": (0.0149, 0.0262, 0.0089, 0.0124),
            "fedprox": (0.0150, 0.0266, 0.0086, 0.0121),
            "pplr": (0.0175, 0.0322, 0.0101, 0.0146),
        },
    },
    "MicroLens": {
        "": {
            "mf": (0.0044, 0.0063, 0.0026, 0.0032),
            "lightgcn": (0.0078, 0.0116, 0.0044, 0.0055),
            "fedmf": (0.0029, 0.0045, 0.0021, 0.0027),
            "lightfr": (0.0041, 0.0055, 0.0024, 0.0044),
            "fedpergnn": (0.0043, 0.0060, 0.0024, 0.0029),
        },
        "BIGRec": {
            "central": (0.0089, 0.0132, 0.0050, 0.0062),
            "fedavg": (0.0021, 0.0039, 0.0012, 0.0017),
            "fedprox": (0.0033, 0.0051, 0.0032, 0.0040),
            "pplr": (0.0088, 0.0128, 0.0051, 0.0062),
        },
        "RecFormer": {
            "central": (0.0190, 0.0369, 0.0104, 0.0155),
            "fedavg": (0.0096, 0.0198, 0.0048, 0.0076),
            "fedprox": (0.0086, 0.0166, 0.0041, 0.0064),
            "pplr": (0.0163, 0.0279, 0.0072, 0.0105),
        },
    },
    "Book": {
        "": {
            "mf": (0.0050, 0.0089, 0.0060, 0.0071),
            "lightgcn": (0.0065, 0.0120, 0.0078, 0.0093),
            "fedmf": (0.0050, 0.0070, 0.0034, 0.0041),
            "lightfr": (0.0048, 0.0079, 0.0049, 0.0061),
            "fedpergnn": (0.0062, 0.0112, 0.0075, 0.0089),
        },
        "BIGRec": {
            "central": (0.0079, 0.0097, 0.0126, 0.0116),
            "fedavg": (0.0081, 0.0097, 0.0119, 0.0112),
            "fedprox": (0.0081, 0.0096, 0.0120, 0.0112),
            "pplr": (0.0085, 0.0102, 0.0124, 0.0116),
        },
        "RecFormer": {
            "central": (0.0318, 0.0512, 0.0333, 0.038),
            "fedavg": (0.0095, 0.0150, 0.0104, 0.0118),
            "fedprox": (0.0103, 0.0161, 0.0113, 0.0130),
            "pplr": (0.0274, 0.0409, 0.0274, 0.0300),
        },
    },
}

# data set -> method -> Recall@10 of the five clients (BIGRec), and the imbalance as printed.
TABLE_3: dict[str, dict[str, tuple[tuple[float, ...], float]]] = {
    "Games": {
        "central": ((0.0227, 0.0338, 0.0144, 0.0163, 0.0153), 1.35),
        "fedavg": ((0.0157, 0.0208, 0.0235, 0.0085, 0.0127), 1.76),
        "pplr": ((0.0171, 0.0211, 0.0163, 0.0136, 0.0152), 0.55),
    },
    "MicroLens": {
        "central": ((0.0148, 0.0275, 0.0059, 0.0050, 0.0031), 4.50),
        "fedavg": ((0.0010, 0.0047, 0.0017, 0.0001, 0.0004), 46.00),
        "pplr": ((0.0170, 0.0120, 0.0066, 0.0042, 0.0062), 3.04),
    },
}

# The printed 4.50 is .0275 / .0050 - 1, but the worst client has .0031, which gives 7.87.
WRONG_IMBALANCES = {("MicroLens", "central")}


def table1(data: str, backbone: str, method: str) -> Row | None:
    """Give a row of Table 1, or None; ``backbone`` is "" for methods without one.

    Example:
        >>> table1("amazon-games", "recformer", "pplr")[0]
        0.0175
    """
    name = BACKBONES.get(backbone, backbone)
    return TABLE_1.get(DATA_SETS.get(data, ""), {}).get(name, {}).get(method)


def table3(data: str, method: str) -> tuple[tuple[float, ...], float] | None:
    """Give a row of Table 3: five clients and the imbalance, NaN where it is printed wrong.

    Example:
        >>> table3("microlens", "central")[1]
        nan
    """
    name = DATA_SETS.get(data, "")
    row = TABLE_3.get(name, {}).get(method)
    if row is None:
        return None
    return row[0], float("nan") if (name, method) in WRONG_IMBALANCES else row[1]
