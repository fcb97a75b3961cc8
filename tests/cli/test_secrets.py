"""Secrets on a real cluster: the program has them, and nothing else that can be read on the machine does."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from agent.host.host_pids import pids_of
from chaos.container_image import IMAGE
from chaos.dockerd import Dockerd
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.api.client import ControlClient
from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.local.layout import Layout, LocalDocker, LocalMount, LocalSettings
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.views.jobs import ExecChunk, ExecRequest, SubmitRequest, TailChunk, TailRequest
from tests.cli.printing import PrintingShell
from tests.support.waiting import wait_until

T = TypeVar("T")

TOKEN = "hf_Abcdef012345"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----"
VALUES = (TOKEN, *KEY.splitlines()[1:3])
DIGEST = hashlib.sha256(f"{TOKEN}{KEY}".encode()).hexdigest()
WARM = """
import hashlib, os, sys, time
token, key = os.environ["TOKEN"], os.environ["KEY"]
print("digest", hashlib.sha256((token + key).encode()).hexdigest(), flush=True)
sys.stdout.write("token " + token[:5]); sys.stdout.flush(); time.sleep(0.1); print(token[5:], flush=True)
print(key, flush=True)
while not os.path.exists("go"): time.sleep(0.02)
raise RuntimeError("bad " + token)
"""
COLD = """
echo digest $(printf '%s' "$TOKEN$KEY" | sha256sum)
echo "token $TOKEN" >&2
echo "$KEY"
exec sleep 600
"""
JOB = """
name: quiet
strategy: plain
preload: []
env: {TOKEN: {secret: token}}
restart: {max: 0}
roles:
  warm: {count: 1, command: [python3, warm.py], env: {KEY: {secret: key}}}
  cold: {count: 1, command: [sh, cold.sh], env: {KEY: {secret: key}}}
"""


@dataclass
class Place:
    """A cluster with secrets from a file and from a command, which says them in no argument."""

    root: Path
    cluster: LocalCluster
    shell: PrintingShell
    dockerd: Dockerd | None

    def add_the_one_of_a_command(self) -> None:
        """As an operator does: by the configuration, and SIGHUP."""
        script = f"print(open({str(self.root / 'vault')!r}).read())"
        for name in ("supervisor-0", "supervisor-1"):
            path = self.cluster.layout.config(name)
            config = json.loads(path.read_text().partition("\n")[2])
            config["secrets"]["key"] = {"command": [sys.executable, "-c", script], "allow": ["*"]}
            path.write_text(json.dumps(config))
            os.kill(self.cluster.member(name).pid, signal.SIGHUP)

    @property
    def job(self) -> str:
        return str(self.root / "job" / "job.yaml")

    def validates(self) -> bool:
        spec = load_job_file(Path(self.job), checkpoint_base=self.cluster.layout.checkpoint_base).spec
        return self._asked(lambda client: client.validate(SubmitRequest(spec))) is not None

    def pids(self) -> dict[str, int]:
        status = self._asked(lambda client: client.status("quiet"))
        return {each.task.partition("/")[2]: each.pid for each in status.jobs[0].tasks} if status else {}

    def wait_printed(self, text: str) -> None:
        for role in ("warm", "cold"):
            wait_until(partial(self._has_printed, role, text), f"{role} prints {text!r}")

    def _has_printed(self, role: str, text: str) -> bool:
        return text in self.printed(role)

    def printed(self, role: str) -> str:
        request = TailRequest(f"quiet/{role}:0")
        return self._asked(lambda client: _joined(client.tail(request))) or ""

    def serves(self) -> bool:
        """Whether the tasks' agent answers."""
        return self.ran("echo yes") == "yes\n"

    def ran(self, script: str) -> str:
        request = ExecRequest("quiet/cold:0", ("sh", "-c", script), 30_000)
        return self._asked(lambda client: _joined(client.exec(request))) or ""

    def check_command(self, pid: int) -> None:
        """An operator's command sees what the task's user may see, and its output comes masked."""
        printed = self.ran(f"cat /proc/{pids_of(pid)[-1]}/environ; echo ${{KEY-unset}}")
        assert "TOKEN=***" in printed
        assert printed.endswith("unset\n")
        assert not any(value in printed for value in VALUES)

    def _asked(self, ask: Callable[[ControlClient], Awaitable[T]]) -> T | None:
        async def answer() -> T | None:
            async with self.cluster.client() as client:
                try:
                    return await ask(client)
                except TfSupervisorError:
                    return None

        return asyncio.run(answer())


async def _joined(chunks: AsyncIterator[TailChunk] | AsyncIterator[ExecChunk]) -> str:
    return b"".join([base64.b64decode(chunk.data) async for chunk in chunks]).decode()


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    own = Layout._own

    def audited(layout: Layout, name: str, settings: LocalSettings) -> dict[str, object]:
        return own(layout, name, settings) | {"audit": {"file": str(layout.state / f"{name}-audit.jsonl")}}

    monkeypatch.setattr(Layout, "_own", audited)
    job = tmp_path / "job"
    job.mkdir()
    job.chmod(0o777)
    tmp_path.chmod(0o755)
    for name, text in (("warm.py", WARM), ("cold.sh", COLD), ("job.yaml", JOB)):
        (job / name).write_text(text)
    for name, text in (("token", TOKEN), ("vault", KEY)):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(text)
    docker, dockerd = None, None
    if request.param == "docker":
        dockerd = request.getfixturevalue("dockerd")
        docker = LocalDocker(str(dockerd.socket), IMAGE, (LocalMount(str(job), read_only=False),))
    cluster = LocalCluster(tmp_path / "state", nodes=1, profile="default", docker=docker)
    cluster.secrets = {"token": str(tmp_path / "token")}
    with cluster:
        yield Place(tmp_path, cluster, PrintingShell(cluster), dockerd)


def found_in_files(root: Path) -> list[str]:
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 20
    return [str(path) for path in files if any(value.encode() in path.read_bytes() for value in VALUES)]


def found_in_processes(what: str, but: set[int]) -> dict[int, bytes]:
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / what).read_bytes()
        except OSError:
            continue
        if int(process.name) not in but and any(value.encode() in text for value in VALUES):
            found[int(process.name)] = text
    return found


def test_a_secret_is_where_its_program_is_and_nowhere_else(place: Place) -> None:
    shell, layout = place.shell, place.cluster.layout
    refused = shell("validate", place.job, code=2).stderr
    assert "job.yaml:8: roles.warm.env.KEY: there is no secret 'key'; an operator adds it to" in refused
    place.add_the_one_of_a_command()
    wait_until(place.validates, "it is read again")
    shell("submit", place.job)
    place.wait_printed(f"digest {DIGEST}")
    place.wait_printed("token ***\n***\n")
    pids = place.pids()
    assert pids["cold:0"] in found_in_processes("environ", but=set()), "else the look finds nothing"
    assert not found_in_processes("environ", but={pids["cold:0"]})
    assert not found_in_processes("cmdline", but=set())
    if place.dockerd is not None:
        containers = place.dockerd.cli("ps", "--all", "--quiet").split()
        told = [place.dockerd.cli(what, *containers[:count]) for what, count in (("inspect", 9), ("logs", 1))]
        assert not any(value in text for value in VALUES for text in told)
    place.check_command(pids["cold:0"])
    place.cluster.kill_member("agent-0")
    wait_until(place.serves, "a successor serves")
    assert place.pids() == pids, "and has adopted them"
    place.check_command(pids["cold:0"])
    (place.root / "job" / "go").touch()
    shell("wait", "quiet", "--for", "failed", "--timeout", "60")
    told = [
        shell(*words).stdout for words in (["explain", "quiet"], ["events"], ["--output", "json", "status"])
    ]
    told.append(place.printed("warm"))
    assert "RuntimeError: bad ***" in told[0]
    assert not any(value in text for value in VALUES for text in told)
    audit = "".join(path.read_text() for path in layout.state.glob("*-audit.jsonl")).splitlines()
    asked_for = [line for line in map(json.loads, audit) if line["method"] == "Link.Secrets"]
    assert {line["on"]["task"] for line in asked_for} == {"quiet/warm:0", "quiet/cold:0"}
    assert sum(line.get("result") == "ok" for line in asked_for) == 2, "each was given them once"
    place.cluster.down()
    assert found_in_files(layout.state) == []
