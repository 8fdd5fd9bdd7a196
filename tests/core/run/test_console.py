"""What is printed before a run."""

from coterie.core.registry.papers import find_paper
from coterie.core.run.experiment import Experiment
from coterie.core.settings.base import BaseSettings
from coterie.core.training.train import show_data


def test_an_experiment_that_describes_no_data_has_a_line_and_no_table(capsys):
    show_data(find_paper("page"), Experiment(BaseSettings(method="mine", seed=7)))
    [line] = capsys.readouterr().out.splitlines()
    assert line == "page: mine (recommended reading), seed 7, on sample"


def test_a_row_of_the_table_is_a_block(capsys):
    class Described(Experiment):
        def describe_data(self):
            return [{"block": 0, "users": 1234}, {"block": 1, "users": 5}]

    show_data(find_paper("page"), Described(BaseSettings(method="mine")))
    _, head, _, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (head, rows) == (["block", "users"], [["0", "1,234"], ["1", "5"]])
