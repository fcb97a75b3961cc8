"""`tfsup-agent --config FILE`: wires one node's agent to etcd, its supervisors and this machine.

SIGTERM ends the agent and leaves its tasks running: a new agent on the same state directory adopts them
(an upgrade), and if none comes they end by themselves before D.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path

import click
import psutil

from agent.api import NodeApi
from agent.boundaries import Outside
from agent.checkpoints import NodeCheckpoints
from agent.code_store import NodeCode
from agent.copies import LocalDisk
from agent.daemon import AgentDaemon
from agent.launchers import SocketLaunchers
from agent.link import GrpcLinks
from agent.logs import AttemptFiles
from agent.mounts import NodeMounts
from agent.operate import Operator
from agent.runtimes.process import ProcessRuntime
from agent.settings import AgentSettings
from agent.state_file import LockedStateFile
from recovery.stores.open import Stores
from supervisor.adapters import service
from supervisor.adapters.clock import BootClock
from supervisor.adapters.config import AgentConfig, load_agent
from supervisor.contract.boundaries import Sink
from supervisor.contract.errors import UserError
from supervisor.contract.observed import NodeResources
from supervisor.wire.rpc import Guard

LAUNCHERS = "launchers"
STORE_THREADS = 16
DISK_THREADS = 8
"""Both apart from the loop's own threads, which save the state file and fence: those must never wait for a
store or a disk that hangs."""


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True)
def main(config_path: Path) -> None:
    """Run one node's agent until SIGTERM; its tasks then wait for a successor."""
    service.run("tfsup-agent", partial(_prepare, config_path))


def _prepare(path: Path) -> tuple[AgentConfig, dict[str, str], service.Serve]:
    config = load_agent(path)
    return config, {"node": config.node}, partial(_serve, config)


async def _serve(config: AgentConfig, sink: Sink) -> None:
    guard = Guard(config.tls_files(), config.token, config.insecure)
    state_dir = Path(config.state_dir)
    files = AttemptFiles(state_dir / "attempts", sink)
    config.hadoop.settings().put_into_environment()
    stores = Stores(config.hadoop.settings(), ThreadPoolExecutor(STORE_THREADS, "store"))
    outside = _outside(config, sink, guard, files, stores)
    daemon = AgentDaemon(settings_of(config), outside)
    operator = Operator(state_dir / LAUNCHERS, files, lambda: daemon.state, outside.clock, sink)
    api = NodeApi(config.listen, guard, files, operator)
    try:
        await service.until_told(_run(daemon, api), outside.checkpoints.settle)
    finally:
        await api.close()
        await stores.close()
        await outside.coordination.close()


async def _run(daemon: AgentDaemon, api: NodeApi) -> None:
    """Listen once the state directory is ours: a second agent must not take the first one's socket."""
    running = asyncio.create_task(daemon.run())
    started = asyncio.create_task(daemon.started.wait())
    try:
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await api.open()
        await running
    finally:
        started.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _outside(config: AgentConfig, sink: Sink, guard: Guard, files: AttemptFiles, stores: Stores) -> Outside:
    timing, clock, state_dir = config.timing, BootClock(), Path(config.state_dir)
    coordination = service.connect(config)
    socket_path = Path(config.socket_dir) / "agent.sock"
    parent, hadoop = Path(config.checkpoint_parent), config.hadoop.settings()
    budget = config.checkpoint_budget
    disk = ThreadPoolExecutor(DISK_THREADS, "checkpoints")
    checkpoints = NodeCheckpoints(
        config.node, parent, coordination, stores.open, clock, sink, new_id, LocalDisk(budget, disk)
    )
    checkpoints.mounts = NodeMounts(parent, coordination, stores, hadoop, clock, sink)
    checkpoints.mounts.open()
    return Outside(
        coordination=coordination,
        runtime=ProcessRuntime(state_dir / LAUNCHERS, socket_path, timing, config.task_nice),
        launchers=SocketLaunchers(socket_path, sink),
        links=GrpcLinks(config.supervisors, guard, sink),
        files=files,
        checkpoints=checkpoints,
        state_file=LockedStateFile(state_dir),
        clock=clock,
        sink=sink,
        new_id=new_id,
        code=NodeCode(state_dir / "code", coordination, sink),
    )


def settings_of(config: AgentConfig) -> AgentSettings:
    """The daemon's settings, with what the file leaves open taken from this machine."""
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
        resources=NodeResources(cpus, memory, 0, config.labels),
        spare_launchers=config.spare_launchers,
        pid=os.getpid(),
        release=metadata.version("tf-supervisor"),
    )


def new_id() -> str:
    """32 hex digits that were never used before."""
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
