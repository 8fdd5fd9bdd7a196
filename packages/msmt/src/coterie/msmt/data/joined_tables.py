"""Public data sets joined into tables with named columns: MIND, Douban, Ali-CCP, KuaiRand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID
from coterie.core.tensors.keys import Key
from coterie.msmt.data.cut import Rows, cut
from coterie.msmt.data.named_tables import Tables, file_of
from coterie.msmt.data.task import Task
from coterie.msmt.settings import ScenarioData


@dataclass(frozen=True)
class OneTask:
    """How such a file is written.

    Attributes:
        name: of the data set; the file is ``name.csv``, or begins with the name.
        categories: columns that are inputs.
        task: name of the task.
        label: its column.
        scenario: column that tells scenarios apart.
        scenarios: its values that are taken.
    """

    name: str
    categories: tuple[str, ...]
    task: str
    label: str
    scenario: str
    scenarios: tuple[str, ...]

    def read(
        self, folder: Path, settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32
    ) -> Task:
        """Read the file, and cut every scenario at random; see `coterie.msmt.data.make.READERS`.

        Raises:
            UserError: the file is missing or malformed, or has none of the scenarios.
        """
        path = file_of(folder, f"{self.name}.csv", f"{self.name}*.csv")
        tables = Tables.read([path], (*self.categories, self.label, self.scenario))
        known = {name: name for name in self.scenarios}
        scenario, names, notes = tables.scenarios(self.scenario, known)
        rows = Rows(
            categories={name: tables.codes(name) for name in self.categories},
            numbers={},
            scenario=scenario,
            scenarios=names,
            labels={self.task: tables.label(self.label)},
        )
        rows = rows.take((scenario >= 0).nonzero().flatten())
        return cut(rows, settings, key, name=self.name, scaling="range", dtype=dtype, notes=notes)


# MIND (Wu et al., ACL 2020): kinds of news are the scenarios, the click is the one task.
#
# Read as Scenario-Wise-Rec shares it, an impression a row: ``mind.csv`` or another name that begins
# with ``mind``, with the columns ``User_ID``, ``News_ID``, ``label``, ``Category``,
# ``SubCategory``. The four categories that are used there are taken.

read_mind = OneTask(
    name="mind",
    categories=("User_ID", "News_ID", "SubCategory"),
    task="click",
    label="label",
    scenario="Category",
    scenarios=("news", "lifestyle", "sports", "finance"),
).read


# Douban (Zhu et al., 2020): books, films and music are the scenarios, a good rating the one task.
#
# Read as Scenario-Wise-Rec shares it: ``douban.csv`` or another name that begins with ``douban``,
# with the columns ``user_id``, ``item_id``, ``rating`` (0 or 1), ``domain``, ``living_place``,
# ``time_bin`` (when the user joined). Users are the same people in all domains; the living place
# may be blank.

read_douban = OneTask(
    name="douban",
    categories=("user_id", "item_id", "living_place", "time_bin"),
    task="rating",
    label="rating",
    scenario="domain",
    scenarios=("book", "music", "movie"),
).read


# Ali-CCP (Ma et al., SIGIR 2018; tianchi 408): positions on the page are the scenarios.
#
# Read as Scenario-Wise-Rec and torch-rechub share it: ``ali_ccp_train.csv``, ``ali_ccp_val.csv``,
# ``ali_ccp_test.csv`` (or ``…_sample.csv``), whose column ``301`` is the position. Columns that
# begin with ``D`` are numbers, all others categories.

TASKS = ("click", "purchase")
_SCENARIO = "301"
_SCENARIOS = {str(value): f"position {value}" for value in (1, 2, 3)}
_PARTS = {"train": TRAIN, "val": VALID, "test": TEST}


def read_ali_ccp(
    folder: Path, settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32
) -> Task:
    """Read the three files, in the parts that they give; see `coterie.msmt.data.make.READERS`.

    Raises:
        UserError: a file is missing or malformed, or a row has a purchase without a click.
    """
    names = [(f"ali_ccp_{part}.csv", f"ali_ccp_{part}_sample.csv") for part in _PARTS]
    tables = Tables.read([file_of(folder, *each) for each in names], (*TASKS, _SCENARIO))
    scenario, scenarios, notes = tables.scenarios(_SCENARIO, _SCENARIOS)
    inputs = [name for name in tables.names if name not in (*TASKS, _SCENARIO)]
    parts = [torch.full((len(t),), p) for t, p in zip(tables.tables, _PARTS.values(), strict=True)]
    rows = Rows(
        categories={name: tables.codes(name) for name in inputs if not name.startswith("D")},
        numbers={name: tables.numbers(name) for name in inputs if name.startswith("D")},
        scenario=scenario,
        scenarios=scenarios,
        labels=_labels(tables),
        part=torch.cat(parts),
        funnel=True,
    )
    rows = rows.take((scenario >= 0).nonzero().flatten())
    return cut(rows, settings, key, name="ali-ccp", scaling="range", dtype=dtype, notes=notes)


def _labels(tables: Tables) -> dict[str, Tensor]:
    labels = {name: tables.label(name) for name in TASKS}
    torn = labels["purchase"] > labels["click"]
    if bool(torn.any()):
        raise tables.fault(int(torn.int().argmax()), "a purchase without a click")
    return labels


# KuaiRand (Gao et al., CIKM 2022): the app's tabs, in which videos are shown, are the scenarios.
#
# Read as Scenario-Wise-Rec shares it, a file of logs joined with what is known of users and videos:
# ``kuairand.csv`` or another name that begins with ``kuairand``. Its five tabs are taken. The tasks
# are ``click`` and ``long_view``: a video of 18 seconds or less was played to its end, or a longer
# one for 18 seconds at least (a column of that name is preferred to the rule).
#
# How long something was played or looked at tells the labels and is no input.

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
