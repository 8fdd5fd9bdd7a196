"""How many rounds a table plays."""

from pathlib import Path

import pytest
import yaml

from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper
from coterie.core.settings.configuration import configure
from coterie.page.settings import DEMONSTRATION, Settings
from coterie.page.tables.study import ROUNDS, Study

CONFIG = Path(__file__).parents[2] / "configs" / "page.yaml"


@pytest.mark.parametrize(
    ("words", "rounds"),
    [
        ([], ROUNDS),
        (["--rounds", "7"], 7),
        (["--rounds", str(DEMONSTRATION)], DEMONSTRATION),
        (["--preset", "smoke"], 2),
        (["--data", "synthetic-fedprox"], 200),
    ],
)
def test_tables_play_as_long_as_the_public_code_unless_told_otherwise(words, rounds):
    study = Study(configure(find_paper("page"), words), (0,), 0)
    assert study.settings.rounds == rounds


def test_the_demonstration_is_that_of_the_configuration():
    assert yaml.safe_load(CONFIG.read_text())["rounds"] == DEMONSTRATION == Settings().rounds


@pytest.mark.parametrize("method", ["page", "fedavg"])
def test_a_table_refuses_a_method_as_it_runs_its_own(method):
    study = Study(configure(find_paper("page"), ["--method", method]), (0,), 0)
    with pytest.raises(UserError, match="leave out --method"):
        _ = study.settings


def test_the_method_of_a_file_of_settings_is_the_run_s_and_no_mistake(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("method: fedavg\n")
    study = Study(configure(find_paper("page"), ["--config", str(file)]), (0,), 0)
    assert study.variant().method == "page"
