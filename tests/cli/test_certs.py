"""The certificates that `supervisorctl certs` makes, and what it says where it cannot."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from supervisor.cli.cluster.certs import certs
from supervisor.contract.access import Kind, identify
from supervisor.contract.errors import Conflict, Refused, UserError


def issue(directory: Path, *arguments: str) -> Result:
    done = CliRunner().invoke(certs, ["issue", str(directory), *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def verifies(directory: Path, name: str, authority: str = "ca") -> bool:
    signer = str(directory / f"{authority}.pem")
    command = ["openssl", "verify", "-CAfile", signer, str(directory / f"{name}.pem")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def names_of(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def uris_of(certificate: x509.Certificate) -> list[str]:
    return names_of(certificate).get_values_for_type(x509.UniformResourceIdentifier)


def usage_of(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_a_certificate_names_its_holder_and_where_it_is_reached(tmp_path: Path) -> None:
    where = tmp_path / "made"
    issue(where, "agent:gpu-1,10.0.0.11,::1", "supervisor:s-1", "user:alice@example.com")
    agent = read(where / "agent-gpu-1.pem")
    assert identify(uris_of(agent)) == (Kind.AGENT, "gpu-1")
    assert names_of(agent).get_values_for_type(x509.DNSName) == ["gpu-1"]
    assert [str(each) for each in names_of(agent).get_values_for_type(x509.IPAddress)] == ["10.0.0.11", "::1"]
    assert identify(uris_of(read(where / "supervisor-s-1.pem"))) == (Kind.SUPERVISOR, "s-1")
    (common,) = agent.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert common.value == "agent:gpu-1", "the name that etcd knows it by"
    user = read(where / "user-alice@example.com.pem")
    assert identify(uris_of(user)) == (Kind.USER, "alice@example.com")
    assert usage_of(user) == {ExtendedKeyUsageOID.CLIENT_AUTH}
    assert usage_of(agent) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert verifies(where, "agent-gpu-1")
    assert {file.stat().st_mode & 0o077 for file in (where, *where.iterdir())} == {0}


def test_members_of_etcd_show_each_other_certificates_of_an_authority_of_their_own(tmp_path: Path) -> None:
    issue(tmp_path, "etcd:etcd-1,127.0.0.1", "user:alice")
    assert uris_of(read(tmp_path / "etcd-etcd-1.pem")) == []
    assert verifies(tmp_path, "etcd-etcd-1")
    assert verifies(tmp_path, "etcd-etcd-1-peer", "peer-ca")
    assert not verifies(tmp_path, "etcd-etcd-1-peer")
    assert not verifies(tmp_path, "user-alice", "peer-ca")


def test_users_have_an_authority_that_etcd_does_not_trust(tmp_path: Path) -> None:
    issue(tmp_path, "etcd:etcd-1", "etcdctl:admin")
    issue(tmp_path, "user:alice")
    assert verifies(tmp_path, "user-alice", "user-ca")
    assert not verifies(tmp_path, "user-alice")
    assert verifies(tmp_path, "etcdctl-admin")
    admin = read(tmp_path / "etcdctl-admin.pem")
    assert usage_of(admin) == {ExtendedKeyUsageOID.CLIENT_AUTH}
    assert uris_of(admin) == [], "it is nobody to supervisors"


def test_a_directory_of_one_authority_goes_on_until_users_get_theirs(tmp_path: Path) -> None:
    issue(tmp_path, "agent:gpu-1")
    for each in tmp_path.glob("user-ca.*"):
        each.unlink()
    issue(tmp_path, "user:alice")
    assert verifies(tmp_path, "user-alice")
    assert not list(tmp_path.glob("user-ca.*"))
    done = CliRunner().invoke(certs, ["user-authority", str(tmp_path)], catch_exceptions=False)
    assert "name it as `user_ca` in all supervisors" in done.output
    issue(tmp_path, "--renew", "user:alice", "agent:gpu-1")
    assert verifies(tmp_path, "user-alice", "user-ca")
    assert verifies(tmp_path, "agent-gpu-1")


def test_a_certificate_lasts_as_long_as_is_said_and_is_replaced_when_asked(tmp_path: Path) -> None:
    issue(tmp_path, "user:alice")
    now = datetime.now(UTC)
    first = read(tmp_path / "user-alice.pem")
    assert timedelta(days=89) < first.not_valid_after_utc - now < timedelta(days=91)
    # Of a machine whose clock is late it is one already.
    assert now - first.not_valid_before_utc > timedelta(minutes=4)
    with pytest.raises(Conflict, match=r"user-alice\.pem is there already; --renew"):
        issue(tmp_path, "user:alice")
    issue(tmp_path, "--days", "7", "--renew", "user:alice")
    second = read(tmp_path / "user-alice.pem")
    assert second.not_valid_after_utc - now < timedelta(days=8)
    assert second.serial_number != first.serial_number
    assert verifies(tmp_path, "user-alice", "user-ca")


@pytest.mark.parametrize(
    ("holder", "message"),
    [
        ("gpu-1", "write supervisor:NAME, agent:NODE, user:NAME, etcd:NAME or etcdctl:NAME"),
        ("root:x", "write supervisor:NAME"),
        ("agent:gpu-1,10.0.0", "'10.0.0' is no address"),
        ("agent:../x", "is not a valid name"),
        ("user:a b", "is no name of a user"),
        ("user:alice,10.0.0.1", "a user is reached at no address"),
        ("agent:a,b\nDNS:c", "is no address"),
        ("etcdctl:admin,10.0.0.1", "is reached at no address"),
        ("etcd:a-peer", "etcd-a-peer.pem is what member a shows other members"),
    ],
)
def test_what_is_no_holder_is_refused_and_nothing_is_made(tmp_path: Path, holder: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        issue(tmp_path / "made", holder)
    assert not (tmp_path / "made").exists()


def test_an_authority_that_was_broken_off_is_completed(tmp_path: Path) -> None:
    issue(tmp_path, "agent:gpu-1")
    (tmp_path / "ca.pem").unlink()
    issue(tmp_path, "agent:gpu-2")
    assert verifies(tmp_path, "agent-gpu-2")
    assert verifies(tmp_path, "agent-gpu-1"), "it has the same key"


def test_two_authorities_in_one_file_are_told_apart(tmp_path: Path) -> None:
    names = set()
    for directory in (tmp_path / "old", tmp_path / "new"):
        issue(directory, "agent:gpu-1")
        names.add(x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes()).subject)
    assert len(names) == 2


def test_an_authority_without_its_key_is_not_replaced(tmp_path: Path) -> None:
    issue(tmp_path, "agent:gpu-1")
    (tmp_path / "ca.key").unlink()
    with pytest.raises(Refused, match="bring the authority's key"):
        issue(tmp_path, "agent:gpu-2")
