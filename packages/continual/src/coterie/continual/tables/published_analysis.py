"""The paper's Tables 3 to 8 as printed; all with FedMF. Torch-free."""

from __future__ import annotations

# data set -> method -> (N@20, R@20), means over D1 to D3 (Tables 3 and 6; FT and F³CRec are those
# of Table 2).
TABLE_3: dict[str, dict[str, tuple[float, float]]] = {
    "ml-100k": {
        "f3crec": (0.1034, 0.1680),
        "f3crec-wo-cc": (0.0969, 0.1509),
        "f3crec-wo-arm": (0.0996, 0.1544),
        "ft": (0.0855, 0.1384),
    },
    "lastfm-2k": {
        "f3crec": (0.0600, 0.1008),
        "f3crec-wo-cc": (0.0536, 0.0966),
        "f3crec-wo-arm": (0.0534, 0.0949),
        "ft": (0.0471, 0.0862),
    },
}
TABLE_6: dict[str, dict[str, tuple[float, float]]] = {
    "ml-100k": {
        "f3crec": (0.1034, 0.1680),
        "f3crec-wo-sc": (0.0941, 0.1491),
        "f3crec-wo-itm": (0.0993, 0.1569),
        "ft": (0.0855, 0.1384),
    },
    "lastfm-2k": {
        "f3crec": (0.0600, 0.1008),
        "f3crec-wo-sc": (0.0545, 0.0920),
        "f3crec-wo-itm": (0.0545, 0.0961),
        "ft": (0.0471, 0.0862),
    },
}
# The same tables' "Decrease." columns, per cent.
DECREASES: dict[str, dict[str, tuple[float, float]]] = {
    "ml-100k": {
        "f3crec-wo-cc": (-6.35, -10.17),
        "f3crec-wo-arm": (-3.71, -8.07),
        "f3crec-wo-sc": (-8.96, -11.25),
        "f3crec-wo-itm": (-4.01, -6.60),
        "ft": (-17.36, -17.60),
    },
    "lastfm-2k": {
        "f3crec-wo-cc": (-10.65, -4.14),
        "f3crec-wo-arm": (-11.06, -5.81),
        "f3crec-wo-sc": (-9.15, -8.68),
        "f3crec-wo-itm": (-9.19, -4.58),
        "ft": (-21.45, -14.46),
    },
}

# data set -> method -> (static users, dynamic users): (a00 - a10) / a00 with N@20.
TABLE_4: dict[str, dict[str, tuple[float, float]]] = {
    "ml-100k": {
        "f3crec": (0.5583, 0.7162),
        "f3crec-wo-arm": (0.6674, 0.7552),
        "spp": (0.7039, 0.7860),
    },
    "lastfm-2k": {
        "f3crec": (0.2993, 0.3374),
        "f3crec-wo-arm": (0.2772, 0.4567),
        "spp": (0.2965, 0.5480),
    },
}
# The same for a10, N@20 on the test of D0 after D1.
TABLE_5: dict[str, dict[str, tuple[float, float]]] = {
    "ml-100k": {
        "f3crec": (0.0788, 0.0620),
        "f3crec-wo-arm": (0.0783, 0.0592),
        "spp": (0.0697, 0.0536),
    },
    "lastfm-2k": {
        "f3crec": (0.0681, 0.0263),
        "f3crec-wo-arm": (0.0681, 0.0334),
        "spp": (0.0634, 0.0368),
    },
}

# data set -> method -> (static items, dynamic items, diff): rates of change of ranks.
TABLE_7: dict[str, dict[str, tuple[float, float, float]]] = {
    "ml-100k": {
        "f3crec": (0.0312, 0.3038, 0.2726),
        "f3crec-wo-itm": (0.0470, 0.2954, 0.2484),
    },
    "lastfm-2k": {
        "f3crec": (0.0516, 0.5403, 0.4887),
        "f3crec-wo-itm": (0.0691, 0.3305, 0.2614),
    },
}

NOISES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
# data set -> metric -> means over blocks with noise λ of NOISES, F³CRec.
TABLE_8: dict[str, dict[str, tuple[float, ...]]] = {
    "ml-100k": {
        "ndcg": (0.1034, 0.1021, 0.0959, 0.0951, 0.1004, 0.0950),
        "recall": (0.1680, 0.1661, 0.1584, 0.1620, 0.1633, 0.1643),
    },
    "ml-latest-small": {
        "ndcg": (0.0758, 0.0613, 0.0632, 0.0658, 0.0602, 0.0614),
        "recall": (0.1083, 0.0870, 0.0945, 0.0936, 0.0776, 0.0836),
    },
    "lastfm-2k": {
        "ndcg": (0.0600, 0.0530, 0.0526, 0.0516, 0.0501, 0.0493),
        "recall": (0.1008, 0.0978, 0.0969, 0.1018, 0.0929, 0.0922),
    },
    "hetrec2011-movielens": {
        "ndcg": (0.0872, 0.0829, 0.0854, 0.0811, 0.0824, 0.0794),
        "recall": (0.1105, 0.1055, 0.1055, 0.1019, 0.1024, 0.1053),
    },
}
