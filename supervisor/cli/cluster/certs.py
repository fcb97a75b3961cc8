"""`supervisorctl certs`: a small certificate authority for a cluster, made with openssl.

Its files stay on one safe machine. A certificate names its holder by a URI (`contract.access`) and by its
common name, which is the holder's name to etcd.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from supervisor.adapters.certificates import openssl
from supervisor.adapters.certificates.issuer import SKEW, signed
from supervisor.adapters.files.private import publish, write_private
from supervisor.contract.access import Kind, identify
from supervisor.contract.errors import Conflict, Refused, TfSupervisorError, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.pool.record import DOMAIN

AUTHORITY, USERS, PEERS, POOLS = "ca", "user-ca", "peer-ca", "pool-ca"
"""The authorities of machines, which etcd trusts; of users; of the certificates among members of etcd; and of
the agents of pools."""
AUTHORITY_DAYS = 3650
DAYS = 90
ETCD, ETCDCTL = "etcd", "etcdctl"
_PEER = "-peer"
"""Suffix of the files of a member's second certificate."""
_SUBJECTS = {
    AUTHORITY: "tf-supervisor authority",
    USERS: "tf-supervisor users",
    PEERS: "tf-supervisor peers of etcd",
    POOLS: "tf-supervisor pools",
}
_NO_ADDRESS = ",".join(
    (
        "nameConstraints=critical",
        f"permitted;DNS:{DOMAIN}",
        "excluded;IP:0.0.0.0/0.0.0.0",
        "excluded;IP:::/::",
    )
)
"""The authority of pools names no machine's address, also where a client trusts it by mistake."""
POOLS_OF_ETCD = "pool-ca-etcd"
"""The same authority without constraints, for etcd, which takes it for clients alone. Go of 2026 refuses each
URI without a host, as `agent:NODE` is one, below an authority with constraints of whatever kind.
"""
_BOTH, _CLIENT = "serverAuth,clientAuth", "clientAuth"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One certificate.

    Attributes:
        file: its file, without `.pem`.
        name: its common name.
        authority: the authority that signs it.
        alternatives: its alternative names, in openssl's form.
        usage: whether it is for servers.
    """

    file: str
    name: str
    authority: str
    alternatives: tuple[str, ...]
    usage: str


@click.group()
def certs() -> None:
    """Make certificates for a cluster's machines and people."""


@certs.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("holders", nargs=-1, required=True, metavar="KIND:NAME[,ADDRESS...]...")
@click.option(
    "--days",
    type=click.IntRange(1, 825),
    default=DAYS,
    show_default=True,
    help="Days until each certificate ends.",
)
@click.option("--renew", is_flag=True, help="Replace certificates that are there.")
def issue(directory: Path, holders: tuple[str, ...], days: int, renew: bool) -> None:
    """Make certificates in DIRECTORY, and the authorities that sign them where there are none.

    KIND is supervisor, agent, user, etcd (a member) or etcdctl (its administrator). A machine is reached at
    NAME, and at each ADDRESS. The files are KIND-NAME.pem and KIND-NAME.key; for etcd there are also those
    that members show each other.
    """
    there = [each.file for each in _wanted(holders) if (directory / f"{each.file}.pem").exists()]
    if there and not renew:
        raise Conflict(f"{directory / there[0]}.pem is there already; --renew replaces it")
    until = datetime.now(UTC) + timedelta(days=days)
    for each in make(directory, directory, holders, days):
        also = ", ".join(each.alternatives)
        click.echo(f"{directory / each.file}.pem: {each.name}, until {until:%Y-%m-%d}; {also}")


def make(authorities: Path, directory: Path, holders: Iterable[str], days: int) -> list[Wanted]:
    """Make certificates in `directory`, in place of those that are there, and the authorities if none are.

    `holders`: each as `KIND:NAME[,ADDRESS...]`. Raises UserError, Refused.
    """
    wanted = _wanted(holders)
    openssl.require()
    for made in (authorities, directory):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Users have theirs first: an authority of machines without one is of an earlier release.
    if not _has_authority(authorities, AUTHORITY):
        _make_authority(authorities, USERS)
    if not _has_authority(authorities, USERS):
        # Its supervisors trust one authority alone.
        wanted = [replace(each, authority=AUTHORITY) if each.authority == USERS else each for each in wanted]
    for authority in dict.fromkeys((AUTHORITY, *(each.authority for each in wanted))):
        _make_authority(authorities, authority)
    for each in wanted:
        _sign(authorities, directory, each, days)
    return wanted


@certs.command("user-authority")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
def user_authority(directory: Path) -> None:
    """Give the users of an earlier release's DIRECTORY an authority of their own, which etcd does not trust.

    From then on `issue` signs users with it. Name user-ca.pem as `user_ca` in all supervisors before.
    """
    if not _has_authority(directory, AUTHORITY):
        raise UserError(f"{directory} holds no authority; `certs issue` makes a directory with both")
    _make_authority(directory, USERS)
    click.echo(f"{directory / USERS}.pem: signs users from now on; name it as `user_ca` in all supervisors")


@certs.command("pool-authority")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def pool_authority(directory: Path) -> None:
    """Make the authority by which supervisors issue certificates to agents of pools.

    Give pool-ca.pem and pool-ca.key to all supervisors as `pools.issuer`, and pool-ca-etcd.pem to etcd.
    """
    make_pool_authority(directory)
    click.echo(
        f"{directory / POOLS}.pem and {directory / POOLS}.key: name them as `pools.issuer` in all supervisors"
        "\n"
        f"{directory / POOLS_OF_ETCD}.pem: for etcd alone, beside {AUTHORITY}.pem in its `--trusted-ca-file`"
    )


def make_pool_authority(directory: Path) -> None:
    """Make the authority of pools where there is none. Raises Refused."""
    openssl.require()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _make_authority(directory, POOLS)


def _wanted(holders: Iterable[str]) -> list[Wanted]:
    return [each for holder in holders for each in read_holder(holder)]


def read_holder(text: str) -> tuple[Wanted, ...]:
    """The certificates of `KIND:NAME[,ADDRESS...]`; raises UserError."""
    identity, *addresses = text.split(",")
    kind, _, name = identity.partition(":")
    hosts = (name, *addresses)
    if kind not in (Kind.SUPERVISOR.value, Kind.AGENT.value, Kind.USER.value, ETCD, ETCDCTL):
        raise UserError(f"{text!r}: write supervisor:NAME, agent:NODE, user:NAME, etcd:NAME or etcdctl:NAME")
    file = f"{kind}-{name}"
    if kind == Kind.USER.value:
        if addresses:
            raise UserError(f"{text!r}: a user is reached at no address")
        _check_identity(identity)
        return (Wanted(file, identity, USERS, (f"URI:{identity}",), _CLIENT),)
    if kind == ETCDCTL:
        if addresses:
            raise UserError(f"{text!r}: an administrator is reached at no address")
        return (Wanted(file, identity, AUTHORITY, (f"DNS:{check_name('the name', name)}",), _CLIENT),)
    check_name("the name of a machine", name)
    names = tuple(_alternative(host) for host in hosts)
    if kind == ETCD:
        if name.endswith(_PEER):
            raise UserError(
                f"{text!r}: {file}.pem is what member {name.removesuffix(_PEER)} shows other members; "
                "choose another name"
            )
        return (
            Wanted(file, identity, AUTHORITY, names, _BOTH),
            Wanted(f"{file}{_PEER}", identity, PEERS, names, _BOTH),
        )
    return (Wanted(file, identity, AUTHORITY, (f"URI:{identity}", *names), _BOTH),)


def _check_identity(identity: str) -> None:
    try:
        identify([identity])
    except Refused as error:
        raise UserError(
            f"{identity!r} is no name of a user: use letters, digits, '_', '.', '-' and '@'"
        ) from error


def _alternative(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        if not host.strip("0123456789.") or ":" in host:
            raise UserError(f"{host!r} is no address") from None
        return f"DNS:{check_name('the address', host)}"


def _has_authority(directory: Path, name: str) -> bool:
    return any((directory / f"{name}.{end}").exists() for end in ("key", "pem"))


def _make_authority(directory: Path, name: str) -> None:
    """Make an authority where there is none.

    Its key is what makes it one. Each file appears whole, and is never replaced: of several runs at once
    the first one's counts for all, and an interrupted run leaves what the next one completes.
    """
    key, certificate = directory / f"{name}.key", directory / f"{name}.pem"
    # In this order: another run makes the key first.
    if certificate.exists() and not key.exists():
        raise Refused(
            f"{certificate} is there, and {key} is not: bring the authority's key, or use a new directory"
        )
    if not key.exists():
        with openssl.scratch(directory) as scratch:
            made = Path(scratch) / "key"
            openssl.new_key(made)
            publish(made, key)
    _sign_itself(key, certificate, name, ("-addext", _NO_ADDRESS) if name == POOLS else ())
    if name == POOLS:
        _sign_itself(key, directory / f"{POOLS_OF_ETCD}.pem", name, ())


def _sign_itself(key: Path, certificate: Path, name: str, names: tuple[str, ...]) -> None:
    if certificate.exists():
        return
    with openssl.scratch(certificate.parent) as scratch:
        made = Path(scratch) / "pem"
        subject = ("-days", str(AUTHORITY_DAYS), "-subj", f"/CN={_SUBJECTS[name]} {_mark_of(key, scratch)}")
        constraints = ("-addext", "basicConstraints=critical,CA:TRUE,pathlen:0")
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        sign = ("req", "-x509", "-new", "-sha256", "-key", str(key), "-out", str(made))
        openssl.run(*sign, *subject, *constraints, *usage, *names)
        publish(made, certificate)


def _mark_of(key: Path, scratch: str) -> str:
    """A mark for the authority's name, derived from its key.

    With two authorities of one name in a file TLS may try only the first.
    """
    public = Path(scratch) / "public"
    openssl.run("pkey", "-in", str(key), "-pubout", "-outform", "DER", "-out", str(public))
    return hashlib.sha256(public.read_bytes()).hexdigest()[:8]


def _sign(authorities: Path, directory: Path, wanted: Wanted, days: int) -> None:
    with openssl.scratch(directory) as scratch:
        key, request, made = (Path(scratch) / name for name in ("key", "request", "pem"))
        openssl.new_key(key)
        openssl.run("req", "-new", "-key", str(key), "-subj", f"/CN={wanted.name}", "-out", str(request))
        now = datetime.now(UTC)
        try:
            pem = signed(
                authorities / f"{wanted.authority}.pem",
                authorities / f"{wanted.authority}.key",
                request.read_text(encoding="ascii"),
                wanted.name,
                wanted.usage,
                wanted.alternatives,
                (now - SKEW, now + timedelta(days=days)),
            )
        except TfSupervisorError as error:
            raise Refused(f"no certificate for {wanted.name}: {error}") from error
        write_private(made, pem.encode())
        # The key first: who reads the two meanwhile finds that they do not match, and keeps the old pair.
        key.replace(directory / f"{wanted.file}.key")
        made.replace(directory / f"{wanted.file}.pem")
