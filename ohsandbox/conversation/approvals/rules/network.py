"""Rules for network programs and URLs: what is sent, and which data a request may carry."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ohsandbox.conversation.approvals.rules import Finding, known_names, quoted
from ohsandbox.conversation.approvals.rules.known_programs import arguments_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand

DOWNLOADERS = frozenset({"curl", "wget", "fetch", "aria2c", "lynx", "w3m", "http", "https", "xh", "httpie"})
_LOOKUPS = known_names("lookups")
NETWORK = DOWNLOADERS | _LOOKUPS

_COMPUTED = re.compile(r"\$\(|`|\$\w*(?:KEY|TOKEN|SECRET|PASS)", re.IGNORECASE)
_SENDS = known_names("sending options")
_ELSEWHERE = known_names("redirecting options")
"""Options that send a request to another address than its URL."""

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,20}:[^\s'\"]+")
_LONG_WORD = re.compile(r"[A-Za-z0-9+/_=%-]{60,}")
_MAX_QUERY_CHARS = 256
"""Limit of a URL's query, user and fragment, half of its path's: enough for a page; more may be a file's content."""


def address_findings(command: SimpleCommand) -> Iterator[Finding]:
    """Findings in a network program: what it sends, and where to."""
    name, words = command.program, command.arguments
    computed = _COMPUTED.search(" ".join(words)) is not None
    sends = command.has(*_SENDS) or (
        name == "curl" and any(re.match(r"-[a-zA-Z]*[dFT]", word) for word in words if not word.startswith("--"))
    )
    local = is_local(command)
    if sends and not local:
        yield Finding("HIGH", f"Sends data out with {name}.")
    elif computed and not local:
        yield Finding("HIGH", f"Puts computed or secret text into a request of {name}.")
    elif name == "getent" and "hosts" not in words and "ahosts" not in words:
        return
    elif sends or not local:
        yield Finding("MEDIUM", f"Uses the network ({name}).")
    if not local:
        for word in words:
            yield from (finding for finding in _url_findings(word) if finding.risk == "HIGH" and "://" in word)


def is_local(command: SimpleCommand) -> bool:
    """Whether all addresses of a request are loopback and no option redirects it."""
    if command.has(*_ELSEWHERE) or any("$" in word or "`" in word for word in command.arguments):
        return False
    addresses = [item.text for item in arguments_of(command).of_kind("url")]
    return bool(addresses) and all(map(_is_local_address, addresses))


def _is_local_address(address: str) -> bool:
    try:
        host = urlsplit(address if "://" in address else f"http://{address}").hostname or ""
    except ValueError:
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _url_findings(url: str) -> Iterator[Finding]:
    """Findings in a URL to be requested: the server receives the URL and all data in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        yield Finding("HIGH", f"An address that cannot be read: {quoted(url)}.")
        return
    if parts.scheme not in {"http", "https", ""}:
        yield Finding("HIGH", f"An address that is not a web page: {quoted(url)}.")
    elif _is_local_address(url):
        return
    carried = "".join([parts.query, parts.username or "", parts.password or "", parts.fragment])
    if len(carried) > _MAX_QUERY_CHARS or len(parts.path) > 2 * _MAX_QUERY_CHARS:
        yield Finding("HIGH", f"The address itself carries {len(carried) + len(parts.path)} characters of data.")
    elif (match := _LONG_WORD.search(carried)) or (match := _LONG_WORD.search(parts.hostname or "")):
        yield Finding("HIGH", f"The address carries what looks like encoded data: {quoted(match[0])}.")
    if parts.username or parts.password:
        yield Finding("HIGH", "The address carries a name or a password.")


def web_findings(url: str) -> Iterator[Finding]:
    """Findings in a web page's URL."""
    yield from _url_findings(url)
    if not _is_local_address(url):
        yield Finding("MEDIUM", "Uses the network.")


def browser_findings(code: str) -> Iterator[Finding]:
    """Findings in browser calls: addresses, and files that are uploaded."""
    addresses = _ADDRESS.findall(code)
    for address in addresses:
        yield from _url_findings(address)
    if addresses and all(map(_is_local_address, addresses)):
        return
    yield Finding("MEDIUM", "Uses the network.")
    if "upload_file" in code:
        yield Finding("HIGH", "Hands a file to a page.")
