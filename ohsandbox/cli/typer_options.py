"""How a command is declared: its options are fields of dataclasses (`options`), and its help is plain grouped text."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shutil
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ParameterInfo

from ohsandbox.cli.entrypoint import set_debug

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_HELP_COLUMNS = 80
MIN_HELP_COLUMNS = 30
"""In narrower terminals, lines are left for the terminal to wrap."""

Debug = Annotated[
    bool, typer.Option("--debug", help="Print the traceback of an error.", callback=set_debug, is_eager=True)
]


class Only(NamedTuple):
    """Beside a dataclass in `Annotated`: which of its options the command has; the others keep their defaults."""

    names: tuple[str, ...]
    excluded: bool = False
    """The command has all options but these."""

    @classmethod
    def of(cls, *names: str) -> Only:
        """These fields."""
        return cls(names)

    @classmethod
    def but(cls, *names: str) -> Only:
        """All fields but these."""
        return cls(names, excluded=True)


def new_app(name: str, **how: Any) -> typer.Typer:
    """A group of commands with our help: rich's panels cost 60 ms and half of the width."""
    return typer.Typer(name=name, cls=_Group, add_completion=False, rich_markup_mode=None, **how)


def command(
    app: typer.Typer, name: str | None = None, **how: Any
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a function as a command of app, and give it --debug.

    A parameter whose type is a dataclass stands for the options among its fields: typer has nothing of the kind.
    """

    def register(function: Callable[..., int]) -> Callable[..., int]:
        app.command(name, cls=_Command, **how)(_with_flat_options(function))
        return function

    return register


def _with_flat_options(function: Callable[..., int]) -> Callable[..., int]:
    """The function with one parameter per option, which typer reads, in place of each dataclass."""
    plain = [inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)]
    models: dict[str, tuple[type, list[inspect.Parameter]]] = {}
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        model = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if dataclasses.is_dataclass(model) and isinstance(model, type):
            models[parameter.name] = (model, list(_options_of(model, hint)))
        else:
            plain.insert(-1, parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def call(**given: Any) -> int:
        del given["debug"]  # its callback has run
        for name, (model, options) in models.items():
            given[name] = model(**{option.name: given.pop(option.name) for option in options})
        return function(**given)

    parameters = [*plain[:-1], *(option for _, options in models.values() for option in options), plain[-1]]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # functions may have one
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return call


def _options_of(model: Any, annotation: Any) -> Iterator[inspect.Parameter]:
    only = next((one for one in get_args(annotation) if isinstance(one, Only)), Only.but())
    hints = get_type_hints(model, include_extras=True)
    for field in dataclasses.fields(model):
        hint = hints[field.name]
        is_option = any(isinstance(one, ParameterInfo) for one in get_args(hint))
        if is_option and (field.name in only.names) is not only.excluded:
            kind = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(field.name, kind, default=field.default, annotation=hint)


class _Command(TyperCommand):
    """A command whose help lists options in the groups that they name."""

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

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _fit(formatter)
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, (one.help or "").split("\n\n")[0]) for name, one in commands if one is not None and not one.hidden
        ]
        _write(formatter, "Commands", rows)


def _fit(formatter: Any) -> None:
    columns = min(MAX_HELP_COLUMNS, shutil.get_terminal_size().columns)
    formatter.width = max(MIN_HELP_COLUMNS, columns) - 2


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
