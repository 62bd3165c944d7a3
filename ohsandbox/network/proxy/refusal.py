"""The explanation of a refused request for a program in the sandbox, and for the model that reads its output."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.network.addresses import PRIVATE_ADDRESS, HostNameError, normalized_host
from ohsandbox.network.policy import DEFAULT_PORTS
from ohsandbox.text import quoted_line

if TYPE_CHECKING:
    from ohsandbox.network.proxy.upstream import UpstreamError

_NO_NAME = "The request"
_FINAL = "Trying again, or another tool, port, mirror or address, gives the same answer: there is no other way out."


class ProxyRefusal(NamedTuple):
    """An answer of the proxy itself.

    Attributes:
        status: 403 if a rule refuses, 429 for an exceeded limit, 502 for a failure of the host, others for an invalid
            request.
        host: the requested host; any text that the sandbox sent.
        port: the requested port; 0 for none.
        reason: a predicate whose subject is the host.
        kind: the error type of RFC 9209; "" means the usual one of the status.
        remedy: what to do; "" means adding the rule that would allow the host.
    """

    status: int
    host: str
    port: int
    reason: str
    kind: str = ""
    remedy: str = ""

    def answer(self) -> bytes:
        """Return the whole HTTP/1.1 response, after which the connection is closed.

        Many tools show only the status line of a refused CONNECT, so it states what was blocked.
        """
        text = self._text().encode()
        line = HTTPStatus(self.status).phrase
        if self.status in {HTTPStatus.FORBIDDEN, HTTPStatus.BAD_GATEWAY}:
            phrase = "Blocked by the sandbox" if self.status == HTTPStatus.FORBIDDEN else line
            line = f"{phrase}: {self._place()} {self.reason}"
        head = (
            f"HTTP/1.1 {self.status} {quoted_line(line, limit_chars=250)}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(text)}\r\n"
            f"Proxy-Status: ohsandbox; error={self.kind or _KINDS.get(self.status, 'http_request_error')}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode("ascii", "replace") + text

    def _place(self) -> str:
        """Return the host, with its port if it is not 80 or 443; "The request" if it is not a valid name."""
        try:
            host = normalized_host(self.host)
        except HostNameError:
            return _NO_NAME
        return host if self.port in {0, *DEFAULT_PORTS} else f"{host}:{self.port}"

    def _text(self) -> str:
        destination = self._place()
        if self.status == HTTPStatus.FORBIDDEN:
            lines = [
                f"Blocked by the sandbox: {destination} {self.reason}.",
                _FINAL,
                self.remedy or _allowing(destination),
            ]
        elif self.status == HTTPStatus.TOO_MANY_REQUESTS:
            lines = [f"Refused by the sandbox: {self.reason}.", "Wait, use fewer connections, or go on without."]
        elif self.status == HTTPStatus.BAD_GATEWAY:
            lines = [
                f"{destination} {self.reason}. The sandbox allows this host; the failure is outside of it.",
                "Trying again later may help.",
            ]
        else:
            lines = [f"The sandbox's proxy did not understand this request: it {self.reason}."]
        return "\n".join(line for line in lines if line) + "\n"


_KINDS = {403: "http_request_denied", 429: "connection_limit_reached", 502: "destination_unavailable"}


def _allowing(rule: str) -> str:
    if rule == _NO_NAME:
        return "Use the name of a host, not an address."
    return (
        f"If the task needs it, tell the person: they can allow it with `/net allow {rule}` in the session, or "
        f"`--allow {rule}` on the command line. Otherwise do without it."
    )


def upstream_refusal(host: str, port: int, error: UpstreamError) -> ProxyRefusal:
    """Return the answer for an allowed host to which no connection could be made."""
    if not error.refused:
        return ProxyRefusal(502, host, port, str(error), error.kind)
    remedy = "No rule opens such an address."
    if PRIVATE_ADDRESS in str(error):
        remedy = _allowing(f"private:{host}" if port in DEFAULT_PORTS else f"private:{host}:{port}")
    return ProxyRefusal(403, host, port, str(error), error.kind, remedy)
