"""KuaiRand (Gao et al., CIKM 2022): the app's tabs, in which videos are shown, are the scenarios.

Read as Scenario-Wise-Rec shares it, a file of logs joined with what is known of users and videos:
``kuairand.csv`` or another name that begins with ``kuairand``. Its five tabs are taken. The tasks
are ``click`` and ``long_view``: a video of 18 seconds or less was played to its end, or a longer
one for 18 seconds at least (a column of that name is preferred to the rule).

How long something was played or looked at tells the labels and is no input.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key
from coterie.msmt.data.cut import Rows, cut
from coterie.msmt.data.formats.named_tables import Tables, file_of
from coterie.msmt.data.task import Task
from coterie.msmt.settings.data import ScenarioData

TABS = (0, 1, 2, 4, 6)
NUMBERS = ("duration_ms", "follow_user_num", "fans_user_num", "friend_user_num", "register_days")
CATEGORIES = (
    *("user_id", "video_id", "user_active_degree", "is_lowactive_period", "is_live_streamer"),
    *("is_video_author", "follow_user_num_range", "fans_user_num_range", "friend_user_num_range"),
    *("register_days_range", *(f"onehot_feat{number}" for number in range(18))),
    *("video_type", "visible_status", "server_width", "server_height"),
)

_NEEDED = ("user_id", "video_id", "is_click", "play_time_ms", "duration_ms", "tab")
_LONG = 18_000  # milliseconds


def read_kuairand(
    folder: Path, settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32
) -> Task:
    """Read the file, and cut every tab at random; see `coterie.msmt.data.make.READERS`.

    Raises:
        UserError: the file is missing or malformed, or has none of the tabs.
    """
    path = file_of(folder, "kuairand.csv", "kuairand*.csv")
    tables = Tables.read([path], _NEEDED)
    scenario, scenarios, notes = tables.scenarios("tab", {str(tab): f"tab {tab}" for tab in TABS})
    columns = tables.names
    rows = Rows(
        categories={name: tables.codes(name) for name in CATEGORIES if name in columns},
        numbers={name: tables.numbers(name) for name in NUMBERS if name in columns},
        scenario=scenario,
        scenarios=scenarios,
        labels={"click": tables.label("is_click"), "long_view": _long_view(tables)},
    )
    rows = rows.take((scenario >= 0).nonzero().flatten())
    return cut(rows, settings, key, name="kuairand", scaling="range", dtype=dtype, notes=notes)


def _long_view(tables: Tables) -> Tensor:
    if "long_view" in tables.names:
        return tables.label("long_view")
    played = tables.numbers("play_time_ms")
    return (played >= tables.numbers("duration_ms").clamp(max=_LONG)).byte()
