"""`tfsup-supervisord --config FILE`: wires one supervisor to etcd, its API and the signals of its keeper."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path

import click

from recovery.stores.open import open_store
from supervisor.adapters.clock import BootClock
from supervisor.adapters.config import SupervisorConfig, load_supervisor
from supervisor.adapters.etcd import EtcdCoordination
from supervisor.adapters.telemetry import configure_logging, get_logger
from supervisor.api.server import serve_api
from supervisor.contract.boundaries import Sink
from supervisor.contract.errors import TfSupervisorError
from supervisor.control.daemon import ControlDaemon, ControlSettings

SILENCE_SHARE = 2


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True)
def main(config_path: Path) -> None:
    """Run one supervisor until SIGTERM, which hands leadership over first."""
    try:
        config = load_supervisor(config_path)
        configure_logging(
            json_file=Path(config.log.file) if config.log.file else None,
            level=config.log.level,
            console=config.log.file is None,
        )
        sink = get_logger("supervisor", supervisor=config.id, cluster=config.cluster)
        asyncio.run(_serve(config, sink))
    except TfSupervisorError as error:
        click.echo(f"tfsup-supervisord: {error}", err=True)
        sys.exit(error.exit_code)


async def _serve(config: SupervisorConfig, sink: Sink) -> None:
    timing = config.timing
    coordination = EtcdCoordination(
        config.etcd.endpoints,
        config.cluster,
        tls=config.etcd_tls_files(),
        rpc_deadline_ms=timing.rpc_deadline_ms,
        silence_ms=timing.d_ms // SILENCE_SHARE,
    )
    settings = ControlSettings(config.id, config.cluster, config.address, os.getpid(), timing)
    daemon = ControlDaemon(settings, coordination, open_store, BootClock(), sink, lambda: uuid.uuid4().hex)
    api = await serve_api(daemon.desk, daemon.on_beat, config)
    sink.info("supervisor is up", listen=config.listen, profile=timing.profile, d_ms=timing.d_ms)
    try:
        await _run_until_told(daemon)
    finally:
        await api.close()
        await coordination.close()


async def _run_until_told(daemon: ControlDaemon) -> None:
    """Run until SIGTERM or SIGINT; a daemon that fails ends the process, and its keeper restarts it."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    running = asyncio.create_task(daemon.run())
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        waiting.cancel()
        running.result()
        return
    # First the campaign ends, so that this supervisor does not win again what it hands over.
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await daemon.hand_over()


if __name__ == "__main__":
    main()
