"""A daemon's certificates, read again when their files change: no restart, and no connection is broken."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import grpc

from supervisor.adapters.certificates.tls import TlsFiles, TlsMaterial
from supervisor.contract.errors import UserError

Fetch = Callable[[], grpc.ServerCertificateConfiguration]
"""The type in gRPC's stubs, which omit that the function may return None."""
Signature = tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class Certificates:
    """The certificates in `files`, read again after a change. Callers may be in any thread.

    Files are replaced one after the other, so unreadable files and a key of another certificate are not
    taken. Until they are good the last good ones stay in use, and `problem` is the reason.
    """

    files: TlsFiles
    problem: str = ""
    _known: TlsMaterial | None = None
    _signature: Signature = ()
    _context: tuple[TlsMaterial, ssl.SSLContext] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def current(self) -> TlsMaterial:
        """The newest good certificates. Raises UserError if there were none yet."""
        with self._lock:
            try:
                signature = self._sign()
                if self._known is None or signature != self._signature:
                    self._known, self._signature, self.problem = self._load(signature), signature, ""
            except UserError as error:
                if self._known is None:
                    raise
                self.problem = str(error)
            return self._known

    def client_credentials(self) -> grpc.ChannelCredentials:
        """Credentials for one connection that begins now. Raises UserError."""
        return self.current().client_credentials()

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials for a server: each new connection gets the certificates that are good then.

        Raises UserError.
        """
        given = self.current()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """The new certificates for gRPC; None if they are unchanged. gRPC calls it in a thread of its
            own.
            """
            nonlocal given
            newest = self.current()
            if newest is given:
                return None
            given = newest
            return newest.server_configuration()

        return grpc.dynamic_ssl_server_credentials(
            given.server_configuration(), cast(Fetch, fetch), require_client_authentication=True
        )

    def server_context(self) -> ssl.SSLContext:
        """The context of an HTTP server for one connection that begins now. Raises UserError."""
        material = self.current()
        with self._lock:
            if self._context is None or self._context[0] is not material:
                self._context = material, material.server_context()
            return self._context[1]

    def _sign(self) -> Signature:
        found = []
        for path in self.files.all:
            try:
                stat = path.stat()
            except OSError as error:
                raise UserError(f"{path}: cannot read this TLS file: {error.strerror}") from error
            found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)

    def _load(self, signature: Signature) -> TlsMaterial:
        material = self.files.load()
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(
                self.files.cert, self.files.key, password=""
            )
        except (ssl.SSLError, OSError, ValueError) as error:
            raise UserError(
                f"{self.files.key}: this private key does not belong to {self.files.cert} ({error}); "
                "replace both files"
            ) from error
        if self._sign() != signature:
            raise UserError(f"{self.files.cert}: it is being replaced")
        return material
