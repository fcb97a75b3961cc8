"""`supervisorctl etcd`: users of etcd, so that each daemon can write only its own keys."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli import render
from supervisor.cli.options import Globals, global_options
from supervisor.contract.errors import UserError

if TYPE_CHECKING:
    from supervisor.adapters.certificates.tls import TlsFiles
    from supervisor.adapters.etcd.users import Auth

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
    """Give etcd a user for each daemon, so that it can write only its own keys.

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
    """Make users and roles for supervisor:NAME and agent:NODE. Repeating it does no harm."""
    told, enabled = asyncio.run(_setup(_plan(given, holders, path, cert), enable=enable))
    _show(given, told, "done", enabled=enabled)


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
    from supervisor.adapters.files.config import load_client, load_supervisor

    config = load_supervisor(path)
    client = given.config or (Path(os.environ["TFSUP_CONFIG"]) if os.environ.get("TFSUP_CONFIG") else None)
    tls = config.etcd_tls_files()
    if tls is not None and cert is not None:
        tls = replace(tls, cert=cert, key=cert.with_suffix(".key"))
    elif tls is not None:
        tls = load_client(client).tls_files() if client is not None else None
    if tls is None:
        raise UserError(
            "users of etcd are known by their certificates: give `etcd.tls` in the supervisor's "
            "configuration, and `--cert FILE` of `certs issue DIRECTORY etcdctl:NAME`"
        )
    return config.etcd.endpoints, wanted(config.cluster, holders, common_name(tls.load().cert)), tls
