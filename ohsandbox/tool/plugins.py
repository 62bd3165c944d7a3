"""Tools of other distributions: entry points in the group `ohsandbox.tools`.

    [project.entry-points."ohsandbox.tools"]
    weather = "my_package.weather:WeatherTool"

An entry point names an object for `register_tool`: a ToolDefinition, a subclass of it, a factory or a plain function.
It is imported when an agent names it, or when all tools are listed; a distribution that is installed but not used runs
no code.
"""

from __future__ import annotations

import configparser
import logging
import threading
from importlib.metadata import EntryPoint, distributions
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import Distribution

GROUP = "ohsandbox.tools"

_log = logging.getLogger(__name__)


class Origin(NamedTuple):
    """The source of a tool."""

    name: str
    """`ohsandbox`, a distribution, or the module that registered the tool."""
    version: str = ""


class _Plugin(NamedTuple):
    """The result of loading an entry point: a tool, or the reason for the failure."""

    origin: Origin
    tool: Any = None
    fault: str = ""


class Plugins:
    """The entry points of a group, each imported once, on demand. Thread-safe."""

    def __init__(self, group: str = GROUP, *, check: Callable[[str, Any], Any]) -> None:
        """Create it; check(name, object) returns the tool or raises UsageError. The group "" has no entry points."""
        self._group = group
        self._check = check
        self._guard = threading.RLock()
        self._loaded: dict[str, _Plugin] = {}
        self._found: dict[str, tuple[EntryPoint, Origin]] | None = None
        """Entry points by name, not imported yet."""

    def names(self) -> list[str]:
        """Return all names, without imports. If two distributions have a name, it is that of the first one."""
        return sorted(self._entry_points())

    def get(self, name: str) -> _Plugin | None:
        """Load an entry point; return None if the name is unknown. A failure is logged once."""
        with self._guard:
            entry_point = self._entry_points().get(name)
            if entry_point is not None and name not in self._loaded:
                self._loaded[name] = plugin = self._load(*entry_point)
                if plugin.fault:
                    _log.warning("Tool %r of %s is left out: %s", name, plugin.origin.name, plugin.fault)
            return self._loaded.get(name)

    def _entry_points(self) -> dict[str, tuple[EntryPoint, Origin]]:
        with self._guard:
            if self._found is None:
                self._found = {}
                for distribution in distributions() if self._group else ():
                    for entry in _entries(distribution, self._group):
                        self._found.setdefault(entry.name, (entry, _origin_of(distribution, entry.value)))
            return self._found

    def _load(self, entry: EntryPoint, origin: Origin) -> _Plugin:
        try:
            tool = self._check(entry.name, entry.load())
        except UsageError as error:
            return _Plugin(origin, fault=str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a foreign module may raise anything at import
            reason = " ".join(str(error).split())[:300]
            return _Plugin(origin, fault=f"{entry.value} cannot be imported ({type(error).__name__}: {reason}).")
        return _Plugin(origin, tool=tool)


def _entries(distribution: Distribution, group: str) -> Iterator[EntryPoint]:
    """Read the entry points of one distribution from its own file.

    `entry_points()` is not used: if the backport importlib_metadata 8.9 is imported (as by litellm), one malformed line
    in any distribution makes it raise, and no tool would be found.
    """
    parser = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names are case-sensitive
    try:
        parser.read_string(distribution.read_text("entry_points.txt") or "")
    except Exception:  # noqa: BLE001 - an unreadable or invalid file offers nothing
        _log.debug("The entry points of %r cannot be read", distribution, exc_info=True)
        return
    if parser.has_section(group):
        for name, value in parser.items(group):
            yield EntryPoint(name, value, group)


def _origin_of(distribution: Distribution, value: str) -> Origin:
    try:
        return Origin(distribution.name, distribution.version or "")
    except Exception:  # noqa: BLE001 - metadata without name or version raises different errors by Python version
        return Origin(value.partition(":")[0])
