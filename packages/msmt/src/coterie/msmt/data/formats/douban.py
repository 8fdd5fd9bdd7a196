"""Douban (Zhu et al., 2020): books, films and music are the scenarios, a good rating the one task.

Read as Scenario-Wise-Rec shares it: ``douban.csv`` or another name that begins with ``douban``,
with the columns ``user_id``, ``item_id``, ``rating`` (0 or 1), ``domain``, ``living_place``,
``time_bin`` (when the user joined). Users are the same people in all domains; the living place may
be blank.
"""

from __future__ import annotations

from coterie.msmt.data.formats.one_task import OneTask

read_douban = OneTask(
    name="douban",
    categories=("user_id", "item_id", "living_place", "time_bin"),
    task="rating",
    label="rating",
    scenario="domain",
    scenarios=("book", "music", "movie"),
).read
