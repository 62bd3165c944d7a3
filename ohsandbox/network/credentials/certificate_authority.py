"""The certificate authority of one sandbox, limited to the hosts of its credentials; its key is only in memory."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import secrets
import ssl
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_AUTHORITY_LIFETIME = dt.timedelta(days=365)
"""The authority exists only as long as the process that created it, and no session lasts a year."""
LEAF_LIFETIME = dt.timedelta(days=2)
RENEWED_BEFORE = dt.timedelta(days=1)
"""A leaf certificate with less time left is replaced: connections last hours, and a sandbox's clock may be hours
ahead."""
_BACKDATED = dt.timedelta(days=1)
"""Validity begins this much earlier, since a sandbox's clock may be behind, as in a virtual machine that was
suspended."""
_EVERYWHERE = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))


class _Leaf(NamedTuple):
    context: ssl.SSLContext
    until: dt.datetime


class CertificateAuthority:
    """Issues certificates for `hosts`. Its own is constrained to these names and to no IP address (RFC 5280, 4.2.1.10).

    The constraint also covers subdomains of a host. Thread-safe.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self.hosts = frozenset(hosts)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._own_certificate()
        self._leaves: dict[str, _Leaf] = {}
        self._lock = threading.Lock()

    @property
    def certificate(self) -> bytes:
        """The authority's certificate, in PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    def server_context(self, host: str) -> ssl.SSLContext:
        """Return the TLS context of a server with this name: HTTP/1.1 only, and the client must send the name as SNI.

        Raises:
            ValueError: the authority does not issue certificates for host.
        """
        if host not in self.hosts:
            raise ValueError(f"{host!r} is not one of this authority's hosts.")
        with self._lock:
            leaf = self._leaves.get(host)
            if leaf is None or leaf.until - _now() < RENEWED_BEFORE:
                leaf = self._leaves[host] = self._issue(host)
            return leaf.context

    def _own_certificate(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"ohsandbox, one sandbox, {secrets.token_hex(4)}")])
        key = self._key.public_key()
        names = [x509.DNSName(host) for host in sorted(self.hosts)]
        return (
            _builder(name, name, key, _AUTHORITY_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.NameConstraints(names, [x509.IPAddress(network) for network in _EVERYWHERE]), critical=True
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _issue(self, host: str) -> _Leaf:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "ohsandbox")])  # a CN has at most 64 characters
        certificate = (
            _builder(name, self._certificate.subject, key.public_key(), LEAF_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return _Leaf(_server_context(host, certificate, key), certificate.not_valid_after_utc)


def java_trust_store(roots: bytes) -> bytes:
    """Return the certificates of a PEM bundle as a trust store that Java reads without a password (PKCS #12)."""
    certificates = load_certificates(roots)
    entries = [PKCS12Certificate(certificate, str(number).encode()) for number, certificate in enumerate(certificates)]
    return serialize_java_truststore(entries, NoEncryption())


def load_certificates(bundle: bytes) -> Sequence[x509.Certificate]:
    """Return the certificates of a PEM bundle; unreadable ones are skipped, as in TLS libraries."""
    end = b"-----END CERTIFICATE-----"
    certificates = []
    for piece in bundle.split(end)[:-1]:
        # a public root of 2004 has the serial number 0: `cryptography` warns, and may refuse it in the future
        with contextlib.suppress(ValueError), warnings.catch_warnings(action="ignore"):
            certificates.append(x509.load_pem_x509_certificate(piece[piece.rfind(b"-----BEGIN CERT") :] + end))
    return certificates


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: dt.timedelta
) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _server_context(host: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    password = secrets.token_bytes(32)
    # OpenSSL loads only files: the leaf's key is in one for a moment, encrypted with a password that is only in memory
    with tempfile.TemporaryDirectory(prefix="ohsandbox-") as directory:
        pem = Path(directory) / "leaf.pem"
        sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.hex().encode()))
        pem.write_bytes(certificate.public_bytes(Encoding.PEM) + sealed)
        context.load_cert_chain(pem, password=password.hex())

    def check_name(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int | None:
        return None if name == host else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    context.sni_callback = check_name
    return context


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
