"""The user's own proxies: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, read as curl reads them."""

from __future__ import annotations

import ipaddress
import re
import urllib.request
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


def proxy_url(scheme: str, host: str, proxies: Mapping[str, str] | None = None) -> str | None:
    """Return the URL of the proxy through which a host is reached; None if it is reached directly, as loopback is.

    Args:
        scheme: `http` or `https`, of the request.
        host: a name or an address without brackets.
        proxies: URLs by scheme (`http`, `https`, `all`), and the hosts to reach directly (`no`); None reads the
            environment as urllib does.
    """
    proxies = urllib.request.getproxies() if proxies is None else proxies
    url = proxies.get(scheme) or proxies.get("all")
    if not url or is_loopback(host) or _goes_past(host.lower().rstrip("."), proxies.get("no", "")):
        return None
    return url if "://" in url else f"http://{url}"


def proxy_fault(url: str, error: Exception) -> UsageError:
    """Return the error of a proxy that an HTTP client refuses; a password in the URL is left out."""
    scheme, _, rest = url.partition("://")
    return UsageError(
        f"The proxy {scheme}://{rest.rpartition('@')[2]} of the environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY) "
        f"cannot be used ({type(error).__name__}). Give an http://, https://, socks5:// or socks5h:// address."
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name or address."""
    address = _address(host)
    return address.is_loopback if address else host == "localhost" or host.endswith(".localhost")


def _goes_past(host: str, no_proxy: str) -> bool:
    """Whether NO_PROXY matches a host: by its name, a parent domain, its address, a network (CIDR), or `*`.

    Source: CURLOPT_NOPROXY of curl 8. A port after an entry, which curl does not know, is ignored.
    """
    address = _address(host)
    for entry in re.split(r"[\s,]+", no_proxy.lower()):
        bare = re.sub(r"^\[(.*)\](:\d+)?$|^([^:]*):\d+$", r"\1\3", entry)
        if bare == "*":
            return True
        if address is not None:
            try:
                if address in ipaddress.ip_network(re.sub(r"[\[\]]", "", bare), strict=False):
                    return True
            except (ValueError, TypeError):
                continue
        elif (domain := bare.removeprefix("*").strip(".")) and f".{host}".endswith(f".{domain}"):
            return True
    return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
