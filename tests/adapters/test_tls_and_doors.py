"""Keys that others can read and doors that stand open are refused, with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.adapters.certificates.tls import TlsFiles, check_open_door
from supervisor.contract.errors import UserError

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n"


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    made = TlsFiles(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem")
    made.ca.write_text(CERTIFICATE)
    made.cert.write_text(CERTIFICATE)
    made.key.touch(mode=0o600)
    made.key.write_text(KEY)
    return made


def test_good_files_load(files: TlsFiles) -> None:
    assert files.load().key == KEY.encode()
    assert "PRIVATE" not in repr(files.load())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_key_that_others_can_read_is_refused(files: TlsFiles, mode: int) -> None:
    files.key.chmod(mode)
    with pytest.raises(UserError, match=r"chmod 600 .*key\.pem"):
        files.load()


def test_a_missing_file_is_named(files: TlsFiles) -> None:
    files.cert.unlink()
    with pytest.raises(UserError, match=r"cert\.pem: cannot read this TLS file: No such file"):
        files.load()


def test_swapped_files_are_noticed(files: TlsFiles) -> None:
    files.ca.chmod(0o600)
    with pytest.raises(UserError, match="no PEM block of kind PRIVATE KEY"):
        TlsFiles(files.ca, files.cert, files.ca).load()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "localhost:2379", "[::1]:80", "unix:/run/x", "http://127.9.9.9:1"]
)
def test_local_doors_may_be_open(address: str) -> None:
    check_open_door(address, None, insecure=False)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "10.1.2.3:2379", "[::]:80", "etcd.example:2379"])
def test_doors_to_the_outside_may_not(address: str, files: TlsFiles) -> None:
    with pytest.raises(UserError, match="insecure: true"):
        check_open_door(address, None, insecure=False)
    check_open_door(address, None, insecure=True)
    check_open_door(address, files, insecure=False)
