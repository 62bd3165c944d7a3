"""The TLS context of every connection that this process opens as a client."""

from __future__ import annotations

import os
import ssl
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_STORE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables by which OpenSSL replaces the system's file and directory of certificates."""
_BUNDLE_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that name certificates to trust as well."""
_SYSTEM_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Certificates of Debian, Fedora and RHEL (newer, older), SUSE, and Alpine, for a Python that was built elsewhere."""


def client_context(ca_bundle: str | Path | None = None, environ: Mapping[str, str] | None = None) -> ssl.SSLContext:
    """Return the context that verifies servers, for HTTP/1.1; equal settings share one.

    It trusts this machine's store, or SSL_CERT_FILE and SSL_CERT_DIR instead; and REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE
    and ca_bundle as well. To load one takes 20 to 50 ms.

    Raises:
        UsageError: a variable, or ca_bundle, names what does not exist or holds no certificate.
    """
    environ = os.environ if environ is None else environ
    given = {name: environ.get(name) for name in (*_STORE_VARIABLES, *_BUNDLE_VARIABLES)}
    places = given | {"ca_bundle": None if ca_bundle is None else str(ca_bundle)}
    return _context(tuple((name, os.path.expanduser(place)) for name, place in places.items() if place))  # noqa: PTH111 - a cache's key


@lru_cache(maxsize=8)
def _context(places: tuple[tuple[str, str], ...]) -> ssl.SSLContext:
    own_store = any(name in _STORE_VARIABLES for name, _ in places)
    if sys.platform == "darwin" and not own_store:  # the keychain, which OpenSSL does not read
        import truststore  # noqa: PLC0415 - rarely used: macOS alone

        context: ssl.SSLContext = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not own_store:
            _load_system(context)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for name, place in places:
        for part in place.split(os.pathsep) if name == "SSL_CERT_DIR" else [place]:
            _load(context, name, part)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load_system(context: ssl.SSLContext) -> None:
    context.set_default_verify_paths()
    if context.cert_store_stats()["x509_ca"]:
        return
    if store := next((path for path in _SYSTEM_FILES if Path(path).is_file()), ""):
        context.load_verify_locations(store)
    else:
        import certifi  # noqa: PLC0415 - rarely used: a machine without certificates

        context.load_verify_locations(certifi.where())


def _load(context: ssl.SSLContext, name: str, place: str) -> None:
    is_directory = Path(place).is_dir()
    try:
        context.load_verify_locations(capath=place) if is_directory else context.load_verify_locations(cafile=place)
    except FileNotFoundError:
        raise UsageError(f"{name} names {place!r}, which does not exist. Correct it or leave it out.") from None
    except OSError as error:  # ssl.SSLError is one
        reason = "holds no readable PEM certificate" if isinstance(error, ssl.SSLError) else f"is {error.strerror}"
        raise UsageError(f"{name} names {place!r}, which {reason}. Name a PEM file.") from None
