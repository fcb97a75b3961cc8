"""`tfsup-agent --config FILE`: connects one node's agent to etcd, its supervisors and this machine.

SIGTERM ends the agent and leaves its tasks running: a new agent on the same state directory adopts them
(an upgrade), and if none comes they end by themselves before D. SIGUSR1 has it ask its tasks to save. With
`--fence` the program is no agent. It ends what a dead one has left, so that the cluster need not wait for D.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import click
import psutil

from agent.api import NodeApi
from agent.boundaries import (
    Disk,
    Environments,
    Firewall,
    NoEnvironments,
    NoFirewall,
    Outside,
    Runtime,
    UnlimitedDisk,
)
from agent.checkpoints.allowed import Places
from agent.checkpoints.keeper import NodeCheckpoints
from agent.checkpoints.local_copies import LocalDisk
from agent.checkpoints.mounts import NodeMounts
from agent.code.store import NodeCode
from agent.core.desired import DOCKER
from agent.daemon import AgentDaemon
from agent.data.mounts import DataMounts, shown_kinds
from agent.environments.files import PlainFiles
from agent.environments.install import Installer
from agent.environments.store import NodeEnvironments
from agent.fencing import Fencing, fence_node
from agent.gpus.nvml_probe import NvmlGpus
from agent.host import firewall
from agent.host.disk import DiskWatch
from agent.host.kill_times import RehearsedKills
from agent.host.ownership import TaskDirectories
from agent.host.task_users import TaskUsers, UserRange, users_of
from agent.inside import clock
from agent.inside.processes import priority
from agent.launchers import SocketLaunchers
from agent.link import GrpcLinks
from agent.logs.storing import LogSettings, NodeLogs
from agent.logs.task_logs import AttemptFiles
from agent.metrics import CountedGpus, add_node, measure
from agent.models.loading import ModelLoader
from agent.operate import Operator
from agent.outputs.directories import OutputFiles
from agent.outputs.leftover_work import NodeWork
from agent.outputs.sender import NodeOutputs, quiet_threads
from agent.runtimes.docker_node import Allowed, DockerNode, check_allowed, container_name
from agent.runtimes.local import SOCKET
from agent.runtimes.marks import Marks, load_key, owner
from agent.runtimes.process import ProcessRuntime
from agent.runtimes.strays import Strays
from agent.secret_masks import TaskSecrets
from agent.settings import AgentSettings, GpuSettings
from agent.state_file import LockedStateFile
from recovery.io.daemon_threads import DaemonThreads
from recovery.stores.allowed import AllowedStores, entries_or_default
from recovery.stores.open import Stores
from supervisor.adapters import service
from supervisor.adapters.audit import open_audit
from supervisor.adapters.certificates.watch import CertificateWatch, own_certificates
from supervisor.adapters.clock import BootClock
from supervisor.adapters.files.config.agent import AgentConfig, load_agent
from supervisor.adapters.metrics.daemon import Metrics
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import Refused, TfSupervisorError, UserError
from supervisor.contract.job.spec import Mount
from supervisor.contract.observed import NodeResources
from supervisor.wire.audit import Auditor
from supervisor.wire.gate import Policy, policy_of
from supervisor.wire.http import HttpDoor, guard_of
from supervisor.wire.metrics import metrics_route
from supervisor.wire.rpc import Guard

LAUNCHERS = "launchers"
ATTEMPTS = "attempts"
CODE = "code"
ENVIRONMENTS = "environments"
STORE_THREADS = 16
DISK_THREADS = 8
"""Numbers of threads for disks and stores, apart from the loop's own threads: these save the state file and
fence, and must not wait for a store or a disk that hangs."""


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True)
@click.option("--fence", is_flag=True, help="End all tasks of this node, whose agent is dead, and tell etcd.")
def main(config_path: Path, *, fence: bool) -> None:
    """Run one node's agent until SIGTERM; its tasks then wait for a successor."""
    service.run("tfsup-agent", partial(_prepare, config_path, fence=fence))


def _prepare(path: Path, *, fence: bool) -> tuple[AgentConfig, dict[str, str], service.Serve]:
    config = load_agent(path)
    work = partial(_fence, config) if fence else partial(_serve, config, partial(load_agent, path))
    return config, {"node": config.node}, work


async def _fence(config: AgentConfig, sink: Logger) -> None:
    coordination = service.connect(config, config.node)
    runtime, _ = _runtime(config, sink, other_users(config))
    state_file = LockedStateFile(Path(config.state_dir), Path(config.socket_dir))
    given = Fencing(
        node=config.node,
        timing=config.timing,
        state_file=state_file,
        runtime=runtime,
        coordination=coordination,
        clock=BootClock(),
        sink=sink,
    )
    try:
        await fence_node(given)
    finally:
        await runtime.close()
        await coordination.close()


async def _serve(config: AgentConfig, load: Callable[[], AgentConfig], sink: Logger) -> None:
    guard = Guard(config.tls_files(), config.token, config.insecure)
    state_dir = Path(config.state_dir)
    files = AttemptFiles(state_dir / ATTEMPTS, sink, config.log_budget)
    config.hadoop.settings().put_into_environment()
    allowed = AllowedStores(entries_or_default(config.stores), config.hadoop.proxy_users)
    stores = Stores(config.hadoop.settings(), ThreadPoolExecutor(STORE_THREADS, "store"), sink, allowed)
    await asyncio.to_thread(stores.preload)
    links = GrpcLinks(config.supervisors, guard, sink)
    metrics = Metrics("agent", metadata.version("tf-supervisor"), DaemonThreads(1, "metrics"), sink)
    outside = _outside(config, sink, links, files, stores, metrics)
    daemon = AgentDaemon(settings_of(config), outside)
    inside = partial(_in_container, config) if config.runtime == DOCKER else None
    # docker's client runs as this agent, and docker gives the command its user.
    foreign = inside is None and other_users(config) is not None
    operator = Operator(
        *(state_dir / LAUNCHERS, files, lambda: daemon.state, outside.clock, sink, inside),
        foreign=foreign,
        task_secrets=outside.secrets,
    )
    audit = open_audit(config.audit, sink)
    watch = CertificateWatch(own_certificates(config, f"agent:{config.node}"), sink)
    disks = {"checkpoints": Path(config.checkpoint_parent), "state": state_dir}
    add_node(metrics, daemon, outside, watch, disks)
    watching: asyncio.Task[NoReturn] = asyncio.create_task(watch.run(links.certificates))
    policy = policy_of(config)
    auditor = Auditor(f"agent:{config.node}", audit)
    api = NodeApi(config.listen, guard, files, operator, auditor, policy)
    beside = [watching, *_open_http(config, policy, auditor, sink, metrics)]
    reload = service.reloading(config, load, partial(_take, policy), sink)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, files.want_saves)
    try:
        await service.until_told(
            _run(config, daemon, api, sink), outside.checkpoints.settle, daemon.started, reload
        )
    finally:
        for task in beside:
            task.cancel()
        await api.close()
        if audit is not None:
            audit.close()
        await stores.close()
        await outside.coordination.close()


def _open_http(
    config: AgentConfig, policy: Policy, auditor: Auditor, sink: Logger, metrics: Metrics
) -> list[asyncio.Task[NoReturn]]:
    """The task of the HTTP door, if there is one."""
    if config.http is None:
        return []
    door = HttpDoor(
        settings=config.http,
        guard=guard_of(config),
        policy=policy,
        auditor=auditor,
        sink=sink,
        routes=lambda: [metrics_route(metrics)],
    )
    return [asyncio.create_task(door.run())]


def _take(policy: Policy, config: AgentConfig) -> None:
    newest = policy_of(config)
    policy.users, policy.denied = newest.users, newest.denied


async def _run(config: AgentConfig, daemon: AgentDaemon, api: NodeApi, sink: Logger) -> None:
    """Run the daemon. It listens once the state directory is ours, so that a second agent cannot take the
    first one's socket.
    """
    running = asyncio.create_task(daemon.run())
    started = asyncio.create_task(daemon.started.wait())
    try:
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await api.open()
            if not config.firewall:
                await asyncio.to_thread(_remove_firewall, config, sink)
        await running
    finally:
        started.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _outside(
    config: AgentConfig,
    sink: Logger,
    links: GrpcLinks,
    files: AttemptFiles,
    stores: Stores,
    metrics: Metrics,
) -> Outside:
    clock, state_dir = BootClock(), Path(config.state_dir)
    stores.measured = metrics.store
    coordination = service.connect(config, config.node, metrics)
    parent, hadoop = Path(config.checkpoint_parent), config.hadoop.settings()
    budget = config.checkpoint_budget
    disk = ThreadPoolExecutor(DISK_THREADS, "checkpoints")
    checkpoints = NodeCheckpoints(
        config.node, parent, coordination, stores.open, clock, sink, new_id, LocalDisk(budget, disk)
    )
    checkpoints.places = Places(coordination, stores)
    tasks = other_users(config)
    _register(tasks, sink)
    checkpoints.mounts = NodeMounts(parent, coordination, stores, hadoop, clock, sink, tasks)
    checkpoints.mounts.open()
    # An operator who writes `file:` lets jobs name every directory; the default does so without being asked.
    contained = config.runtime == DOCKER and "file:" not in config.stores
    data = DataMounts(parent, stores, hadoop, clock, sink, tasks, checkpoints.places, contained=contained)
    data.open()
    runtime, launchers = _runtime(config, sink, tasks)
    output_files = OutputFiles(config.node, parent, state_dir / "outputs")
    outputs = NodeOutputs(output_files, coordination, stores.open, clock, sink, new_id, quiet_threads())
    measure(metrics, checkpoints, outputs)
    checkpoints.work = outputs.work = NodeWork(
        config.node, parent, coordination, clock, sink, config.work_budget
    )
    secrets = TaskSecrets()
    if config.logs.store:
        settings = LogSettings(config.logs.lag, config.logs.limit)
        outputs.logs = NodeLogs(
            *(config.node, files.directory, stores.open_logs, secrets.of, clock, sink), settings
        )
    checkpoints.users = output_files.users = tasks
    environments = _environments(config, stores, sink, tasks)
    if config.runtime != DOCKER:
        outputs.load = ModelLoader(output_files.user, environments=environments).load
    checkpoints.shared = _shared(config)
    return Outside(
        coordination=coordination,
        runtime=runtime,
        launchers=launchers,
        links=links,
        files=files,
        checkpoints=checkpoints,
        state_file=LockedStateFile(state_dir, Path(config.socket_dir)),
        clock=clock,
        sink=sink,
        new_id=new_id,
        code=NodeCode(state_dir / CODE, coordination, stores.open_code, sink),
        environments=environments,
        data=data,
        outputs=outputs,
        gpus=CountedGpus(NvmlGpus(_gpu_settings(config), sink), metrics),
        secrets=secrets,
        firewall=_firewall(config, sink),
        disk=_disk(config),
        kill_times=RehearsedKills(
            config.task_nice, tasks.own if tasks is not None and config.runtime != DOCKER else None, sink
        ),
    )


def _environments(config: AgentConfig, stores: Stores, sink: Logger, tasks: TaskUsers | None) -> Environments:
    if config.runtime == DOCKER:
        return NoEnvironments()
    directory = Path(config.state_dir) / ENVIRONMENTS
    user = tasks.own if tasks is not None and os.geteuid() == 0 else None
    return NodeEnvironments(directory, PlainFiles(stores), Installer(user), sink, clock.boot_id())


def _gpu_settings(config: AgentConfig) -> GpuSettings:
    gpus = config.gpus
    only = tuple(gpus.only) if gpus.only is not None else None
    return GpuSettings(gpus.library or "", gpus.poll, only=only)


def _disk(config: AgentConfig) -> Disk:
    if config.job_disk is None:
        return UnlimitedDisk()
    state_dir = Path(config.state_dir)
    parent = Path(config.checkpoint_parent)
    return DiskWatch(config.job_disk, parent, state_dir / ATTEMPTS, state_dir / LAUNCHERS)


def _firewall(config: AgentConfig, sink: Logger) -> Firewall:
    """The firewall of the configuration, checked; raises UserError if this machine does not support it."""
    users, kept = task_users(config), nft_firewall(config)
    if kept is not None:
        kept.check()
    if isinstance(users, UserRange):
        sink.info(
            "each job's tasks run as a user of their own",
            users=f"{users.low + 1}-{users.high}",
            firewall=f"nftables, table inet {kept.table}" if kept is not None else "none",
        )
    return kept or NoFirewall()


def _remove_firewall(config: AgentConfig, sink: Logger) -> None:
    table = firewall.table_name(config.cluster, config.node)
    try:
        firewall.remove(table, task_users(config))
    except Refused as error:
        sink.warning(
            "the firewall of an earlier configuration may still be in force",
            table=f"inet {table}",
            reason=str(error),
        )


def nft_firewall(config: AgentConfig) -> firewall.NftFirewall | None:
    """The firewall of the configuration; None if it has none."""
    users, table = task_users(config), firewall.table_name(config.cluster, config.node)
    if not config.firewall or not isinstance(users, UserRange):
        return None
    return firewall.NftFirewall(table, users, (config.port_low, config.port_high))


def other_users(config: AgentConfig) -> TaskUsers | None:
    """The users of tasks; None if tasks are plain processes of the agent's own user. Raises UserError."""
    users = task_users(config)
    return users if config.runtime == DOCKER or not users.has(os.geteuid()) else None


def task_users(config: AgentConfig) -> TaskUsers:
    """The users of tasks. Raises UserError."""
    docker = config.runtime == DOCKER
    configured, field = (config.docker.user, "docker.user") if docker else (config.task_user, "task_user")
    state_dir, parent = Path(config.state_dir), Path(config.checkpoint_parent)
    return users_of(configured, field, parent, state_dir / ATTEMPTS, state_dir / LAUNCHERS)


def _register(users: TaskUsers | None, sink: Logger) -> None:
    """Register this agent's launchers with other agents of this machine."""
    if isinstance(users, UserRange):
        try:
            users.register()
        except TfSupervisorError as error:
            sink.warning(
                "cannot register launchers: another agent of this machine may kill them", reason=str(error)
            )


def _shared(config: AgentConfig) -> tuple[Mount, ...]:
    """The directories of this machine that every task sees."""
    if config.runtime != DOCKER:
        return (Mount("/", "/", read_only=False),)
    always = [each for each in config.docker.mounts if each.always]
    return tuple(Mount(each.source, each.source, each.read_only) for each in always)


def _runtime(config: AgentConfig, sink: Logger, users: TaskUsers | None) -> tuple[Runtime, SocketLaunchers]:
    return _docker(config, sink) if config.runtime == DOCKER else _process(config, sink, users)


def _process(config: AgentConfig, sink: Logger, users: TaskUsers | None) -> tuple[Runtime, SocketLaunchers]:
    state_dir, sockets = Path(config.state_dir), Path(config.socket_dir)
    homes, attempts = state_dir / LAUNCHERS, state_dir / ATTEMPTS
    marks = Marks(owner(f"{config.cluster}/{config.node}", homes), load_key(state_dir))
    _tell_shortfall(priority.shortfall(foreign=users is not None), sink)
    if users is None:
        sink.warning(
            "tasks run as this agent's own user: they can read its files and end its processes, so this node "
            "is for the jobs of one user; an agent that is root takes `task_user: LOW-HIGH`",
            uid=os.geteuid(),
        )
        runtime = ProcessRuntime(homes, sockets / SOCKET, config.timing, config.task_nice, marks)
        return runtime, SocketLaunchers(sockets / SOCKET, sink)
    sockets = sockets / "tasks"
    for each in (
        state_dir,
        sockets.parent,
        sockets,
        homes,
        attempts,
        state_dir / CODE,
        state_dir / ENVIRONMENTS,
    ):
        _let_through(each)
    tasks = TaskDirectories(users, attempts, Path(config.checkpoint_parent), Path(config.lock_dir))
    strays = Strays(users, sink)
    runtime = ProcessRuntime(homes, sockets / SOCKET, config.timing, config.task_nice, marks, tasks, strays)
    return runtime, SocketLaunchers(sockets / SOCKET, sink, runtime.vouch, users)


def _tell_shortfall(lacks: str, sink: Logger) -> None:
    """Log missing rights once: without them a kill takes longer on a busy machine (decision 0046)."""
    if lacks:
        sink.info(
            "this node's launchers may not raise the priority of what they kill: give the agent's service "
            "LimitNICE=20 or more",
            effect=lacks,
        )


def _let_through(directory: Path) -> None:
    """Make a directory that tasks of another user may enter but not list; raises Refused."""
    try:
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        directory.chmod(0o711)
    except OSError as error:
        raise Refused(f"cannot make {directory}: {error.strerror}") from error


def _docker(config: AgentConfig, sink: Logger) -> tuple[Runtime, SocketLaunchers]:
    """The docker runtime and its socket.

    The socket is in a directory of its own, the only one of the agent's in containers.
    """
    # docker's client is a seventh of what an agent loads before it can adopt its tasks.
    from agent.runtimes.docker import DockerRuntime
    from agent.runtimes.docker_engine import Engine

    docker, state_dir, users = config.docker, Path(config.state_dir), task_users(config)
    tasks = Path(config.socket_dir) / "tasks"
    mounts = tuple(Allowed(each.source, each.read_only, each.always) for each in docker.mounts)
    check_allowed(mounts, state_dir, Path(config.checkpoint_parent))
    node = DockerNode(
        cluster=config.cluster,
        node=config.node,
        socket=docker.socket,
        image=docker.image,
        users=users,
        homes=state_dir / LAUNCHERS,
        tasks=tasks,
        attempts=state_dir / ATTEMPTS,
        checkpoints=Path(config.checkpoint_parent),
        lock_dir=Path(config.lock_dir),
        python=docker.python,
        mounts=mounts,
        pids=docker.pids,
        pull_timeout_ms=docker.pull_timeout,
        networks=tuple(docker.networks),
        key=load_key(state_dir),
    )
    _let_through(tasks)
    runtime = DockerRuntime(node, Engine(docker.socket), config.timing, sink, config.task_nice)
    return runtime, SocketLaunchers(tasks / SOCKET, sink, runtime.vouch, users, runtime.lend)


def _in_container(config: AgentConfig, launcher_id: str) -> tuple[str, ...]:
    """The command that runs a command in a launcher's container."""
    module = "agent.runtimes.docker_exec"
    return (sys.executable, "-m", module, config.docker.socket, container_name(config.node, launcher_id))


def settings_of(config: AgentConfig) -> AgentSettings:
    """The daemon's settings. Values that the file omits are taken from this machine."""
    cpus = config.cpus if config.cpus is not None else float(psutil.cpu_count() or 1)
    memory = config.memory if config.memory is not None else psutil.virtual_memory().total
    return AgentSettings(
        node=config.node,
        host=config.host or _address_of(config.interface),
        address=config.address,
        port_low=config.port_low,
        port_high=config.port_high,
        lock_dir=config.lock_dir,
        timing=config.timing,
        resources=NodeResources(
            cpus,
            memory,
            0,
            config.labels,
            config.runtime,
            config.gpus.share,
            tuple(config.docker.networks) if config.runtime == "docker" else (),
            secrets=True,
            environments=config.runtime != DOCKER,
            zstd=config.runtime != DOCKER and shutil.which("zstd") is not None,
            data=shown_kinds(),
            spares=config.spare_launchers > 0,
        ),
        spare_launchers=config.spare_launchers,
        pid=os.getpid(),
        release=metadata.version("tf-supervisor"),
        directory=_identity_of(Path(config.checkpoint_parent)),
        nvml=(config.gpus.library or "") if config.runtime == "process" else "",
        firewall=config.firewall,
    )


def _identity_of(directory: Path) -> str:
    """Device and inode of a directory; raises Refused if it is absent and cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise Refused(f"cannot use {directory}: {error.strerror}") from error
    return f"{found.st_dev}:{found.st_ino}"


def new_id() -> str:
    """A new random id of 32 hex digits."""
    return uuid.uuid4().hex


def _address_of(interface: str | None) -> str:
    """The IPv4 address of an interface; without one the machine's name. Raises UserError."""
    if interface is None:
        return socket.gethostname()
    known = psutil.net_if_addrs()
    for entry in known.get(interface, ()):
        if entry.family == socket.AF_INET:
            return str(entry.address)
    raise UserError(
        f"interface {interface!r} has no IPv4 address here; interfaces: {', '.join(sorted(known))}"
    )


if __name__ == "__main__":
    main()
