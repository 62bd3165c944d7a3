"""`CredentialBroker`: the certificates a sandbox gets for a user's credentials, and the interceptor that serves them.

This module imports `cryptography` and h11, so import it only at first use.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import certifi

from ohsandbox.network.credentials.certificate_authority import CertificateAuthority, java_trust_store
from ohsandbox.network.credentials.credentials import rules_of
from ohsandbox.network.credentials.interception import CredentialInterceptor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.network.credentials.credentials import Credential

_BUNDLE_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables of the user that name a CA bundle; OpenSSL itself reads `SSL_CERT_FILE` and `SSL_CERT_DIR`."""


class CredentialBroker:
    """The credentials of one sandbox. The key of its certificate authority exists only in this process.

    Attributes:
        rules: additional rules that the sandbox's network policy needs.
        interceptor: the interceptor for the proxy.
        certificate: the sandbox's own authority, in PEM.
        bundle: all authorities, in PEM, that programs in the sandbox should trust: its own, and those of ca_bundle or
            by default the public roots.
    """

    def __init__(
        self,
        credentials: Sequence[Credential],
        *,
        ca_bundle: str | Path | None = None,
        upstream: ssl.SSLContext | None = None,
    ) -> None:
        """Create the sandbox's authority; upstream None verifies hosts as `upstream_context` does.

        Raises:
            OSError: ca_bundle cannot be read.
        """
        roots = Path(certifi.where() if ca_bundle is None else ca_bundle).expanduser().read_bytes()
        authority = CertificateAuthority(credential.host for credential in credentials)
        self.rules = rules_of(credentials)
        self.interceptor = CredentialInterceptor(
            credentials, authority, upstream_context(ca_bundle) if upstream is None else upstream
        )
        self.certificate = authority.certificate
        self.bundle = roots.rstrip() + b"\n" + authority.certificate

    def java_trust_store(self) -> bytes:
        """The same authorities for `-Djavax.net.ssl.trustStore`, readable without a password."""
        return java_trust_store(self.bundle)

    def __repr__(self) -> str:
        return f"CredentialBroker({', '.join(self.rules)})"


def upstream_context(ca_bundle: str | Path | None = None, environ: Mapping[str, str] | None = None) -> ssl.SSLContext:
    """Return the context that verifies the real hosts, by this machine's trust store, user variables and ca_bundle."""
    context = ssl.create_default_context()
    environ = os.environ if environ is None else environ
    bundles = [*(environ.get(variable) for variable in _BUNDLE_VARIABLES), ca_bundle]
    for bundle in [Path(bundle_path).expanduser() for bundle_path in bundles if bundle_path]:
        if bundle.is_file():
            context.load_verify_locations(bundle)
    if not context.cert_store_stats()["x509_ca"]:  # Python's own builds for macOS have no roots
        context.load_verify_locations(certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context
