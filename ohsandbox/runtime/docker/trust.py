"""How programs in a container find the placeholders of credentials, and trust the authority that answers for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.runtime.docker.options import CA_PATH, CA_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from ohsandbox.network.credential_broker import CredentialBroker
    from ohsandbox.runtime.docker.sandbox import Sandbox

JAVA_TRUST_PATH = "/usr/local/share/ohsandbox-ca.p12"
JAVA_TRUST_OPTION = f"-Djavax.net.ssl.trustStore={JAVA_TRUST_PATH} -Djavax.net.ssl.trustStoreType=PKCS12"
_WRITE = 'umask 022; mkdir -p "${1%/*}" && cat >"$1" && chmod 644 "$1" || exit'
_INTO_STORES = """
ssl=/etc/ssl
for store in $ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt $ssl/ca-bundle.pem $ssl/cert.pem; do
    [ -f "$store" ] && [ -w "$store" ] || continue
    case $(cat "$store") in *"$2"*) ;; *) printf '\\n%s\\n' "$2" >>"$store" ;; esac
done
"""
"""The stores are those of Debian and Alpine, Fedora, SUSE, and OpenSSL's default: wget and apt (GnuTLS) read no
variable. An authority of an earlier session stays in them; its key is gone."""


def install(target: Sandbox, broker: CredentialBroker) -> None:
    """Write the authorities to where `credential_variables` point, and the sandbox's own into the image's stores."""
    certificate = broker.certificate.decode().strip()
    target.script(f"{_WRITE}\n{_INTO_STORES}", CA_PATH, certificate, stdin=broker.bundle)
    target.script(_WRITE, JAVA_TRUST_PATH, stdin=broker.java_trust_store())


def credential_variables(
    broker: CredentialBroker, given: Container[str], *, java_options: str = ""
) -> Mapping[str, str]:
    """The variables of every process, without those that the caller gave a value; java_options are Java's others."""
    variables = {
        **broker.environment,
        **dict.fromkeys(CA_VARIABLES, CA_PATH),
        "JAVA_TOOL_OPTIONS": f"{java_options} {JAVA_TRUST_OPTION}".strip(),
    }
    return {name: value for name, value in variables.items() if name not in given}
