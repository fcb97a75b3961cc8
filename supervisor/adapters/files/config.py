"""Configuration files of daemons and command line: YAML in, frozen models out, errors as in job files.

Paths are taken relative to the file. An address that can be reached from outside without TLS client
certificates is an error, unless the file has `insecure: true` (docs/security.md).
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field

from supervisor.adapters.certificates.issuer import Issuer
from supervisor.adapters.certificates.tls import (
    TlsFiles,
    check_open_door,
    is_local,
    is_unspecified,
)
from supervisor.adapters.files.config_docker import DockerConfig, User, holder_of, range_of, subordinate_of
from supervisor.adapters.files.config_fence import FenceConfig, check_fence
from supervisor.adapters.files.config_notify import NotifyConfig, check_notify
from supervisor.adapters.files.hadoop import HadoopSettings, Kerberos, read_conf
from supervisor.adapters.files.private import check_private
from supervisor.adapters.files.quantities import DurationMs, Name, SizeBytes, Text
from supervisor.adapters.files.store_uri import Scheme, parse_record_uri
from supervisor.adapters.files.yaml_file import Document, Strict, Where, build, read
from supervisor.contract.access import Role, Standing, identify, valid_user
from supervisor.contract.addresses import bare, split_host_port
from supervisor.contract.errors import Refused, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.secret import EVERY_JOB, GROUP, Source
from supervisor.contract.timing import PROFILES, Timing

C = TypeVar("C", bound=Strict)
Adapt = Callable[[dict[str, object]], None]
LEAST_PROMISE_D = 3
"""Least `promise_for` as a multiple of D (rule 11)."""
MAX_UNIX_PATH = 100
"""Most bytes in the path of a Unix socket. The kernel takes 107, and temporary names need a few."""


def _address(value: str) -> str:
    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path.startswith("/"):
            raise ValueError(f"{value!r} is not an address; write unix:/absolute/path")
        if len(path.encode()) > MAX_UNIX_PATH:
            raise ValueError(
                f"the socket's path is longer than {MAX_UNIX_PATH} bytes; use a shorter directory"
            )
        return value
    try:
        split_host_port(value.removeprefix("http://").removeprefix("https://"))
    except UserError as error:
        raise ValueError(str(error)) from error
    return value


def _host(value: str) -> str:
    literal = bare(value)
    try:
        if ":" in literal and ipaddress.ip_address(literal).version == 6:
            return literal
    except ValueError as error:
        raise ValueError(f"{value!r} is no host; write a name or an address, without a port") from error
    return value


def _identity(value: str) -> str:
    try:
        identify([value])
    except Refused as error:
        raise ValueError(f"{value!r} is nobody; write user:NAME, agent:NODE or supervisor:NAME") from error
    return value


def _user_name(value: str) -> str:
    if not valid_user(value):
        raise ValueError(
            f"{value!r} is no name of a user; write it as in `user:NAME` of the certificate, or '*'"
        )
    return value


def _beneficiary(value: str) -> str:
    kind, _, name = value.partition(":")
    try:
        good = value == EVERY_JOB or (kind == "user" and identify([value]) is not None)
        good = good or (kind + ":" == GROUP and check_name("group", name) == name)
    except (Refused, UserError):
        good = False
    if not good:
        raise ValueError(f"{value!r} is no owner of jobs; write user:NAME, group:NAME, or '*' for every job")
    return value


Beneficiary = Annotated[Text, AfterValidator(_beneficiary)]
UserName = Annotated[Text, AfterValidator(_user_name)]
Identity = Annotated[Text, AfterValidator(_identity)]
Address = Annotated[Text, AfterValidator(_address)]
Host = Annotated[Text, AfterValidator(_host)]
Profile = Literal["fast", "default"]


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


class SecretConfig(Strict):
    """A secret of jobs (docs/security.md)."""

    file: Text | None = None
    command: list[Text] = Field(default_factory=list)
    allow: list[Beneficiary] = Field(
        min_length=1,
        description="add `allow: [user:NAME, group:NAME]`, whose jobs may use it; '*' is every job",
    )

    @property
    def source(self) -> Source:
        """The source in the form of the supervisor."""
        return Source(frozenset(self.allow), self.file or "", tuple(self.command))


class BrakeConfig(Strict):
    """The loss of nodes at which the leader holds restarts and moves (docs/notify.md)."""

    lost_fraction: float = Field(default=0.5, gt=0, le=1, allow_inf_nan=False)
    window: DurationMs = Field(default=300_000, gt=0)


class IssuerConfig(Strict):
    """The authority that signs certificates of pools' agents."""

    cert: Text = Field(description="add `cert: pool-ca.pem`; `supervisorctl certs pool-authority` makes it")
    key: Text = Field(description="add `key: pool-ca.key`")


class PoolsConfig(Strict):
    """Certificates for agents of pools (docs/engines.md)."""

    issuer: IssuerConfig | None = None
    life: DurationMs = Field(default=86_400_000, ge=30_000, le=7 * 86_400_000)


class SupervisorConfig(DaemonConfig):
    """`tfsup-supervisord --config FILE`."""

    id: Name = Field(description="add `id: NAME`, different for each supervisor")
    etcd_quota: SizeBytes = Field(default=2 << 30, gt=0)
    etcd_history: DurationMs = Field(default=600_000, ge=0)
    code_store: Text | None = Field(default=None, max_length=512)
    advertise: Address | None = None
    promise_for: DurationMs = Field(default=0, ge=0)
    supervisors: list[Name] = Field(default_factory=list)
    secrets: dict[Name, SecretConfig] = Field(default_factory=dict)
    fence: FenceConfig = FenceConfig()
    brake: BrakeConfig = BrakeConfig()
    notify: NotifyConfig = NotifyConfig()
    pools: PoolsConfig = PoolsConfig()

    @property
    def issuer(self) -> Issuer | None:
        """The authority of pools; None where supervisors certify no agent."""
        own = self.pools.issuer
        life = timedelta(milliseconds=self.pools.life)
        return Issuer(Path(own.cert), Path(own.key), life) if own is not None else None

    @property
    def fence_after_ms(self) -> int:
        """How old a node's lost mark is when its machine is switched off.

        By default an agent that restarts, or waits for etcd to change its leader, appeals before.
        """
        timing = self.timing
        return timing.unread_ms - timing.suspect_ms if self.fence.after is None else self.fence.after

    def tls_files(self) -> TlsFiles | None:
        """Certificates of the supervisor's own address, and the authorities of users and of pools."""
        files = super().tls_files()
        if files is None:
            return None
        user_ca = Path(self.user_ca) if self.user_ca is not None else None
        pool_ca = Path(self.pools.issuer.cert) if self.pools.issuer is not None else None
        return dataclasses.replace(files, user_ca=user_ca, pool_ca=pool_ca)

    @property
    def address(self) -> str:
        """The address at which others reach this supervisor."""
        return self.advertise or self.listen


class GpuConfig(Strict):
    """Sharing and watching of a node's GPUs."""

    share: int = Field(default=1, ge=1, le=64)
    poll: DurationMs = Field(default=500, ge=50, le=60_000)
    only: list[Text] | None = None
    library: Text | None = None


class LogsConfig(Strict):
    """The way of what tasks print to their jobs' stores."""

    store: bool = True
    lag: DurationMs = Field(default=5_000, ge=1_000, le=3_600_000)
    limit: SizeBytes = Field(default=256 << 20, ge=1 << 20)


class AgentConfig(DaemonConfig):
    """`tfsup-agent --config FILE`."""

    node: Name = Field(description="add `node: NAME`, different for each machine")
    supervisors: list[Address] = Field(min_length=1, description="add `supervisors: [HOST:PORT, ...]`")
    host: Host | None = None
    interface: Text | None = None
    advertise: Address | None = None
    port_low: int = Field(default=20_000, ge=1024, le=65_535)
    port_high: int = Field(default=29_999, ge=1024, le=65_535)
    checkpoint_parent: Text = Field(
        description="add `checkpoint_parent: DIR`, the same path on every machine"
    )
    checkpoint_budget: SizeBytes | None = Field(default=None, ge=0)
    log_budget: SizeBytes = Field(default=2 << 30, ge=0)
    logs: LogsConfig = LogsConfig()
    work_budget: SizeBytes = Field(default=20 << 30, ge=0)
    job_disk: SizeBytes | None = Field(default=None, gt=0)
    lock_dir: Text = Field(description="add `lock_dir: DIR`, one for all agents of this machine")
    spare_launchers: int = Field(default=0, ge=0, le=16)
    task_nice: int = Field(default=10, ge=0, le=19)
    task_user: User | None = None
    firewall: bool = False
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory: SizeBytes | None = None
    labels: dict[str, Text] = Field(default_factory=dict)
    gpus: GpuConfig = GpuConfig()
    runtime: Literal["process", "docker"] = "process"
    docker: DockerConfig = DockerConfig()

    @property
    def address(self) -> str:
        """The address at which supervisors reach this agent."""
        return self.advertise or self.listen


class ClientConfig(Strict):
    """`supervisorctl --config FILE`."""

    cluster: Name = Field(description="add `cluster: NAME`")
    supervisors: list[Address] = Field(min_length=1, description="add `supervisors: [HOST:PORT, ...]`")
    tls: TlsConfig | None = None
    insecure: bool = False
    token_file: Text | None = None
    checkpoint_base: Text | None = None

    @property
    def token(self) -> str:
        """The shared secret of a cluster on loopback TCP; empty when none is configured."""
        return read_token(self.token_file)

    def tls_files(self) -> TlsFiles | None:
        """Certificates to show to supervisors."""
        return self.tls.files() if self.tls else None


def load_supervisor(path: Path) -> SupervisorConfig:
    """Read a supervisor's configuration; raises UserError with every problem, NotFound."""
    return _load(SupervisorConfig, path)


def load_agent(path: Path, adapt: Adapt | None = None) -> AgentConfig:
    """Read an agent's configuration; raises UserError with every problem, NotFound.

    `adapt` changes the file's values, whose paths are absolute by then, before they are checked.
    """
    return _load(AgentConfig, path, adapt)


def load_client(path: Path) -> ClientConfig:
    """Read a client's configuration; raises UserError with every problem, NotFound."""
    return _load(ClientConfig, path)


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


def _load(model: type[C], path: Path, adapt: Adapt | None = None) -> C:
    document = read(path)
    _absolute_paths(document, path.resolve().parent)
    if adapt is not None and isinstance(document.value, dict):
        adapt(document.value)
    config = build(model, document)
    if isinstance(config, DaemonConfig):
        _check_daemon(document, config)
    if isinstance(config, SupervisorConfig | AgentConfig):
        _check_reachable(document, config)
    if isinstance(config, SupervisorConfig):
        _check_promises(document, config)
        _check_secrets(document, config)
        _check_code_store(document, config)
        check_fence(document, config.fence)
        check_notify(document, config.notify, insecure=config.insecure)
        _check_issuer(document, config)
    if isinstance(config, AgentConfig):
        _check_agent(document, config)
    if isinstance(config, ClientConfig):
        _check_doors(
            document, ("supervisors",), config.supervisors, config.tls_files(), insecure=config.insecure
        )
    document.raise_problems()
    assert config is not None
    return config


_TLS = ("ca", "cert", "key")
_PATHS: tuple[tuple[str, ...], ...] = (
    *((name,) for name in ("state_dir", "run_dir", "checkpoint_parent", "lock_dir", "token_file", "user_ca")),
    ("log", "file"),
    ("http", "token_file"),
    ("audit", "file"),
    ("hadoop", "conf_dir"),
    ("gpus", "library"),
    ("docker", "socket"),
    ("hadoop", "kerberos", "keytab"),
    *(("pools", "issuer", name) for name in ("cert", "key")),
    *(("tls", name) for name in _TLS),
    *(("etcd", "tls", name) for name in _TLS),
)


def _absolute_paths(document: Document, base: Path) -> None:
    for *parents, last in _PATHS:
        owner = document.value
        for part in parents:
            owner = owner.get(part) if isinstance(owner, dict) else None
        if isinstance(owner, dict) and isinstance(owner.get(last), str):
            owner[last] = str(base / Path(owner[last]).expanduser())
    secrets = document.value.get("secrets") if isinstance(document.value, dict) else None
    for each in secrets.values() if isinstance(secrets, dict) else ():
        if isinstance(each, dict) and isinstance(each.get("file"), str):
            each["file"] = str(base / Path(each["file"]).expanduser())
    notify = document.value.get("notify") if isinstance(document.value, dict) else None
    targets = notify.get("targets") if isinstance(notify, dict) else None
    for each in targets.values() if isinstance(targets, dict) else ():
        for name in ("webhook_file", "secret_file", "ca") if isinstance(each, dict) else ():
            if isinstance(each.get(name), str):
                each[name] = str(base / Path(each[name]).expanduser())
    fence = document.value.get("fence") if isinstance(document.value, dict) else None
    devices = fence.get("devices") if isinstance(fence, dict) else None
    for each in devices if isinstance(devices, list) else ():
        if isinstance(each, dict) and isinstance(each.get("options_file"), str):
            each["options_file"] = str(base / Path(each["options_file"]).expanduser())


def _check_daemon(document: Document, config: DaemonConfig) -> None:
    doors = [config.listen]
    _check_doors(document, ("listen",), doors, config.tls_files(), insecure=config.insecure)
    guarded = config.listen.startswith("unix:") or config.tls is not None or config.token_file is not None
    if not guarded and not config.insecure and is_local(config.listen):
        document.problem(
            ("listen",),
            "every user of this machine could connect; add `token_file: FILE` (openssl rand -hex 32 > FILE), "
            "listen on unix:/PATH, or configure TLS",
        )
    members = config.etcd.endpoints
    _check_doors(document, ("etcd", "endpoints"), members, config.etcd_tls_files(), insecure=config.insecure)
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
    _check_doors(document, where, [http.listen], tls, insecure=config.insecure)
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


def _check_code_store(document: Document, config: SupervisorConfig) -> None:
    if config.code_store is None:
        return
    try:
        place = parse_record_uri(config.code_store)
    except UserError as error:
        document.problem(("code_store",), str(error).removeprefix("checkpoint.uri "))
        return
    proxied = config.hadoop.proxy_users and place.scheme is Scheme.HDFS
    if proxied and not place.user:
        document.problem(
            ("code_store",),
            "with hadoop.proxy_users, name the user of HDFS that holds the code: hdfs://USER@NAMESERVICE/DIR",
        )
    elif place.user and not proxied:
        document.problem(("code_store",), f"names the user {place.user}, which needs hadoop.proxy_users")


def _check_agent(document: Document, config: AgentConfig) -> None:
    peers = config.supervisors
    if config.http is None:
        for name in ("users", "user_ca"):
            if getattr(config, name):
                document.problem((name,), "users call an agent by `http` alone: add it, or leave this out")
    _check_doors(document, ("supervisors",), peers, config.tls_files(), insecure=config.insecure)
    if config.port_high < config.port_low:
        document.problem(("port_high",), f"is below port_low ({config.port_low}); give a range of ports")
    if config.host is not None and config.interface is not None:
        document.problem(("interface",), "contradicts host; keep one of the two")
    if os.geteuid() == 0 and config.runtime == "process" and config.task_user is None:
        document.problem(
            ("task_user",),
            "this agent is root, and tasks must not be: add `task_user: LOW-HIGH`, uids that nobody has, one "
            "for each job, or `task_user: UID:GID`, one user that nobody logs in as (`0:0`: every job's "
            "programs are root on this machine)",
        )
    _check_users(document, config)
    if config.runtime == "docker" and config.task_user is not None:
        document.problem(
            ("task_user",), "is of `runtime: process`; containers have `docker.user`: keep that one alone"
        )
    locks = Path(config.lock_dir)
    if not locks.is_dir():
        document.problem(("lock_dir",), f"{locks} is no directory; run: mkdir -p -m 1777 {locks}")
    elif not os.access(locks, os.R_OK | os.W_OK | os.X_OK):
        document.problem(("lock_dir",), f"{locks} cannot be written by this user; run: chmod 1777 {locks}")


def _check_users(document: Document, config: AgentConfig) -> None:
    """Check that a range of uids is used by jobs alone."""
    docker = config.runtime == "docker"
    field = "docker.user" if docker else "task_user"
    where = tuple(field.split("."))
    span = range_of((config.docker.user if docker else config.task_user) or "")
    if span is None:
        if config.firewall:
            document.problem(("firewall",), f"knows jobs by their uids: write `{field}: LOW-HIGH`")
        return
    if os.geteuid() != 0:
        document.problem(where, "only an agent that is root can give each job a user of its own")
    if whose := holder_of(span):
        document.problem(
            where, f"{span[0]}-{span[1]} holds {whose} of this machine; take uids that nobody has"
        )
    elif line := subordinate_of(span):
        document.problem(
            where,
            f"{span[0]}-{span[1]} overlaps with a range of containers ({line}); take uids that nobody has",
        )
    locks = Path(config.lock_dir)
    if locks.is_dir() and locks.stat().st_mode & 0o1002 != 0o1002:
        document.problem(
            ("lock_dir",), f"users of several jobs make locks in {locks}; run: chmod 1777 {locks}"
        )


def _check_promises(document: Document, config: SupervisorConfig) -> None:
    """Check rule 11: all supervisors that may lead are named, and agents have time to ask again before V
    ends.
    """
    if not config.promise_for:
        return
    try:
        least_ms = LEAST_PROMISE_D * config.timing.d_ms
    except UserError:
        return
    if config.promise_for < least_ms:
        document.problem(
            ("promise_for",), f"is too short to be asked for again in time; at least {least_ms // 1000} s"
        )
    if config.id not in config.supervisors:
        document.problem(
            ("supervisors",) if config.supervisors else ("promise_for",),
            f"add `supervisors: [{config.id}, ...]`: the ids of all supervisors of this cluster",
        )
    elif len(set(config.supervisors)) != len(config.supervisors):
        document.problem(("supervisors",), "names a supervisor twice")


def _check_secrets(document: Document, config: SupervisorConfig) -> None:
    for name, secret in config.secrets.items():
        if (secret.file is None) == (not secret.command):
            document.problem(
                ("secrets", name), "needs `file: PATH` or `command: [PROGRAM, ...]`, one of the two"
            )
    guarded = config.listen.startswith("unix:") or config.tls is not None or config.token_file is not None
    if config.secrets and not guarded:
        document.problem(
            ("secrets",),
            "whoever reaches `listen` would get them; configure TLS or `token_file`, or listen on unix:/PATH",
        )


def _check_issuer(document: Document, config: SupervisorConfig) -> None:
    issuer, where = config.issuer, ("pools", "issuer")
    if issuer is None:
        return
    if config.tls is None:
        document.problem(where, "needs `tls: {ca, cert, key}`: without it nobody shows a certificate")
        return
    check_private(document, (*where, "key"), str(issuer.key))
    try:
        issuer.check(*(Path(each) for each in (config.tls.ca, config.user_ca) if each is not None))
    except UserError as error:
        document.problem((*where, "cert"), str(error))


def _check_reachable(document: Document, config: SupervisorConfig | AgentConfig) -> None:
    """Check that others can use `advertise`, or else `listen`: the address for all interfaces cannot be
    connected to.
    """
    if config.advertise is None and is_unspecified(config.listen):
        document.problem(
            ("listen",),
            f"{config.listen} is no address that others could connect to; add `advertise: HOST:PORT`",
        )
    elif config.advertise is not None and is_unspecified(config.advertise):
        document.problem(("advertise",), "write the address that others connect to")


def _check_doors(
    document: Document, where: Where, addresses: Sequence[str], tls: TlsFiles | None, *, insecure: bool
) -> None:
    for index, address in enumerate(addresses):
        try:
            check_open_door(address, tls, insecure=insecure)
        except UserError as error:
            document.problem((*where, index) if len(addresses) > 1 else where, str(error))
