"""The configuration of a supervisor."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path

from pydantic import Field

from supervisor.adapters.certificates.issuer import Issuer
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.files.config.daemon import DaemonConfig, check_daemon, check_reachable
from supervisor.adapters.files.config.fence import FenceConfig, check_fence
from supervisor.adapters.files.config.fields import Address, Beneficiary
from supervisor.adapters.files.config.loading import load
from supervisor.adapters.files.config.notify import NotifyConfig, check_notify
from supervisor.adapters.files.private import check_private
from supervisor.adapters.files.quantities import DurationMs, Name, SizeBytes, Text
from supervisor.adapters.files.store_uri import Scheme, parse_record_uri
from supervisor.adapters.files.yaml_file import Document, Strict
from supervisor.contract.errors import UserError
from supervisor.contract.secret import Source

LEAST_PROMISE_D = 3
"""Least `promise_for` as a multiple of D (rule 11)."""


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


def load_supervisor(path: Path) -> SupervisorConfig:
    """Read a supervisor's configuration; raises UserError with every problem, NotFound."""
    return load(SupervisorConfig, path, _check)


def _check(document: Document, config: SupervisorConfig) -> None:
    check_daemon(document, config)
    check_reachable(document, config.listen, config.advertise)
    _check_promises(document, config)
    _check_secrets(document, config)
    _check_code_store(document, config)
    check_fence(document, config.fence)
    check_notify(document, config.notify, insecure=config.insecure)
    _check_issuer(document, config)


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
