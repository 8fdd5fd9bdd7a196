"""MIND (Wu et al., ACL 2020): kinds of news are the scenarios, the click is the one task.

Read as Scenario-Wise-Rec shares it, an impression a row: ``mind.csv`` or another name that begins
with ``mind``, with the columns ``User_ID``, ``News_ID``, ``label``, ``Category``, ``SubCategory``.
The four categories that are used there are taken.
"""

from __future__ import annotations

from coterie.msmt.data.formats.one_task import OneTask

read_mind = OneTask(
    name="mind",
    categories=("User_ID", "News_ID", "SubCategory"),
    task="click",
    label="label",
    scenario="Category",
    scenarios=("news", "lifestyle", "sports", "finance"),
).read
