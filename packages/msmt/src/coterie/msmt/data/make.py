"""Make a task from its settings, and count its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from coterie.core.data.sources.catalogue import data_folder
from coterie.core.errors import UserError, nearest
from coterie.core.registry.data_sets import data_set
from coterie.core.registry.papers import load
from coterie.core.tensors.keys import Key
from coterie.msmt.data.describe import describe, undefined
from coterie.msmt.data.drawn import Amounts, Form, Noise
from coterie.msmt.data.task import Task
from coterie.msmt.data.worlds import Teacher, World, make_teacher, make_world
from coterie.msmt.data_sets import OPTIONS
from coterie.msmt.settings import ScenarioData

READERS: dict[str, str] = {
    "ml-1m": "coterie.msmt.data.movielens:read_movielens",
    "census-income": "coterie.msmt.data.census:read_census",
    "aliexpress": "coterie.msmt.data.aliexpress:read_aliexpress",
    "tenrec": "coterie.msmt.data.tenrec:read_tenrec",
    "ali-ccp": "coterie.msmt.data.joined_tables:read_ali_ccp",
    "kuairand": "coterie.msmt.data.joined_tables:read_kuairand",
    "mind": "coterie.msmt.data.joined_tables:read_mind",
    "douban": "coterie.msmt.data.joined_tables:read_douban",
}
"""``module:function`` of the sets that are read, imported where one is asked for: a function that
gives the task, of the folder with the files, gzipped or not, the section ``data`` of the settings,
the key of all draws, and the dtype of numbers."""

_SAMPLE = World(form=Form((10, 4, 6, 21, 7, 8), 12))


def make_task(settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32) -> Task:
    """Draw or read a task, and cut it into scenarios, each a client.

    Args:
        settings: the section ``data``.
        key: of all draws.
        dtype: of the numbers, whose values do not depend on it.

    Raises:
        UserError: there is no such data set, its files are missing or malformed, or it has too few
            samples.
    """
    drawn: Mapping[str, Callable[[], Task]] = {
        "sample": lambda: _sample(settings, key, dtype),
        "world": lambda: _world(settings, key, dtype),
        "teacher": lambda: _teacher(settings, key, dtype),
    }
    if settings.name in drawn:
        task = drawn[settings.name]()
    elif settings.name in READERS:
        folder = data_folder(data_set(settings.name), settings.root)
        task = load(READERS[settings.name])(folder, settings, key, dtype)
    elif settings.is_file:
        from coterie.msmt.data.own_file import read_own_file  # pyarrow is heavy

        task = read_own_file(settings, key, dtype)
    else:
        raise UserError(
            f"'{settings.name}' is neither a data set with scenarios and tasks nor a file: "
            + nearest(settings.name, OPTIONS)
        )
    return replace(task, notes=(*task.notes, *undefined(task)))


def _sample(settings: ScenarioData, key: Key, dtype: torch.dtype) -> Task:
    amounts = Amounts((500, 1000, 2000, 4000), None if settings.paper_protocol else 1000, 2000)
    return make_world(_SAMPLE, amounts, key, dtype, name="sample")


def _world(settings: ScenarioData, key: Key, dtype: torch.dtype) -> Task:
    world = World(cov_shift=settings.cov_shift)
    world = replace(world, noise=_noise(settings, world.noise))
    if settings.shift is not None:
        world = replace(world, shift=settings.shift)
    amounts = _amounts(settings, (1000, 2000, 4000, 8000), 2000, 6000)
    return make_world(world, amounts, key, dtype)


def _teacher(settings: ScenarioData, key: Key, dtype: torch.dtype) -> Task:
    teacher = Teacher()
    teacher = replace(teacher, noise=_noise(settings, teacher.noise))
    if settings.shift is not None:
        teacher = replace(teacher, shift=settings.shift)
    return make_teacher(teacher, _amounts(settings, (500,) * 12, 1000, 3000), key, dtype)


def _noise(settings: ScenarioData, default: Noise) -> Noise:
    snr = default.snr if settings.snr is None else settings.snr
    return replace(default, rho=settings.rho, snr=snr)


def _amounts(settings: ScenarioData, train: tuple[int, ...], valid: int, test: int) -> Amounts:
    return Amounts(
        settings.rows or train,
        None if settings.paper_protocol else settings.valid_rows or valid,
        settings.test_rows or test,
    )


# Count the samples of the scenarios of sets that are read, for ``coterie data NAME``.


def of_scenarios(name: str, folder: Path) -> list[dict[str, Any]]:
    """Count the samples of each scenario, as a run with no settings would have them.

    Args:
        name: of the data set.
        folder: where its files are.

    Raises:
        UserError: a file is missing or malformed.
    """
    task: Task = load(READERS[name])(folder, ScenarioData(name=name), Key.from_seed(0))
    rows = []
    for row in describe(task):
        total = sum(row[part] for part in ("train", "valid", "test"))
        rows.append({"part": row.pop("scenario"), "samples": total, **row})
    return rows


aliexpress = partial(of_scenarios, "aliexpress")
tenrec = partial(of_scenarios, "tenrec")
ali_ccp = partial(of_scenarios, "ali-ccp")
kuairand = partial(of_scenarios, "kuairand")
mind = partial(of_scenarios, "mind")
"""Of a folder; named in `coterie.msmt.data_sets`."""
