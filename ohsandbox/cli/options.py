"""The options that more than one command has, and those of the big commands: each is declared here, once.

`typer_options.command` makes options of the annotated fields. Nothing slow is imported: `--help` reads this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from ohsandbox.cli.validators import byte_size, cpu_count, path, positive_number
from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from ohsandbox.runtime.factory import BackendInfo, RuntimeSettings
    from ohsandbox.settings import Settings

RESOURCE_LIMITS = ("memory", "cpus", "pids", "disk")
"""Bounds of a container that is created; they cannot be set on one that is there."""

BACKEND_OPTIONS = ("image", "network", "git", "keep", "attach", "ca_bundle", "copy", "copy_all", *RESOURCE_LIMITS)
"""Options that some backends do not support; one that is given to such a backend is refused, never ignored."""

_MODEL, _SANDBOX, _TOOLS, _LIMITS, _RESUME = "Model", "Sandbox", "Tools and prompt", "Run limits", "Resume"
"""The groups of `--help`."""

AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
NoTui = Annotated[bool, Option("--no-tui", help="Print one plain line per event; no colors, no prompts.")]
SettingsFile = Annotated[
    Path | None,
    Option(parser=path, metavar="FILE", help="Settings file.  [default: ~/.ohsandbox/settings.json]"),
]
McpConfig = Annotated[
    Path | None,
    Option(
        parser=path,
        metavar="FILE",
        help='More MCP servers, beside those of the settings: {"mcpServers": {...}}.',
        rich_help_panel=_TOOLS,
    ),
]
Enable = Annotated[
    list[str] | None,
    Option(
        metavar="TOOLS",
        help="Enable a tool or a family of tools (browsing, web_read, ...); may be repeated.",
        rich_help_panel=_TOOLS,
    ),
]
Disable = Annotated[
    list[str] | None,
    Option(
        metavar="TOOLS",
        help="Disable a tool or a family of tools (cmd, jupyter, ...); may be repeated.",
        rich_help_panel=_TOOLS,
    ),
]
ConversationId = Annotated[str, Argument(metavar="ID", help="Conversation id, its beginning, or 'last'.")]
Root = Annotated[
    Path | None,
    Option(
        "--dir",
        parser=path,
        metavar="DIR",
        help="Directory of the conversations.  [default: ~/.ohsandbox/conversations]",
    ),
]
Yes = Annotated[bool, Option("--yes", "-y", help="Skip the confirmation prompt.")]


@dataclass(frozen=True, kw_only=True)
class SandboxOptions:
    """Which sandbox to work in, as asked; None takes the settings' value, else the default."""

    image: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Container image.  [default: image of the settings, else python:3.12]",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    workspace: Annotated[
        Path | None,
        Option(
            parser=path,
            metavar="DIR",
            help="Host directory to work in, bound at /workspace.",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    copy: Annotated[
        bool,
        Option(
            "--copy",
            help="Work on a copy of --workspace, without ignored files and secrets. After `run`, `ohsandbox apply` "
            "brings the changes back.",
            rich_help_panel=_SANDBOX,
        ),
    ] = False
    copy_all: Annotated[
        bool,
        Option("--copy-all", help="Like --copy, with ignored files and secrets.", rich_help_panel=_SANDBOX),
    ] = False
    network: Annotated[
        Literal["none", "open"] | None,
        Option(help="none: no network (default). open: internet access.", rich_help_panel=_SANDBOX),
    ] = None
    git: Annotated[
        Literal["guarded", "ro", "rw"] | None,
        Option(
            help="Protection of repositories in --workspace. guarded: commits work; git config, hooks and files that "
            "editors and agents execute are read-only (default). ro: .git is read-only. rw: no protection.",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    memory: Annotated[
        int | None,
        Option(
            parser=byte_size(minimum=32 * 1024**2),
            metavar="SIZE",
            help="Memory limit, swap included, as in 512m or 4g.  [default: 2g]",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    cpus: Annotated[
        float | None,
        Option(
            parser=cpu_count,
            metavar="N",
            help="Number of processors, as in 0.5.  [default: 2]",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    pids: Annotated[
        int | None,
        Option(
            metavar="N",
            min=16,
            max=4_194_304,
            help="Maximum number of processes and threads.  [default: 512]",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    disk: Annotated[
        int | None,
        Option(
            parser=byte_size(minimum=64 * 1024**2),
            metavar="SIZE",
            help="Disk limit of the container; needs an engine on xfs with pquota, or btrfs.  [default: none]",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    keep: Annotated[
        bool,
        Option(
            "--keep",
            help="Keep the container, and its processes, after exit.",
            rich_help_panel=_SANDBOX,
        ),
    ] = False
    attach: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Work in a running container, which is kept, instead of a new one.",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    runtime: Annotated[
        Literal["docker", "cli"] | None,
        Option(
            help="docker: a container (default). cli: THIS HOST, without a container.",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    ca_bundle: Annotated[
        Path | None,
        Option(
            parser=path,
            metavar="FILE",
            help="PEM file with additional CA certificates to trust in the sandbox.",
            rich_help_panel=_SANDBOX,
        ),
    ] = None
    host_workdir: Path | None = None
    """Working directory of `--runtime cli` without a workspace; None is the current directory."""

    def checked(self) -> SandboxOptions:
        """The same options.

        Raises:
            UsageError: two options exclude each other.
        """
        if self.runtime is not None:
            supported = self.backend.options | ({"copy_all"} if "copy" in self.backend.options else set())
            if given := self._given(*(name for name in BACKEND_OPTIONS if name not in supported)):
                raise UsageError(f"{given[0]} needs a container. Leave out {given[0]} or --runtime {self.runtime}.")
        if self.copies and self.workspace is None:
            raise UsageError("--copy needs a directory to copy. Name one with --workspace.")
        if self.attach and (given := self._given("image", *RESOURCE_LIMITS)):
            raise UsageError(f"--attach and {given[0]} exclude each other: the container has its own. Leave one out.")
        if self.git and (self.attach or self.workspace is None):
            raise UsageError("--git needs a directory to protect. Name one with --workspace, or leave out --git.")
        if self.git and self.copies:
            raise UsageError("--git protects a bound directory, and --copy binds none. Leave one out.")
        return self

    @property
    def backend(self) -> BackendInfo:
        """What the backend that `--runtime` names can do."""
        from ohsandbox.runtime.factory import backend_info  # noqa: PLC0415 - `--help` reads this module

        return backend_info(self.runtime)

    def runtime_settings(self, conversation_id: str | None = None) -> RuntimeSettings:
        """The options for `runtime_from`; what is None has the default of `RuntimeSettings`."""
        from ohsandbox.runtime.factory import RuntimeSettings  # noqa: PLC0415 - as above

        names = {*BACKEND_OPTIONS, "runtime", "workspace", "host_workdir"} - {"copy", "copy_all"}
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        copy: bool | Literal["all"] = "all" if self.copy_all else self.copy
        return RuntimeSettings(**given, copy=copy, conversation=conversation_id)

    @property
    def copies(self) -> bool:
        """The work is on a copy, and nothing of the host is bound."""
        return self.copy or self.copy_all

    def with_settings(self, settings: Settings) -> SandboxOptions:
        """The same with the settings' values for what was not asked."""
        bundle = self.ca_bundle or (Path(settings.ca_bundle) if settings.ca_bundle else None)
        return replace(
            self,
            image=settings.image if self.image is None else self.image,
            network=self.network or settings.network,
            git=self.git or settings.git,
            ca_bundle=bundle,
        )

    def _given(self, *names: str) -> list[str]:
        """Those of the options that were given, as flags."""
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `run`, without the sandbox's."""

    task: Annotated[
        str | None,
        Argument(metavar="TASK", help="Task for the agent; '-' reads it from stdin. Without it you are prompted."),
    ] = None
    settings: SettingsFile = None
    no_tui: NoTui = False
    confirm: Annotated[
        Literal["never", "always", "risky", "medium"] | None,
        Option(
            help="Which calls need your approval. risky: calls that can do harm. medium: also calls that the rules "
            "cannot judge.  [default: never; with --runtime cli at a terminal: risky]"
        ),
    ] = None
    secrets: Annotated[
        list[str] | None,
        Option(
            "--secret",
            metavar="NAME[=env:OTHER|=file:PATH]",
            help="Set this environment variable for commands and mask its value in the log, in requests to the model "
            "and in output; may be repeated.",
        ),
    ] = None
    model: Annotated[
        str | None, Option(metavar="PROVIDER/MODEL", help="Model name, as in litellm.", rich_help_panel=_MODEL)
    ] = None
    api_key: Annotated[
        str | None,
        Option(
            metavar="KEY",
            help="API key, visible in `ps`. Prefer the settings file or an environment variable.",
            rich_help_panel=_MODEL,
        ),
    ] = None
    base_url: Annotated[
        str | None, Option(metavar="URL", help="Base URL of an OpenAI-compatible server.", rich_help_panel=_MODEL)
    ] = None
    tool_choice: Annotated[
        Literal["auto", "required"],
        Option(help="required: the model's first answer must call a tool.", rich_help_panel=_MODEL),
    ] = "auto"
    autoresume: Annotated[
        bool, Option("--autoresume", help="Resume the newest conversation.", rich_help_panel=_RESUME)
    ] = False
    resume: Annotated[
        str | None,
        Option(metavar="ID", help="Resume this conversation: id, its beginning, or 'last'.", rich_help_panel=_RESUME),
    ] = None
    max_iterations: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Maximum requests to the model in one run.", rich_help_panel=_LIMITS),
    ] = None
    max_time_s: Annotated[
        float | None,
        Option(parser=positive_number, metavar="SECONDS", help="Maximum duration of one run.", rich_help_panel=_LIMITS),
    ] = None
    max_tokens: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Maximum tokens, input and output, of the whole conversation.",
            rich_help_panel=_LIMITS,
        ),
    ] = None
    max_cost_usd: Annotated[
        float | None,
        Option(
            parser=positive_number,
            metavar="DOLLARS",
            help="Maximum cost of the whole conversation.",
            rich_help_panel=_LIMITS,
        ),
    ] = None
    instructions: Annotated[
        Path | None,
        Option(
            parser=path,
            metavar="FILE",
            help="Text file appended to the system prompt.",
            rich_help_panel=_TOOLS,
        ),
    ] = None
    mcp_config: McpConfig = None
    enable: Enable = None
    disable: Disable = None
    talks: bool = True
    """Without a task the person is prompted for messages."""


@dataclass(frozen=True, kw_only=True)
class ExecOptions:
    """How `exec` runs its command."""

    env: Annotated[
        list[str] | None,
        Option("--env", "-e", metavar="NAME=VALUE", help="Set an environment variable; may be repeated."),
    ] = None
    user: Annotated[str | None, Option(metavar="NAME", help="User name or uid in the sandbox.")] = None
    timeout_s: Annotated[
        float | None,
        Option(
            "--timeout",
            parser=positive_number,
            metavar="SECONDS",
            help="Kill the command after this time; the exit code is then 124.",
        ),
    ] = None
    tty: Annotated[
        bool | None,
        Option(
            "--tty/--no-tty",
            "-t/-T",
            help="Allocate a pseudo-terminal.  [default: if stdin and stdout are terminals]",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ConfirmOptions:
    """The answer that `confirm` gives."""

    yes: Annotated[bool, Option("--yes", help="Approve all pending calls, if they are shown in full.")] = False
    unseen: Annotated[
        bool, Option("--unseen", help="With --yes: also approve calls that are too long to be shown in full.")
    ] = False
    no: Annotated[bool, Option("--no", help="Reject all pending calls.")] = False
    reason: Annotated[str, Option(metavar="TEXT", help="With --no: reason that the agent is told.")] = ""
    no_run: Annotated[
        bool, Option("--no-run", help="Store the answer without continuing the run; `run --resume` continues it.")
    ] = False
    as_json: Annotated[bool, Option("--json", help="Print the pending calls as JSON; do not prompt.")] = False


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How `mcp serve` offers the tools."""

    http: Annotated[
        str | None,
        Option(metavar="[HOST:]PORT", help="Serve over HTTP at /mcp.  [default: stdin and stdout]"),
    ] = None
    token: Annotated[
        str | None,
        Option(
            metavar="env:NAME|file:PATH",
            help="With --http: bearer token of the clients.  [default: generated and printed]",
        ),
    ] = None
    max_sessions: Annotated[
        int, Option(metavar="N", min=1, help="With --http: maximum number of concurrent sandboxes.")
    ] = 8
    idle_timeout_s: Annotated[
        float,
        Option(
            "--idle-timeout",
            parser=positive_number,
            metavar="SECONDS",
            help="With --http: end a session that is idle for this time.",
        ),
    ] = 1800.0
    settings: SettingsFile = None
    enable: Enable = None
    disable: Disable = None
