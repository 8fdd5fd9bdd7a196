"""Train in processes that kill themselves: arguments OUT KILL_AT ...; prints how each ended.

KILL_AT is where the process that trains in the folder OUT/KILL_AT ends itself by SIGKILL: ``round``
(in the middle of an ask, after some chunks have been committed), ``asks`` (between two asks of a
round), ``switch`` (while a block is closed and the next one opened), ``write`` (while a checkpoint
is written), or ``summary`` (after the last round, before the summary is written).
"""

import os
import signal
import sys

import torch
from tests.forks import status

from coterie.continual.client import ContinualClient
from coterie.continual.experiment import Experiment
from coterie.continual.settings import ModelSettings, Settings, StreamSettings
from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.registry.papers import find_paper
from coterie.core.run.runfolder import RunFolder
from coterie.core.settings.sections import (
    EngineSettings,
    LoggerSettings,
    PrivacySettings,
    RunSettings,
    ValidationSettings,
)
from coterie.core.training.callbacks import files
from coterie.core.training.train import train

MOMENTS = ("round", "asks", "switch", "write", "summary")
SCALE = 0.05


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(owner, name, number, after=False):
    """Die at call ``number`` of ``owner.name``."""
    original, calls = getattr(owner, name), [0]

    def counted(*args, **kwargs):
        calls[0] += 1
        if calls[0] == number and not after:
            die()
        result = original(*args, **kwargs)
        if calls[0] == number:
            die()
        return result

    setattr(owner, name, counted)


def arm(kill_at):
    match kill_at:
        case "round":  # the third chunk of the second update; two chunks are committed
            at_call(ContinualClient, "update", 6)
        case "asks":  # after the update of round 2, before its evaluation
            at_call(ExchangeCohort, "ask", 4, after=True)
        case "switch":  # clients have ended the block, the next one is not open yet
            at_call(ContinualClient, "start_block", 2)
        case "summary":  # all rounds are done and kept, the summary is not written
            at_call(RunFolder, "write_summary", 1)
        case "write":
            at_call(os, "fsync", 6)


def settings(out, resume=False):
    return Settings(
        rounds=2,
        data=StreamSettings(fractions=(0.6, 0.2)),  # a base block and two more
        participation=0.7,
        validation=ValidationSettings(clients=50),
        model=ModelSettings(dim=8, batch_size=64),
        engine=EngineSettings(chunk=64),
        privacy=PrivacySettings(clip=1.0, noise="laplace", scale=SCALE),
        logger=LoggerSettings(wandb="off"),
        run=RunSettings(out=str(out), name="run", resume=resume, progress=False),
    )


def run(out, kill_at="none", resume=False):
    torch.set_num_threads(1)
    arm(kill_at)
    train(find_paper("f3crec"), settings(out, resume))


def main(out, *moments):
    files.render = lambda *_: []  # what draws is imported for longer than these rounds take
    assert Experiment(settings(out)).blocks  # data and imports that every fork then has
    for kill_at in moments:
        print(kill_at, status(lambda at=kill_at: run(f"{out}/{at}", at)))


if __name__ == "__main__":
    main(*sys.argv[1:])
