"""Checks of the services that an agent needs: etcd, certificates, promises."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

from supervisor.cli.checks.model import Check, Scene, Told, fail, ok, warn

READS = 5
SLOW_MS = 100
MOST_USERS = 8
HDFS_S = 60.0


def etcd(scene: Scene) -> Told:
    """Whether etcd answers linearizable reads, and how fast; whether it is full; whether a member is away."""
    return asyncio.run(_read(scene))


async def _read(scene: Scene) -> Told:
    from supervisor.adapters import service
    from supervisor.adapters.etcd.maintenance import EtcdCalls

    endpoints = scene.agent.etcd.endpoints
    coordination = service.connect(scene.agent)
    try:
        times_ms = [await _timed(partial(coordination.get, "doctor")) for _ in range(READS)]
    finally:
        await coordination.close()
    members = await EtcdCalls(endpoints, scene.agent.etcd_tls_files()).members()
    if any(each.full for each in members):
        return fail("etcd is full (alarm NOSPACE) and takes no writes", "see docs/etcd-care.md")
    slowest = max(times_ms[1:])
    detail = f"{', '.join(endpoints)}: reads within {slowest:.0f} ms"
    silent = [f"{each.endpoint}: {each.problem}" for each in members if each.problem and not each.refused]
    if silent:
        return warn(f"{detail}, but a member does not answer: {'; '.join(silent)}")
    return warn(detail) if slowest > SLOW_MS else ok(detail)


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    began = time.monotonic()
    await call()
    return (time.monotonic() - began) * 1000


def now() -> datetime:
    """The time in UTC."""
    return datetime.now(UTC)


def certificates(scene: Scene) -> Told | None:
    """Whether this agent's certificates are good, and until when."""
    from supervisor.adapters.certificates.watch import own_certificates
    from supervisor.adapters.certificates.x509 import validity

    told, at = [], now()
    for name, each in own_certificates(scene.agent, f"agent:{scene.agent.node}").items():
        life = validity(each.current().cert)
        told.append((name, life.told(at), life))
    if not told:
        return None
    bad = [f"{name}: {text}" for name, text, _ in told if text]
    if bad:
        expired = any(life.ends <= at for _, _, life in told)
        return (fail if expired else warn)("; ".join(bad))
    return ok("; ".join(f"{name} until {life.ends:%Y-%m-%d}" for name, _, life in told))


def promises(scene: Scene) -> Told:
    """Whether this node's tasks survive a longer loss of etcd, and the supervisors whose promises that needs
    (rule 11).
    """
    return asyncio.run(_promises(scene))


async def _promises(scene: Scene) -> Told:
    from supervisor.adapters import service
    from supervisor.contract import codec, keys
    from supervisor.contract.desired import ClusterRecord

    coordination = service.connect(scene.agent)
    try:
        entry = await coordination.get(keys.CLUSTER)
    finally:
        await coordination.close()
    if entry is None:
        return ok("no supervisor has led this cluster yet")
    record, known = codec.decode(ClusterRecord, entry.value), len(scene.agent.supervisors)
    if not record.promise_ms:
        return ok(f"off: without etcd tasks end by D, {record.d_ms / 1000:g} s")
    detail = f"{', '.join(record.supervisors)}, each for {record.promise_ms / 1000:g} s"
    if known < len(record.supervisors):
        return warn(f"{detail}; all must promise, but this file has {known} of {len(record.supervisors)}")
    return ok(detail)


def hdfs_users(scene: Scene) -> Told:
    """Whether HDFS takes this agent for the owners of jobs."""
    return asyncio.run(_hdfs_users(scene))


async def _hdfs_users(scene: Scene) -> Told:
    from recovery.stores.user_stores import UserStores
    from supervisor.adapters import service
    from supervisor.adapters.files.store_uri import parse_record_uri
    from supervisor.contract import codec, keys
    from supervisor.contract.errors import TfSupervisorError
    from supervisor.contract.job.spec import JobRecord

    coordination = service.connect(scene.agent)
    try:
        found = await coordination.list(keys.job_record(""))
    finally:
        await coordination.close()
    records = [codec.decode(JobRecord, each.value) for each in found.entries]
    uris = {each.hdfs_user: each.hdfs_uri for each in records if each.hdfs_user}
    users, refused = UserStores(scene.agent.hadoop.settings()), []
    try:
        for _, uri in sorted(uris.items())[:MOST_USERS]:
            try:
                await users.open(parse_record_uri(uri)).connect()
            except TfSupervisorError as error:
                refused.append(str(error))
    finally:
        await users.close()
    if refused:
        return fail("; ".join(refused))
    return ok(f"reached as {', '.join(sorted(uris)[:MOST_USERS])}" if uris else "no job is in HDFS yet")


CHECKS = (
    Check(
        "certificates", certificates, "renew it: `supervisorctl certs issue --renew`; no restart is needed"
    ),
    Check("etcd", etcd, "is it up, do all members see each other, is its disk or the network slow?"),
    Check(
        "hadoop.proxy_users",
        hdfs_users,
        "let HDFS take the daemons for the owners of jobs (docs/hdfs.md)",
        lambda scene: scene.config is not None and scene.config.hadoop.proxy_users,
        deadline_s=HDFS_S,
    ),
    Check("promises", promises, "name the addresses of all supervisors under `supervisors:`"),
)
