"""The managed policy that lets a browser in a sandbox use its allowlist; few sandboxes load it."""

from __future__ import annotations

import json
import re

POLICY_PATHS = tuple(
    f"/etc/{product}/policies/managed/ohsandbox.json"
    for product in ("chromium", "opt/chrome", "opt/chrome_for_testing")
)
"""Policy files of Chromium, Google Chrome, and Chrome for Testing, which Playwright and Puppeteer download. Their
headless shell (`chrome-headless-shell`) reads no policy file."""
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----([^-]+)-----END CERTIFICATE-----")


def browser_policy(authorities: bytes = b"") -> bytes:
    """Return the policy file's content.

    It turns off the encrypted ClientHello, which the proxy refuses and Chromium otherwise sends to every server.

    Args:
        authorities: PEM certificates that the browser trusts in addition to its own.
    """
    policy: dict[str, object] = {"EncryptedClientHelloEnabled": False}
    if found := [b"".join(one.split()).decode() for one in _CERTIFICATE.findall(authorities)]:
        policy["CACertificates"] = found
    return json.dumps(policy, indent=1).encode() + b"\n"
