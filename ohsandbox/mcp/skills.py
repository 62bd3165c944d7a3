"""MCP servers that the skills of a repository define: they are read and checked, but not started.

Variables are not resolved, and a definition that cannot be shown to a person in full is refused.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.mcp.config import OLDER_FORMS, ServerConfig, confusable_key, entries_of, server_of
from ohsandbox.mcp.errors import MCPConfigError
from ohsandbox.mcp.skill_files import KEY, SkillFiles, TooManySkillsError
from ohsandbox.review_text import concealed_in
from ohsandbox.strict_json import parse_json
from ohsandbox.text import texts_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ohsandbox.runtime.base import Runtime

MAX_SERVERS = 16
MAX_CHARS = 10_000
"""Maximum length of all definitions and command lines together: 16 definitions of usual length, some 100 lines."""
_MAX_YAML_DEPTH = 8
MAX_REFUSED = 10
"""Maximum number of reported refusals; further ones are only counted."""

SKILL_ROOT = "${SKILL_ROOT}"
"""The directory of the skill in the sandbox; the only variable that is resolved."""

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[{}\[\]\n]')
_SERVER_DEPTH = 2
"""Depth of the servers' names in `.mcp.json`: `{"mcpServers": {"name": ...`."""


class SkillServer(NamedTuple):
    """A server that a skill defines."""

    name: str
    config: ServerConfig
    file: str
    """Path of the file that defines it, relative to the working directory."""
    line: int
    """Line on which the definition begins, from 1."""

    @property
    def command_line(self) -> str:
        """The command and its arguments, quoted for a shell; "" for a url."""
        return "" if self.config.command is None else shlex.join([self.config.command, *self.config.args])

    @property
    def definition(self) -> dict[str, Any]:
        """The fields in the file, with `${SKILL_ROOT}` resolved; a url also has `where`."""
        return self.config.model_dump(mode="json", exclude_unset=True)


class SkillServers(NamedTuple):
    """The servers that the skills of a repository define."""

    servers: tuple[SkillServer, ...] = ()
    refused: tuple[str, ...] = ()
    """A sentence for each refused definition. It has foreign text, which is not safe to print as it is."""

    def without(self, names: Collection[str]) -> SkillServers:
        """Return a copy in which servers with one of these names, or one that is confused with it, are refused."""
        taken_keys = {confusable_key(name) for name in names}
        kept_servers = tuple(server for server in self.servers if confusable_key(server.name) not in taken_keys)
        refusals = [
            f"{_place(server)}: a server that you have configured, or a tool, has this name or a like one. Rename it."
            for server in self.servers
            if server not in kept_servers
        ]
        return SkillServers(kept_servers, (*self.refused, *refusals))

    def digest(self, place: Sequence[str]) -> str:
        """Return the SHA-256, in hex, of place and all definitions with their files: equal if nothing has changed."""
        definitions = [[server.name, server.file, server.definition] for server in self.servers]
        return hashlib.sha256(json.dumps([[*place], definitions], sort_keys=True).encode()).hexdigest()


def read_skill_servers(files: SkillFiles, runtime: Runtime) -> SkillServers:
    """Read the servers that files define. If any limit is exceeded, none is returned."""
    refused = [*files.refused]
    try:
        servers = _collected(files, refused, runtime)
    except TooManySkillsError as error:
        return SkillServers((), (error.sentence,))
    more = len(refused) - MAX_REFUSED
    refusals = [*refused[:MAX_REFUSED], *([f"{more} more definitions are refused."] if more > 0 else [])]
    return SkillServers(tuple(server for server in servers if not server.config.disabled), tuple(refusals))


def _collected(files: SkillFiles, refused: list[str], runtime: Runtime) -> Sequence[SkillServer]:
    servers: dict[str, SkillServer] = {}
    for path, data in files.definitions:
        _add_servers(servers, refused, path, data, runtime)
        if len(servers) > MAX_SERVERS:
            raise TooManySkillsError(f"more than {MAX_SERVERS} servers")
    chars = sum(len(json.dumps([server.file, server.definition, server.command_line])) for server in servers.values())
    if chars > MAX_CHARS:
        raise TooManySkillsError(
            f"definitions of {chars:,} characters, more than the {MAX_CHARS:,} that a person reads"
        )
    return [*servers.values()]


# --- definitions ------------------------------------------------------------------------------------


def _add_servers(servers: dict[str, SkillServer], refused: list[str], path: str, data: bytes, runtime: Runtime) -> None:
    """Add the servers of one file. A file with an invalid definition adds none."""
    try:
        raw, lines = _parsed_yaml(data) if path.endswith(".md") else _parsed_json(data)
        root = posixpath.normpath(posixpath.join(runtime.workdir, posixpath.dirname(path)))
        parsed_servers = [
            SkillServer(name, _checked(name, _rooted(entry, root), isolated=runtime.isolated), path, line)
            for (name, entry), line in zip(entries_of(raw).items(), lines, strict=True)
        ]
    except (MCPConfigError, ValueError, RecursionError) as error:
        reason = str(error).replace("\n", " ")[:500] or "it is nested too deep"
        refused.append(f"{path!r}: {reason}")
        return
    for server in parsed_servers:
        existing = servers.setdefault(confusable_key(server.name), server)
        if existing.definition != server.definition:
            raise TooManySkillsError(f"two servers of one name: {_place(existing)} and {_place(server)}")


def _place(server: SkillServer) -> str:
    return f"{server.name!r} in {server.file!r}, line {server.line}"


def _checked(name: str, entry: Any, *, isolated: bool) -> ServerConfig:
    """Return the configuration of an entry.

    Raises:
        MCPConfigError: the entry is invalid, or has what only a person's own configuration may have.
    """
    if isinstance(entry, dict) and "url" in entry:
        entry = {"where": "sandbox", **entry}
    server = server_of(name, entry)
    texts = texts_in([name, server.model_dump(mode="json")])
    expanded = [*server.env.values(), *server.headers.values(), server.url or ""]
    reasons: Mapping[str, bool] = {
        "it has a `url`, which only a sandbox may connect to": server.url is not None and not isolated,
        "it asks to run on, or to be reached from, your machine": server.runs_in == "host",
        "it asks for a user of its own": server.user is not None,
        "it asks to be trusted": server.trusted,
        "it asks for a variable of yours, and none is filled in": any("${" in text for text in expanded),
        "it holds characters that cannot be seen": any(concealed_in(text) for text in texts),
    }
    for reason, applies in reasons.items():
        if applies:
            remedy = "If you want it, write it into your own settings or --mcp-config."
            raise MCPConfigError(f"MCP server {name!r} is refused: {reason}. {remedy}")
    return server


def _rooted(value: Any, root: str) -> Any:
    if isinstance(value, str):
        return value.replace(SKILL_ROOT, root)
    if isinstance(value, dict):
        return {key: _rooted(inner, root) for key, inner in value.items()}
    return [_rooted(inner, root) for inner in value] if isinstance(value, list) else value


# --- JSON and YAML, with the lines of servers ---------------------------------------------------------


def _parsed_json(data: bytes) -> tuple[Any, list[int]]:
    raw = parse_json(data)
    if not isinstance(raw, dict) or set(raw) != {"mcpServers"}:
        raise MCPConfigError("It is not an object with `mcpServers` alone.")
    lines: list[int] = []
    line, depth = 1, 0
    for part in _JSON_TOKEN.findall(data.decode("utf-8-sig")):
        if part == "\n":
            line += 1
        elif part in "{[":
            depth += 1
        elif part in "}]":
            depth -= 1
        elif depth == _SERVER_DEPTH:
            lines.append(line)
    servers = raw["mcpServers"]
    if not isinstance(servers, dict) or not all(isinstance(entry, dict) for entry in servers.values()):
        raise MCPConfigError("`mcpServers` must be an object of servers by name.")
    return raw, lines


def _parsed_yaml(data: bytes) -> tuple[Any, list[int]]:
    """Return the value of KEY, with all scalars as text or null, and the line of each server in it."""
    import yaml  # noqa: PLC0415 - 15 ms, for repositories that need it

    from ohsandbox.strict_yaml import parse_events  # noqa: PLC0415 - imports yaml

    try:
        nodes = _Nodes(yaml, parse_events(data.decode("utf-8-sig")))
        document = nodes.build(())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        location = "" if mark is None else f"line {mark.line + 1}: "
        reason = getattr(error, "problem", None) or "it has characters that YAML does not allow"
        raise ValueError(f"{location}it is not valid YAML: {reason}") from None
    raw = document.get(KEY) if isinstance(document, dict) else None
    if not isinstance(raw, dict) or "mcp" in raw:
        raise MCPConfigError(f"`{KEY}` must be a mapping with `mcpServers`, or {', '.join(OLDER_FORMS)}.")
    servers = raw.get("mcpServers")
    paths: list[tuple[Any, ...]] = [(KEY, "mcpServers", name) for name in servers] if isinstance(servers, dict) else []
    for form in OLDER_FORMS:
        listed = raw.get(form)
        paths += [(KEY, form, index) for index in range(len(listed))] if isinstance(listed, list) else []
    return {key: value for key, value in raw.items() if value is not None}, [nodes.lines[path] for path in paths]


class _Nodes:
    """Builds plain values from YAML's events; it refuses tags, anchors and duplicate keys, so nothing is hidden."""

    def __init__(self, yaml: Any, events: Iterator[Any]) -> None:
        self._yaml = yaml
        self._events = events
        self.lines: dict[tuple[Any, ...], int] = {}
        """Line of each value, by the keys and indices that lead to it."""
        self._next()  # the stream begins
        self._next()  # the document begins

    def _next(self) -> Any:
        event = next(self._events, None)
        if event is None:
            raise ValueError("it is empty")
        if getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None:
            raise ValueError(f"line {event.start_mark.line + 1}: anchors, aliases and tags of YAML are not accepted")
        return event

    def build(self, path: tuple[Any, ...]) -> Any:
        event = self._next()
        return self._value(event, path)

    def _value(self, event: Any, path: tuple[Any, ...]) -> Any:
        self.lines.setdefault(path, event.start_mark.line + 1)
        if len(path) > _MAX_YAML_DEPTH:
            raise ValueError(f"line {event.start_mark.line + 1}: it is nested too deep")
        if isinstance(event, self._yaml.ScalarEvent):
            return None if event.implicit[0] and event.value in {"", "~", "null"} else event.value
        if isinstance(event, self._yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, self._yaml.DocumentEndEvent | self._yaml.StreamEndEvent):
            return None
        items: list[Any] = []
        while not isinstance(inner := self._next(), self._yaml.SequenceEndEvent):
            items.append(self._value(inner, (*path, len(items))))
        return items

    def _mapping(self, path: tuple[Any, ...]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(key := self._next(), self._yaml.MappingEndEvent):
            line = key.start_mark.line + 1
            if not isinstance(key, self._yaml.ScalarEvent) or key.value in mapping:
                raise ValueError(f"line {line}: a key is repeated, or is not text")
            self.lines[*path, key.value] = line
            mapping[key.value] = self.build((*path, key.value))
        return mapping
