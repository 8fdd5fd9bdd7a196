"""Short runs of the five papers on their samples, for tests of what is done with a run."""

from pathlib import Path

import pytest

from coterie.core.cli.main import main
from coterie.core.federation.selection import Selecting

SETTINGS = {
    # Of the backbones of f3crec, the one whose scores have an offset that is no zero.
    "f3crec": "--model.name fedncf --model.dim 8 --replay.top_n 10",
    "page": "--data.clients 10 --certify false",
    "pf-msmtrec": "--compare false --model.experts 2 --model.expert_layers [16] "
    "--model.tower_layers [8]",
    "mtal": "--compare false",
    "pplr": "--data.shots 120 --model.layers 1 --model.width 16 --model.trained lora "
    "--pretrain.steps 5",
}


class ShortRuns(dict[str, Path]):
    """Folders of runs by paper, each trained when it is first asked for; not to be written into.

    Args:
        out: where they are.
    """

    def __init__(self, out: Path) -> None:
        super().__init__()
        self.out = out

    def __missing__(self, paper: str) -> Path:
        common = ["--out", str(self.out), "--run.name", "a", "--logger.wandb", "off"]
        common += ["--run.progress", "false", "--rounds", "1" if paper == "mtal" else "2"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Selecting, "opened", lambda self, state, cohort: state)
            patch.setenv("XDG_CACHE_HOME", str(self.out / "cache"))
            assert main(["train", paper, *common, *SETTINGS[paper].split()]) == 0
        self[paper] = self.out / paper / "a"
        return self[paper]
