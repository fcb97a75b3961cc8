"""Certificates: their lives, and the replacement of their files while a daemon runs."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from chaos.cluster.certificates import Authority
from supervisor.adapters.certificates.reload import Certificates
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.certificates.watch import CertificateWatch
from supervisor.adapters.certificates.x509 import uris, validity
from supervisor.contract.errors import UserError
from tests.support.sinks import ListSink

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def made(begins: datetime, ends: datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a holder")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("::1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    "ends", [NOW + timedelta(hours=1), datetime(2049, 12, 31, tzinfo=UTC), datetime(2061, 1, 2, tzinfo=UTC)]
)
def test_the_life_of_a_certificate_is_read(ends: datetime) -> None:
    found = validity(b"# a comment\n" + made(NOW - timedelta(days=1), ends))
    assert (found.begins, found.ends) == (NOW - timedelta(days=1), ends)


@pytest.mark.parametrize(
    ("at", "told"),
    [
        (timedelta(days=-1), "is not valid before 2026-03-01 12:00 UTC"),
        (timedelta(days=1), ""),
        (timedelta(days=7, hours=23), ""),
        (timedelta(days=8, hours=1), "expires at 2026-03-11 12:00 UTC"),
        (timedelta(days=10), "expired at 2026-03-11 12:00 UTC"),
    ],
)
def test_the_last_fifth_of_a_life_is_told(at: timedelta, told: str) -> None:
    said = validity(made(NOW, NOW + timedelta(days=10))).told(NOW + at)
    assert said.startswith(told)
    assert bool(said) is bool(told)


def test_uris_are_read_whole_and_other_names_are_not_taken_for_them(tmp_path: Path) -> None:
    cert, _ = Authority(tmp_path).issue("host", ["127.0.0.1"], "user:adam\0.example")
    assert uris(cert.read_bytes()) == (b"user:adam\0.example",)
    assert uris(made(NOW, NOW + timedelta(days=1))) == ()


GOOD = made(NOW, NOW + timedelta(days=10))


@given(st.binary(max_size=300), st.integers(0, len(GOOD)), st.integers(0, 200))
def test_a_damaged_certificate_is_an_error_of_ours(noise: bytes, at: int, length: int) -> None:
    for damaged in (noise, GOOD[:at] + noise + GOOD[at + length :]):
        with suppress(UserError):
            validity(damaged)
        with suppress(UserError):
            uris(damaged)


class Files:
    """Of one holder, which are replaced by others."""

    def __init__(self, root: Path) -> None:
        self.authority = Authority(root / "tls")
        self.files = TlsFiles(root / "ca.pem", root / "own.pem", root / "own.key")
        shutil.copy(self.authority.certificate, self.files.ca)
        self.count = 0
        self.replace()

    def issue(self) -> tuple[Path, Path]:
        self.count += 1
        return self.authority.issue(f"own-{self.count}", ["127.0.0.1"])

    def replace(self, *, key: bool = True, cert: bool = True) -> bytes:
        made_cert, made_key = self.issue()
        if key:
            made_key.replace(self.files.key)
        if cert:
            made_cert.replace(self.files.cert)
        return self.files.cert.read_bytes()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_new_files_are_read_and_unchanged_ones_are_not(files: Files) -> None:
    certificates = Certificates(files.files)
    first = certificates.current()
    assert certificates.current() is first
    newer = files.replace()
    assert certificates.current().cert == newer


@pytest.mark.parametrize("half", ["key", "cert"])
def test_half_of_a_pair_is_not_taken(files: Files, half: str) -> None:
    certificates = Certificates(files.files)
    first = certificates.current()
    files.replace(key=half == "key", cert=half == "cert")
    assert certificates.current() is first
    assert "does not belong to" in certificates.problem
    with pytest.raises(UserError, match="does not belong to"):
        Certificates(files.files).current()
    newer = files.replace()
    assert certificates.current().cert == newer
    assert certificates.problem == ""


def test_files_that_are_gone_or_open_to_others_are_not_taken(files: Files) -> None:
    certificates = Certificates(files.files)
    first = certificates.current()
    files.files.cert.unlink()
    assert certificates.current() is first
    assert "cannot read this TLS file" in certificates.problem
    files.replace()
    files.files.key.chmod(0o644)
    os.utime(files.files.key)
    assert certificates.current() is first
    assert "chmod 600" in certificates.problem


async def test_what_happens_to_certificates_is_said_once(files: Files) -> None:
    sink, now = ListSink(), [datetime.now(UTC)]
    watch = CertificateWatch({"agent:n1": Certificates(files.files)}, sink, lambda: now[0])
    assert watch.look() == {}
    files.replace(cert=False)
    assert [watch.look(), watch.look()] == [{}, {}]
    cert = files.replace()
    assert watch.look() == {}
    now[0] = validity(cert).ends
    told = watch.look()
    assert told == watch.look()
    assert told["agent:n1"].startswith("expired at ")
    assert [(level, event) for level, event, _ in sink.lines] == [
        ("warning", "a new certificate is not taken"),
        ("info", "certificate read again"),
        ("warning", "certificate needs to be renewed"),
    ]
    heard = asyncio.Event()

    async def tell(said: object) -> None:
        assert said == told
        heard.set()

    running = asyncio.create_task(watch.run(tell))
    async with asyncio.timeout(20):
        await heard.wait()
    running.cancel()
