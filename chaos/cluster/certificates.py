"""A certificate for each node of a cluster, from an authority of the cluster's own."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = dt.timedelta(days=2)


class Authority:
    """Signs certificates below `directory`: `ca.pem`, and `NAME.pem` with `NAME.key` for each name.

    A name that is signed for again gets a new key and a new certificate in place of the old ones.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        # Of two authorities with one name in a file, gRPC's TLS tries the first alone.
        called = f"chaos authority {secrets.token_hex(4)}"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, called)])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        builder = self._builder(called, self._key).add_extension(constraints, critical=True)
        certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = directory / "ca.pem"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def key(self) -> Path:
        """The file with this authority's private key, for those that sign with it themselves."""
        path = self._directory / "ca.key"
        if not path.exists():
            self._write(path, _pem(self._key))
        return path

    def issue(self, name: str, addresses: list[str], identity: str = "", *uris: str) -> tuple[Path, Path]:
        """A certificate, for servers and clients, and its private key.

        `identity`: as `user:NAME`. `uris`: others beside it.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        if identity:
            names += [x509.UniformResourceIdentifier(each) for each in (identity, *uris)]
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        certificate = (
            self._builder(identity or name, key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(usage, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        paths = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        # The key first, each file at once: daemons may be reading what these replace.
        self._write(paths[1], _pem(key))
        self._write(paths[0], certificate.public_bytes(serialization.Encoding.PEM))
        return paths

    def _write(self, path: Path, pem: bytes) -> None:
        new = path.with_suffix(f"{path.suffix}.new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(pem)
        new.replace(path)

    def _builder(self, name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LIFE)
            .not_valid_after(now + _LIFE)
        )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
