"""The configuration of MCP servers: FastMCP's `{"mcpServers": {...}}`, parsed strictly, resolved per server."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ohsandbox.mcp.errors import MCPConfigError
from ohsandbox.strict_json import parse_json
from ohsandbox.text import VARIABLE_NAME, quoted_brackets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MAX_CONFIG_BYTES = 1_000_000
"""Maximum size: configurations are written by hand, so a larger file is the wrong one."""

_MIN_MASKED_CHARS = 8
"""Minimum length of a masked value; shorter ones occur by chance in ordinary text."""

_SERVER_NAME = re.compile(r"(?=.{1,40}\Z)[A-Za-z0-9]+(?:[-_.][A-Za-z0-9]+)*")
"""So no name has the `__` that ends it in `server__tool`: whose a tool is can be told from its name."""
_VARIABLE = re.compile(r"\$\{((?:secret:)?[A-Za-z_][A-Za-z0-9_]*)(?::-((?:[^}$]|\$(?!\{))*+))?\}")
_ACCEPTED = {"progressEnabled", "description", "icon", "autoApprove", "alwaysAllow", "keep_alive"}
"""Keys in files of other programs, which are accepted and ignored."""

_FAMILIES = {"sse": "sse", "http": "http", "streamable-http": "http", "shttp": "http"}
OLDER_FORMS = {"sse_servers": "sse", "shttp_servers": "http", "stdio_servers": None}

INITIALIZE_S = 30.0
"""Time limit for a start, from the last output of the server or its installer."""
_LIST_S = 15.0
_CALL_S = 180.0
"""Time limit for a tool call."""


class Timeouts(NamedTuple):
    """Timeouts of a server's phases, in seconds."""

    initialize_s: float = INITIALIZE_S
    """Time limit for a start without output: each line that the server or its installer prints restarts it."""
    list_s: float = _LIST_S
    call_s: float = _CALL_S


class ServerConfig(BaseModel):
    """One server: a `command` to start, or a `url` to connect to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str | None = Field(default=None, min_length=1)
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    """Variables for this server only; `${VAR}` and `${VAR:-default}` are resolved on the host."""
    cwd: str | None = None
    """The server's working directory in the sandbox, relative to the sandbox's own."""
    user: str | None = None
    """The user that runs the server in the sandbox. If it is not the agent's, neither can access the other's
    processes."""
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    transport: Literal["stdio", "http", "streamable-http", "sse"] | None = None
    timeout: float | None = Field(default=None, gt=0, le=86_400)
    """Seconds for a call, and for the start if that is more than 30."""
    where: Literal["sandbox", "host"] | None = None
    """None starts a command in the sandbox and reaches a url from the host. `host` starts a command on this machine
    with your rights; `sandbox` reaches a url from inside the sandbox's network, where `localhost` is the sandbox
    itself."""
    include: tuple[str, ...] = ("*",)
    """Shell patterns of tool names; only these are offered."""
    exclude: tuple[str, ...] = ()
    disabled: bool = False
    trusted: bool = False
    """Whether its tools' hints may lower a risk (read-only, not destructive). Hints that raise a risk
    always count."""

    @field_validator("env", "headers")
    @classmethod
    def _names_can_be_set(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if "\0" in text or "\n" in text or "\r" in text:
                raise ValueError(f"the value of {name!r} holds a line break or NUL")
        return value

    @model_validator(mode="after")
    def _is_one_kind(self) -> ServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either `command` or `url`")
        if self.url is not None:
            if not _VARIABLE.match(self.url) and not re.match(r"https?://[^\s/]+", self.url):
                raise ValueError("`url` does not begin with http:// or https:// and a host")
            if self.args or self.env or self.cwd or self.user:
                raise ValueError("`args`, `env`, `cwd` and `user` go with `command`, not with `url`")
            if self.transport == "stdio":
                raise ValueError("`transport` is 'stdio', which goes with `command`, not with `url`")
            return self
        if self.transport not in (None, "stdio"):
            raise ValueError(f"`transport` is {self.transport!r}, which goes with `url`, not with `command`")
        if self.headers:
            raise ValueError("`headers` go with `url`, not with `command`")
        if invalid_names := [name for name in self.env if not VARIABLE_NAME.fullmatch(name)]:
            raise ValueError(f"`env` has {invalid_names[0]!r}, which is not a valid variable name")
        return self

    @property
    def timeouts(self) -> Timeouts:
        """The timeouts, as changed by `timeout`."""
        return Timeouts(max(self.timeout or 0, INITIALIZE_S), _LIST_S, self.timeout or _CALL_S)

    @property
    def identity(self) -> str:
        """A hash of the command or url: a different command with the same name is a different server."""
        identity = json.dumps([self.command, self.args, self.cwd, self.url, self.runs_in])
        return hashlib.sha256(identity.encode()).hexdigest()[:16]

    @property
    def runs_in(self) -> Literal["sandbox", "host"]:
        """Where the command is started, or where the url is reached from."""
        return self.where or ("host" if self.command is None else "sandbox")

    def offers(self, tool: str) -> bool:
        """Whether include and exclude select the tool."""
        return any(fnmatch.fnmatchcase(tool, quoted_brackets(pattern)) for pattern in self.include) and not any(
            fnmatch.fnmatchcase(tool, quoted_brackets(pattern)) for pattern in self.exclude
        )


class Resolved(NamedTuple):
    """A server with the values of its variables, which go only to the server and never to logs."""

    config: ServerConfig
    secrets: dict[str, str]
    """Values by variable, if they came from the host and are long enough to be masked."""

    def masked(self, text: str) -> str:
        """Return text with the names of the variables in place of their values, also of JSON-escaped ones."""
        for name, value in sorted(self.secrets.items(), key=lambda pair: -len(pair[1])):
            for form in {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}:
                text = text.replace(form, f"[value of {name}]")
        return text


class MCPConfig(BaseModel):
    """All servers, by name, in the order of the file."""

    model_config = ConfigDict(frozen=True)

    servers: dict[str, ServerConfig] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """Warnings to show once, about servers that run on the host."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> MCPConfig:
        """Parse a dict in one of two forms: `{"mcpServers": {name: {...}}}`, or the lists of `mcp.*_servers`.

        Raises:
            MCPConfigError: the configuration is invalid; the message names the server and the key.
        """
        entries = entries_of(raw)
        servers = {name: server_of(name, entry) for name, entry in entries.items()}
        check_server_names(servers)
        return cls(servers=servers, warnings=_warnings(servers))

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that `parse` accepts."""
        entries = {name: server.model_dump(mode="json", exclude_unset=True) for name, server in self.servers.items()}
        return {"mcpServers": entries}

    @classmethod
    def load(cls, path: Path | str) -> MCPConfig:
        """Read a JSON file.

        Raises:
            MCPConfigError: the file cannot be read, or is not JSON or not valid; the message names it.
        """
        try:
            with Path(path).expanduser().open("rb") as file:
                data = file.read(_MAX_CONFIG_BYTES + 1)
        except OSError as error:
            raise MCPConfigError(f"MCP configuration {str(path)!r} cannot be read: {error.strerror}.") from None
        if len(data) > _MAX_CONFIG_BYTES:
            raise MCPConfigError(f"MCP configuration {str(path)!r} is over {_MAX_CONFIG_BYTES} bytes.")
        try:
            return cls.parse(parse_json(data))
        except MCPConfigError as error:
            raise MCPConfigError(f"{path}: {error}") from None
        except ValueError as error:
            fact = f"MCP configuration {str(path)!r} is not valid JSON: {error}"
            raise MCPConfigError(f"{fact}. Correct the file.") from None


def merged_configs(first: MCPConfig, second: MCPConfig) -> MCPConfig:
    """Return the servers of both configurations; one in second replaces one of the same name."""
    servers = {**first.servers, **second.servers}
    return MCPConfig(servers=servers, warnings=_warnings(servers))


def _warnings(servers: Mapping[str, ServerConfig]) -> tuple[str, ...]:
    return tuple(
        f"MCP server {name!r} runs on this machine, outside the sandbox, with your rights."
        for name, server in servers.items()
        if server.where == "host" and server.command is not None and not server.disabled
    )


def resolve_variables(name: str, server: ServerConfig, variables: Mapping[str, str]) -> Resolved:
    """Return the server with the values of `${VAR}` in `env`, `headers` and `url`; values are not expanded again.

    Raises:
        MCPConfigError: a variable is not set and has no default; the message names it, but never a value.
    """
    used: dict[str, str] = {}

    def fill(text: str, key: str) -> str:
        def value(match: re.Match[str]) -> str:
            variable, default = match[1], match[2]
            if variable in variables:
                used[variable] = variables[variable]
            elif default is None:
                raise MCPConfigError(
                    f"MCP server {name!r} needs variable {variable} for `{key}`, and it is not set. "
                    f"Set it, or write ${{{variable}:-default}}."
                )
            return variables.get(variable, default)

        return _VARIABLE.sub(value, text)

    changed: dict[str, Any] = {
        "env": {key: fill(text, f"env.{key}") for key, text in server.env.items()},
        "headers": {key: fill(text, f"headers.{key}") for key, text in server.headers.items()},
        "url": None if server.url is None else fill(server.url, "url"),
    }
    secrets = {key: text for key, text in used.items() if len(text) >= _MIN_MASKED_CHARS}
    try:
        return Resolved(ServerConfig.model_validate(server.model_dump() | changed), secrets)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        text = Resolved(server, used).masked(faults[0]["msg"])
        raise MCPConfigError(f"MCP server {name!r}, with its variables filled in: {text}.") from None


def entries_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unchecked servers of both forms by name: those of `mcpServers`, then of each of OLDER_FORMS, in order.

    Raises:
        MCPConfigError: the form is invalid; the message names the key.
    """
    if isinstance(raw, dict) and set(raw) == {"mcp"}:
        raw = raw["mcp"]
    if not isinstance(raw, dict):
        _refuse("The MCP configuration must be a JSON object with `mcpServers`.")
    if unknown := [key for key in raw if key != "mcpServers" and key not in OLDER_FORMS]:
        _refuse(
            f"Unknown key {unknown[0]!r} in the MCP configuration. Known are: mcpServers, or {', '.join(OLDER_FORMS)}."
        )
    servers = raw.get("mcpServers", {})
    if not isinstance(servers, dict):
        _refuse("`mcpServers` must be an object of servers by name.")
    entries = dict(servers)
    for form, transport in OLDER_FORMS.items():
        for name, entry in _listed(form, raw.get(form, []), transport):
            if name in entries:
                _refuse(f"Two MCP servers are named {name!r}. Give one another `name`.")
            entries[name] = entry
    return entries


def _listed(form: str, listed: Any, transport: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Return the servers in an older list: a url, an object with `url` and `api_key`, or a command with `name`."""
    if not isinstance(listed, list):
        _refuse(f"`{form}` must be a list of servers.")
    entries = []
    for number, item in enumerate(listed, 1):
        location = f"Entry {number} of `{form}`"
        entry: Any = {"url": item} if isinstance(item, str) and transport is not None else item
        if not isinstance(entry, dict):
            expected = "neither a URL nor an object" if transport else "no object with `name`, `command` and `args`"
            _refuse(f"{location} is {expected}.")
        entry = dict(entry)
        name = str(entry.pop("name", f"{form.removesuffix('_servers')}{number}"))
        if key := entry.pop("api_key", None):
            headers = dict(entry.get("headers") or {})
            if "authorization" in map(str.lower, headers):
                _refuse(f"{location} has `api_key` and the header `Authorization`. Leave one out.")
            entry["headers"] = {"Authorization": f"Bearer {key}"} | headers
        if transport is not None:
            declared = entry.pop("type", entry.get("transport", transport))
            if _FAMILIES.get(str(declared)) != transport:
                _refuse(f"{location} has the transport {declared!r}. Put it into the list of that transport.")
            entry["transport"] = transport
        entries.append((name, entry))
    return entries


def confusable_key(name: str) -> str:
    """Return what names share that a person or a model confuses: case, `_`, `-` and `.` do not count."""
    return re.sub(r"[-.]", "_", name).lower()


def check_server_names(names: Iterable[str]) -> None:
    """Check the names of servers that an agent has together.

    Raises:
        MCPConfigError: one is not 1 to 40 letters and digits, with single `_`, `-` or `.` between them, or two differ
            only in case or in these characters.
    """
    by_key: dict[str, str] = {}
    for name in names:
        if not _SERVER_NAME.fullmatch(name):
            rule = "1 to 40 letters and digits, with single `_`, `-` or `.` between them"
            _refuse(f"MCP server name {name!r} is not {rule}. Rename it.")
        if (other := by_key.setdefault(confusable_key(name), name)) != name:
            _refuse(f"MCP servers {other!r} and {name!r} differ only in case or in `_`, `-` and `.`. Rename one.")


def server_of(name: str, entry: Any) -> ServerConfig:
    """Return the validated definition of one server.

    Raises:
        MCPConfigError: its name or definition is invalid; the message names the server and the key.
    """
    check_server_names([name])
    if not isinstance(entry, dict):
        _refuse(f"MCP server {name!r} must be an object.")
    fields = {key: value for key, value in entry.items() if key not in _ACCEPTED}
    if "type" in fields:  # `type` is an alias of `transport`
        fields.setdefault("transport", fields.pop("type"))
    for key in ("include", "exclude", "args"):
        if isinstance(fields.get(key), list):
            fields[key] = tuple(fields[key])
    if isinstance(fields.get("env"), dict):  # numbers and booleans as a shell would write them
        fields["env"] = {
            key: json.dumps(value) if isinstance(value, bool | int | float) else value
            for key, value in fields["env"].items()
        }
    try:
        return ServerConfig.model_validate(fields)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            keys = ", ".join(ServerConfig.model_fields)
            _refuse(f"MCP server {name!r} has the unknown key {location!r}. Known are: {keys}.")
        message = fault["msg"].removeprefix("Value error, ")
        _refuse(f"MCP server {name!r}: {f'`{location}`: ' if location else ''}{message}.")


def _refuse(message: str) -> NoReturn:
    raise MCPConfigError(message)
