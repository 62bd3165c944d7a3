"""How a command is declared: its options are fields of dataclasses (`options`), and its help is plain grouped text."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import typer
from typer import BadParameter
from typer.core import TyperCommand, TyperGroup
from typer.models import ParameterInfo

from ohsandbox.cli.entrypoint import set_debug
from ohsandbox.errors import UsageError
from ohsandbox.text import MAX_BYTES, byte_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_MAX_HELP_COLUMNS = 80
_MIN_HELP_COLUMNS = 30
"""In narrower terminals, lines are left for the terminal to wrap."""
BARE, CHOOSE = "--resume", "?"
"""An option that has this value where none follows; no id is one."""
Debug = Annotated[
    bool, typer.Option("--debug", help="Print the traceback of an error.", callback=set_debug, is_eager=True)
]


def option(text: str, metavar: str | None = None, *, default: Any = None, flags: Sequence[str] = (), **how: Any) -> Any:
    """An option: the default of a command's parameter, or of a field of a dataclass whose fields are options.

    Args:
        text: its help.
        metavar: what stands for its value in the help.
        default: without the flag.
        flags: where they are not the parameter's name with hyphens.
        how: what `typer.Option` takes as well.
    """
    declared = typer.Option(*flags, help=text, metavar=metavar, **how)
    return dataclasses.field(default=default, metadata={"typer": declared, "flags": flags})


def switch(text: str, *flags: str, **how: Any) -> Any:
    """An option without a value, False without it; there is none that says no."""
    return option(text, default=False, flags=flags, **how)


def argument(text: str, metavar: str, **how: Any) -> Any:
    """An argument that may be left out, as `option`."""
    return dataclasses.field(default=None, metadata={"typer": typer.Argument(help=text, metavar=metavar, **how)})


def new_app(
    name: str,
    *,
    runs_by_default: bool = False,
    shows_help: bool = False,
    panels: Mapping[str, str] | None = None,
    **how: Any,
) -> typer.Typer:
    """A group of commands with our help: rich's panels cost 60 ms and half of the width.

    Args:
        name: of the group.
        runs_by_default: its command `run` is meant where the first word is none of its commands.
        shows_help: where no command is given.
        panels: headings of the list of commands, each with the names of the commands below it, apart by blanks.
        how: what `typer.Typer` takes as well.
    """
    base = _DefaultGroup if runs_by_default else _Group
    cls = type(base.__name__, (base,), {"panels": panels or {}})
    app = typer.Typer(name=name, cls=cls, add_completion=False, rich_markup_mode=None, **how)
    if shows_help:
        app.callback(invoke_without_command=True)(_show_help)
    return app


def _show_help(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def command(
    app: typer.Typer, name: str | None = None, **how: Any
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a function as a command of app, and give it --debug.

    A parameter whose type is a dataclass stands for the options among its fields: typer has nothing of the kind. With
    a set of names beside it in `Annotated` it stands for those only; the others keep their defaults.
    """

    def register(function: Callable[..., int]) -> Callable[..., int]:
        app.command(name, cls=_Command, **how)(_with_flat_options(function))
        return function

    return register


def _with_flat_options(function: Callable[..., int]) -> Callable[..., int]:
    """The function with one parameter per option, which typer reads, in place of each dataclass."""
    own: list[inspect.Parameter] = []
    models: dict[str, tuple[type, list[inspect.Parameter]]] = {}
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        model, names = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)
        if dataclasses.is_dataclass(model) and isinstance(model, type):
            models[parameter.name] = (model, list(_options_of(model, names)))
        else:
            own.append(_parameter(parameter.name, hint, parameter.default))

    @functools.wraps(function)
    def call(**given: Any) -> int:
        del given["debug"]  # its callback has run
        for name, (model, options) in models.items():
            given[name] = model(**{option.name: given.pop(option.name) for option in options})
        return function(**given)

    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    parameters = [*own, *(option for _, options in models.values() for option in options), debug]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # functions may have one
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return call


def _options_of(model: Any, names: frozenset[str] | None) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(model, include_extras=True)
    for field in dataclasses.fields(model):
        made = _parameter(field.name, hints[field.name], field if field.metadata else field.default)
        is_option = any(isinstance(one, ParameterInfo) for one in get_args(made.annotation))
        if is_option and (names is None or field.name in names):
            yield made


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """As typer reads it; default is a plain value, or what `option` gave."""
    if isinstance(default, dataclasses.Field):
        declared, flags, default = default.metadata["typer"], default.metadata.get("flags"), default.default
        if default is False and not flags:
            declared.param_decls = (f"--{name.replace('_', '-')}",)  # typer would add one that says no
        hint = Annotated[hint, declared]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


class _Command(TyperCommand):
    """A command whose help lists options in the groups that they name, and whose `--resume` may stand alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Click takes the next word for an option's value, whatever it is."""
        if BARE in args and any(BARE in one.opts for one in self.params):
            at = args.index(BARE) + 1
            if at == len(args) or args[at].startswith("-"):
                args = [*args[:at], CHOOSE, *args[at:]]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _fit(formatter)
        super().format_help(ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments by their metavars, the optional ones in brackets; typer adds brackets and types of its own."""
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        return ["[OPTIONS]", *(str(one.metavar) if one.required else f"[{one.metavar}]" for one in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class _Group(TyperGroup):
    """A group of commands, each listed with the first paragraph of its help."""

    panels: ClassVar[Mapping[str, str]] = {}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _fit(formatter)
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = {name: (one.help or "").split("\n\n")[0] for name, one in commands if one and not one.hidden}
        for title, names in self.panels.items():
            _write(formatter, title, [(name, rows.pop(name)) for name in names.split()])
        if rows:
            _write(formatter, "Commands", [*rows.items()])


class _DefaultGroup(_Group):
    """A group whose command `run` is meant where the first word is none of its commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


def _fit(formatter: Any) -> None:
    columns = min(_MAX_HELP_COLUMNS, shutil.get_terminal_size().columns)
    formatter.width = max(_MIN_HELP_COLUMNS, columns) - 2


def _write_options(shown: Any, ctx: Any, formatter: Any) -> None:
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in shown.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and parameter.param_type_name == "argument":
            groups.setdefault("Arguments", []).append((parameter.metavar, parameter.help or ""))
        elif record is not None:
            groups.setdefault(parameter.rich_help_panel or "Options", []).append(record)
    for title, rows in sorted(groups.items(), key=lambda group: (group[0] == "Options", group[0] != "Arguments")):
        _write(formatter, title, rows)


def _write(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    with formatter.section(title):
        formatter.write_dl(rows, col_max=min(30, formatter.width * 2 // 5))


# --- values of options ----------------------------------------------------------------------------

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name that POSIX lets a shell export (XBD 3.230)."""
_MAX_GPUS = 1024
_MAX_NUMBER = 1e9
"""Thirty years of seconds; timers of the system overflow at 9.2e9."""


def _number(text: str, *, minimum: float = 0, expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (0 < number <= _MAX_NUMBER and number >= minimum):  # nan is neither
        raise BadParameter(f"expected {expected}, got {text!r}")
    return number


positive_number = partial(_number, expected=f"a number above 0 and at most {_MAX_NUMBER:,.0f}")
cpu_count = partial(_number, minimum=0.01, expected="a number of processors, 0.01 or more")
"""The engine takes hundredths."""


def gpu_count(text: str) -> str:
    """'all' or a number, as text."""
    if text != "all" and not (text.isdecimal() and 0 < int(text) <= _MAX_GPUS):
        raise BadParameter(f"expected 'all' or a number of GPUs from 1 on, got {text!r}")
    return text


def check_variables(pairs: Sequence[str]) -> None:
    """Raise UsageError for the first that is not NAME=VALUE with a name that a shell can export."""
    for pair in pairs:
        if "=" not in pair[1:]:
            raise UsageError(f"Invalid --env {pair!r}: expected NAME=VALUE.")
        if not _VARIABLE.fullmatch(pair.partition("=")[0]):
            raise UsageError(
                f"Invalid --env {pair.partition('=')[0]!r}: a name has letters, digits and underscores, and begins "
                "with no digit."
            )


def byte_size_of(*, minimum: int) -> Callable[[str], int]:
    """A parser of sizes such as 512m and 2g, of at most MAX_BYTES; a number without a unit is bytes."""

    def parse(text: str) -> int:
        try:
            size = byte_size(text)
        except ValueError:
            size = 0
        if not minimum <= size <= MAX_BYTES:
            least = f"{minimum // 1024**2}m"
            raise BadParameter(f"expected a size of {least} or more, as in 512m or 2g, got {text!r}")
        return size

    return parse


def path(text: str) -> Path:
    """The path of a file or directory. `Path("")` would be the current directory, which nobody named."""
    if not text:
        raise BadParameter("expected a path, got an empty text")
    return Path(text)


def directory(text: str) -> str:
    """`DIR[:ro]`, as it stands."""
    from ohsandbox.runtime.mount_text import parse_path  # noqa: PLC0415 - `--help` reads this module

    path(parse_path(text).path)
    return text


def mount_of(text: str) -> str:
    """`SRC:DST[:ro]` with an absolute source, so that it means the same where the conversation is resumed."""
    from ohsandbox.runtime.mount_text import Mount  # noqa: PLC0415 - `--help` reads this module

    try:
        named = Mount.parse(text)
    except UsageError as error:
        raise BadParameter(str(error)) from None
    return str(named.model_copy(update={"source": str(Path(named.source).expanduser().absolute())}))
