"""What a round costs by engine, beside Flower's own FedAvg of the same model and steps.

    python -m benchmarks.core.engines

PAGE's Synthetic task: softmax regression of 60 features to 10 classes, three clients, 20 epochs in
batches of 5. Without the first round: seconds of the median one, CPU seconds of the whole machine
by round, so that nothing else must run.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from coterie.core.cli.deploy import follow, local_nodes
from coterie.core.cli.main import main as coterie
from coterie.core.files import write_text
from coterie.core.flower.app import write_app
from coterie.core.flower.node_folder import KEY
from coterie.core.flower.programs import environment, free_port, program
from coterie.core.flower.supervisor import Kept
from coterie.core.flower.trial import Trial
from coterie.core.protocol.card import Card

ROUNDS, NODES = 6, 3
SMALL = ["page", "--preset", "smoke", "--method", "fedavg", "--data.clients", str(NODES)]
SMALL += ["--rounds", str(ROUNDS), "--logger.wandb", "off"]
_SERVER = '''\
"""Flower's own FedAvg, with the model and the steps of the benchmark."""

import json
import os
import time

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    """Notes when a round begins."""

    def configure_train(self, server_round, *rest):
        with open(os.environ["COTERIE_SERVER"] + "/rounds.jsonl", "a") as file:
            file.write(json.dumps([time.time(), open("/proc/stat").readline()]) + chr(10))
        return super().configure_train(server_round, *rest)


@app.main()
def main(grid, context):
    """Run it."""
    start = ArrayRecord([np.zeros((10, 60), np.float32), np.zeros(10, np.float32)])
    found = Timed(min_available_nodes=%(nodes)d).start(grid, start, num_rounds=%(rounds)d + 1)
    with open(os.environ["COTERIE_SERVER"] + "/over", "w") as file:
        file.write(str(len(found.evaluate_metrics_clientapp)))
'''
_CLIENT = '''\
"""A client as Flower's quickstart has it: torch in the ClientApp."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def load(message):
    """Model and data."""
    weight, bias = (torch.tensor(a) for a in message.content["arrays"].to_numpy_ndarrays())
    features, labels = torch.randn(110, 60), torch.randint(0, 10, (110,))
    return weight.requires_grad_(), bias.requires_grad_(), features, labels


@app.train()
def train(message, context):
    """20 epochs of SGD in batches of 5."""
    weight, bias, features, labels = load(message)
    for _ in range(20):
        for batch in torch.randperm(len(labels)).split(5):
            scores = features[batch] @ weight.T + bias
            loss = torch.nn.functional.cross_entropy(scores, labels[batch])
            for one, grad in zip((weight, bias), torch.autograd.grad(loss, (weight, bias))):
                one.data.sub_(0.1 * grad)
    arrays = ArrayRecord([weight.detach().numpy(), bias.detach().numpy()])
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    """The loss."""
    weight, bias, features, labels = load(message)
    loss = torch.nn.functional.cross_entropy(features @ weight.T + bias, labels)
    metrics = MetricRecord({"loss": float(loss), "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
'''


def main() -> None:
    """Measure, and print a table in markdown."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        rows.append({"engine": "in process", **_trained(root / "inside")})
        words = ["--engine.name", "processes", "--engine.processes", str(NODES)]
        rows.append({"engine": f"{NODES} processes", **_trained(root / "apart", *words)})
        rows += _over_flower(root / "flower")
    heads = list(rows[0])
    sys.stdout.write(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n")
    for row in rows:
        sys.stdout.write(f"| {' | '.join(str(row[head]) for head in heads)} |\n")


def _trained(out: Path, *words: str) -> dict[str, Any]:
    assert coterie(["train", *SMALL, *words, "--run.out", str(out)]) == 0
    (run,) = out.glob("*/*")
    return _of(run)


def _of(run: Path, cpu: float | None = None) -> dict[str, Any]:
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))[1:]
    ways = ("cost/sent_bytes", "cost/received_bytes")
    sent = [sum(float(row.get(way) or 0) for way in ways) for row in rows]
    return {
        "seconds a round": round(median(float(row["cost/seconds"]) for row in rows), 3),
        "CPU seconds a round": "-" if cpu is None else round(cpu / len(rows), 2),
        "bytes a round": int(median(sent)) or "-",
    }


def _over_flower(root: Path) -> list[dict[str, Any]]:
    assert coterie(["deploy", *SMALL, "--nodes", str(NODES), "--out", str(root)]) == 0
    nodes, server = local_nodes(root, NODES), root / "server"
    with Trial(root / "trial", nodes, server) as trial:
        began = _after_first_round(server, lambda: follow(trial, root))
        state = json.loads((server / "status.json").read_text())
        ours = {"engine": f"{NODES} SuperNodes", **_of(Path(state["folder"]), _busy() - began)}
    write_app(root / "own", Card("page"), "Flower's own FedAvg.\n")
    fill = {"nodes": NODES, "rounds": ROUNDS}
    write_text(root / "own" / "coterie_app" / "server_app.py", _SERVER % fill)
    write_text(root / "own" / "coterie_app" / "client_app.py", _CLIENT)
    with _Plain(root / "plain", nodes, server) as trial:
        trial.submit(root / "own")
        while not (over := server / "over").exists() or not over.read_text():
            time.sleep(0.5)
    assert int(over.read_text()) == ROUNDS + 1  # all of them were answered
    told = [json.loads(line) for line in (server / "rounds.jsonl").read_text().splitlines()][1:]
    spans = [after[0] - before[0] for before, after in pairwise(told)]
    cpu = _busy(told[-1][1]) - _busy(told[0][1])
    theirs = {
        "engine": f"Flower's FedAvg, {NODES} SuperNodes",
        "seconds a round": round(median(spans), 3),
        "CPU seconds a round": round(cpu / len(spans), 2),
        "bytes a round": NODES * 3 * 610 * 4,  # the model down twice, and up
    }
    return [ours, theirs]


class _Plain(Trial):
    """SuperNodes that run the ClientApp that is sent, as Flower's do."""

    def start_node(self, node: Path) -> Kept:
        """Start one."""
        words = [
            *(program("flower-supernode"), "--superlink", self.address),
            *("--root-certificates", str(self.authority)),
            *("--auth-supernode-private-key", str(node / KEY)),
            *("--host", "127.0.0.1", "--port", str(free_port())),
        ]
        log = self.folder / "log" / f"{node.name}.log"
        kept = Kept(lambda: words, log, environment(node / "flower"))
        self._kept[node.name] = kept
        return kept


def _after_first_round(server: Path, run: Any) -> float:
    """Run, and give the machine's busy seconds when its first round was done."""
    import threading

    found: list[float] = []

    def watch() -> None:
        path = server / "status.json"
        while not found:
            time.sleep(0.2)
            if path.exists() and json.loads(path.read_text())["metrics"]:
                found.append(_busy())

    thread = threading.Thread(target=watch)
    thread.start()
    run()
    thread.join()
    return found[0]


def _busy(line: str | None = None) -> float:
    """Seconds in which the machine's processors were busy."""
    words = (line or Path("/proc/stat").read_text().splitlines()[0]).split()[1:]
    ticks = list(map(int, words))
    return (sum(ticks[:8]) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
