"""The configuration of an agent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from supervisor.adapters.files.config.daemon import DaemonConfig, check_daemon, check_doors, check_reachable
from supervisor.adapters.files.config.docker import DockerConfig, User, holder_of, range_of, subordinate_of
from supervisor.adapters.files.config.fields import Address, Host
from supervisor.adapters.files.config.loading import Adapt, load
from supervisor.adapters.files.quantities import DurationMs, Name, SizeBytes, Text
from supervisor.adapters.files.yaml_file import Document, Strict


class GpuConfig(Strict):
    """Sharing and watching of a node's GPUs."""

    share: int = Field(default=1, ge=1, le=64)
    poll: DurationMs = Field(default=500, ge=50, le=60_000)
    only: list[Text] | None = None
    library: Text | None = None


class LogsConfig(Strict):
    """The way of what tasks print to their jobs' stores."""

    store: bool = True
    lag: DurationMs = Field(default=5_000, ge=1_000, le=3_600_000)
    limit: SizeBytes = Field(default=256 << 20, ge=1 << 20)


class AgentConfig(DaemonConfig):
    """`tfsup-agent --config FILE`."""

    node: Name = Field(description="add `node: NAME`, different for each machine")
    supervisors: list[Address] = Field(min_length=1, description="add `supervisors: [HOST:PORT, ...]`")
    host: Host | None = None
    interface: Text | None = None
    advertise: Address | None = None
    port_low: int = Field(default=20_000, ge=1024, le=65_535)
    port_high: int = Field(default=29_999, ge=1024, le=65_535)
    checkpoint_parent: Text = Field(
        description="add `checkpoint_parent: DIR`, the same path on every machine"
    )
    checkpoint_budget: SizeBytes | None = Field(default=None, ge=0)
    log_budget: SizeBytes = Field(default=2 << 30, ge=0)
    logs: LogsConfig = LogsConfig()
    work_budget: SizeBytes = Field(default=20 << 30, ge=0)
    job_disk: SizeBytes | None = Field(default=None, gt=0)
    lock_dir: Text = Field(description="add `lock_dir: DIR`, one for all agents of this machine")
    spare_launchers: int = Field(default=0, ge=0, le=16)
    task_nice: int = Field(default=10, ge=0, le=19)
    task_user: User | None = None
    firewall: bool = False
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory: SizeBytes | None = None
    labels: dict[str, Text] = Field(default_factory=dict)
    gpus: GpuConfig = GpuConfig()
    runtime: Literal["process", "docker"] = "process"
    docker: DockerConfig = DockerConfig()

    @property
    def address(self) -> str:
        """The address at which supervisors reach this agent."""
        return self.advertise or self.listen


def load_agent(path: Path, adapt: Adapt | None = None) -> AgentConfig:
    """Read an agent's configuration; raises UserError with every problem, NotFound.

    `adapt` changes the file's values, whose paths are absolute by then, before they are checked.
    """
    return load(AgentConfig, path, _check, adapt)


def _check(document: Document, config: AgentConfig) -> None:
    check_daemon(document, config)
    check_reachable(document, config.listen, config.advertise)
    _check_agent(document, config)


def _check_agent(document: Document, config: AgentConfig) -> None:
    peers = config.supervisors
    if config.http is None:
        for name in ("users", "user_ca"):
            if getattr(config, name):
                document.problem((name,), "users call an agent by `http` alone: add it, or leave this out")
    check_doors(document, ("supervisors",), peers, config.tls_files(), insecure=config.insecure)
    if config.port_high < config.port_low:
        document.problem(("port_high",), f"is below port_low ({config.port_low}); give a range of ports")
    if config.host is not None and config.interface is not None:
        document.problem(("interface",), "contradicts host; keep one of the two")
    if os.geteuid() == 0 and config.runtime == "process" and config.task_user is None:
        document.problem(
            ("task_user",),
            "this agent is root, and tasks must not be: add `task_user: LOW-HIGH`, uids that nobody has, one "
            "for each job, or `task_user: UID:GID`, one user that nobody logs in as (`0:0`: every job's "
            "programs are root on this machine)",
        )
    _check_users(document, config)
    if config.runtime == "docker" and config.task_user is not None:
        document.problem(
            ("task_user",), "is of `runtime: process`; containers have `docker.user`: keep that one alone"
        )
    locks = Path(config.lock_dir)
    if not locks.is_dir():
        document.problem(("lock_dir",), f"{locks} is no directory; run: mkdir -p -m 1777 {locks}")
    elif not os.access(locks, os.R_OK | os.W_OK | os.X_OK):
        document.problem(("lock_dir",), f"{locks} cannot be written by this user; run: chmod 1777 {locks}")


def _check_users(document: Document, config: AgentConfig) -> None:
    """Check that a range of uids is used by jobs alone."""
    docker = config.runtime == "docker"
    field = "docker.user" if docker else "task_user"
    where = tuple(field.split("."))
    span = range_of((config.docker.user if docker else config.task_user) or "")
    if span is None:
        if config.firewall:
            document.problem(("firewall",), f"knows jobs by their uids: write `{field}: LOW-HIGH`")
        return
    if os.geteuid() != 0:
        document.problem(where, "only an agent that is root can give each job a user of its own")
    if whose := holder_of(span):
        document.problem(
            where, f"{span[0]}-{span[1]} holds {whose} of this machine; take uids that nobody has"
        )
    elif line := subordinate_of(span):
        document.problem(
            where,
            f"{span[0]}-{span[1]} overlaps with a range of containers ({line}); take uids that nobody has",
        )
    locks = Path(config.lock_dir)
    if locks.is_dir() and locks.stat().st_mode & 0o1002 != 0o1002:
        document.problem(
            ("lock_dir",), f"users of several jobs make locks in {locks}; run: chmod 1777 {locks}"
        )
