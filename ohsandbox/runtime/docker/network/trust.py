"""How programs in a container get the placeholders of credentials, and trust the authority for their hosts."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.network.credentials.credentials import check_outside, parse_credentials, rules_of
from ohsandbox.private_files import read_regular
from ohsandbox.runtime.docker.config.container_config import TRUST_DIR
from ohsandbox.runtime.docker.config.options import CA_PATH, CA_VARIABLES
from ohsandbox.secrets import HiddenValues

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.network.credentials.credential_broker import CredentialBroker
    from ohsandbox.runtime.docker.sandbox import Sandbox

JAVA_TRUST_PATH = f"{TRUST_DIR}/ca.p12"
JAVA_TRUST_OPTION = f"-Djavax.net.ssl.trustStore={JAVA_TRUST_PATH} -Djavax.net.ssl.trustStoreType=PKCS12"
_WRITE = 'umask 022; mkdir -p "${1%/*}" && cat >"$1" && chmod 644 "$1" || exit'
_INTO_STORES = """
ssl=/etc/ssl
for store in $ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt $ssl/ca-bundle.pem $ssl/cert.pem; do
    [ -f "$store" ] && [ -w "$store" ] || continue
    case $(cat "$store") in *"$2"*) ;; *) printf '\\n%s\\n' "$2" >>"$store" ;; esac
done
"""
"""Adds the authority to the image's stores, as wget and apt (GnuTLS) read no variable: those of Debian and Alpine,
Fedora, SUSE, and OpenSSL's default. The authority of an earlier session stays in them, but its key is gone."""


def java_trust_store_of(ca_bundle: str) -> bytes:
    """Return the authorities in a PEM file as the trust store that JAVA_TRUST_OPTION names."""
    from ohsandbox.network.credentials.certificate_authority import java_trust_store  # noqa: PLC0415 - slow: loads cryptography

    return java_trust_store(read_regular(Path(ca_bundle).expanduser(), follow=True))


class CredentialSetup:
    """The credentials of one runtime: placeholders and certificates for its containers, and the broker outside of them.

    Attributes:
        hosts: the hosts of the credentials, as rules of a network policy.
        outside: the values, by name; they stay outside of the sandbox.
    """

    def __init__(self, flags: Sequence[str], *, ca_bundle: str | None = None, given: Mapping[str, str]) -> None:
        """Look up the values; given are the caller's variables, which take precedence.

        Raises:
            UsageError: a credential is invalid, its value is missing, or a variable contains the value.
        """
        self._credentials = parse_credentials(flags)
        self._ca_bundle = ca_bundle
        self._given = frozenset(given)
        self._lock = threading.Lock()
        self._broker: CredentialBroker | None = None
        self.hosts = rules_of(self._credentials)
        self.outside = HiddenValues((one.name, one.value) for one in self._credentials)
        self.check_outside(given)

    @property
    def broker(self) -> CredentialBroker:
        """The broker, created at first use, which takes 30 ms, and 100 ms for the import of `cryptography`."""
        with self._lock:
            if self._broker is None:
                from ohsandbox.network.credentials.credential_broker import CredentialBroker  # noqa: PLC0415 - slow: loads cryptography

                self._broker = CredentialBroker(self._credentials, ca_bundle=self._ca_bundle)
            return self._broker

    def prepare(self) -> None:
        """Create the broker in a thread, while the engine works."""

        def make() -> None:
            with contextlib.suppress(OSError, ValueError):  # raised again when the broker is used
                _ = self.broker

        threading.Thread(target=make, daemon=True).start()

    def check_outside(self, variables: Mapping[str, str]) -> None:
        """Check that no variable of the sandbox contains the value of a credential.

        Raises:
            UsageError: a variable contains one.
        """
        check_outside(self._credentials, variables)

    def install(self, target: Sandbox) -> None:
        """Write the certificates to the paths in `variables`, and add the sandbox's authority to the image's stores."""
        certificate = self.broker.certificate.decode().strip()
        with ThreadPoolExecutor(1) as beside:  # each step takes one exec
            for_java = beside.submit(target.script, _WRITE, JAVA_TRUST_PATH, stdin=self.broker.java_trust_store())
            target.script(f"{_WRITE}\n{_INTO_STORES}", CA_PATH, certificate, stdin=self.broker.bundle)
            for_java.result()

    def variables(self) -> Mapping[str, str]:
        """Return the variables for all processes, without those that the caller has set."""
        found = {
            **dict(pair for one in self._credentials for pair in one.placeholders),
            **dict.fromkeys(CA_VARIABLES, CA_PATH),
        }
        return {name: value for name, value in found.items() if name not in self._given}
