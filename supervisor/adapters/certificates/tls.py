"""Certificates, and the check that no address is reachable without authentication by accident."""

from __future__ import annotations

import ipaddress
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

import grpc

from supervisor.contract.addresses import split_host_port
from supervisor.contract.errors import UserError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the authority of peers, and our own certificate and private key.

    `user_ca`: another authority, for users that call this server. `pool_ca`: another one, for agents of pools
    alone. Certificates of other servers are not accepted from either.
    """

    ca: Path
    cert: Path
    key: Path
    user_ca: Path | None = None
    pool_ca: Path | None = None

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file."""
        others = (each for each in (self.user_ca, self.pool_ca) if each is not None)
        return (self.ca, self.cert, self.key, *others)

    def load(self) -> TlsMaterial:
        """Read all of them; raises UserError that names the file and its error."""
        read = {path: _read(path) for path in self.all}
        others = (read[each] if each is not None else b"" for each in (self.user_ca, self.pool_ca))
        material = TlsMaterial(read[self.ca], read[self.cert], read[self.key], *others)
        mode = stat.S_IMODE(self.key.stat().st_mode)
        if mode & 0o077:
            raise UserError(
                f"{self.key}: private key has mode {mode:04o}, so others on this machine can read it; "
                f"run: chmod 600 {self.key}"
            )
        for path, pem in read.items():
            marker = b"PRIVATE KEY" if path == self.key else b"CERTIFICATE"
            if b"-----BEGIN " not in pem or marker not in pem:
                raise UserError(f"{path}: no PEM block of kind {marker.decode()} in it")
        return material


@dataclass(frozen=True, slots=True, repr=False)
class TlsMaterial:
    """The PEM bytes of a TlsFiles. It has no repr, so that a key never reaches a log."""

    ca: bytes
    cert: bytes
    key: bytes
    user_ca: bytes = b""
    pool_ca: bytes = b""

    def client_credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a client that shows its certificate and checks the server's."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)

    def pool_credentials(self) -> grpc.ChannelCredentials:
        """The same, of a client of an agent of a pool."""
        return grpc.ssl_channel_credentials(self.pool_ca, self.key, self.cert)

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        """A server's own certificate, and the authorities of its callers."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], self._callers)

    def server_context(self) -> ssl.SSLContext:
        """The same for an HTTP server. No session is resumed: each connection shows its certificate.

        Raises UserError.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.verify_mode = ssl.CERT_REQUIRED
        # As gRPC: an intermediate authority is trusted without the one above it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(cadata=self._callers.decode("ascii", "ignore"))
            # The module `ssl` takes certificates from files alone, and ours may have changed since.
            with os.fdopen(os.memfd_create("certificate"), "wb", buffering=0) as memory:
                memory.write(self.cert + b"\n" + self.key)
                context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}", password="")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise UserError(f"these certificates cannot be used: {error}") from error
        return context

    @property
    def _callers(self) -> bytes:
        """The authorities of callers."""
        return b"\n".join(filter(None, (self.ca, self.user_ca, self.pool_ca)))


def check_open_door(address: str, tls: TlsFiles | None, *, insecure: bool) -> None:
    """Raise UserError if `address` can be reached from outside without certificates.

    Args:
        address: `host:port`, `http(s)://host:port` or `unix:/path`; to listen on or to connect to.
        tls: its certificates, or None.
        insecure: the operator allowed it without certificates.
    """
    if tls is not None or insecure or is_local(address):
        return
    raise UserError(
        f"{address} can be reached from other machines: configure TLS with client certificates "
        "(ca, cert, key), use a loopback address or a unix socket, or say `insecure: true` if the network "
        "is trusted"
    )


def is_local(address: str) -> bool:
    """Whether only this machine reaches `address`. Names other than localhost count as remote."""
    if address.startswith("unix:"):
        return True
    host, _ = split_host_port(address.removeprefix("http://").removeprefix("https://"))
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_unspecified(address: str) -> bool:
    """Whether `address` stands for all addresses of a machine: it can be listened on, but not connected
    to.
    """
    if address.startswith("unix:"):
        return False
    host, _ = split_host_port(address.removeprefix("http://").removeprefix("https://"))
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read this TLS file: {error.strerror}") from error
