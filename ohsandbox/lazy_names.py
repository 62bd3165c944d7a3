"""Names of a package that are imported, or made, when they are first used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(
    package: str, homes: Mapping[str, str], made: Mapping[str, Callable[[], Any]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package with lazy names.

    `dir()` lists what the package exports. Assign both under `if not TYPE_CHECKING`, beside imports of the same names
    under `if TYPE_CHECKING`: type checkers and editors then know each name, and report an unknown one.

    Args:
        package: its `__name__`.
        homes: by module, the names that are imported from it once, separated by spaces. A module beginning with "." is
            below the package.
        made: other names, each with the function that makes its value, called at each use.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if made is not None and name in made:
            return made[name]()
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return get, list_names
