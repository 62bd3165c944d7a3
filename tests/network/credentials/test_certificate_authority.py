"""A sandbox's own authority: what it may vouch for, and where its key is."""

from __future__ import annotations

import ssl
import tempfile
from typing import TYPE_CHECKING

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from ohsandbox.network.credentials import certificate_authority
from ohsandbox.network.credentials.certificate_authority import (
    CertificateAuthority,
    java_trust_store,
    load_certificates,
)
from ohsandbox.network.credentials.credential_broker import CredentialBroker
from ohsandbox.network.credentials.credentials import parse_credentials
from ohsandbox.network.tls import client_context

if TYPE_CHECKING:
    from pathlib import Path

HOST = "api.example.org"


def _shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """The client's side of a handshake in memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = [*sides]
    for _ in range(10):
        for side in [*waiting]:
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
    assert not waiting
    return sides[0]


def _trusting(authority: CertificateAuthority) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT  # the default from Python 3.13 on
    return context


def test_a_client_that_trusts_the_authority_accepts_its_leaf() -> None:
    authority = CertificateAuthority([HOST, "git.example.org"])
    for host in sorted(authority.hosts):
        found = _shake(authority.server_context(host), _trusting(authority), host).getpeercert() or {}
        assert found["subjectAltName"] == (("DNS", host),)


def test_a_leaf_for_another_host_is_refused_by_clients_even_if_the_key_were_stolen() -> None:
    authority = CertificateAuthority([HOST])
    with pytest.raises(ValueError, match="not one of"):
        authority.server_context("other.example.org")
    stolen = authority._issue("other.example.org").context
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree violation"):
        _shake(stolen, _trusting(authority), "other.example.org")


def test_the_authority_may_sign_servers_of_its_hosts_and_nothing_else() -> None:
    (found,) = load_certificates(CertificateAuthority([HOST]).certificate)
    constraints = found.extensions.get_extension_for_class(x509.NameConstraints)
    assert constraints.critical
    assert constraints.value.permitted_subtrees == [x509.DNSName(HOST)]
    assert {str(one.value) for one in constraints.value.excluded_subtrees or []} == {"0.0.0.0/0", "::/0"}
    basic = found.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (basic.ca, basic.path_length) == (True, 0)
    assert isinstance(found.public_key(), ec.EllipticCurvePublicKey)


def test_two_sandboxes_have_two_authorities() -> None:
    one, other = CertificateAuthority([HOST]), CertificateAuthority([HOST])
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake(one.server_context(HOST), _trusting(other), HOST)


def test_a_leaf_is_kept_while_it_lasts_and_replaced_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = CertificateAuthority([HOST])
    first = authority.server_context(HOST)
    assert authority.server_context(HOST) is first
    monkeypatch.setattr(certificate_authority, "RENEWED_BEFORE", certificate_authority.LEAF_LIFETIME * 2)
    assert authority.server_context(HOST) is not first


def test_no_private_key_stays_in_a_file_and_none_is_ever_there_in_plain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[bytes] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, path: Path, *, password: str) -> None:
        seen.append(path.read_bytes())
        load(self, path, password=password)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    authority = CertificateAuthority([HOST])
    authority.server_context(HOST)
    assert b"ENCRYPTED PRIVATE KEY" in seen[0]
    assert b"BEGIN PRIVATE KEY" not in seen[0]
    assert b"BEGIN EC PRIVATE KEY" not in seen[0]
    assert list(tmp_path.iterdir()) == []
    assert b"PRIVATE" not in authority.certificate


def test_the_bundle_has_the_public_roots_or_the_persons_and_the_authority(tmp_path: Path) -> None:
    credentials = parse_credentials([f"{HOST}=env:TOKEN"], environ={"TOKEN": "0123456789"})
    public = load_certificates(certifi.contents().encode())
    broker = CredentialBroker(credentials)
    assert load_certificates(broker.bundle) == [*public, *load_certificates(broker.certificate)]
    own = tmp_path / "own.pem"
    own.write_bytes(CertificateAuthority(["internal.example.org"]).certificate)
    broker = CredentialBroker(credentials, ca_bundle=own)
    assert load_certificates(broker.bundle) == load_certificates(own.read_bytes() + broker.certificate)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")  # a public root has the number 0
def test_java_reads_the_same_authorities() -> None:
    bundle = certifi.contents().encode() + CertificateAuthority([HOST]).certificate
    found = pkcs12.load_pkcs12(java_trust_store(bundle), None)
    assert {one.certificate for one in found.additional_certs} == set(load_certificates(bundle))


def test_the_hosts_are_verified_by_the_persons_bundles_too(tmp_path: Path) -> None:
    authorities = [CertificateAuthority([name]) for name in ("a.example.org", "b.example.org")]
    paths = [tmp_path / "a.pem", tmp_path / "b.pem"]
    for path, authority in zip(paths, authorities, strict=True):
        path.write_bytes(authority.certificate)
    context = client_context(paths[0], environ={"REQUESTS_CA_BUNDLE": str(paths[1])})
    for authority in authorities:
        (host,) = authority.hosts
        _shake(authority.server_context(host), context, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake(authorities[0].server_context("a.example.org"), client_context(environ={}), "a.example.org")
