"""What leads programs in a sandbox to the allowlist's proxy: variables, a browser's policy, and words for a model."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING

from ohsandbox.runtime.port_numbers import PROXY_PORT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
_LOCAL = "localhost,127.0.0.1,::1"
_JAVA = (
    f"-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={PROXY_PORT} -Dhttps.proxyHost=127.0.0.1 "
    f"-Dhttps.proxyPort={PROXY_PORT} -Dhttp.nonProxyHosts=localhost|127.*|[::1]"
)
NODE_PRELOAD_PATH = "/usr/local/share/ohsandbox-node-proxy.cjs"
"""Path in a container, beside the CA bundle. If the file is missing, Node does not start."""
POLICY_PATHS = tuple(
    f"/etc/{product}/policies/managed/ohsandbox.json"
    for product in ("chromium", "opt/chrome", "opt/chrome_for_testing")
)
"""Policy files of Chromium, Google Chrome, and Chrome for Testing, which Playwright and Puppeteer download. Their
headless shell (`chrome-headless-shell`) reads no policy file."""
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----([^-]+)-----END CERTIFICATE-----")
JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
PROXY_VARIABLES = {
    **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), _PROXY),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), _LOCAL),
    "NODE_USE_ENV_PROXY": "1",
    "NODE_OPTIONS": f"--require={NODE_PRELOAD_PATH}",
    JAVA_OPTIONS: _JAVA,
}
"""curl, git and apt read the lower-case names; cargo, go, pip, uv and npm read both. Node reads them from 22.21 on if
NODE_USE_ENV_PROXY is set; older versions load a file (network/proxy/node_proxy.cjs). Java only has a variable with
options for every virtual machine."""


def node_preload() -> bytes:
    """Return the contents of the file that NODE_OPTIONS names."""
    return files("ohsandbox.network.proxy").joinpath("node_proxy.cjs").read_bytes()


def proxy_environment(given: Mapping[str, str], *, java_options: str = "", hosts: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables that name the proxy, without those that the caller has set.

    hosts are additional names of the loopback address. Java's options are those of the proxy, then java_options, then
    the caller's; later ones override earlier ones. If the caller's are empty, they stay empty.
    """
    found = {name: value for name, value in PROXY_VARIABLES.items() if name not in given}
    found |= {name: ",".join([_LOCAL, *hosts]) for name in ("no_proxy", "NO_PROXY") if name in found and hosts}
    if (own := given.get(JAVA_OPTIONS, "")) or JAVA_OPTIONS in found:
        java = "|".join([_JAVA, *hosts])
        found[JAVA_OPTIONS] = " ".join(filter(None, (java, java_options, own)))
    return found


def browser_policy(authorities: bytes = b"") -> bytes:
    """Return the content of the managed policy that lets a browser in a sandbox use its allowlist.

    It turns off the encrypted ClientHello, which the proxy refuses and Chromium otherwise sends to every server.

    Args:
        authorities: PEM certificates that the browser trusts in addition to its own.
    """
    policy: dict[str, object] = {"EncryptedClientHelloEnabled": False}
    if found := [b"".join(one.split()).decode() for one in _CERTIFICATE.findall(authorities)]:
        policy["CACertificates"] = found
    return json.dumps(policy, indent=1).encode() + b"\n"


def allowlist_description(rules: Sequence[str], credentials: Sequence[str] = ()) -> str:
    """Return the allowlist's description for a model: rules, hosts with credentials, and what a refusal looks like."""
    hosts = ", ".join(rules) or "no host yet"
    registries = " ('packages' are the package registries of the user's own tools)" if "packages" in rules else ""
    added = (
        f" Requests to {', '.join(credentials)} get their credential on the way, only over https://. Variables hold "
        "placeholders for it, so do not ask for keys."
    )
    return (
        f"an allowlist: {hosts}{registries}. They are reached over HTTPS and HTTP through the proxy that the variables "
        "https_proxy and http_proxy name; there is no DNS and no other way out. Status 403 of the proxy: the host is "
        "not on the list. Only the user can allow it: say which host you need and why instead of trying again"
        f"{'.' + added if credentials else ''}"
    )
