"""The authority that deploy/certs.sh makes, and what it says where it cannot."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cryptography import x509

from tests.deploy.box import ROOT


def certs(directory: Path, *names: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "deploy/certs.sh"), str(directory), *names]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def verifies(directory: Path, name: str) -> bool:
    command = ["openssl", "verify", "-CAfile", str(directory / "ca.pem"), str(directory / f"{name}.pem")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def names_of(file: Path) -> list[str]:
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(each.value) for each in found]


def test_each_certificate_has_the_names_at_which_its_host_is_reached(tmp_path: Path) -> None:
    made = certs(tmp_path / "ca", "gpu-1,10.0.0.11,::1", "alice")
    assert made.returncode == 0, made.stderr
    assert names_of(tmp_path / "ca/gpu-1.pem") == ["gpu-1", "10.0.0.11", "::1"]
    assert names_of(tmp_path / "ca/alice.pem") == ["alice"]
    assert verifies(tmp_path / "ca", "gpu-1")
    again = certs(tmp_path / "ca", "gpu-1")
    assert again.returncode == 4
    assert "is there already" in again.stderr
    assert {file.stat().st_mode & 0o077 for file in (tmp_path / "ca").iterdir()} == {0}


def test_why_openssl_makes_no_certificate_is_said_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    made = certs(tmp_path, "gpu-1,10.0.0")
    assert made.returncode == 1
    assert "no certificate for gpu-1,10.0.0: openssl says:" in made.stderr
    assert "bad ip address" in made.stderr
    assert not list(tmp_path.glob("gpu-1*"))
    assert certs(tmp_path, "gpu-1,10.0.0.11").returncode == 0


def test_an_authority_that_was_broken_off_is_completed(tmp_path: Path) -> None:
    assert certs(tmp_path, "gpu-1").returncode == 0
    (tmp_path / "ca.pem").unlink()
    assert certs(tmp_path, "gpu-2").returncode == 0
    assert verifies(tmp_path, "gpu-2")
    assert verifies(tmp_path, "gpu-1"), "it has the same key"
