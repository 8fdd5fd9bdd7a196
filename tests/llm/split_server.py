"""A server process for the tests: the middle of a tiny Llama.

python -m tests.llm.split_server N_LAYERS K STATE [CERT KEY CLIENT_CA] [--slow SECONDS]
"""

import sys
import time
from pathlib import Path

import torch
from tests.llm.tiny_split import TinyLlama

from coterie.llm.split.cut import cut
from coterie.llm.split.grpc_link import Tls
from coterie.llm.split.grpc_server import MiddleServer
from coterie.llm.split.middle import Middle
from coterie.llm.split.state_folder import StateFolder
from coterie.llm.split.tokens import make_secret
from coterie.llm.split.training import Training

MAX_BYTES = 1 << 20
TRAINING = Training(lr=0.01)


class Slow(Middle):
    """Takes its time in backward, so that it can be killed in the middle of it."""

    seconds = 0.0

    def backward(self, *arguments):
        sys.stdout.write("backward\n")
        sys.stdout.flush()
        time.sleep(self.seconds)
        return super().backward(*arguments)


def main(words: list[str]) -> None:
    torch.set_num_threads(1)
    if "--slow" in words:
        Slow.seconds = float(words.pop())
        words.pop()
    n_layers, k, state, *files = words
    tls = None
    if files:
        certificate, key, *root = [Path(file) for file in files]
        tls = Tls(root[0] if root else None, certificate, key)
    parts = cut(TinyLlama(int(n_layers)), int(k))
    folder = Path(state)
    middle = Slow(parts.stack, TRAINING, folder=StateFolder(folder, parts.model))
    secret = make_secret(folder / "secret")
    server = MiddleServer(middle, parts.model, secret, "127.0.0.1:0", tls=tls, max_bytes=MAX_BYTES)
    server.start()
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    server.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
