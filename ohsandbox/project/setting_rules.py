"""What a project's file may do with each setting before a person trusts it, and what that person is told: a row each.

A setting without a row needs trust whatever its value is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.limit_ranges import RESOURCE_LIMITS
from ohsandbox.runtime.runtime_settings import DEFAULT_ALLOW

if TYPE_CHECKING:
    from collections.abc import Callable


class SettingRule(NamedTuple):
    """The rule for one setting, or for something else that a project's file contains."""

    meaning: str = ""
    """Why a value deserves attention; empty: it raises a limit, or changes how a model is called."""
    gives_less: Callable[[Any, Any], bool] = lambda _value, _before: False
    """Whether a value gives the sandbox and its agent less than the user's; such a value needs no trust."""
    unset: object = None
    """What None means for the setting, in the narrowest sense, such as `risky` on this host."""
    never: bool = False
    """Whether the file cannot have it even if trusted: it decides where a key is sent, how its costs are counted, or is
    a program of this machine (an MCP server's `where: host`). It belongs in the user's own settings or on the command
    line."""
    is_file: bool = False
    """Whether it names a file, which lies below the project and is part of the trusted content."""


def _later(*widest_first: str) -> Callable[[Any, Any], bool]:
    """Return whether a value is the user's or a later one of these words."""
    return lambda value, before: widest_first.index(value) >= widest_first.index(before)


def _equals(narrowest: object) -> Callable[[Any, Any], bool]:
    return lambda value, _before: bool(value == narrowest)


def _at_most(value: Any, before: Any) -> bool:
    return value is not None and (before is None or value <= before)


def _among(value: Any, before: Any) -> bool:
    return isinstance(before, tuple) and isinstance(value, tuple) and {*value} <= {*before}


def _asks_more(value: Any, before: Any) -> bool:
    """Return whether all that asked before asks, or is refused: plan mode runs reads that `medium` and `always` ask."""
    if value == "plan":
        return before in ("never", "risky")
    asking = _later("never", "risky", "medium", "always", "plan")
    return asking(value, before)


def _is_true(value: Any, _before: Any) -> bool:
    return value is True


_REFUSED = SettingRule(never=True)
RULES: dict[str, SettingRule] = {
    # settings
    "api_key": _REFUSED,
    "base_url": _REFUSED,
    "api_version": _REFUSED,
    "custom_llm_provider": _REFUSED,
    "price": _REFUSED,
    "mcpServers": _REFUSED,
    "mcp": _REFUSED,
    "image": SettingRule("code from elsewhere: what you let the sandbox see, it sees"),
    "mounts": SettingRule("files of yours that the sandbox reads, or writes without :ro", _among),
    "network": SettingRule(
        "open, allowlist: what the sandbox sees can leave this machine",
        _later("open", "allowlist", "none"),
        "allowlist",
    ),
    "allow": SettingRule("hosts to which what the sandbox sees can be sent", _among, DEFAULT_ALLOW),
    "forward": SettingRule("programs of this machine can be led to the sandbox's servers", _among),
    "expose_host": SettingRule("services of this machine that the sandbox reaches", _among),
    "model": SettingRule("asked with your key, at your cost"),
    "env": SettingRule("variables of every command"),
    "user": SettingRule("root is the strongest in the sandbox"),
    "cache": SettingRule("a name: its sandboxes run what those of other projects with that name left", _equals("none")),
    "platform": SettingRule("another processor's programs, which this machine may have to emulate"),
    "gpus": SettingRule("drivers of this machine are reached from the sandbox"),
    "oci_runtime": SettingRule("the program of this machine that isolates the sandbox"),
    "profile": SettingRule("trusted: sudo and setuid programs work in the sandbox", _equals("strict")),
    "accept_unenforced": SettingRule("true: limits may not hold"),
    "secrets": SettingRule("variables of yours that commands get"),
    "instructions": SettingRule("what your model is told in each request", is_file=True),
    "ca_bundle": SettingRule("whoever holds its key can read the sandbox's connections", is_file=True),
    "confirm": SettingRule("less is asked before it runs", _asks_more, "risky"),
    "skill_servers": SettingRule(
        "allow: MCP servers of the repository start unasked", _later("allow", "ask", "never"), "ask"
    ),
    "checkpoints": SettingRule("false: no undo", _is_true),
    "stuck_detection": SettingRule(gives_less=_is_true),
    "git": SettingRule("rw: nothing guards the configuration and hooks of git", _later("rw", "guarded", "ro")),
    "hard_links": SettingRule(
        "keep: what is written to files that have names outside of the workspace changes them there too",
        _later("keep", "separate"),
        "separate",
    ),
    "max_iterations": SettingRule(gives_less=_at_most),
    "max_time_s": SettingRule(gives_less=_at_most),
    "max_tokens": SettingRule(gives_less=_at_most),
    "max_cost_usd": SettingRule(gives_less=_at_most),
    **{name: SettingRule(gives_less=_at_most, unset=limit.default) for name, limit in RESOURCE_LIMITS.items()},
    # besides settings
    "build": SettingRule("its Dockerfile runs with a network, outside the sandbox"),
    "features": SettingRule("their scripts run as root with a network, outside the sandbox, when the image is built"),
    "services": SettingRule("programs that run beside the sandbox, in its network"),
    "setup": SettingRule("runs in each new sandbox first, unasked"),
    "start": SettingRule("runs at each start, unasked"),
    "local": SettingRule("variables of this machine that commands get"),
    "remote user": SettingRule("with a copy of the workspace; in a bound one commands run as you"),
    "workspace": SettingRule("bind: the sandbox writes your files; copy: it reads them"),
}
NEVER = frozenset(name for name, rule in RULES.items() if rule.never)
FILES = tuple(name for name, rule in RULES.items() if rule.is_file)


def needs_trust(name: str, value: Any, before: Any) -> bool:
    """Return whether a project's value of a setting is neither the user's nor gives the sandbox and its agent less."""
    if value == before:
        return False
    rule = RULES.get(name, SettingRule())
    return not rule.gives_less(*(rule.unset if one is None else one for one in (value, before)))
