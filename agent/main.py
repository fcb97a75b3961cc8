"""`tfsup-agent --config FILE`: wires one node's agent to etcd, its supervisors and this machine.

SIGTERM ends the agent and leaves its tasks running: a new agent on the same state directory adopts them
(an upgrade), and if none comes they end by themselves before D.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import uuid
from importlib import metadata
from pathlib import Path

import click
import psutil

from agent.api import NodeApi
from agent.boundaries import Outside
from agent.checkpoints import NodeCheckpoints
from agent.daemon import AgentDaemon
from agent.launchers import SocketLaunchers
from agent.link import GrpcLinks
from agent.logs import AttemptFiles
from agent.runtimes.process import ProcessRuntime
from agent.settings import AgentSettings
from agent.state_file import LockedStateFile
from recovery.stores.open import open_store
from supervisor.adapters.clock import BootClock
from supervisor.adapters.config import AgentConfig, load_agent
from supervisor.adapters.etcd import EtcdCoordination
from supervisor.adapters.telemetry import configure_logging, get_logger
from supervisor.contract.boundaries import Sink
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.observed import NodeResources
from supervisor.wire.rpc import Guard

SILENCE_SHARE = 2


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True)
def main(config_path: Path) -> None:
    """Run one node's agent until SIGTERM; its tasks then wait for a successor."""
    try:
        config = load_agent(config_path)
        configure_logging(
            json_file=Path(config.log.file) if config.log.file else None,
            level=config.log.level,
            console=config.log.file is None,
        )
        sink = get_logger("agent", node=config.node, cluster=config.cluster)
        asyncio.run(_serve(config, sink))
    except TfSupervisorError as error:
        click.echo(f"tfsup-agent: {error}", err=True)
        sys.exit(error.exit_code)


async def _serve(config: AgentConfig, sink: Sink) -> None:
    guard = Guard(config.tls_files(), config.token, config.insecure)
    state_dir = Path(config.state_dir)
    files = AttemptFiles(state_dir / "attempts", sink)
    outside = _outside(config, sink, guard, files)
    daemon = AgentDaemon(settings_of(config), outside)
    api = NodeApi(config.listen, guard, files)
    try:
        await _run_until_told(daemon, api)
    finally:
        await api.close()
        await outside.coordination.close()


def _outside(config: AgentConfig, sink: Sink, guard: Guard, files: AttemptFiles) -> Outside:
    timing, clock, state_dir = config.timing, BootClock(), Path(config.state_dir)
    coordination = EtcdCoordination(
        config.etcd.endpoints,
        config.cluster,
        tls=config.etcd_tls_files(),
        rpc_deadline_ms=timing.rpc_deadline_ms,
        silence_ms=timing.d_ms // SILENCE_SHARE,
    )
    socket_path = Path(config.socket_dir) / "agent.sock"
    return Outside(
        coordination=coordination,
        runtime=ProcessRuntime(state_dir / "launchers", socket_path, timing, config.task_nice),
        launchers=SocketLaunchers(socket_path, sink),
        links=GrpcLinks(config.supervisors, guard, sink),
        files=files,
        checkpoints=NodeCheckpoints(
            config.node, Path(config.checkpoint_parent), coordination, open_store, clock, sink, new_id
        ),
        state_file=LockedStateFile(state_dir),
        clock=clock,
        sink=sink,
        new_id=new_id,
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
    """The IPv4 address of an interface, else the machine's name."""
    for entry in psutil.net_if_addrs().get(interface or "", ()):
        if entry.family == socket.AF_INET:
            return str(entry.address)
    return socket.gethostname()


async def _run_until_told(daemon: AgentDaemon, api: NodeApi) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    running = asyncio.create_task(daemon.run())
    waiting = asyncio.create_task(told.wait())
    serving = asyncio.create_task(_open(daemon, api))
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, serving, running):
        task.cancel()
    results = await asyncio.gather(running, serving, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


async def _open(daemon: AgentDaemon, api: NodeApi) -> None:
    """Listen once the state directory is ours: a second agent must not take the first one's socket."""
    await daemon.started.wait()
    await api.open()


if __name__ == "__main__":
    main()
