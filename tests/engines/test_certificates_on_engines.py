"""Pools that supervisors certify train on a real Slurm and a real YARN, with an etcd that has users."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from chaos.slurm import SlurmCluster
from chaos.yarn import AGENT_MIB, YarnCluster
from supervisor.cli.pool import commands, tokens
from supervisor.engines import pools
from supervisor.engines.engine import Engine, PoolAgent, State
from supervisor.engines.slurm import Slurm
from supervisor.engines.yarn.yarn import Yarn
from tests.engines.certified import Site
from tests.engines.pool_shell import JOB, wait_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
BARE = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
NAME = "train"
AGENTS = 3


@dataclass(frozen=True)
class On:
    """An engine with a place for each of three agents.

    Attributes:
        up: more words of `pool up`.
        lose: ends an agent without a word to it.
        log: what an agent has printed.
    """

    engine: Engine
    up: tuple[str, ...]
    lose: Callable[[str], object]
    log: Callable[[PoolAgent], str]


@pytest.fixture
def slurm(slurm_cluster: SlurmCluster) -> On:
    return On(
        Slurm(slurm_cluster.environment),
        ("--on", "slurm"),
        lambda ident: slurm_cluster.run("scancel", "--batch", "--signal=KILL", ident),
        lambda agent: told_in(Path(agent.log)),
    )


@pytest.fixture
def on_yarn(yarn: Yarn, yarn_cluster: YarnCluster) -> On:
    return On(
        yarn,
        ("--on", "yarn", "--memory", f"{AGENT_MIB}MiB"),
        lambda ident: yarn_cluster.yarn("application", "-kill", ident),
        lambda agent: told_by(agent, yarn_cluster),
    )


def told_in(log: Path) -> str:
    """The output of an agent, which Slurm may not have begun."""
    return log.read_text(errors="replace") if log.exists() else ""


def told_by(agent: PoolAgent, yarn: YarnCluster) -> str:
    """The output of an agent: its NodeManager has that until YARN collects it."""
    there = (yarn.directory / "data").glob(f"*/logs/{agent.id}/*/std*")
    return "".join(each.read_text(errors="replace") for each in there) or yarn.logs(agent.id)


@dataclass
class Machines:
    """A cluster with certificates, and an engine."""

    site: Site
    on: On

    def up(self, *more: str) -> None:
        done = self.site.up(NAME, *self.on.up, *more)
        assert done.exception is None, (done.output, done.exception)

    def pool(self, verb: str, *words: str) -> str:
        done = self.site.ctl("pool", verb, NAME, *words)
        assert done.exception is None, (done.output, done.exception)
        return done.output

    def told(self, verb: str, *words: str) -> str:
        """What a verb says that is for one engine."""
        return self.pool(verb, *words, *self.on.up[:2])

    def at(self, *nodes: str) -> list[str]:
        """The engine's names of the agents of nodes."""
        there = [each for each in pools.live(self.on.engine, NAME) if each.state is State.RUNNING]
        return [each.id for each in there if f"{NAME}.{each.place}" in nodes]

    def hears(self, text: str) -> None:
        """Wait until an agent has printed this; it may have ended by then."""
        wait_long(
            lambda: any(
                text in self.on.log(each) for each in reversed(self.on.engine.agents(NAME)) if each.log
            ),
            f"an agent's log says {text!r}",
        )

    @property
    def token(self) -> Path:
        return self.site.root / f"{NAME}.token"

    def ready(self) -> set[str]:
        return {node for node, state in self.site.states().items() if state == "ready"}

    def job(self) -> dict[str, Any]:
        return self.site.json("status", "digits")["jobs"][0]

    def tasks(self) -> dict[str, dict[str, Any]]:
        return {str(each["task"]).partition("/")[2]: each for each in self.job()["tasks"]}

    def pids(self) -> dict[str, int]:
        return {name: int(each["pid"]) for name, each in self.tasks().items()}

    def trains(self, what: str) -> None:
        """Wait until every task runs and new steps are made."""
        wait_long(
            lambda: {each["state"] for each in self.tasks().values()} == {"running"}, f"{what}: all run"
        )
        step = int(self.job()["step"])
        wait_long(lambda: int(self.job()["step"]) > step + 20, f"{what}: new steps")

    def node_of_ps(self) -> str:
        return str(self.tasks()["ps:0"]["node"])

    def leaves(self, node: str) -> None:
        """Wait until the parameter server is elsewhere."""
        wait_long(lambda: self.node_of_ps() not in ("None", "", node), f"it has left {node}")

    def certificate(self, node: str) -> Path:
        return self.site.root / "agents" / node / "certificate.pem"

    def ends(self, word: str) -> None:
        """End the pool. Then neither the engine nor the supervisors nor the machine have anything of it."""
        assert word in self.told("down", "--within", "20")
        assert pools.live(self.on.engine) == []
        assert self.site.json("pool", "list")["certificates"] == []
        wait_long(lambda: left(self.site.root) == [], "no process is left")


@pytest.fixture(params=["slurm", "on_yarn"])
def machines(request: pytest.FixtureRequest) -> Iterator[Machines]:
    on: On = request.getfixturevalue(request.param)
    with ExitStack() as stack:
        # Paths of sockets are short.
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfsup-c-")))
        root.chmod(0o755)
        made = Machines(Site(root), on)
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(commands, "_engine", lambda _on: on.engine)
        etcd = stack.enter_context(made.site.make())
        stack.callback(made.site.close)
        made.site.start(etcd)
        wait_long(lambda: made.site.ctl("nodes").exception is None, "a supervisor leads")
        stack.callback(end_all, on.engine)
        yield made


def end_all(engine: Engine) -> None:
    for name in {each.pool for each in pools.live(engine)}:
        pools.end(engine, name, 0)


def test_agents_have_certificates_while_a_job_trains(
    machines: Machines, record_testsuite_property: Callable[[str, object], None]
) -> None:
    began, root = time.monotonic(), machines.site.root
    packed = json.loads(machines.site.ctl("pool", "pack", str(root), "-o", "json").stdout)["path"]
    archive = ("--archive", packed, "--python", BARE)
    (root / "job.yaml").write_text(f'{JOB}checkpoint: {{uri: "file://{root}/store"}}\n')
    machines.up("--agents", str(AGENTS), *archive)
    wait_long(lambda: len(machines.ready()) == AGENTS, "three agents join")
    for step in (begins, renews, loses_an_agent, has_a_node_revoked, is_revoked):
        step(machines)
        seconds = round(time.monotonic() - began, 1)
        record_testsuite_property(f"{machines.on.up[1]}: {step.__name__}", seconds)
    # One that begins again under that name knows nothing of it.
    machines.up("--agents", "1", *archive)
    machines.trains("another pool of that name")
    machines.ends(tokens.REVOKED)


def begins(machines: Machines) -> None:
    done = machines.site.ctl("submit", str(machines.site.root / "job.yaml"))
    assert done.exception is None, (done.output, done.exception)
    machines.trains("the beginning")
    wait_long(lambda: machines.job()["newest_commit"] is not None, "a checkpoint is committed")


def renews(machines: Machines) -> None:
    """Each certificate is renewed under its tasks, which know nothing of it."""
    before = {node: machines.certificate(node).read_bytes() for node in machines.ready()}
    pids = machines.pids()
    wait_long(
        lambda: all(machines.certificate(node).read_bytes() != was for node, was in before.items()),
        "all certificates are renewed",
    )
    assert machines.pids() == pids


def loses_an_agent(machines: Machines) -> None:
    """The next one gets a certificate for the same token."""
    secret, lost = machines.token.read_bytes(), machines.node_of_ps()
    machines.certificate(lost).unlink()
    (ident,) = machines.at(lost)
    machines.on.lose(ident)
    machines.leaves(lost)
    machines.told("scale", str(AGENTS))
    wait_long(lambda: len(machines.ready()) == AGENTS, "another agent has come")
    assert machines.certificate(lost).exists()
    assert machines.token.read_bytes() == secret
    machines.trains("the loss")


def has_a_node_revoked(machines: Machines) -> None:
    """It is silent, and its tasks go on elsewhere. Meanwhile a token expires."""
    token = str(machines.token)
    machines.pool("token", token, "--token-for", "1m")
    machines.pool("revoke", revoked := machines.node_of_ps())
    machines.leaves(revoked)
    assert revoked not in machines.ready()
    machines.trains("the revocation")
    wait_long(lambda: "its token expired at" in machines.told("status"), "the token expires")

    # It ends no agent that runs, and keeps the next ones out.
    ended = machines.at(gone := min(machines.ready()), revoked)
    machines.on.engine.cancel(ended)
    wait_long(lambda: not {each.id for each in pools.live(machines.on.engine)} & {*ended}, "they have ended")
    machines.certificate(gone).unlink()
    machines.trains("the expiry")
    assert "its token expired at" in machines.told("scale", str(AGENTS))
    machines.hears(f"{gone} gets no certificate: {token} expired at ")

    # Another token lets in whom nobody has revoked.
    machines.pool("token", token)
    wait_long(lambda: gone in machines.ready(), "the agent has asked again")
    machines.hears(f"{revoked} gets no certificate: {revoked} was revoked")
    assert revoked not in machines.ready()
    machines.trains("another token")


def is_revoked(machines: Machines) -> None:
    """No node is heard. Their tasks stay, as etcd lets their agents in, until the pool ends."""
    pids = machines.pids()
    machines.pool("revoke")
    wait_long(lambda: not machines.ready(), "no node is heard")
    machines.hears("its pool has ended, or was revoked")
    assert all(psutil.pid_exists(each) for each in pids.values())
    machines.ends("the engine has everything back")
    wait_long(lambda: not {"ready", "suspected"} & {*machines.site.states().values()}, "its nodes are gone")


def left(root: Path) -> list[str]:
    """The keepers and agents that are there, and what they have started."""
    lines = (" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
    return [each for each in lines if f"{root}/agents/" in each or f"--agent-config {root}/" in each]
