"""The shell for sandboxes with IPython; this kernel prints its output and shows its values."""
# ruff: noqa: PLC0415, ARG002 - IPython may be missing or slow to load, and its methods are called by its rules

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
import warnings
from typing import Any

from ohsandbox.tools._ipython_kernel.display import (
    CELL,
    LAID_OUT,
    figure_png,
    gallery,
    pretty,
    print_error,
)
from ohsandbox.tools._ipython_kernel.plain import pip, run_command, run_coroutine

LOWER_CASE_COLOURS = 9
"""The first major version of IPython that writes "NoColor" in lower case."""


def _core(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"IPython.core.{module}"), name)


class IPythonShell:
    """Runs cells with IPython."""

    def __init__(self) -> None:
        self.version = str(importlib.import_module("IPython").__version__)
        self._shell = shell = _make_shell()
        shell.colors = "NoColor" if int(self.version.split(".")[0]) < LOWER_CASE_COLOURS else "nocolor"
        sys.modules["__main__"] = shell.user_module
        formatters = shell.display_formatter.formatters
        formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", figure_png)
        for kind in LAID_OUT:  # IPython gives each element a line of its own
            formatters["text/plain"].for_type(kind, lambda value, printer, _: printer.text(pretty(value)))
        shell.register_magic_function(pip, magic_name="pip")
        shell.loop_runner = run_coroutine
        warnings.filterwarnings("ignore", message="To exit: use 'exit'")

    def run(self, code: str) -> BaseException | None:
        """Run a cell; return the exception that ended it, which is printed already."""
        try:
            result = self._shell.run_cell(code, store_history=True)
        except BaseException as error:  # noqa: BLE001 - an interrupt may come between IPython's own lines
            print_error(error)
            return error
        failure: BaseException | None = result.error_before_exec or result.error_in_exec
        return failure


def _make_shell() -> Any:
    """Create an IPython shell without history file and terminal; its profile directory is deleted before it runs."""
    from traitlets.config import Config  # type: ignore[import-not-found,unused-ignore]

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    directory = tempfile.mkdtemp(prefix="ohsandbox-ipython-")
    try:
        profile = _core("profiledir", "ProfileDir").create_profile_dir(directory)
        return _shell_class().instance(config=config, ipython_dir=directory, profile_dir=profile)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _compiler_class() -> Any:
    class Compiler(_core("compilerop", "CachingCompiler")):  # type: ignore[misc]
        def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
            return f"{CELL}{number}>"

    return Compiler


def _shell_class() -> Any:
    from traitlets import Type  # type: ignore[import-not-found,unused-ignore]

    class Hook(_core("displayhook", "DisplayHook")):  # type: ignore[misc]
        def write_output_prompt(self) -> None:
            """Print nothing: the prompt is printed together with the value."""

        def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
            gallery.show(format_dict, f"Out[{self.prompt_count}]: ")

    class Publisher(_core("displaypub", "DisplayPublisher")):  # type: ignore[misc]
        def publish(self, data: dict[str, Any], *args: Any, **options: Any) -> None:
            gallery.show(data)

    class KernelShell(_core("interactiveshell", "InteractiveShell")):  # type: ignore[misc]
        compiler_class = Type(_compiler_class())
        displayhook_class = Type(Hook)
        display_pub_class = Type(Publisher)
        db = property(lambda self: self.__dict__.setdefault("_values", {}), lambda _self, _value: None)

        def system(self, cmd: str) -> None:
            self.user_ns["_exit_code"] = run_command(self.var_expand(cmd, depth=1))

        def showtraceback(self, exc_tuple: Any = None, *args: Any, **options: Any) -> None:
            error = (exc_tuple or sys.exc_info())[1]
            if error is not None and not isinstance(error.__context__, KeyboardInterrupt):  # reported as the interrupt
                print_error(error)

        def showsyntaxerror(self, *args: Any, **options: Any) -> None:
            self.showtraceback()

        def enable_gui(self, gui: str | None = None) -> None:
            """Do nothing: there is no screen, and figures are returned as images."""

        def ask_exit(self) -> None:
            """Do nothing: the kernel keeps running."""

    return KernelShell
