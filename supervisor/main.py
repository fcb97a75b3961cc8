"""`tfsup-supervisord --config FILE`: connects one supervisor to etcd, its API and the service manager's
signals.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path

import click

from recovery.io.daemon_threads import DaemonThreads
from recovery.stores.allowed import AllowedStores, entries_or_default
from recovery.stores.open import Stores
from supervisor.adapters import service
from supervisor.adapters.audit import AuditLog, open_audit
from supervisor.adapters.certificates.watch import CertificateWatch, own_certificates
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.maintenance import EtcdCalls
from supervisor.adapters.etcd.users import lets_everybody_in
from supervisor.adapters.fence_devices import FenceDevices
from supervisor.adapters.files.config.daemon import HttpConfig
from supervisor.adapters.files.config.supervisor import SupervisorConfig, load_supervisor
from supervisor.adapters.messengers import messenger_of
from supervisor.adapters.metrics.daemon import Metrics
from supervisor.adapters.operator_command import executable
from supervisor.adapters.secret_sources import SecretSources
from supervisor.api.certificates import CertificateEvents
from supervisor.api.server import ControlService, serve_api, sources_of
from supervisor.contract.boundaries import Coordination, Logger
from supervisor.contract.errors import Refused, UserError
from supervisor.control.decide.etcd_space import SpaceSettings
from supervisor.control.decide.snapshot import BrakeSettings
from supervisor.control.loop.code_sweep import CodeSweep
from supervisor.control.loop.daemon import ControlDaemon, ControlSettings, StateFiles
from supervisor.control.loop.etcd_care import EtcdCare
from supervisor.control.loop.notifier import Notifier, Notifiers, Target
from supervisor.control.loop.promise_log import Terms
from supervisor.control.loop.state_files import StateDirMarkFile, StateDirWordFile
from supervisor.metrics import own
from supervisor.wire.audit import Auditor
from supervisor.wire.gate import Policy, policy_of
from supervisor.wire.http import HttpDoor, Route, guard_of
from supervisor.wire.metrics import metrics_route
from supervisor.wire.rpc import Guard

STORE_THREADS = 16
"""Threads for stores, apart from the loop's own threads, so that a hanging store holds up no other work."""


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True)
def main(config_path: Path) -> None:
    """Run one supervisor until SIGTERM, which hands leadership over first."""
    service.run("tfsup-supervisord", partial(_prepare, config_path))


def _prepare(path: Path) -> tuple[SupervisorConfig, dict[str, str], service.Serve]:
    config = load(path)
    return config, {"supervisor": config.id}, partial(_serve, config, partial(load, path))


def load(path: Path) -> SupervisorConfig:
    """The configuration of a supervisor that runs here, with its programs. Raises UserError, NotFound."""
    config = load_supervisor(path)
    for index, each in enumerate(config.fence.devices):
        try:
            executable(each.command[0])
        except Refused as error:
            hint = "`apt install fence-agents` has the common devices"
            raise UserError(f"{path}: fence.devices[{index}].command: {error}; {hint}") from error
    for name, target in config.notify.targets.items():
        try:
            messenger_of(target, insecure=config.insecure)
        except (Refused, UserError) as error:
            raise UserError(f"{path}: notify.targets.{name}: {error}") from error
    return config


async def _serve(config: SupervisorConfig, load: Callable[[], SupervisorConfig], sink: Logger) -> None:
    timing = config.timing
    config.hadoop.settings().put_into_environment()
    stores = Stores(config.hadoop.settings(), ThreadPoolExecutor(STORE_THREADS, "store"), sink)
    await asyncio.to_thread(stores.preload)
    metrics = Metrics("supervisor", metadata.version("tf-supervisor"), DaemonThreads(1, "metrics"), sink)
    stores.measured = metrics.store
    coordination = service.connect(config, metrics=metrics)
    secrets, devices = SecretSources(sources_of(config)), FenceDevices()
    _load_devices(devices, config)
    daemon = _daemon(config, coordination, stores, secrets, devices, sink)
    audit = open_audit(config.audit, sink)
    events = CertificateEvents(daemon.job_service, sink)
    watch = CertificateWatch(own_certificates(config, f"supervisor:{config.id}"), sink)
    policy = policy_of(config)
    api = await serve_api(daemon.job_service, daemon.on_beat, config, daemon, audit, events, policy, secrets)
    care = _care(config, coordination, daemon, sink)
    own.add_all(metrics, daemon, care, watch, config.etcd_quota)
    told, tell = daemon.job_service.snapshot, daemon.job_service.tell
    sweep = CodeSweep(coordination, stores.open_code, told, config.code_store or "", sink)
    notifiers = Notifiers(lambda target: Notifier(target, coordination, told, tell, sink))
    _load_targets(notifiers, daemon, config)
    take = partial(_take, policy, secrets, devices, daemon, notifiers)
    reload = service.reloading(config, load, take, sink)
    others = [watch.run(events.tell), care.run(), sweep.run(), notifiers.run()]
    if config.http is not None:
        others.append(_door(config, config.http, daemon, policy, audit, metrics, sink).run())
    beside = [asyncio.create_task(each) for each in others]
    sink.info("supervisor is up", listen=config.listen, profile=timing.profile, d_ms=timing.d_ms)
    try:
        # The campaign ends first, so that this supervisor does not win again what it hands over.
        if await service.until_told(daemon.run(), reload=reload):
            await daemon.hand_over()
    finally:
        for task in beside:
            task.cancel()
        await api.close()
        if audit is not None:
            audit.close()
        await stores.close()
        await coordination.close()


def _daemon(
    config: SupervisorConfig,
    coordination: Coordination,
    stores: Stores,
    secrets: SecretSources,
    devices: FenceDevices,
    sink: Logger,
) -> ControlDaemon:
    """The daemon that decides while this supervisor leads."""
    settings = ControlSettings(
        config.id,
        config.cluster,
        config.address,
        os.getpid(),
        config.timing,
        Terms(config.promise_for, tuple(config.supervisors)),
        AllowedStores(entries_or_default(config.stores), config.hadoop.proxy_users),
        secrets,
        config.code_store or "",
        _brake(config),
        config.http_url,
    )
    directory = Path(config.state_dir)
    files = StateFiles(StateDirWordFile(directory), StateDirMarkFile(directory))
    daemon = ControlDaemon(
        settings, coordination, stores.open, BootClock(), sink, lambda: uuid.uuid4().hex, files, devices
    )
    daemon.job_service.uploads.open_store = stores.open_code
    daemon.job_service.pools.issuer = config.issuer
    if (etcd_tls := config.etcd_tls_files()) is not None:
        daemon.job_service.pools.is_etcd_open = partial(lets_everybody_in, config.etcd.endpoints, etcd_tls)
    daemon.sweeper.open_logs = daemon.job_service.open_logs = lambda uri: stores.open_logs(uri)[0]
    return daemon


def _care(
    config: SupervisorConfig, coordination: Coordination, daemon: ControlDaemon, sink: Logger
) -> EtcdCare:
    """The care for etcd's space, whose lines `doctor` and the page show."""
    care = EtcdCare(
        EtcdCalls(config.etcd.endpoints, config.etcd_tls_files()),
        coordination,
        SpaceSettings(config.etcd_quota, config.etcd_history),
        leads=lambda: daemon.job_service.snapshot() is not None,
        leader=daemon.job_service.leader,
        tell=daemon.job_service.tell,
        clock=BootClock(),
        sink=sink,
    )
    daemon.job_service.etcd_lines = lambda: (*daemon.troubles(), *care.lines)
    return care


def _door(
    config: SupervisorConfig,
    settings: HttpConfig,
    daemon: ControlDaemon,
    policy: Policy,
    audit: AuditLog | None,
    metrics: Metrics,
    sink: Logger,
) -> HttpDoor:
    """The door of the page, its API and metrics."""
    guard = Guard(config.tls_files(), config.token, config.insecure)
    control = ControlService(daemon.job_service, config.cluster, guard, daemon)
    return HttpDoor(
        settings=settings,
        guard=guard_of(config),
        policy=policy,
        auditor=Auditor(f"supervisor:{config.id}", audit),
        sink=sink,
        routes=lambda: [metrics_route(metrics), *_pages(control, config, daemon)],
    )


def _pages(control: ControlService, config: SupervisorConfig, daemon: ControlDaemon) -> list[Route]:
    """The paths of the page. What makes pages is loaded here, when the first caller connects."""
    web = importlib.import_module("supervisor.web.routes")
    found: list[Route] = web.routes(web.Source(control, daemon.job_service, config.cluster))
    return found


def _targets(config: SupervisorConfig) -> list[Target]:
    """The targets of notifications."""
    return [
        Target(name, frozenset(each.on), messenger_of(each, insecure=config.insecure), each.jobs == "named")
        for name, each in config.notify.targets.items()
    ]


def _take(
    policy: Policy,
    secrets: SecretSources,
    devices: FenceDevices,
    daemon: ControlDaemon,
    notifiers: Notifiers,
    config: SupervisorConfig,
) -> None:
    """Apply a configuration that was read again."""
    newest = policy_of(config)
    policy.users, policy.denied = newest.users, newest.denied
    secrets.sources = sources_of(config)
    _load_devices(devices, config)
    _load_targets(notifiers, daemon, config)
    daemon.set_brake(_brake(config))


def _load_targets(notifiers: Notifiers, daemon: ControlDaemon, config: SupervisorConfig) -> None:
    notifiers.load(_targets(config))
    daemon.job_service.submissions.targets = frozenset(config.notify.targets)


def _brake(config: SupervisorConfig) -> BrakeSettings:
    return BrakeSettings(config.brake.lost_fraction, config.brake.window)


def _load_devices(devices: FenceDevices, config: SupervisorConfig) -> None:
    found = [each.device for each in config.fence.devices]
    devices.load(found, config.fence_after_ms)


if __name__ == "__main__":
    main()
