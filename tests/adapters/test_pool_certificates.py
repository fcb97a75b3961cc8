"""The requests that agents of pools send, and the certificates that the authority of pools signs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from supervisor.adapters.certificates import openssl
from supervisor.adapters.certificates.issuer import Issuer, Leaf
from supervisor.adapters.certificates.request import MOST_BYTES, check_request
from supervisor.adapters.certificates.x509 import common_name, fingerprint, uris, validity
from supervisor.cli.cluster.certs import certs
from supervisor.contract.errors import Refused, Unreachable, UserError
from supervisor.contract.pool.record import server_name

NAME = "agent:train.n1"
NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
LEAF = Leaf(
    name="pool:train",
    uris=(NAME, "tfsup-pool:ab12"),
    dns=server_name("train.n_1", "ab12"),
    life=timedelta(hours=1),
)
P256 = ec.SECP256R1()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an operator, with all authorities."""
    made = tmp_path_factory.mktemp("tls")
    for words in (("issue", str(made), "supervisor:s0"), ("pool-authority", str(made))):
        done = CliRunner().invoke(certs, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    return made


@pytest.fixture(scope="module")
def request_pem() -> str:
    return openssl.key_and_request(NAME)[1]


def issuer_in(directory: Path) -> Issuer:
    return Issuer(directory / "pool-ca.pem", directory / "pool-ca.key", timedelta(hours=1))


def made_by(
    names: tuple[tuple[x509.ObjectIdentifier, str], ...] = ((NameOID.COMMON_NAME, NAME),),
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
    extension: x509.ExtensionType | None = None,
) -> str:
    """A request of another program."""
    subject = x509.Name([x509.NameAttribute(kind, text) for kind, text in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if extension is not None:
        builder = builder.add_extension(extension, critical=False)
    made = builder.sign(key or ec.generate_private_key(P256), hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("made", [lambda: openssl.key_and_request(NAME)[1], made_by])
def test_a_request_of_this_name_is_taken(made: Callable[[], str]) -> None:
    assert check_request(made(), NAME).startswith("-----BEGIN CERTIFICATE REQUEST-----\n")


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: made_by(((NameOID.COMMON_NAME, "agent:train.n2"),)), "is for 'agent:train.n2', and not for"),
        (
            lambda: made_by(((NameOID.COMMON_NAME, NAME), (NameOID.COMMON_NAME, "pool:other"))),
            "is for 'agent:train.n1', 'pool:other'",
        ),
        (
            lambda: made_by(((NameOID.ORGANIZATION_NAME, "o"), (NameOID.COMMON_NAME, NAME))),
            "other names than a common name",
        ),
        (lambda: made_by(()), "is for no name"),
        (
            lambda: made_by(extension=x509.SubjectAlternativeName([x509.DNSName("supervisor-1")])),
            "asks for extensions",
        ),
        (lambda: made_by(extension=x509.BasicConstraints(ca=True, path_length=None)), "asks for extensions"),
        (lambda: made_by(key=ec.generate_private_key(ec.SECP384R1())), "not one on the curve P-256"),
        (lambda: made_by(key=rsa.generate_private_key(65537, 2048)), "not one on the curve P-256"),
        (lambda: "", "no request"),
        (lambda: "x" * (MOST_BYTES + 1), "at most 4096"),
        (lambda: made_by() + made_by(), "no request for a certificate that can be read"),
        (lambda: made_by().replace("-----\n", "-----\nX-Header: 1\n\n", 1), "no request"),
        (lambda: made_by().replace("\n-----END", "\nAAAA\n-----END"), "no request"),
        (lambda: made_by().replace("CERTIFICATE REQUEST", "CERTIFICATE"), "not one PEM block"),
        (
            lambda: "-----BEGIN CERTIFICATE REQUEST-----\n/4//\n-----END CERTIFICATE REQUEST-----",
            "no request",
        ),
    ],
)
def test_a_request_for_anything_else_is_refused(made: Callable[[], str], told: str) -> None:
    with pytest.raises(Refused, match=told):
        check_request(made(), NAME)


def test_a_certificate_has_the_names_that_the_authority_chose(directory: Path, request_pem: str) -> None:
    issuer = issuer_in(directory)
    issuer.check(directory / "ca.pem", directory / "user-ca.pem")
    text, ends = issuer.sign(check_request(request_pem, NAME), LEAF, NOW)
    pem = text.encode()
    assert (common_name(pem), uris(pem)) == ("pool:train", (NAME.encode(), b"tfsup-pool:ab12"))
    times = validity(pem)
    assert (times.begins, times.ends) == (NOW - timedelta(minutes=5), NOW + timedelta(hours=1))
    assert times.ends == ends
    found = x509.load_pem_x509_certificate(pem)
    alternatives = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternatives.get_values_for_type(x509.DNSName) == ["train.n_1.ab12.pools.tfsup.internal"]
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    asked = x509.load_pem_x509_csr(request_pem.encode())
    assert found.public_key() == asked.public_key()
    again = issuer.sign(request_pem, LEAF, NOW)[0]
    assert fingerprint(again.encode()) != fingerprint(pem), "each has a number of its own"
    assert "BEGIN CERTIFICATE" in text
    assert text.count("BEGIN") == 1


def test_a_request_that_its_key_has_not_signed_is_refused(directory: Path, request_pem: str) -> None:
    lines = request_pem.splitlines()
    last = lines[-2]
    lines[-2] = f"{last[:4]}{'A' if last[4] != 'A' else 'B'}{last[5:]}"
    with pytest.raises(Refused, match="has not signed the request"):
        issuer_in(directory).sign("\n".join(lines), LEAF, NOW)


def test_a_machine_that_cannot_sign_refuses_no_agent(tmp_path: Path, request_pem: str) -> None:
    """An agent that is refused ends soon; one that is told this asks again."""
    gone = Issuer(tmp_path / "gone.pem", tmp_path / "gone.key", timedelta(hours=1))
    with pytest.raises(Unreachable, match=r"(?s)be signed now: openssl says: .*gone\.(pem|key)"):
        gone.sign(request_pem, LEAF, NOW)


def test_the_authority_of_pools_can_name_no_other_server(
    directory: Path, tmp_path: Path, request_pem: str
) -> None:
    """Not even where a client trusts it by mistake."""
    ours = Leaf(name="n", uris=LEAF.uris, dns=LEAF.dns, life=LEAF.life)
    theirs = Leaf(name="n", uris=LEAF.uris, dns="supervisor-1", life=LEAF.life)
    for leaf, code in ((ours, 0), (theirs, 2)):
        made = tmp_path / f"{code}.pem"
        made.write_text(issuer_in(directory).sign(request_pem, leaf, datetime.now(UTC))[0])
        command = ["openssl", "verify", "-CAfile", str(directory / "pool-ca.pem"), str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "permitted subtree violation" in done.stderr) == (code, code == 2), (
            done.stderr
        )


def test_it_must_be_an_authority_of_its_own(directory: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes((directory / "ca.pem").read_bytes() + (directory / "pool-ca.pem").read_bytes())
    with pytest.raises(UserError, match=r"both\.pem: holds the authority of pools"):
        issuer_in(directory).check(both)
    leaf = Issuer(directory / "supervisor-s0.pem", directory / "supervisor-s0.key", timedelta(hours=1))
    with pytest.raises(UserError, match=r"supervisor-s0\.pem: give one certificate, which its own key"):
        leaf.check()
    with pytest.raises(UserError, match="cannot read"):
        Issuer(tmp_path / "none.pem", tmp_path / "none.key", timedelta(hours=1)).check()
