"""Measure the memory of one run and print it as JSON, see `coterie.llm.bench.memory`."""

import json
import sys
from dataclasses import asdict

from coterie.llm.bench.federation import Shape
from coterie.llm.bench.memory import measure
from coterie.llm.settings.backbone import LoraSettings

if __name__ == "__main__":
    clients, shape = json.loads(sys.argv[1])
    lora = LoraSettings(**shape.pop("lora"))
    sys.stdout.write(json.dumps(asdict(measure(clients, Shape(**shape, lora=lora)))))
