"""The fields that both daemons have in their configurations, and the checks of these fields.

An address that can be reached from outside without TLS client certificates is an error, unless the file has
`insecure: true` (docs/security.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from supervisor.adapters.certificates.tls import TlsFiles, check_open_door, is_local, is_unspecified
from supervisor.adapters.files.config.fields import Address, Identity, Profile, UserName
from supervisor.adapters.files.hadoop import HadoopSettings, Kerberos, read_conf
from supervisor.adapters.files.private import check_private
from supervisor.adapters.files.quantities import DurationMs, Name, Text
from supervisor.adapters.files.yaml_file import Document, Strict, Where
from supervisor.contract.access import Role, Standing
from supervisor.contract.errors import UserError
from supervisor.contract.timing import PROFILES, Timing


class TlsConfig(Strict):
    """Certificates, as PEM files."""

    ca: Text
    cert: Text
    key: Text

    def files(self) -> TlsFiles:
        """The files in the form of the TLS adapter."""
        return TlsFiles(Path(self.ca), Path(self.cert), Path(self.key))


class EtcdConfig(Strict):
    """The address of etcd."""

    endpoints: list[Address] = Field(min_length=1, description="add `endpoints: [127.0.0.1:2379]`")
    tls: TlsConfig | None = None


class LogConfig(Strict):
    """The file of a daemon's log; without one it goes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    file: Text | None = None


class AuditConfig(Strict):
    """The audit log of requests (docs/security.md); by default none."""

    file: Text | None = None
    journald: bool = False
    required: bool = False


class KerberosConfig(Strict):
    """The identity of a daemon in an HDFS with Kerberos."""

    principal: Text = Field(description="add `principal: NAME/HOST@REALM`")
    keytab: Text | None = None
    cache: Text | None = None


class HadoopConfig(Strict):
    """The access of a daemon to HDFS; omitted values come from its environment."""

    conf_dir: Text | None = None
    user: Text | None = None
    kerberos: KerberosConfig | None = None
    proxy_users: bool = False

    def settings(self) -> HadoopSettings:
        """The settings in the form of the stores."""
        known = self.kerberos
        kerberos = Kerberos(known.principal, known.keytab, known.cache) if known is not None else None
        return HadoopSettings(self.conf_dir, self.user, kerberos, self.proxy_users)


class HttpConfig(Strict):
    """The door for browsers and for programs that speak HTTP (docs/page.md)."""

    listen: Address = Field(description="add `listen: HOST:PORT`")
    advertise: Address | None = None
    token_file: Text | None = None


class UserConfig(Strict):
    """The rights of a user (docs/security.md)."""

    role: Literal["viewer", "submitter", "operator", "admin"] = Field(
        description="add `role: viewer`, or submitter, operator, admin"
    )
    group: Name | None = None

    @property
    def standing(self) -> Standing:
        """The standing in the form of the table of rights."""
        return Standing(Role(self.role), self.group or "")


class DaemonConfig(Strict):
    """The fields of both daemons."""

    cluster: Name = Field(description="add `cluster: NAME`, the same on every machine")
    etcd: EtcdConfig = Field(description="add `etcd: {endpoints: [...]}`")
    listen: Address = Field(description="add `listen: HOST:PORT` or `listen: unix:/PATH`")
    tls: TlsConfig | None = None
    insecure: bool = False
    token_file: Text | None = None
    profile: Profile = "default"
    control_plane_grace: DurationMs | None = Field(default=None, gt=0)
    state_dir: Text = Field(description="add `state_dir: /var/lib/tf-supervisor`")
    run_dir: Text | None = None
    log: LogConfig = LogConfig()
    audit: AuditConfig = AuditConfig()
    hadoop: HadoopConfig = HadoopConfig()
    stores: list[Text] = Field(default_factory=list)
    denied: list[Identity] = Field(default_factory=list)
    http: HttpConfig | None = None
    users: dict[UserName, UserConfig] = Field(default_factory=dict)
    user_ca: Text | None = None

    @property
    def timing(self) -> Timing:
        """The profile's durations, with D set by `control_plane_grace` (rule 11); raises UserError."""
        timing = PROFILES[self.profile]
        if self.control_plane_grace is None:
            return timing
        return dataclasses.replace(timing, d_ms=self.control_plane_grace).check()

    @property
    def token(self) -> str:
        """The shared secret of a cluster on loopback TCP; empty when none is configured."""
        return read_token(self.token_file)

    @property
    def socket_dir(self) -> str:
        """The directory for the daemon's own Unix sockets: `run_dir`, if the path of the state directory is
        too long.
        """
        return self.run_dir or self.state_dir

    def tls_files(self) -> TlsFiles | None:
        """Certificates of the daemon's own address."""
        return self.tls.files() if self.tls else None

    def http_tls_files(self) -> TlsFiles | None:
        """Certificates of the HTTP door, and the authority of users; None where a token opens it."""
        if self.tls is None or self.http is None or self.http.token_file is not None:
            return None
        return dataclasses.replace(self.tls.files(), user_ca=Path(self.user_ca) if self.user_ca else None)

    @property
    def http_url(self) -> str:
        """The URL at which browsers reach the HTTP door; empty without one."""
        if self.http is None:
            return ""
        scheme = "https" if self.http_tls_files() is not None else "http"
        return f"{scheme}://{self.http.advertise or self.http.listen}"

    @property
    def http_token(self) -> str:
        """The token of the HTTP door, if it has no certificates; empty when none is configured."""
        own = self.http.token_file if self.http is not None else None
        return read_token(own or self.token_file) if self.http_tls_files() is None else ""

    def etcd_tls_files(self) -> TlsFiles | None:
        """Certificates for etcd."""
        return self.etcd.tls.files() if self.etcd.tls else None


def read_token(file: str | None) -> str:
    """The token in a file that only its owner may read; empty without a file. Raises UserError."""
    if file is None:
        return ""
    path = Path(file)
    try:
        if path.stat().st_mode & 0o077:
            raise UserError(f"{path}: others on this machine can read this token; run: chmod 600 {path}")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read this token: {error}") from error
    if len(token) < 32:
        raise UserError(f"{path}: a token has at least 32 characters; run: openssl rand -hex 32 > {path}")
    return token


def check_daemon(document: Document, config: DaemonConfig) -> None:
    """Note the problems of the fields that both daemons have."""
    doors = [config.listen]
    check_doors(document, ("listen",), doors, config.tls_files(), insecure=config.insecure)
    guarded = config.listen.startswith("unix:") or config.tls is not None or config.token_file is not None
    if not guarded and not config.insecure and is_local(config.listen):
        document.problem(
            ("listen",),
            "every user of this machine could connect; add `token_file: FILE` (openssl rand -hex 32 > FILE), "
            "listen on unix:/PATH, or configure TLS",
        )
    members = config.etcd.endpoints
    check_doors(document, ("etcd", "endpoints"), members, config.etcd_tls_files(), insecure=config.insecure)
    _check_http(document, config)
    if config.user_ca is not None and config.tls is None:
        document.problem(("user_ca",), "needs `tls: {ca, cert, key}`: without it nobody shows a certificate")
    try:
        _ = config.timing
    except UserError as error:
        document.problem(("control_plane_grace",), str(error))
    _check_hadoop(document, config.hadoop)
    if config.audit.file is not None and config.audit.journald:
        document.problem(("audit", "journald"), "contradicts audit.file; keep one of the two")
    if config.audit.required and config.audit.file is None and not config.audit.journald:
        document.problem(("audit", "required"), "needs `audit.file: PATH` or `audit.journald: true`")


def _check_http(document: Document, config: DaemonConfig) -> None:
    http, where = config.http, ("http", "listen")
    if http is None:
        return
    for name in ("listen", "advertise"):
        if (getattr(http, name) or "").startswith("unix:"):
            document.problem(("http", name), "browsers open no sockets; write HOST:PORT")
            return
    tls = config.http_tls_files()
    check_doors(document, where, [http.listen], tls, insecure=config.insecure)
    guarded = tls is not None or http.token_file is not None or config.token_file is not None
    if not guarded and not config.insecure and is_local(http.listen):
        document.problem(
            where,
            "every user of this machine could connect; add `http.token_file: FILE` (openssl rand -hex 32 > "
            "FILE), or configure TLS",
        )
    if is_unspecified(http.advertise or http.listen):
        document.problem(where, "is no address that a browser could open; add `http.advertise: HOST:PORT`")


def _check_hadoop(document: Document, hadoop: HadoopConfig) -> None:
    """Check Hadoop's settings at the start, before the first checkpoint is committed."""
    try:
        conf = read_conf(hadoop.settings().directory()) if hadoop.conf_dir or hadoop.proxy_users else None
    except UserError as error:
        document.problem(("hadoop", "conf_dir"), str(error))
        conf = None
    if hadoop.proxy_users and (hadoop.kerberos is None or (conf is not None and not conf.secure)):
        document.problem(
            ("hadoop", "proxy_users"),
            "needs hadoop.kerberos, and in hadoop.conf_dir a core-site.xml that says "
            "hadoop.security.authentication = kerberos: an HDFS without Kerberos takes anybody for any user",
        )
    if hadoop.kerberos is None:
        return
    if hadoop.user is not None:
        document.problem(("hadoop", "user"), "contradicts hadoop.kerberos, whose principal is the user")
    keytab = hadoop.kerberos.keytab
    if keytab is None:
        return
    check_private(document, ("hadoop", "kerberos", "keytab"), keytab)


def check_reachable(document: Document, listen: str, advertise: str | None) -> None:
    """Check that others can use `advertise`, or else `listen`: the address for all interfaces cannot be
    connected to.
    """
    if advertise is None and is_unspecified(listen):
        document.problem(
            ("listen",), f"{listen} is no address that others could connect to; add `advertise: HOST:PORT`"
        )
    elif advertise is not None and is_unspecified(advertise):
        document.problem(("advertise",), "write the address that others connect to")


def check_doors(
    document: Document, where: Where, addresses: Sequence[str], tls: TlsFiles | None, *, insecure: bool
) -> None:
    """Note each address that can be reached from outside without certificates."""
    for index, address in enumerate(addresses):
        try:
            check_open_door(address, tls, insecure=insecure)
        except UserError as error:
            document.problem((*where, index) if len(addresses) > 1 else where, str(error))
