"""How a command is declared: its options are the fields of dataclasses (`options`), and its help is grouped text."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shutil
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ParameterInfo

from ohsandbox.cli.errors import set_debug

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_HELP_COLUMNS = 80
MIN_HELP_COLUMNS = 30
"""Narrower than that, lines are left to the terminal to fold."""

Debug = Annotated[
    bool, typer.Option("--debug", help="Show a traceback with an error.", callback=set_debug, is_eager=True)
]


class Only(NamedTuple):
    """Beside a dataclass in `Annotated`: the command has these of its options, the others keep their defaults."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, *names: str) -> Only:
        """These fields."""
        return cls(names)


def new_app(name: str | None, **how: Any) -> typer.Typer:
    """A group of commands with our help: rich's panels cost 60 ms and half of the width."""
    return typer.Typer(name=name, cls=_Group, add_completion=False, rich_markup_mode=None, **how)


def command(
    app: typer.Typer, name: str | None = None, **how: Any
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a function a command of app. A parameter whose type is a dataclass stands for the options in it.

    Every command has --debug as well.
    """

    def register(function: Callable[..., int]) -> Callable[..., int]:
        app.command(name, cls=_Command, **how)(_taken_apart(function))
        return function

    return register


class _Taken(NamedTuple):
    """An option of a dataclass, as typer is told of it."""

    option: inspect.Parameter
    repeats: bool
    """The field is a tuple; typer gives a list, or None."""


def _taken_apart(function: Callable[..., int]) -> Callable[..., int]:
    """The function with one parameter an option, which typer reads, in place of each dataclass."""
    hints = get_type_hints(function, include_extras=True)
    plain: list[inspect.Parameter] = []
    models: dict[str, tuple[type, dict[str, _Taken]]] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        model = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if dataclasses.is_dataclass(model) and isinstance(model, type):
            models[parameter.name] = (model, dict(_options_of(model, hint)))
        else:
            plain.append(parameter.replace(annotation=hint))

    @functools.wraps(function)
    def call(**given: Any) -> int:
        del given["debug"]  # it has had its effect
        for name, (model, taken) in models.items():
            values = {field: given.pop(field) for field in taken}
            given[name] = model(
                **{field: tuple(value or ()) if taken[field].repeats else value for field, value in values.items()}
            )
        return function(**given)

    options = [one.option for _, taken in models.values() for one in taken.values()]
    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*plain, *options, debug)]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # functions may have one
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return call


def _options_of(model: Any, hint: Any) -> Iterator[tuple[str, _Taken]]:
    wanted = next((one.names for one in get_args(hint) if isinstance(one, Only)), None)
    hints = get_type_hints(model, include_extras=True)
    for field in dataclasses.fields(model):
        hint = hints[field.name]
        info = next((one for one in get_args(hint) if isinstance(one, ParameterInfo)), None)
        if info is None or (wanted is not None and field.name not in wanted):
            continue
        repeats = get_origin(get_args(hint)[0]) is tuple
        if repeats:
            hint = Annotated[list[str] | None, info]
        default = None if repeats else field.default
        kind = inspect.Parameter.KEYWORD_ONLY
        yield field.name, _Taken(inspect.Parameter(field.name, kind, default=default, annotation=hint), repeats)


class _Command(TyperCommand):
    """A command whose options stand in the groups that they name."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _fit(formatter)
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class _Group(TyperGroup):
    """A group of commands; each is told with its whole sentence."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _fit(formatter)
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.help or "") for name, one in commands if one is not None and not one.hidden]
        _write(formatter, "Commands", rows)


def _fit(formatter: Any) -> None:
    columns = min(MAX_HELP_COLUMNS, shutil.get_terminal_size().columns)
    formatter.width = max(MIN_HELP_COLUMNS, columns) - 2


def _write_options(shown: Any, ctx: Any, formatter: Any) -> None:
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in shown.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            groups.setdefault(parameter.rich_help_panel or usual, []).append(record)
    for title, rows in sorted(groups.items(), key=lambda group: (group[0] == "Options", group[0] != "Arguments")):
        _write(formatter, title, rows)


def _write(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    with formatter.section(title):
        formatter.write_dl(rows, col_max=min(30, formatter.width * 2 // 5))
