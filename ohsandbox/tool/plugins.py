"""Tools of other distributions: entry points in the group `ohsandbox.tools`.

    [project.entry-points."ohsandbox.tools"]
    weather = "my_package.weather:WeatherTool"

An entry point names a ToolDefinition, a subclass of it or a factory, as `register_tool` takes them. It is imported when
an agent asks for its name, or when all tools are listed; a distribution that is installed and not used runs no code.
"""

from __future__ import annotations

import logging
import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

GROUP = "ohsandbox.tools"

_log = logging.getLogger(__name__)


class Origin(NamedTuple):
    """Where a tool comes from."""

    name: str
    """`ohsandbox`, a distribution, or the module that registered it."""
    version: str = ""


class Plugin(NamedTuple):
    """What an entry point led to: a tool, or the reason why there is none."""

    origin: Origin
    tool: Any = None
    fault: str = ""


class Plugins:
    """The entry points of a group, each imported once, when it is asked for. Thread-safe."""

    def __init__(self, group: str = GROUP, *, check: Callable[[str, Any], None]) -> None:
        """Check takes name and object, and raises UsageError for what is no tool."""
        self._group = group
        self._check = check
        self._guard = threading.RLock()
        self._loaded: dict[str, Plugin] = {}
        self._found: dict[str, EntryPoint] | None = None

    def names(self) -> list[str]:
        """All names, nothing imported yet. A name that two distributions have is the first one's."""
        return sorted(self._entry_points())

    def get(self, name: str) -> Plugin | None:
        """What the entry point leads to; None where there is no such name. A broken one is warned of, once."""
        with self._guard:
            entry = self._entry_points().get(name)
            if entry is not None and name not in self._loaded:
                self._loaded[name] = plugin = self._load(entry)
                if plugin.fault:
                    _log.warning("Tool %r of %s is left out: %s", name, plugin.origin.name, plugin.fault)
            return self._loaded.get(name)

    def _entry_points(self) -> dict[str, EntryPoint]:
        with self._guard:
            if self._found is None:
                self._found = {}
                for entry in entry_points(group=self._group):
                    self._found.setdefault(entry.name, entry)
            return self._found

    def _load(self, entry: EntryPoint) -> Plugin:
        origin = _origin_of(entry)
        try:
            tool = entry.load()
            self._check(entry.name, tool)
        except UsageError as error:
            return Plugin(origin, fault=str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a foreign module does at import
            reason = " ".join(str(error).split())[:300]
            return Plugin(origin, fault=f"{entry.value} cannot be imported ({type(error).__name__}: {reason}).")
        return Plugin(origin, tool=tool)


def _origin_of(entry: EntryPoint) -> Origin:
    try:
        if entry.dist is not None:
            return Origin(entry.dist.name, entry.dist.version or "")
    except Exception:  # noqa: BLE001 - metadata without a name or a version raises what its Python version likes
        _log.debug("The metadata of entry point %r cannot be read", entry.name, exc_info=True)
    return Origin(entry.value.partition(":")[0])
