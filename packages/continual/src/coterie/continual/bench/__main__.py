"""Measure one size of `coterie.continual.bench.scaling` and print it as JSON."""

import json
import sys

from coterie.continual.bench.scaling import measure

if __name__ == "__main__":
    clients, chunk = map(int, sys.argv[1:])
    sys.stdout.write(json.dumps(measure(clients, chunk or None)))
