"""Organisations on hosts of their own, and a coordinator of whom they reach the proxy alone.

SuperLink and proxy are those of the deployment's ``compose.yaml`` and ``proxy.conf``: their
commands and files, with other places in them, as no container is started here.
"""

from __future__ import annotations

import shlex
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from tests.flower.clusters import SHORT, bits, deployed, undisturbed
from tests.hosts import HERE, Host, hosts

from coterie.core.cli.deploy import follow
from coterie.core.flower.certificates import write_authority
from coterie.core.flower.names import VARIABLE
from coterie.core.flower.node_folder import KEY
from coterie.core.flower.programs import environment, free_port, program
from coterie.core.flower.supervisor import Kept
from coterie.core.flower.trial import Trial

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs network namespaces"),
]
ASK = """
import ssl, sys, urllib.error, urllib.request
try:
    known = ssl.create_default_context(cafile=sys.argv[2])
    print(urllib.request.urlopen(sys.argv[1], b"", timeout=10, context=known).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError as error:
    print(type(getattr(error, "reason", error)).__name__)
"""


class Coordinator(Trial):
    """A SuperLink on this machine's loopback, a proxy for others, and nodes on their hosts."""

    def __init__(self, deployment: Path, nodes: Sequence[Path], there: Sequence[Host]) -> None:
        super().__init__(deployment / "trial", nodes, deployment / "server")
        self.deployment = deployment
        self.hosts = dict(zip((node.name for node in nodes), there, strict=True))
        self.published = f"{HERE}:{free_port()}"

    def _prepare(self) -> None:
        super()._prepare()
        write_authority(self.folder, names=("superlink", HERE))

    def _start_superlink(self) -> None:
        said = yaml.safe_load((self.deployment / "compose.yaml").read_text())
        command, *words = shlex.split(said["services"]["superlink"]["command"])
        changed = self._here(" ".join(words)).replace("0.0.0.0", "127.0.0.1")
        given = shlex.split(changed.replace("8000", str(self.port)))
        here = environment(self.folder / "flower") | {VARIABLE: str(self.server)}
        log = self.folder / "log" / "superlink.log"
        self._kept["superlink"] = Kept(lambda: [program(command), *given], log, here)
        self._wait_until_up()
        self._start_proxy()

    def _start_proxy(self) -> None:
        site = self._here((self.deployment / "proxy.conf").read_text())
        site = site.replace("superlink:8000", self.address)
        site = site.replace("listen 443", f"listen {self.published}")
        own = self.folder / "proxy.conf"
        own.write_text(
            f"daemon off; pid {self.folder}/proxy.pid; user root;\n"
            f"events {{}}\nhttp {{ access_log {self.folder}/access.log;\n{site}}}\n"
        )
        words = ["nginx", "-e", "stderr", "-c", str(own)]
        self._kept["proxy"] = Kept(lambda: words, self.folder / "log" / "proxy.log")

    def _here(self, text: str) -> str:
        for place in ("/certificates/", "/state/"):
            text = text.replace(place, f"{self.folder}/")
        return text

    def start_node(self, node: Path) -> Kept:
        command = [program("coterie"), "node", "up", str(node), "--superlink", self.published]
        command += ["--ca", str(self.authority), "--key", str(node / KEY)]
        words = self.hosts[node.name].words(command)
        kept = Kept(lambda: words, self.folder / "log" / f"{node.name}.log", once=(2,))
        self._kept[node.name] = kept
        return kept

    def told(self, host: Host, url: str) -> str:
        """What a host is told that asks for a page."""
        words = host.words([sys.executable, "-c", ASK, url, str(self.authority)])
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_a_run_over_hosts_has_the_bits_of_one_process(tmp_path: Path) -> None:
    """And a host reaches neither the SuperLink itself nor its commands through the proxy."""
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx")
    root = tmp_path / "d"
    nodes = deployed(root, SHORT)
    with hosts(len(nodes)) as there, Coordinator(root, nodes, there) as trial:
        state = follow(trial, root)
        assert state["state"] == "finished", state
        for path in ("/v1/control/start-run", "/health", "/v1/serverappio/pull", "/"):
            assert trial.told(there[0], f"https://{trial.published}{path}") == "403"
        assert trial.told(there[0], f"https://{trial.address}/health") == "ConnectionRefusedError"
        known = ssl.create_default_context(cafile=str(trial.authority))
        with urllib.request.urlopen(f"https://{trial.address}/health", context=known) as page:
            assert page.status == 200  # which this machine itself is told
        seen = (trial.folder / "access.log").read_text()
    assert all(f"{host.address} - - " in seen for host in there)
    assert bits(root, state) == undisturbed(root)
