"""A pool that supervisors certify trains on a real Slurm, from an archive, with an etcd that has users."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from chaos.slurm import SlurmCluster
from supervisor.cli.pool import commands, tokens
from supervisor.engines import pools
from supervisor.engines.engine import Engine, PoolAgent, State
from supervisor.engines.slurm import Slurm
from tests.engines.certified import Site
from tests.engines.pool_shell import JOB, wait_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BARE = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
NAME = "train"
AGENTS = 3


@dataclass
class Machines:
    """A cluster with certificates, and a Slurm with a place for each of three agents."""

    site: Site
    slurm: SlurmCluster
    engine: Engine

    def up(self, *more: str) -> None:
        done = self.site.up(NAME, *more)
        assert done.exception is None, (done.output, done.exception)

    def pool(self, verb: str, *words: str) -> str:
        done = self.site.ctl("pool", verb, *words)
        assert done.exception is None, (done.output, done.exception)
        return done.output

    def lose(self, ident: str) -> None:
        """End an agent without a word to it."""
        self.slurm.run("scancel", "--batch", "--signal=KILL", ident)

    def agents(self) -> list[PoolAgent]:
        return [each for each in pools.live(self.engine, NAME) if each.state is State.RUNNING]

    def at(self, place: str) -> str:
        """The engine's name of the agent at a place."""
        return next(each.id for each in self.agents() if each.place == place)

    def ready(self) -> set[str]:
        return {node for node, state in self.site.states().items() if state == "ready"}

    def job(self) -> dict[str, Any]:
        return self.site.json("status", "digits")["jobs"][0]

    def tasks(self) -> dict[str, dict[str, Any]]:
        return {str(each["task"]).partition("/")[2]: each for each in self.job()["tasks"]}

    def trains(self, what: str) -> None:
        """Wait until every task runs and new steps are made."""
        wait_long(
            lambda: {each["state"] for each in self.tasks().values()} == {"running"}, f"{what}: all run"
        )
        step = int(self.job()["step"])
        wait_long(lambda: int(self.job()["step"]) > step + 20, f"{what}: new steps")

    def certificate(self, node: str) -> Path:
        return self.site.root / "agents" / node / "certificate.pem"

    def is_clean(self) -> bool:
        """Whether neither the engine nor the supervisors know anything of a pool."""
        return not pools.live(self.engine) and self.site.json("pool", "list")["certificates"] == []


@pytest.fixture
def machines(slurm_cluster: SlurmCluster) -> Iterator[Machines]:
    with ExitStack() as stack:
        # Paths of sockets are short.
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfsup-c-")))
        root.chmod(0o755)
        made = Machines(Site(root), slurm_cluster, Slurm(slurm_cluster.environment))
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(commands, "_engine", lambda _on: made.engine)
        etcd = stack.enter_context(made.site.make())
        stack.callback(made.site.close)
        made.site.start(etcd)
        wait_long(lambda: made.site.ctl("nodes").exception is None, "a supervisor leads")
        stack.callback(end_all, made.engine)
        yield made


def end_all(engine: Engine) -> None:
    for name in {each.pool for each in pools.live(engine)}:
        pools.end(engine, name, 0)


def test_agents_have_certificates_while_a_job_trains(machines: Machines) -> None:
    site, root = machines.site, machines.site.root
    packed = json.loads(site.ctl("pool", "pack", str(root), "-o", "json").stdout)["path"]
    machines.up("--agents", str(AGENTS), "--archive", packed, "--python", BARE)
    wait_long(lambda: len(machines.ready()) == AGENTS, "three agents join")
    token = (root / f"{NAME}.token").read_bytes()
    (root / "job.yaml").write_text(f'{JOB}checkpoint: {{uri: "file://{root}/store"}}\n')
    done = site.ctl("submit", str(root / "job.yaml"))
    assert done.exception is None, (done.output, done.exception)
    machines.trains("the beginning")
    wait_long(lambda: machines.job()["newest_commit"] is not None, "a checkpoint is committed")

    # Each certificate is renewed under its tasks, which know nothing of it.
    before = {node: machines.certificate(node).read_bytes() for node in machines.ready()}
    tasks = {name: each["pid"] for name, each in machines.tasks().items()}
    wait_long(
        lambda: all(machines.certificate(node).read_bytes() != was for node, was in before.items()),
        "all certificates are renewed",
    )
    assert {name: each["pid"] for name, each in machines.tasks().items()} == tasks

    # An agent is lost: the next one gets a certificate for the same token.
    lost = str(machines.tasks()["ps:0"]["node"])
    machines.certificate(lost).unlink()
    machines.lose(machines.at(lost.removeprefix(f"{NAME}.")))
    wait_long(lambda: machines.tasks()["ps:0"]["node"] != lost, "the parameter server has moved")
    machines.pool("scale", NAME, str(AGENTS))
    wait_long(lambda: len(machines.ready()) == AGENTS, "another agent has come")
    assert machines.certificate(lost).exists()
    assert (root / f"{NAME}.token").read_bytes() == token
    machines.trains("the loss")

    told = machines.pool("down", NAME, "--within", "20")
    assert told.rstrip().endswith(tokens.REVOKED)
    assert machines.is_clean()
    wait_long(lambda: left(root) == [], "no process is left")


def left(root: Path) -> list[str]:
    """The keepers and agents that are there, and what they have started."""
    lines = (" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
    return [each for each in lines if f"{root}/agents/" in each or f"--agent-config {root}/" in each]
