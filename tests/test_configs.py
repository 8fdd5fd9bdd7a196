"""Every packed configuration fits the real settings."""

from pathlib import Path

import pytest

from coterie.core.cli.sweep import read_sweep
from coterie.core.registry.papers import (
    Paper,
    load,
    paper_file,
    papers,
    presets,
    sweep_file,
    variants,
)
from coterie.core.settings.configuration import configure, read_packed
from coterie.core.settings.parser import leaves

SWEEPS = Path(__file__).resolve().parents[1] / "configs" / "sweeps"
each_paper = pytest.mark.parametrize("paper", papers().values(), ids=lambda paper: paper.name)


@each_paper
def test_every_preset_and_variant_is_accepted(paper: Paper) -> None:
    assert presets()
    for preset in presets():
        assert configure(paper, ["--preset", preset]).settings
    for variant in variants(paper):
        found = configure(paper, ["--variant", variant])
        assert f"configs/{paper.name}/{variant}.yaml" in found.sources
    general = paper_file(paper)
    if general is not None:
        assert read_packed(general, load(paper.settings), paper.name).values


def with_sweep() -> list[Paper]:
    return [paper for paper in papers().values() if (SWEEPS / f"{paper.name}.yaml").is_file()]


def test_the_papers_of_the_workspace_have_sweeps() -> None:
    assert {"f3crec", "mtal", "page", "pplr"} <= {paper.name for paper in with_sweep()}


@pytest.mark.parametrize("paper", with_sweep(), ids=lambda paper: paper.name)
def test_the_sweep_varies_real_settings_within_their_types(paper: Paper) -> None:
    known = list(leaves(load(paper.settings)))
    sweep = read_sweep("sweep", sweep_file(paper).read_text("utf-8"), known)
    for chosen in sweep.settings(count=5):
        flags = [f"--{key}={value}" for key, value in chosen.items()]
        assert configure(paper, [*sweep.flags, *flags]).settings


@each_paper
def test_descriptor_matches_the_settings(paper: Paper) -> None:
    known = leaves(load(paper.settings))
    assert known["method"].choices == paper.methods
    assert set(paper.variant_keys) <= set(known)
    assert {"reading", "seed", "rounds", "data.name", "run.out"} <= set(known)
    assert [leaf.key for leaf in known.values() if not leaf.help] == []
