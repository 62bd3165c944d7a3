"""Declaring a command: its options are fields of dataclasses, and its help is plain text in groups."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import typer
from typer import BadParameter
from typer.core import TyperCommand, TyperGroup
from typer.models import ParameterInfo

from ohsandbox.cli.entrypoint import Terminated, set_debug
from ohsandbox.errors import UsageError
from ohsandbox.limit_ranges import CPUS
from ohsandbox.text import MAX_BYTES, VARIABLE_NAME, byte_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_MAX_HELP_COLUMNS = 80
_MIN_HELP_COLUMNS = 30
"""On narrower terminals, the terminal wraps the help's lines."""
BARE, CHOOSE = "--resume", "?"
"""`--resume` has this value if no value follows; it is never an id."""
Debug = Annotated[
    bool, typer.Option("--debug", help="Print the traceback of an error.", callback=set_debug, is_eager=True)
]


def option(text: str, metavar: str | None = None, *, default: Any = None, flags: Sequence[str] = (), **how: Any) -> Any:
    """Declare an option: the default of a command's parameter, or of a field of a dataclass of options.

    Args:
        text: the help.
        metavar: placeholder of the value in the help.
        default: the value without the flag.
        flags: the flags, unless they are the parameter's name with hyphens.
        how: other arguments of `typer.Option`.
    """
    declared = typer.Option(*flags, help=text, metavar=metavar, **how)
    return dataclasses.field(default=default, metadata={"typer": declared, "flags": flags})


def switch(text: str, *flags: str, **how: Any) -> Any:
    """Declare a flag without a value, False by default; it has no negative form."""
    return option(text, default=False, flags=flags, **how)


def argument(text: str, metavar: str, **how: Any) -> Any:
    """Declare an optional argument; see `option`."""
    return dataclasses.field(default=None, metadata={"typer": typer.Argument(help=text, metavar=metavar, **how)})


def new_app(
    name: str,
    *,
    runs_by_default: bool = False,
    shows_help: bool = False,
    lists: bool = False,
    panels: Mapping[str, str] | None = None,
    **how: Any,
) -> typer.Typer:
    """Make a group of commands with plain help: rich's panels cost 60 ms and half of the width.

    Args:
        name: the group's name.
        runs_by_default: run the command `run` if the first word is not a command.
        shows_help: print the help if no command is given.
        lists: the group alone lists what it is about, and has no command `list`; who types one is told so.
        panels: headings of the command list, each with the names of its commands, separated by blanks.
        how: other arguments of `typer.Typer`.
    """
    base = _DefaultGroup if runs_by_default else _Group
    cls = type(base.__name__, (base,), {"panels": panels or {}, "lists": lists})
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

    A parameter whose type is a dataclass adds the options among its fields, which typer does not support. With
    a set of names beside it in `Annotated`, only those are added; the others keep their defaults.
    """

    def register(function: Callable[..., int]) -> Callable[..., int]:
        app.command(name, cls=_Command, **how)(_with_flat_options(function))
        return function

    return register


def _with_flat_options(function: Callable[..., int]) -> Callable[..., int]:
    """Replace each dataclass parameter by one parameter per option, which typer can read."""
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
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _options_of(model: Any, names: frozenset[str] | None) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(model, include_extras=True)
    for field in dataclasses.fields(model):
        parameter = _parameter(field.name, hints[field.name], field if field.metadata else field.default)
        is_option = any(isinstance(annotation, ParameterInfo) for annotation in get_args(parameter.annotation))
        if is_option and (names is None or field.name in names):
            yield parameter


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """Make a parameter for typer; default is a plain value, or the result of `option`."""
    if isinstance(default, dataclasses.Field):
        declared, flags, default = default.metadata["typer"], default.metadata.get("flags"), default.default
        if default is False and not flags:
            declared.param_decls = (f"--{name.replace('_', '-')}",)  # typer would add one that says no
        hint = Annotated[hint, declared]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


class _Command(TyperCommand):
    """A command whose help groups its options, and whose `--resume` may be given without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give an option without a value its default: click takes the next word as its value, whatever it is."""
        if BARE in args and any(BARE in parameter.opts for parameter in self.params):
            at = args.index(BARE) + 1
            if at == len(args) or args[at].startswith("-"):
                args = [*args[:at], CHOOSE, *args[at:]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer would make a bare exit code of Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Terminated(signal.SIGINT) from error

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _fit(formatter)
        super().format_help(ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments' metavars, optional ones in brackets; typer would add brackets and types of its own."""
        arguments = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "argument"]
        return [
            "[OPTIONS]",
            *(str(parameter.metavar) if parameter.required else f"[{parameter.metavar}]" for parameter in arguments),
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class _Group(TyperGroup):
    """A group of commands, each listed with the first paragraph of its help."""

    panels: ClassVar[Mapping[str, str]] = {}
    lists: ClassVar[bool] = False

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.lists and args[0] in {"list", "ls"}:
            ctx.fail(f"No such command {args[0]!r}: `{ctx.command_path}` alone lists them.")
        return super().resolve_command(ctx, args)

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
    """A group that runs its command `run` if the first word is not one of its commands."""

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

_MAX_GPUS = 1024
_MAX_NUMBER = 1e9
"""Largest number, thirty years in seconds; the system's timers overflow at 9.2e9."""


def _number(text: str, *, minimum: float = 0, expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (0 < number <= _MAX_NUMBER and number >= minimum):  # nan is neither
        raise BadParameter(f"expected {expected}, got {text!r}")
    return number


positive_number = partial(_number, expected=f"a number above 0 and at most {_MAX_NUMBER:,.0f}")
cpu_count = partial(_number, minimum=CPUS.least, expected=f"a number of processors, {CPUS.least} or more")
"""Parses a number of processors; see `limit_ranges`."""


def gpu_count(text: str) -> str:
    """Check 'all' or a number; return it as text."""
    if text != "all" and not (text.isdecimal() and 0 < int(text) <= _MAX_GPUS):
        raise BadParameter(f"expected 'all' or a number of GPUs from 1 on, got {text!r}")
    return text


def check_variables(pairs: Sequence[str]) -> None:
    """Raise UsageError for the first pair that is not NAME=VALUE, with a name that a shell can export."""
    for pair in pairs:
        if "=" not in pair[1:]:
            raise UsageError(f"Invalid --env {pair!r}: expected NAME=VALUE.")
        if not VARIABLE_NAME.fullmatch(pair.partition("=")[0]):
            raise UsageError(
                f"Invalid --env {pair.partition('=')[0]!r}: a name has letters, digits and underscores, and begins "
                "with no digit."
            )


def byte_size_of(*, minimum: int) -> Callable[[str], int]:
    """Return a parser of sizes such as 512m and 2g, up to MAX_BYTES; a number without a unit is bytes."""

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
    """Return the path of a file or directory; an empty text is refused, as `Path("")` is the current directory."""
    if not text:
        raise BadParameter("expected a path, got an empty text")
    return Path(text)


def directory(text: str) -> str:
    """Check `DIR[:ro]`; return it unchanged."""
    from ohsandbox.runtime.mount_text import parse_path  # noqa: PLC0415 - `--help` reads this module

    path(parse_path(text).path)
    return text


def mount_of(text: str) -> str:
    """Return `SRC:DST[:ro]` with an absolute source, which stays valid when the conversation is resumed elsewhere."""
    from ohsandbox.runtime.mount_text import Mount  # noqa: PLC0415 - `--help` reads this module

    try:
        mount = Mount.parse(text)
    except UsageError as error:
        raise BadParameter(str(error)) from None
    return str(mount.model_copy(update={"source": str(Path(mount.source).expanduser().absolute())}))
