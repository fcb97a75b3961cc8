"""`supervisorctl etcd`: users of etcd, so that each daemon can write only its own keys, and room in it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli import render
from supervisor.cli.options import Globals, global_options
from supervisor.contract.errors import Refused, Unreachable, UserError
from supervisor.contract.etcd_member import QUICK_BYTES, EtcdMember

if TYPE_CHECKING:
    from supervisor.adapters.certificates.tls import TlsFiles
    from supervisor.adapters.etcd.maintenance import EtcdCalls
    from supervisor.adapters.etcd.users import Auth

WELL_S = 10.0
AGAIN_S = 0.3
HOLDERS = click.argument("holders", nargs=-1, required=True, metavar="KIND:NAME...")
CONFIG = click.option(
    "--supervisor-config",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Configuration of any supervisor: it has etcd's endpoints and the cluster's name.",
)

CERT = click.option(
    "--cert",
    type=click.Path(path_type=Path, dir_okay=False),
    help="etcd's administrator, NAME.pem beside NAME.key; by default that of the client configuration.",
)


@click.group()
def etcd() -> None:
    """Give etcd a user for each daemon, so that it can write only its own keys; make room in its database.

    The user of the certificate (--cert, `certs issue DIRECTORY etcdctl:NAME`) becomes etcd's administrator.
    """


@etcd.command()
@HOLDERS
@CONFIG
@CERT
@click.option(
    "--enable", is_flag=True, help="From now on, let etcd refuse every client that is not one of its users."
)
@global_options
def setup(given: Globals, holders: tuple[str, ...], path: Path, cert: Path | None, enable: bool) -> None:
    """Make users and roles for supervisor:NAME, agent:NODE and pool:NAME. Repeating it does no harm."""
    told, enabled = asyncio.run(_setup(_plan(given, holders, path, cert), enable=enable))
    _show(given, told, "done", enabled=enabled)


def give_users(path: Path, cert: Path, holders: Sequence[str]) -> None:
    """Make users of etcd, and have it refuse all others. Raises UserError, Unreachable, Refused.

    `path`: the configuration of a supervisor. `cert`: that of etcd's administrator.
    """
    asyncio.run(_setup(_plan(Globals(), tuple(holders), path, cert), enable=True))


@etcd.command()
@HOLDERS
@CONFIG
@CERT
@global_options
@click.pass_context
def check(
    context: click.Context, given: Globals, holders: tuple[str, ...], path: Path, cert: Path | None
) -> None:
    """List missing users and roles, and whether etcd requires them. Exits with 1 if anything is missing."""
    told, enabled = asyncio.run(_check(_plan(given, holders, path, cert)))
    _show(given, told, "missing", enabled=enabled)
    context.exit(1 if told or not enabled else 0)


@etcd.command()
@CONFIG
@click.option(
    "--cert",
    type=click.Path(path_type=Path, dir_okay=False),
    help="etcd's administrator, NAME.pem beside NAME.key; by default the supervisor's own certificate.",
)
@click.option("--anyway", is_flag=True, help="Leave out members that do not answer for ten seconds.")
@click.option(
    "--large",
    is_flag=True,
    help="Also where etcd answers nothing meanwhile, and its data take long: tasks may end.",
)
@global_options
def defrag(given: Globals, path: Path, cert: Path | None, anyway: bool, large: bool) -> None:
    """Give the free space of etcd's database files back, one member after the other.

    A full etcd is compacted first and takes writes again afterwards. A member answers nothing while its file
    is rewritten, and the others go on. One that leads hands that over first.
    """
    from supervisor.adapters.files.config.supervisor import load_supervisor

    config = load_supervisor(path)
    tls = config.etcd_tls_files()
    if tls is not None and cert is not None:
        tls = _shown(tls, cert)
    wanted = config.etcd.endpoints, tls
    try:
        done, left_out = asyncio.run(_defrag(*wanted, anyway=anyway, large=large, shown=not given.json))
    except Refused as error:
        raise Refused(f"{error}; where etcd has users, give --cert of one with its role root") from error
    if given.json:
        render.emit_json({"members": done, "left_out": left_out})


async def _defrag(
    endpoints: list[str], tls: TlsFiles | None, *, anyway: bool, large: bool, shown: bool
) -> tuple[list[dict[str, object]], list[str]]:
    """The sizes of each member before and after, and the addresses of those left out."""
    from supervisor.adapters.etcd.maintenance import EtcdCalls

    calls, done, left_out = EtcdCalls(endpoints, tls), list[dict[str, object]](), list[str]()
    if anyway:
        away = await _away(calls, WELL_S)
        left_out = [each.endpoint for each in away]
        calls = EtcdCalls([each for each in endpoints if each not in left_out], tls)
        if shown:
            for each in away:
                click.echo(f"{each.endpoint}: left out, it does not answer ({each.problem})")
    members = await _all_well(calls, 0)
    most = max(each.used_bytes for each in members)
    majority = (len(members) + len(left_out)) // 2 + 1
    if most > QUICK_BYTES and len(members) - 1 < majority and not large:
        raise UserError(
            f"of the members in this configuration {len(members)} answer. Without the one that rewrites its "
            f"file they are no majority, and with {render.size(most)} of data that takes seconds. etcd may "
            "answer nothing meanwhile, and tasks end if that is longer than D. Stop the jobs first, or give "
            "--large"
        )
    full = any(each.full for each in members)
    if full:
        await calls.compact(max(each.revision for each in members), physical=True)
    for member in sorted(members, key=lambda each: each.leads):
        now = await _all_well(calls, WELL_S)
        leads = next(each for each in now if each.endpoint == member.endpoint).leads
        other = next((each for each in now if each.endpoint != member.endpoint), None)
        if leads and other is not None:
            await calls.move_leader(member, other)
        began = time.monotonic()
        await calls.defragment(member.endpoint)
        took_s = time.monotonic() - began
        now = await _all_well(calls, WELL_S)
        after = next(each for each in now if each.endpoint == member.endpoint)
        sizes = member.file_bytes, after.file_bytes
        done.append(
            {"member": member.endpoint, "before": sizes[0], "after": sizes[1], "seconds": round(took_s, 3)}
        )
        if shown:
            click.echo(f"{member.endpoint}: {' -> '.join(map(render.size, sizes))} in {took_s:.2f} s")
    if full:
        await calls.disarm()
        if shown:
            click.echo("the alarm NOSPACE is ended")
    return done, left_out


async def _away(calls: EtcdCalls, patience_s: float) -> Sequence[EtcdMember]:
    """The members that still do not answer after so long."""
    until = time.monotonic() + patience_s
    while True:
        away = [each for each in await calls.members() if each.problem and not each.refused]
        if not away or time.monotonic() > until:
            return away
        await asyncio.sleep(AGAIN_S)


async def _all_well(calls: EtcdCalls, patience_s: float) -> Sequence[EtcdMember]:
    """All members. Raises Unreachable, Refused if one of them is still not well after so long."""
    until = time.monotonic() + patience_s
    while True:
        members = await calls.members()
        bad = next((each for each in members if each.problem), None)
        if not members:
            raise Unreachable("no member of etcd answers")
        if bad is None:
            return members
        if bad.refused:
            raise Refused(bad.problem)
        if time.monotonic() > until:
            raise Unreachable(
                f"etcd's member {bad.endpoint} does not answer ({bad.problem}). While one is away, clients "
                "may have no other than the one that rewrites its file; mend it first, or give --anyway"
            )
        await asyncio.sleep(AGAIN_S)


def _show(given: Globals, told: list[str], what: str, *, enabled: bool) -> None:
    if given.json:
        render.emit_json({what: told, "enabled": enabled})
        return
    for each in told:
        click.echo(f"mended: {each}" if what == "done" else each)
    if not told:
        click.echo("users and roles are as they should be")
    click.echo(
        "etcd refuses everybody else" if enabled else "etcd lets everybody in: `setup --enable` ends that"
    )


async def _setup(wanted: tuple[list[str], Auth, TlsFiles], *, enable: bool) -> tuple[list[str], bool]:
    from supervisor.adapters.etcd.users import etcd_auth

    endpoints, plan, tls = wanted
    async with etcd_auth(endpoints, tls) as auth:
        before = await auth.found()
        await auth.make(plan)
        if enable and not before.enabled:
            await auth.enable()
        after = await auth.found()
        left = plan.missing(after)
        if left:
            raise UserError(f"somebody else changes etcd's users at the same time: {left[0]}; ask again")
        return plan.missing(before), after.enabled


async def _check(wanted: tuple[list[str], Auth, TlsFiles]) -> tuple[list[str], bool]:
    from supervisor.adapters.etcd.users import etcd_auth

    endpoints, plan, tls = wanted
    async with etcd_auth(endpoints, tls) as auth:
        found = await auth.found()
    return plan.missing(found), found.enabled


def _plan(
    given: Globals, holders: tuple[str, ...], path: Path, cert: Path | None
) -> tuple[list[str], Auth, TlsFiles]:
    """The addresses of etcd, its wanted users and roles, and the administrator's certificate."""
    from supervisor.adapters.certificates.x509 import common_name
    from supervisor.adapters.etcd.users import wanted
    from supervisor.adapters.files.config.supervisor import load_supervisor

    config = load_supervisor(path)
    tls = config.etcd_tls_files()
    if tls is not None:
        tls = _admin(given, tls, cert)
    if tls is None:
        raise UserError(
            "users of etcd are known by their certificates: give `etcd.tls` in the supervisor's "
            "configuration, and `--cert FILE` of `certs issue DIRECTORY etcdctl:NAME`"
        )
    return config.etcd.endpoints, wanted(config.cluster, holders, common_name(tls.load().cert)), tls


def _admin(given: Globals, tls: TlsFiles, cert: Path | None) -> TlsFiles | None:
    """The administrator's certificate: that of --cert, or else of the client configuration."""
    from supervisor.adapters.files.config.client import load_client

    if cert is not None:
        return _shown(tls, cert)
    client = given.config or (Path(os.environ["TFSUP_CONFIG"]) if os.environ.get("TFSUP_CONFIG") else None)
    return load_client(client).tls_files() if client is not None else None


def _shown(tls: TlsFiles, cert: Path) -> TlsFiles:
    """The same authority, with the certificate of --cert."""
    return replace(tls, cert=cert, key=cert.with_suffix(".key"))
