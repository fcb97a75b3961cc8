"""The authority that signs the certificates of pools: of their tokens, and of their agents.

It is trusted by supervisors, and by etcd for clients, and by nobody else. So a certificate of it names no
address at all. Supervisors know an agent of a pool by a name of their own (`server_name`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from supervisor.adapters.certificates import openssl
from supervisor.adapters.certificates.x509 import issuer, subjects
from supervisor.contract.errors import Refused, Unreachable, UserError

SKEW = timedelta(minutes=5)
"""A certificate begins this long before it is signed: the clock of another machine may be late."""
_CONFIG = """\
[ca]
default_ca = issuer
[issuer]
database = {directory}/index
new_certs_dir = {directory}
rand_serial = yes
default_md = sha256
policy = policy
unique_subject = no
copy_extensions = none
x509_extensions = leaf
[policy]
commonName = supplied
[leaf]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = {usage}
subjectAltName = {alternatives}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A certificate that is wanted.

    Attributes:
        name: its common name, by which etcd knows its holder.
        uris: its identity among them.
        dns: the name of a server; empty: it is for clients alone.
        life: how long it is valid from now on.
    """

    name: str
    uris: tuple[str, ...]
    dns: str = ""
    life: timedelta


@dataclass(frozen=True, slots=True)
class Issuer:
    """An authority of a configuration.

    `life`: how long the certificate of an agent is valid.
    """

    cert: Path
    key: Path
    life: timedelta

    def check(self, *others: Path) -> None:
        """Raise UserError unless this is an authority of its own, apart from those in `others`."""
        own = self._pem()
        if subjects(own) != {issuer(own)}:
            raise UserError(
                f"{self.cert}: give one certificate, which its own key has signed: an authority that another "
                "one has signed is trusted by all that trust that one; `supervisorctl certs pool-authority` "
                "makes one"
            )
        for each in others:
            try:
                known = subjects(each.read_bytes())
            except OSError as error:
                raise UserError(f"{each}: cannot read this TLS file: {error.strerror}") from error
            if subjects(own) & known:
                raise UserError(
                    f"{each}: holds the authority of pools, {self.cert}, too, which is for agents of pools "
                    "alone; take it out"
                )

    def sign(self, request: str, wanted: Leaf, now: datetime) -> tuple[str, datetime]:
        """The certificate for a request that was checked, as PEM, and its end.

        It is not valid for longer than the authority. It blocks for some milliseconds. Raises Refused for a
        request that its own key has not signed, Unreachable while this machine cannot sign.
        """
        ends = (now + wanted.life).astimezone(UTC).replace(microsecond=0)
        names = [*(f"URI:{each}" for each in wanted.uris), *([f"DNS:{wanted.dns}"] if wanted.dns else [])]
        usage = "serverAuth,clientAuth" if wanted.dns else "clientAuth"
        try:
            pem = signed(self.cert, self.key, request, wanted.name, usage, names, (now - SKEW, ends))
        except Refused as error:
            # The request was checked: it is this machine that has no room, or cannot read its authority.
            raise Unreachable(f"no certificate can be signed now: {error}") from error
        if not pem:
            # openssl tells this to standard error alone.
            raise Refused("the key in the request has not signed the request")
        return pem, ends

    def _pem(self) -> bytes:
        try:
            return self.cert.read_bytes()
        except OSError as error:
            raise UserError(f"{self.cert}: cannot read this TLS file: {error.strerror}") from error


def signed(
    cert: Path,
    key: Path,
    request: str,
    name: str,
    usage: str,
    alternatives: Sequence[str],
    times: tuple[datetime, datetime],
) -> str:
    """A certificate of an authority, as PEM; empty if the request's signature is wrong. Raises Refused."""
    with openssl.scratch() as scratch:
        directory = Path(scratch)
        request_file, config, made = (directory / each for each in ("request", "config", "made"))
        request_file.write_text(request, encoding="ascii")
        (directory / "index").touch()
        config.write_text(
            _CONFIG.format(directory=directory, usage=usage, alternatives=",".join(alternatives))
        )
        openssl.run(
            *("ca", "-batch", "-notext", "-config", str(config)),
            *("-cert", str(cert), "-keyfile", str(key)),
            *("-startdate", _stamp(times[0]), "-enddate", _stamp(times[1])),
            *("-subj", f"/CN={name}", "-in", str(request_file), "-out", str(made)),
        )
        return made.read_text(encoding="ascii") if made.exists() else ""


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y%m%d%H%M%SZ")
