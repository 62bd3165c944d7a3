"""The options of single commands, beside the sandbox's (`options`) and those of evaluation (`options_eval`)."""

# ruff: noqa: RUF009 - `option` gives a dataclasses.field
from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Literal

from ohsandbox.cli.completion import conversation_ids
from ohsandbox.cli.option_values import check_variables, path, positive_number
from ohsandbox.cli.options import McpConfig, NoTui, SettingsFile  # noqa: TC001 - as above
from ohsandbox.cli.typer_options import argument, option, switch
from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from ohsandbox.cli.options import SandboxOptions

_model = partial(option, rich_help_panel="Model")
_tools = partial(option, rich_help_panel="Tools and prompt")
_limit = partial(option, rich_help_panel="Run limits")
_enable = partial(_tools, "Enable a tool or a family of tools (browsing, web_read, ...); may be repeated.", "TOOLS")
_disable = partial(_tools, "Disable a tool or a family of tools (cmd, jupyter, ...); may be repeated.", "TOOLS")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `run`, without the sandbox's."""

    task: str | None = argument("Task for the agent; '-' reads it from stdin. Without it you are prompted.", "TASK")
    settings: SettingsFile = None
    no_tui: NoTui = False
    as_json: bool = switch("Print one JSON object per event on stdout, then one with the result.", "--json")
    quiet: bool = switch("Print only the answer; no progress, no prompts.", "--quiet", "-q")
    view: bool = switch(
        "Serve the conversation as a page, from which it can be answered, steered and stopped.", "--view"
    )
    port: int = option("Port of --view's page; 0 takes a free one.", "N", default=0, min=0, max=65535)
    confirm: Literal["never", "always", "risky", "medium", "plan"] | None = option(
        "Which calls need your approval: never, always, risky (those that can do harm), medium (also those that the "
        "rules cannot judge), or plan: the agent only looks, and presents a plan.  [default: never; with --runtime cli "
        "at a terminal: risky]",
        "MODE",
    )
    secrets: list[str] | None = option(
        "Set this environment variable for commands and mask its value in the log, in requests to the model and in "
        "output; may be repeated.",
        "NAME[=env:OTHER|=file:PATH]",
        flags=["--secret"],
    )
    model: str | None = _model("Model name, as in litellm.", "PROVIDER/MODEL")
    api_key: str | None = _model(
        "API key, visible in `ps`. Prefer the settings file or an environment variable.", "KEY"
    )
    base_url: str | None = _model("Base URL of an OpenAI-compatible server.", "URL")
    price: str | None = _model(
        "Price of the model in US dollars for a million tokens of input and of output, as in 3,15.  [default: by "
        "litellm's list]",
        "IN,OUT",
    )
    tool_choice: Literal["auto", "required"] = _model(
        "required: the model's first answer must call a tool.", default="auto"
    )
    autoresume: bool = switch("Resume the newest conversation.", "--autoresume", rich_help_panel="Resume")
    resume: str | None = option(
        "Resume this conversation: id, its beginning, or 'last'. Without ID, choose from a list.",
        "ID",
        rich_help_panel="Resume",
        autocompletion=conversation_ids,
    )
    max_iterations: int | None = _limit("Maximum requests to the model in one run.", "N", min=1)
    max_time_s: float | None = _limit("Maximum duration of one run.", "SECONDS", parser=positive_number)
    max_tokens: int | None = _limit("Maximum tokens, input and output, of the whole conversation.", "N", min=1)
    max_cost_usd: float | None = _limit("Maximum cost of the whole conversation.", "DOLLARS", parser=positive_number)
    instructions: Path | None = _tools("Text file appended to the system prompt.", "FILE", parser=path)
    mcp_config: McpConfig = None
    skill_servers: Literal["ask", "allow", "never"] | None = _tools(
        "MCP servers that skills of the repository bring. ask: shown and asked about at a terminal, else not started "
        "(default). allow: started. never: not looked for."
    )
    enable: list[str] | None = _enable()
    disable: list[str] | None = _disable()
    talks: bool = True
    """Without a task the person is prompted for messages."""

    @property
    def headless(self) -> bool:
        """Nothing is asked, whoever sits at the terminal."""
        return self.no_tui or self.as_json or self.quiet


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """As whom and with which variables a program of the person's runs."""

    env: list[str] | None = option("Set an environment variable; may be repeated.", "NAME=VALUE", flags=["--env", "-e"])
    user: str | None = option("User name or uid in the sandbox.", "NAME")

    def checked_environment(self, where: SandboxOptions) -> dict[str, str]:
        """The variables; raises UsageError where one is malformed, or where the backend has no such user."""
        check_variables(self.env or ())
        if self.user is not None and not self.user:
            raise UsageError("--user is empty. Name a user of the image or a numeric id, or leave it out.")
        if self.user and not where.backend.users:
            raise UsageError(f"--user {self.user!r} needs a container. Leave it out, or --runtime {where.runtime}.")
        return dict(pair.split("=", 1) for pair in self.env or ())


@dataclass(frozen=True, kw_only=True)
class ExecOptions(ProcessOptions):
    """How `exec` runs its command."""

    timeout_s: float | None = option(
        "Kill the command after this time; the exit code is then 124.",
        "SECONDS",
        flags=["--timeout"],
        parser=positive_number,
    )
    tty: bool | None = option(
        "Allocate a pseudo-terminal.  [default: if stdin and stdout are terminals]", flags=["--tty/--no-tty", "-t/-T"]
    )


@dataclass(frozen=True, kw_only=True)
class ShellOptions(ProcessOptions):
    """What `shell` gives its program."""

    secrets: list[str] | None = option(
        "Set this environment variable for the program, from a variable or file of this machine; may be repeated. "
        "Its value is not masked on the screen.",
        "NAME[=env:OTHER|=file:PATH]",
        flags=["--secret"],
    )
    settings: SettingsFile = None


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """What `init` need not ask."""

    provider: str | None = option(
        "Model provider, as in litellm, or the URL of an OpenAI-compatible server.", "NAME|URL"
    )
    model: str | None = option("Model name, with or without its provider.", "NAME")
    key_from: str | None = option(
        "Where the API key is; - reads it from stdin and stores it.", "env:NAME|file:PATH|keyring:NAME|-"
    )
    base_url: str | None = option("Base URL of an OpenAI-compatible server.", "URL")
    image: str | None = option("Container image.", "NAME")
    network: Literal["none", "allowlist", "open"] | None = option(
        "none: no network. allowlist: package registries, and hosts that you allow. open: internet access."
    )
    no_check: bool = switch("Do not send a request to the model.", "--no-check")
    yes: bool = switch("Ask nothing, and write.", "--yes", "-y")
    settings: SettingsFile = None


@dataclass(frozen=True, kw_only=True)
class ConfirmOptions:
    """The answer that `confirm` gives."""

    yes: bool = switch("Approve all pending calls, if they are shown in full.", "--yes")
    unseen: bool = switch("With --yes: also approve calls that are too long to be shown in full.", "--unseen")
    no: bool = switch("Reject all pending calls.", "--no")
    reason: str = option("With --no: reason that the agent is told.", "TEXT", default="")
    no_run: bool = switch("Store the answer without continuing the run; `run --resume` continues it.", "--no-run")
    as_json: bool = switch("Print the pending calls as JSON; do not prompt.", "--json")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How `mcp serve` offers the tools."""

    http: str | None = option("Serve over HTTP at /mcp.  [default: stdin and stdout]", "[HOST:]PORT")
    token: str | None = option(
        "With --http: bearer token of the clients.  [default: generated and printed]", "env:NAME|file:PATH"
    )
    warm: int = option(
        "Keep N sandboxes started for sessions to come, so that a session's first call waits for none.", "N", min=0,
        max=1000, default=0,
    )  # fmt: skip
    max_sessions: int = option("With --http: maximum number of concurrent sandboxes.", "N", min=1, default=8)
    idle_timeout_s: float = option(
        "With --http: end a session that is idle for this time.",
        "SECONDS",
        flags=["--idle-timeout"],
        parser=positive_number,
        default=1800.0,
    )
    settings: SettingsFile = None
    enable: list[str] | None = _enable()
    disable: list[str] | None = _disable()
