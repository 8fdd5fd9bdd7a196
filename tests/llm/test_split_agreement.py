"""Client and server agree on every setting that decides what the backbone is pre-trained on."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coterie.core.settings.sections import EngineSettings, LoggerSettings, RunSettings
from coterie.llm.data.client_data import PublicData
from coterie.llm.experiment import Experiment
from coterie.llm.halves import agreement
from coterie.llm.settings import FederatedDataSettings, Settings

DEFAULT = FederatedDataSettings()
# Of the sample, and with each of them another public slice is seen by pre-training.
OTHERS = {
    "min_interactions": 8,
    "min_rating": 4.0,
    "public": 0.4,
    "max_history": 5,
    "min_history": 3,
    "span": 20,
    "stride": 2,
}
FREE = {
    "root": "elsewhere",
    "clients": 3,
    "shots": 50,
    "valid_users": 4,
    "partition": "shops",
    "skew": 0.5,
}
ELSEWHERE = {"name", "columns"}  # tested with files


def with_data(**changes: object) -> Settings:
    return Settings(data=FederatedDataSettings(**changes))


def seen(settings: Settings) -> list[Tensor]:
    """All numbers that pre-training reads."""
    public: PublicData = Experiment(settings).data.public
    return [
        torch.tensor([settings.data.max_history]),
        *(
            tensor
            for part in (public.train, public.held_out)
            for tensor in (part.history.values, part.history.offsets, part.target)
        ),
    ]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(map(torch.equal, first, second))


@pytest.fixture(scope="module")
def by_default() -> list[Tensor]:
    return seen(Settings())


def test_every_setting_of_the_data_is_decided_about() -> None:
    names = {field.name for field in dataclasses.fields(FederatedDataSettings)}
    assert names == set(OTHERS) | set(FREE) | ELSEWHERE


@pytest.mark.parametrize("name", OTHERS)
def test_another_public_slice_is_refused(name: str, by_default: list[Tensor]) -> None:
    changed = with_data(**{name: OTHERS[name]})
    assert not same(seen(changed), by_default)  # it does matter
    assert agreement(changed) != agreement(Settings())


@pytest.mark.parametrize("name", FREE)
def test_what_pre_training_does_not_see_is_free(name: str, by_default: list[Tensor]) -> None:
    changed = with_data(**{name: FREE[name]})
    assert same(seen(changed), by_default)
    assert agreement(changed) == agreement(Settings())


def test_other_sections_are_free() -> None:
    same_run = Settings(
        method="fedavg",
        rounds=3,
        engine=EngineSettings(threads=2, chunk=3),
        logger=LoggerSettings(wandb="off", project="p"),
        run=RunSettings(out="elsewhere", name="n", checkpoint_every=3, resume=True),
    )
    assert agreement(same_run) == agreement(Settings())
    assert agreement(Settings(engine=EngineSettings(dtype="float64"))) != agreement(Settings())


def test_the_default_filter_is_the_number_it_stands_for() -> None:
    assert agreement(with_data(min_interactions=5)) == agreement(Settings())
    assert agreement(with_data(name="ml-100k")) != agreement(with_data(name="ml-1m"))


def test_a_file_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    file, copy = tmp_path / "mine.csv", tmp_path / "there" / "yours.csv"
    file.write_text("user,item,time\na,b,1\n")
    copy.parent.mkdir()
    shutil.copy(file, copy)
    ours = agreement(with_data(name=str(file)))
    assert agreement(with_data(name=str(copy))) == ours
    columns = {"user": "u", "item": "i", "time": "t"}
    assert agreement(with_data(name=str(file), columns=columns)) != ours
    turned = dict(reversed(columns.items()))
    assert agreement(with_data(name=str(file), columns=turned)) == agreement(
        with_data(name=str(file), columns=columns)
    )
    copy.write_text("user,item,time\na,c,1\n")
    assert agreement(with_data(name=str(copy))) != ours


@pytest.mark.parametrize(
    "section",
    [
        {"model": dataclasses.replace(Settings().model, items="words")},
        {"expert": dataclasses.replace(Settings().expert, words=("genres",))},
        {"pretrain": dataclasses.replace(Settings().pretrain, lr=0.5)},
        {"lora": dataclasses.replace(Settings().lora, rank=3)},
    ],
    ids=lambda section: next(iter(section)),
)
def test_what_the_backbone_is_made_of_is_agreed_upon(section: dict[str, object]) -> None:
    """The words that item embeddings start from too, which ``expert.words`` names."""
    assert agreement(dataclasses.replace(Settings(), **section)) != agreement(Settings())
