"""The ClientApp: hands a parcel to the process that has the clients, and brings its reply.

Flower starts a process for every message, so this one imports neither torch nor the rest of the
core. What goes wrong is told to the server without a word of this machine: the texts of exceptions
travel.
"""

from __future__ import annotations

from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from coterie.core.flower.node_folder import SOCKET

CONTROL, BODY, FOLDER = "control", "body", "folder"
"""Names in a message: of the record that says for whom it is, of that with the bytes."""
app = ClientApp()


@app.train()
def answer(message: Message, context: Context) -> Message:
    """Answer one message.

    Raises:
        RuntimeError: the process that has the clients is not there.
    """
    try:
        folder = str(message.content[CONTROL][FOLDER])
        reply = _asked(str(context.node_config[SOCKET]), folder, unpacked(message))
    except Exception:
        raise RuntimeError("the process with the clients is not there") from None
    return Message(content=RecordDict({BODY: packed(reply)}), reply_to=message)


def packed(content: bytes) -> ArrayRecord:
    """Bytes as Flower carries them: large ones in pieces."""
    return ArrayRecord({BODY: Array(np.frombuffer(content, np.uint8).copy())})


def unpacked(message: Message) -> bytes:
    """The bytes of a message.

    Raises:
        ValueError: it has none.
    """
    try:
        found = message.content[BODY][BODY].numpy()
    except Exception as error:  # whatever a node of another kind sends
        raise ValueError("a message without bytes") from error
    if found.dtype != np.uint8 or found.ndim != 1:
        raise ValueError("a message without bytes")
    return bytes(found.tobytes())


def _asked(socket: str, folder: str, parcel: bytes) -> bytes:
    with Client(str(Path(socket)), "AF_UNIX") as clients:
        clients.send_bytes(folder.encode())
        clients.send_bytes(parcel)
        return clients.recv_bytes()
