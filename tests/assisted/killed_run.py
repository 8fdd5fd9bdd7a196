"""Runs that kill themselves: a JSON list of jobs [CLIENT, STEP, WORD, ...], a word of the command.

Organisation 1 dies in that step of the second round. Prints how the processes ended, as a list.
"""

import json
import os
import signal
import sys

from tests.forks import status

import coterie.core.training.train  # noqa: F401  (what every fork needs)
from coterie.core.cli.main import main
from coterie.core.registry.papers import load
from coterie.core.training.callbacks import files


def run(path, step, *words):
    client = load(path)
    bound = getattr(client, step)

    def dies(self, down, mine, data, key):
        if data.id == 1 and down.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return bound(self, down, mine, data, key)

    dies.__name__, dies.step = step, bound.step
    setattr(client, step, dies)
    main(list(words))


if __name__ == "__main__":
    jobs = json.loads(sys.argv[1])
    files.render = lambda *_: []  # what draws is imported for longer than these rounds take
    for path, *_ in jobs:
        load(path)
    print(json.dumps([status(lambda job=job: run(*job)) for job in jobs]))
