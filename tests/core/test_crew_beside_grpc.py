"""Processes of ``engine.workers`` beside gRPC, which Flower and Ray bring, in the same process."""

import os
import subprocess
import sys

import pytest

CALLING = """
import os, sys, threading
from concurrent import futures
from coterie.core.federation.crew import Crew
import grpc

class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((Echo(),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/any/call")

def calling():
    while True:
        call(b"x", timeout=20)

for _ in range(2):
    threading.Thread(target=calling, daemon=True).start()
for _ in range(int(sys.argv[1])):
    crew = Crew(2, lambda common, given: common + given)
    assert [found for _, found in crew.answers(1, range(4))] == [1, 2, 3, 4]
    crew.rest()
os._exit(0)
"""


@pytest.mark.long
def test_forks_made_while_grpc_is_called_do_not_crash():
    pytest.importorskip("grpc")
    asked = {name: value for name, value in os.environ.items() if not name.startswith("GRPC")}
    done = subprocess.run(
        [sys.executable, "-c", CALLING, "150"], capture_output=True, text=True, env=asked
    )
    assert done.returncode == 0, done.stderr[-2000:]
