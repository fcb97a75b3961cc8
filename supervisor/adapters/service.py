"""The work of both daemons around their loops: logs, etcd, errors as exit codes, and the service manager's
signals.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import click

from supervisor.adapters import failpoints
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.adapters.files.config.daemon import DaemonConfig
from supervisor.adapters.metrics.daemon import Metrics
from supervisor.adapters.systemd import Keeper, keeper_of
from supervisor.adapters.telemetry import configure_logging, get_logger
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import TfSupervisorError, UserError

C = TypeVar("C", bound=DaemonConfig)
Serve = Callable[[Logger], Coroutine[object, object, None]]
SILENCE_SHARE = 2


def run(program: str, prepare: Callable[[], tuple[DaemonConfig, dict[str, str], Serve]]) -> None:
    """Run a daemon to its end. An error of our tree becomes one sentence and its exit code.

    Args:
        program: its name, put before that sentence.
        prepare: reads the configuration; returns it, the fields of every log line, and the function that
            serves.
    """
    try:
        config, fields, serve = prepare()
        file = Path(config.log.file) if config.log.file else None
        configure_logging(json_file=file, level=config.log.level, console=file is None)
        sink = get_logger(program.removeprefix("tfsup-"), cluster=config.cluster, **fields)
        _arm_failpoints(sink)
        asyncio.run(serve(sink))
    except TfSupervisorError as error:
        click.echo(f"{program}: {error}", err=True)
        sys.exit(error.exit_code)


def _arm_failpoints(sink: Logger) -> None:
    try:
        directory = failpoints.arm(os.environ)
    except ValueError as error:
        raise UserError(str(error)) from error
    if directory:
        sink.warning("FAILPOINTS ARE ARMED: this is a test, and may end at any moment", directory=directory)


def connect(config: DaemonConfig, name: str = "", metrics: Metrics | None = None) -> EtcdCoordination:
    """The daemon's client of etcd; a watch that is silent for a part of D is broken off and begun again.

    It begins with the first member of the configuration; with a `name`, with one that depends on it, so that
    daemons that are many are shared among the members.
    """
    timing, endpoints = config.timing, config.etcd.endpoints
    first = zlib.crc32(name.encode()) % len(endpoints) if name else 0
    return EtcdCoordination(
        (*endpoints[first:], *endpoints[:first]),
        config.cluster,
        tls=config.etcd_tls_files(),
        rpc_deadline_ms=timing.rpc_deadline_ms,
        silence_ms=timing.d_ms // SILENCE_SHARE,
        metrics=metrics,
    )


RELOADED = frozenset({"users", "denied", "secrets", "fence", "notify", "brake"})
"""Fields of the configurations that SIGHUP applies."""


def reloading(
    config: C, load: Callable[[], C], take: Callable[[C], None], sink: Logger
) -> Callable[[], None]:
    """The handler of SIGHUP: it reads the configuration again and passes it to `take`.

    The log lists the changed fields, and those of them that need a restart. A wrong file changes nothing.
    """
    now = config

    def reload() -> None:
        nonlocal now
        try:
            newest = load()
        except TfSupervisorError as error:
            sink.error("configuration not read again", reason=str(error), next="the former stays in force")
            return
        changed = {name for name in type(newest).model_fields if getattr(newest, name) != getattr(now, name)}
        taken = changed & RELOADED
        now = now.model_copy(update={name: getattr(newest, name) for name in taken})
        take(now)
        told = {"taken": sorted(taken), "restart_needed_for": sorted(changed - taken)}
        sink.info("configuration read again", **told)

    return reload


async def until_told(
    work: Coroutine[object, object, None],
    last: Callable[[], Awaitable[None]] | None = None,
    ready: asyncio.Event | None = None,
    reload: Callable[[], None] | None = None,
) -> bool:
    """Run `work` until SIGTERM or SIGINT, then cancel it: True. If it ends first, raises what it raised.

    `last` runs before that, while `work` still runs. The service manager is notified when `ready` is set;
    without it at once. `reload` runs at SIGHUP.
    """
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, reload)
    keeper = keeper_of(os.environ)
    running = asyncio.create_task(work)
    waiting = asyncio.create_task(told.wait())
    telling = asyncio.create_task(_keep_informed(keeper, ready))
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
            return False
        keeper.stopping()
        if last is not None:
            await last()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    finally:
        waiting.cancel()
        telling.cancel()
    return True


async def _keep_informed(keeper: Keeper, ready: asyncio.Event | None) -> None:
    if ready is not None:
        await ready.wait()
    keeper.ready()
    await keeper.vouch()
