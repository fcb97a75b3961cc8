"""An embedded cluster and an agent of a pool in two network namespaces: as on two machines, over TLS."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from supervisor.cli.local.layout import Layout
from tests.cli.shell import environment
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HERE, THERE = "10.213.7.1", "10.213.7.2"
JOB = f"""
name: counts
command: [{sys.executable}, -u, -c, "import time; print('step 1'); time.sleep(600)"]
strategy: plain
roles: {{worker: {{count: 1}}}}
preload: []
"""


class Machine:
    """A network namespace, and a name of the machine that is its address."""

    def __init__(self, name: str, address: str, state: Path) -> None:
        self.name = f"tfsup-{name}-{os.getpid()}"
        self.address = address
        self.state = state

    def argv(self, module: str, *words: str) -> list[str]:
        inside = f'hostname {self.address} && exec "$@"'
        python = (sys.executable, "-m", module)
        return [
            "ip",
            "netns",
            "exec",
            self.name,
            "unshare",
            "--uts",
            "sh",
            "-c",
            inside,
            "sh",
            *python,
            *words,
        ]

    def ctl(self, *words: str) -> str:
        argv = self.argv("supervisor.cli.main", "--state", str(self.state), *words)
        done = subprocess.run(
            argv, env=environment(), capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    with ExitStack() as stack:
        # Paths of sockets are short.
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfsup-n-"))) / "state"
        found = Machine("a", HERE, state), Machine("b", THERE, state)
        for each in found:
            ip("netns", "add", each.name)
            stack.callback(ip, "netns", "del", each.name)
        first, second = found
        ip("-n", first.name, "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", second.name)
        for each in found:
            ip("-n", each.name, "address", "add", f"{each.address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                ip("-n", each.name, "link", "set", link, "up")
        yield found


def test_an_agent_of_another_machine_joins_trains_and_is_reached(machines: tuple[Machine, Machine]) -> None:
    here, there = machines
    layout = Layout.of(here.state)
    with ExitStack() as stack:
        here.ctl("local", "up", "--advertise", HERE, "--scratch", str(here.state.parent), "--profile", "fast")
        stack.callback(here.ctl, "local", "down")
        token = layout.config("pool").with_name("p.token")
        here.ctl("pool", "token", "p", str(token))
        options = ("--pool", "p", "--place", "b", "--id", "1", "--token", str(token))
        files = ("--agent-config", str(layout.config("pool")), "--state", str(here.state))
        log = stack.enter_context((here.state.parent / "agent.log").open("w+"))
        keeper = subprocess.Popen(
            there.argv("supervisor.engines.keeper", *options, *files),
            env=environment(),
            stdout=log,
            stderr=log,
        )
        stack.callback(keeper.wait, 60)
        stack.callback(keeper.terminate)
        wait_until(lambda: "ready" in here.ctl("nodes"), "the agent joins")
        (here.state.parent / "job.yaml").write_text(JOB)
        there.ctl("submit", str(here.state.parent / "job.yaml"))
        wait_until(lambda: " running " in here.ctl("status", "counts"), "its task runs")
        # Supervisors reach the agent at its machine's name, and it shows its certificate.
        wait_until(lambda: "step 1" in here.ctl("tail", "counts/worker:0"), "its output is there")
        assert "p.b" in there.ctl("status", "counts")
