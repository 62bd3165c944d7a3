"""Credentials that never enter a sandbox: how a user writes them, and the header that each of them becomes.

    HOST[:PORT]=env:NAME[,bearer | ,header:NAME | ,basic:USER]
    PRESET[=env:NAME]

`file:PATH` may replace `env:NAME`. The value is read once, on the host; the sandbox sees a placeholder.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.network.addresses import HostNameError, is_local_name, normalized_host
from ohsandbox.network.policy import HTTPS_PORT
from ohsandbox.secrets.encodings import encodings_of
from ohsandbox.secrets.vault import check_name, look_up
from ohsandbox.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PLACEHOLDER = "ohsandbox-placeholder"
"""The value that the variables of a credential have in the sandbox."""
MAX_ENCODED_BYTES = 8 * 1024
"""Longest encoding of a value that is searched for in answers, of which this many bytes may be held back. Servers take
heads of 8 to 64 KiB; hex and base64 of a token of 3,000 characters fit."""
_FORM = re.compile(r",(bearer|header:[^,:]*|basic:[^,:]*)\Z")
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_USER = re.compile(r"[A-Za-z0-9._@+-]{1,128}")
_VALUE = re.compile(r"[\x21-\x7e]+(?: [\x21-\x7e]+)*")
"""Visible ASCII with single blanks, which all servers read alike in a header (RFC 9110, 5.5)."""
_OF_A_MESSAGE = re.compile(
    r"host|content-length|transfer-encoding|connection|upgrade|expect|te|trailer|keep-alive|accept-encoding|proxy-.*"
)
"""Headers that determine how a message is parsed or where it goes; none of them can carry a credential."""


@dataclass(frozen=True)
class Credential:
    """A value for requests to one host, at and below one path; its `repr` hides the value."""

    host: str
    """The host in lower case, ASCII, without a dot at its end."""
    port: int
    name: str
    """The name in masks and messages: the variable or the preset."""
    header: str
    """The header's name in lower case."""
    form: str
    """`bearer`, `header:NAME` or `basic:USER`."""
    value: str = field(repr=False)
    path: str = "/"
    placeholders: tuple[tuple[str, str], ...] = ()
    """Variables of the sandbox, with the worthless values that they have there."""

    @property
    def header_value(self) -> bytes:
        """The header's value, with the scheme `Basic` or `Bearer` where the form has one."""
        if self.form.startswith("basic:"):
            pair = f"{self.form.removeprefix('basic:')}:{self.value}"
            return b"Basic " + base64.b64encode(pair.encode())
        return (f"Bearer {self.value}" if self.form == "bearer" else self.value).encode()

    @property
    def masked_values(self) -> dict[str, str]:
        """What is masked in answers, by name: the value, and what the header has of it."""
        return {self.name: self.value, f"{self.name} header": self.header_value.rpartition(b" ")[2].decode()}


class _CredentialPlace(NamedTuple):
    """A place to which the value of a preset is sent."""

    host: str
    form: str = "bearer"
    path: str = "/"


class _CredentialPreset(NamedTuple):
    """A predefined credential, selected by one word."""

    variables: tuple[str, ...]
    """Variables of the host; the first that is set has the value. In the sandbox all of them have the placeholder."""
    places: tuple[_CredentialPlace, ...]
    placeholder: str = PLACEHOLDER
    more_inside: tuple[str, ...] = ()


PRESETS: Mapping[str, _CredentialPreset] = {
    "anthropic": _CredentialPreset(
        ("ANTHROPIC_API_KEY",),
        (_CredentialPlace("api.anthropic.com", "header:x-api-key"),),
        "sk-ant-ohsandbox-placeholder",
    ),
    "bitbucket": _CredentialPreset(
        ("BITBUCKET_TOKEN",),
        (_CredentialPlace("bitbucket.org", "basic:x-token-auth"), _CredentialPlace("api.bitbucket.org")),
    ),
    "cerebras": _CredentialPreset(("CEREBRAS_API_KEY",), (_CredentialPlace("api.cerebras.ai"),)),
    "codeberg": _CredentialPreset(
        ("CODEBERG_TOKEN",),
        (_CredentialPlace("codeberg.org", "basic:git"), _CredentialPlace("codeberg.org", path="/api/")),
    ),
    "deepseek": _CredentialPreset(("DEEPSEEK_API_KEY",), (_CredentialPlace("api.deepseek.com"),)),
    "gemini": _CredentialPreset(
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        (_CredentialPlace("generativelanguage.googleapis.com", "header:x-goog-api-key"),),
    ),
    "github": _CredentialPreset(
        ("GH_TOKEN", "GITHUB_TOKEN"),
        (
            _CredentialPlace("github.com", "basic:x-access-token"),
            _CredentialPlace("api.github.com"),
            _CredentialPlace("uploads.github.com"),
        ),
        "ghp_ohsandboxplaceholder",
    ),
    "gitlab": _CredentialPreset(
        ("GITLAB_TOKEN",),
        (_CredentialPlace("gitlab.com", "basic:oauth2"), _CredentialPlace("gitlab.com", path="/api/")),
    ),
    "groq": _CredentialPreset(("GROQ_API_KEY",), (_CredentialPlace("api.groq.com"),)),
    "mistral": _CredentialPreset(("MISTRAL_API_KEY",), (_CredentialPlace("api.mistral.ai"),)),
    "openai": _CredentialPreset(
        ("OPENAI_API_KEY",),
        (_CredentialPlace("api.openai.com"),),
        "sk-ohsandbox-placeholder",
        more_inside=("CODEX_API_KEY",),
    ),
    "openrouter": _CredentialPreset(
        ("OPENROUTER_API_KEY",), (_CredentialPlace("openrouter.ai"),), "sk-or-ohsandbox-placeholder"
    ),
    "together": _CredentialPreset(("TOGETHER_API_KEY",), (_CredentialPlace("api.together.xyz"),)),
    "xai": _CredentialPreset(("XAI_API_KEY",), (_CredentialPlace("api.x.ai"),)),
}
"""Forges and model providers, as their clients' documentation describes: variables, hosts, headers. For a forge, git
uses basic authentication, and the API below its path a bearer token."""


def parse_credentials(flags: Iterable[str], *, environ: Mapping[str, str] | None = None) -> tuple[Credential, ...]:
    """Read credentials and look up their values; environ None is this process's.

    Raises:
        UsageError: a credential is malformed, its value is missing or does not fit in a header, or two have
            the same host, port and path. The message never quotes text that may be a value.
    """
    environ = os.environ if environ is None else environ
    credentials: list[Credential] = []
    for flag in flags:
        subject, equals, reference = flag.partition("=")
        if subject in PRESETS:
            parsed = _preset(subject, reference, environ)
        elif equals and reference:
            parsed = [_of_host(subject, reference, environ)]
        else:
            raise _malformed(subject)
        for credential in parsed:
            if any(
                (credential.host, credential.port, credential.path)
                == (other_credential.host, other_credential.port, other_credential.path)
                for other_credential in credentials
            ):
                raise UsageError(f"{credential.host!r} has two credentials. Leave one of them out.")
            encodings = [one for value in credential.masked_values.values() for one in encodings_of(value)]
            if (longest := max(map(len, encodings), default=0)) > MAX_ENCODED_BYTES:
                raise UsageError(
                    f"The value of the credential for {credential.host!r} cannot be masked in answers: one of its "
                    f"encodings has {longest} bytes, and the limit is {MAX_ENCODED_BYTES}. Use a shorter value."
                )
        credentials += parsed
    return tuple(credentials)


def check_outside(credentials: Iterable[Credential], variables: Mapping[str, str]) -> None:
    """Check that no variable of a sandbox contains the value of a credential.

    Raises:
        UsageError: a variable contains one.
    """
    for credential in credentials:
        for name, value in variables.items():
            if credential.value in value:
                raise UsageError(
                    f"Variable {name!r} has the value of credential {credential.name!r}, which never enters a sandbox. "
                    "Leave the variable out; programs find a placeholder, and the value is added outside."
                )


def rules_of(credentials: Iterable[Credential]) -> tuple[str, ...]:
    """Return the rules that a network policy needs for these credentials: `HOST:PORT` each."""
    return tuple(dict.fromkeys(f"{credential.host}:{credential.port}" for credential in credentials))


def _malformed(subject: str) -> UsageError:
    # hosts have a dot; other text is a mistyped preset, or a value, which must not be quoted
    hint = did_you_mean(subject, PRESETS) if subject.isalpha() and len(subject) <= max(map(len, PRESETS)) else ""
    return UsageError(
        f"A credential does not say where its value is.{hint} Write HOST=env:NAME or HOST=file:PATH, or one of "
        f"{', '.join(PRESETS)}."
    )


def _of_host(subject: str, reference: str, environ: Mapping[str, str]) -> Credential:
    host, port = _host(subject)
    form = "bearer"
    if stated := _FORM.search(reference):
        reference, form = reference[: stated.start()], stated[1]
    kind, _, argument = reference.partition(":")
    if kind == "env" and "," in argument:
        raise UsageError(
            f"The credential for {host!r} has a form that is not known. Write env:NAME alone, or behind it "
            ",bearer or ,header:NAME or ,basic:USER."
        )
    variables = (check_name(argument),) if kind == "env" else ()
    value = look_up(host, reference, environ).value
    name = variables[0] if variables else host
    return Credential(
        host, port, name, header=_header(host, form), form=form, value=_fitting(host, value),
        placeholders=tuple((variable, PLACEHOLDER) for variable in variables),
    )  # fmt: skip


def _preset(word: str, reference: str, environ: Mapping[str, str]) -> list[Credential]:
    preset = PRESETS[word]
    variable = next((name for name in preset.variables if environ.get(name)), None)
    if variable is None and not reference:
        raise UsageError(
            f"{' or '.join(preset.variables)} is not set, which credential {word!r} takes its value from. "
            f"Set it, or write {word}=env:NAME or {word}=file:PATH."
        )
    value = look_up(word, reference or f"env:{variable}", environ).value
    inside = tuple((name, preset.placeholder) for name in (*preset.variables, *preset.more_inside))
    return [
        Credential(
            destination.host, HTTPS_PORT, word, header=_header(destination.host, destination.form),
            form=destination.form, value=_fitting(destination.host, value), path=destination.path, placeholders=inside,
        )
        for destination in preset.places
    ]  # fmt: skip


def _host(subject: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        UsageError: it is an address, a pattern, a URL or this machine.
    """
    name, colon, port = subject.partition(":")
    try:
        host = normalized_host(name)
    except HostNameError:
        host = "localhost"
    sane_port = not colon or (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16)
    if is_local_name(host) or not sane_port:
        raise UsageError(
            "A credential names no host. Write one host name, as in api.example.org=env:NAME, with :PORT "
            "where it is not 443; addresses, patterns, URLs and this machine are refused (--expose-host PORT is for a "
            "service of this machine, without a credential)."
        )
    return host, int(port) if colon else HTTPS_PORT


def _header(host: str, form: str) -> str:
    """Return the name of a form's header in lower case; raise UsageError if the form is invalid."""
    kind, _, argument = form.partition(":")
    header = argument.lower() if kind == "header" else "authorization"
    if not _HEADER.fullmatch(header) or _OF_A_MESSAGE.fullmatch(header):
        raise UsageError(f"The credential for {host!r} names no header that can be set. Write header:NAME.")
    if kind == "basic" and not _USER.fullmatch(argument):
        raise UsageError(f"The credential for {host!r} names no user. Write basic:USER, without a password.")
    return header


def _fitting(host: str, value: str) -> str:
    """Return the value without surrounding blanks; raise UsageError if a header cannot contain it."""
    value = value.strip()
    if not _VALUE.fullmatch(value):
        raise UsageError(
            f"The value of the credential for {host!r} fits no header: it is empty, or has a line break or another "
            "character that is not visible ASCII. Correct the value."
        )
    return value
