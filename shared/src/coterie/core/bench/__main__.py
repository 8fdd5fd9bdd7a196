"""Call a function and print its result as JSON, for `coterie.core.bench.timing.in_a_process`."""

import json
import sys

from coterie.core.registry.papers import load

if __name__ == "__main__":
    function, arguments = sys.argv[1:]
    sys.stdout.write(json.dumps(load(function)(*json.loads(arguments))))
