"""`CredentialBroker`: the certificates a sandbox gets for a user's credentials, and the interceptor that serves them.

This module imports `cryptography` and h11, so import it only at first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import certifi

from ohsandbox.network.credentials.certificate_authority import CertificateAuthority, java_trust_store
from ohsandbox.network.credentials.credentials import rules_of
from ohsandbox.network.credentials.interception import CredentialInterceptor
from ohsandbox.network.tls import client_context
from ohsandbox.private_files import read_regular

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from ohsandbox.network.credentials.credentials import Credential


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
        """Create the sandbox's authority; upstream None verifies hosts as `client_context` does.

        Raises:
            OSError: ca_bundle cannot be read.
        """
        roots = read_regular(Path(certifi.where() if ca_bundle is None else ca_bundle).expanduser(), follow=True)
        authority = CertificateAuthority(credential.host for credential in credentials)
        self.rules = rules_of(credentials)
        self.interceptor = CredentialInterceptor(
            credentials, authority, client_context(ca_bundle) if upstream is None else upstream
        )
        self.certificate = authority.certificate
        self.bundle = roots.rstrip() + b"\n" + authority.certificate

    def java_trust_store(self) -> bytes:
        """The same authorities for `-Djavax.net.ssl.trustStore`, readable without a password."""
        return java_trust_store(self.bundle)

    def __repr__(self) -> str:
        return f"CredentialBroker({', '.join(self.rules)})"
