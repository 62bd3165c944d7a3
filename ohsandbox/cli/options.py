"""Every option that more than one command has, and those of the big commands: each is declared here, once.

`commands.command` makes options of the fields that are annotated so. Nothing slow is imported: `--help` reads this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from ohsandbox.cli.values import above_zero, path
from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from ohsandbox.runtime.factory import BackendInfo, RuntimeSettings
    from ohsandbox.settings import Settings

BACKEND_OPTIONS = ("image", "network", "git", "keep", "attach", "ca_bundle", "copy", "copy_all")
"""Options that some backends do not support; one that is given to such a backend is refused, never ignored."""

_MODEL, _SANDBOX, _TOOLS, _LIMITS, _GOING_ON = "Model", "Sandbox", "Tools and prompt", "Limits", "Going on"
"""The groups of `--help`."""

AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
NoTui = Annotated[bool, Option("--no-tui", help="One plain line an event; no colours, no questions.")]
SettingsFile = Annotated[
    Path | None, Option(parser=path, metavar="FILE", help="Settings; else ~/.ohsandbox/settings.json.")
]
McpConfig = Annotated[
    Path | None,
    Option(
        parser=path,
        metavar="FILE",
        help='MCP servers beside those of the settings: {"mcpServers": {...}}.',
        rich_help_panel=_TOOLS,
    ),
]
Enable = Annotated[
    tuple[str, ...],
    Option(
        metavar="TOOLS",
        help="Have these, too: families (browsing, web_read, ...) or tools by name.",
        rich_help_panel=_TOOLS,
    ),
]
Disable = Annotated[
    tuple[str, ...],
    Option(
        metavar="TOOLS", help="Leave these out: families (cmd, jupyter, ...) or tools by name.", rich_help_panel=_TOOLS
    ),
]
ConversationId = Annotated[str, Argument(metavar="ID", help="Its id, what the id begins with, or 'last'.")]
Root = Annotated[
    Path | None,
    Option("--dir", parser=path, metavar="DIR", help="Where conversations lie; else ~/.ohsandbox/conversations."),
]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True, kw_only=True)
class SandboxOptions:
    """Where the hands are, as asked; None is what the settings say, else the default."""

    image: Annotated[
        str | None,
        Option(
            metavar="NAME", help="Its image; else that of the settings, else python:3.12.", rich_help_panel=_SANDBOX
        ),
    ] = None
    workspace: Annotated[
        Path | None,
        Option(
            parser=path,
            metavar="DIR",
            help="A directory of yours to work in; at /workspace in the sandbox.",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    copy: Annotated[
        bool,
        Option(
            "--copy",
            help="Work on a copy of --workspace, without ignored files and secrets; `ohsandbox apply` brings it back.",
            rich_help_panel=_SANDBOX,
        ),
    ] = False
    copy_all: Annotated[
        bool,
        Option("--copy-all", help="As --copy, with ignored files and secrets.", rich_help_panel=_SANDBOX),
    ] = False
    network: Annotated[
        Literal["none", "open"] | None,
        Option(help="none: no network at all (default). open: the internet.", rich_help_panel=_SANDBOX),
    ] = None
    git: Annotated[
        Literal["guarded", "ro", "rw"] | None,
        Option(
            help="Of --workspace. guarded: commits work; config, hooks and what editors and agents run stay as they "
            "are (default). ro: no .git changes. rw: nothing is guarded.",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    keep: Annotated[
        bool,
        Option(
            "--keep", help="Leave the container, and what runs in it, when done or killed.", rich_help_panel=_SANDBOX
        ),
    ] = False
    attach: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Work in a running container instead of a new one; it is kept.",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    runtime: Annotated[
        Literal["docker", "cli"] | None,
        Option(
            help="docker: a container. cli: THIS HOST, with no container around it.",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    ca_bundle: Annotated[
        Path | None,
        Option(
            parser=path,
            metavar="FILE",
            help="PEM certificates that the sandbox trusts as well (proxies).",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    host_workdir: Path | None = None
    """Where `cli` works when no workspace is named; None is the current directory."""

    def checked(self) -> SandboxOptions:
        """The same options.

        Raises:
            UsageError: two of them exclude each other.
        """
        if self.runtime is not None:
            supported = self.backend.options | ({"copy_all"} if "copy" in self.backend.options else set())
            for name in BACKEND_OPTIONS:
                if getattr(self, name) and name not in supported:
                    option = f"--{name.replace('_', '-')}"
                    raise UsageError(f"{option} needs a container. Leave it out, or --runtime {self.runtime}.")
        if self.copies and self.workspace is None:
            raise UsageError("--copy needs a directory to copy. Name one with --workspace.")
        if self.attach and self.image:
            raise UsageError("--image and --attach exclude each other. Leave one out: the container has its image.")
        if self.git and (self.attach or self.workspace is None):
            raise UsageError("--git is about --workspace DIR. Name one, or leave --git out.")
        if self.git and self.copies:
            raise UsageError("--git guards a directory that is bound, and a copy is not. Leave --git or --copy out.")
        return self

    @property
    def backend(self) -> BackendInfo:
        """What the backend that `--runtime` names can do."""
        from ohsandbox.runtime.factory import backend_info  # noqa: PLC0415 - `--help` reads this module

        return backend_info(self.runtime)

    def runtime_settings(self, conversation_id: str | None = None) -> RuntimeSettings:
        """The options for `runtime_from`; what is None has the default of `RuntimeSettings`."""
        from ohsandbox.runtime.factory import RuntimeSettings  # noqa: PLC0415 - as above

        names = ("runtime", "image", "workspace", "host_workdir", "git", "network", "keep", "attach", "ca_bundle")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        copy: bool | Literal["all"] = "all" if self.copy_all else self.copy
        return RuntimeSettings(**given, copy=copy, conversation=conversation_id)

    @property
    def copies(self) -> bool:
        """The work is on a copy, and nothing of the host is bound."""
        return self.copy or self.copy_all

    def with_settings(self, settings: Settings) -> SandboxOptions:
        """What was not asked, taken from the settings."""
        bundle = self.ca_bundle or (Path(settings.ca_bundle) if settings.ca_bundle else None)
        return replace(
            self,
            image=settings.image if self.image is None else self.image,
            network=self.network or settings.network,
            git=self.git or settings.git,
            ca_bundle=bundle,
        )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `run` was asked, but for the sandbox."""

    task: Annotated[str | None, Argument(help="What to do; '-' reads it from stdin. Without it you are asked.")] = None
    settings: SettingsFile = None
    no_tui: NoTui = False
    confirm: Annotated[
        Literal["never", "always", "risky", "medium"] | None,
        Option(
            help="Which calls you must allow: risky are those that could do harm, medium also those that the rules "
            "cannot judge. Default: never; on this host, at a terminal, risky."
        ),
    ] = None
    secrets: Annotated[
        tuple[str, ...],
        Option(
            "--secret",
            metavar="NAME[=env:OTHER|=file:PATH]",
            help="Give commands this variable, and hide its value from the model and the log; may be repeated.",
        ),
    ] = ()
    model: Annotated[
        str | None, Option(metavar="PROVIDER/MODEL", help="As litellm names it.", rich_help_panel=_MODEL)
    ] = None
    api_key: Annotated[
        str | None,
        Option(
            metavar="KEY",
            help="Visible in `ps`: prefer the settings or the environment.",
            rich_help_panel=_MODEL,
        ),
    ] = None
    base_url: Annotated[
        str | None, Option(metavar="URL", help="Where an OpenAI-compatible server is.", rich_help_panel=_MODEL)
    ] = None
    tool_choice: Annotated[
        Literal["auto", "required"],
        Option(help="required: the model's first answer must call a tool.", rich_help_panel=_MODEL),
    ] = "auto"
    autoresume: Annotated[
        bool, Option("--autoresume", help="Go on with the newest conversation.", rich_help_panel=_GOING_ON)
    ] = False
    resume: Annotated[
        str | None,
        Option(metavar="ID", help="Go on with this one; the beginning of its id is enough.", rich_help_panel=_GOING_ON),
    ] = None
    max_iterations: Annotated[
        int | None, Option(metavar="N", min=1, help="Requests to the model in one run.", rich_help_panel=_LIMITS)
    ] = None
    max_time_s: Annotated[
        float | None,
        Option(parser=above_zero, metavar="SECONDS", help="How long one run may take.", rich_help_panel=_LIMITS),
    ] = None
    max_tokens: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Tokens read and written in the whole conversation.", rich_help_panel=_LIMITS),
    ] = None
    max_cost_usd: Annotated[
        float | None,
        Option(
            parser=above_zero, metavar="DOLLARS", help="What the whole conversation may cost.", rich_help_panel=_LIMITS
        ),
    ] = None
    instructions: Annotated[
        Path | None,
        Option(
            parser=path,
            metavar="FILE",
            help="Text that ends the system prompt: your rules for the agent.",
            rich_help_panel=_TOOLS,
        ),
    ] = None
    mcp_config: McpConfig = None
    enable: Enable = ()
    disable: Disable = ()
    talks: bool = True
    """Without a task the person is asked for messages."""


@dataclass(frozen=True, kw_only=True)
class ExecOptions:
    """How the command of `exec` runs."""

    env: Annotated[
        tuple[str, ...], Option("--env", "-e", metavar="NAME=VALUE", help="A variable; may be repeated.")
    ] = ()
    user: Annotated[str | None, Option(metavar="NAME", help="User name or id in the sandbox.")] = None
    timeout_s: Annotated[
        float | None,
        Option(
            "--timeout", parser=above_zero, metavar="SECONDS", help="Kill it after so long; the exit code is then 124."
        ),
    ] = None
    tty: Annotated[
        bool | None,
        Option("--tty/--no-tty", "-t/-T", help="A terminal for the command; default: when you sit at one."),
    ] = None
    """None: a terminal if stdin and stdout are one."""


@dataclass(frozen=True, kw_only=True)
class ConfirmOptions:
    """What `confirm` was asked."""

    yes: Annotated[bool, Option("--yes", help="Allow all that waits, where it is shown whole.")] = False
    unseen: Annotated[bool, Option("--unseen", help="With --yes: also what is too long to be shown whole.")] = False
    no: Annotated[bool, Option("--no", help="Refuse all that waits.")] = False
    reason: Annotated[str, Option(metavar="TEXT", help="Told to the agent with --no.")] = ""
    no_run: Annotated[bool, Option("--no-run", help="Only store the answer; `run --resume` acts on it.")] = False
    as_json: Annotated[bool, Option("--json", help="Print what waits as JSON, and ask nothing.")] = False


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How `mcp serve` offers the tools."""

    http: Annotated[
        str | None,
        Option(metavar="[HOST:]PORT", help="Serve over HTTP at /mcp; default: stdin and stdout."),
    ] = None
    token: Annotated[
        str | None,
        Option(
            metavar="env:NAME|file:PATH",
            help="With --http: the bearer token of clients; default: one is made and printed.",
        ),
    ] = None
    max_sessions: Annotated[int, Option(metavar="N", min=1, help="With --http: so many sandboxes at a time.")] = 8
    idle_timeout_s: Annotated[
        float,
        Option(
            "--idle-timeout",
            parser=above_zero,
            metavar="SECONDS",
            help="With --http: a session ends when it is idle so long.",
        ),
    ] = 1800.0
    settings: SettingsFile = None
    enable: Enable = ()
    disable: Disable = ()
