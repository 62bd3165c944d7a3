"""The options of single commands and of `eval`; shared ones, among them the sandbox's, are in `shared`."""

# ruff: noqa: RUF009 - `option` gives a dataclasses.field
from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from typer import BadParameter

from ohsandbox.cli.completion import conversation_ids
from ohsandbox.cli.options.shared import McpConfig, NoTui, SettingsFile  # noqa: TC001 - as above
from ohsandbox.cli.options.typer_options import (
    argument,
    byte_size_of,
    check_variables,
    option,
    path,
    positive_number,
    switch,
)
from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from ohsandbox.cli.options.shared import SandboxOptions

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
    view: bool = switch("Serve the conversation as a page, from which it can be answered, steered and stopped.")
    port: int | None = option(
        "Port of the page of --view, or of /view in a session.  [default: a free one]", "N", min=0, max=65535
    )
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
    autoresume: bool = switch("Resume the newest conversation.", rich_help_panel="Resume")
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
    """Prompt the person for messages if no task is given."""

    @property
    def headless(self) -> bool:
        """True if nothing may be asked, even at a terminal."""
        return self.no_tui or self.as_json or self.quiet


@dataclass(frozen=True, kw_only=True)
class _ProcessOptions:
    """The user and the variables of a program that the person runs."""

    env: list[str] | None = option("Set an environment variable; may be repeated.", "NAME=VALUE", flags=["--env", "-e"])
    user: str | None = option("User name or uid in the sandbox.", "NAME")

    def checked_environment(self, where: SandboxOptions) -> dict[str, str]:
        """Return the variables; raise UsageError if one is malformed, or if the backend cannot choose a user."""
        check_variables(self.env or ())
        if self.user is not None and not self.user:
            raise UsageError("--user is empty. Name a user of the image or a numeric id, or leave it out.")
        if self.user and not where.backend.users:
            raise UsageError(f"--user {self.user!r} needs a container. Leave it out, or --runtime {where.runtime}.")
        return dict(pair.split("=", 1) for pair in self.env or ())


@dataclass(frozen=True, kw_only=True)
class ExecOptions(_ProcessOptions):
    """The options of `exec`, without the sandbox's."""

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
class ShellOptions(_ProcessOptions):
    """The options of `shell`, without the sandbox's."""

    secrets: list[str] | None = option(
        "Set this environment variable for the program, from a variable or file of this machine; may be repeated. "
        "Its value is not masked on the screen.",
        "NAME[=env:OTHER|=file:PATH]",
        flags=["--secret"],
    )
    settings: SettingsFile = None


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Answers for `init`, which does not ask for them then."""

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
    no_check: bool = switch("Do not send a request to the model.")
    yes: bool = switch("Ask nothing, and write.", "--yes", "-y")
    settings: SettingsFile = None


@dataclass(frozen=True, kw_only=True)
class ConfirmOptions:
    """The options of `confirm`."""

    yes: bool = switch("Approve all pending calls, if they are shown in full.")
    unseen: bool = switch("With --yes: also approve calls that are too long to be shown in full.")
    no: bool = switch("Reject all pending calls.")
    reason: str = option("With --no: reason that the agent is told.", "TEXT", default="")
    no_run: bool = switch("Store the answer without continuing the run; `run --resume` continues it.")
    as_json: bool = switch("Print the pending calls as JSON; do not prompt.", "--json")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of `mcp serve`, without the sandbox's."""

    http: str | None = option("Serve over HTTP at /mcp.  [default: stdin and stdout]", "[HOST:]PORT")
    token: str | None = option(
        "With --http: bearer token of the clients.  [default: generated and printed]", "env:NAME|file:PATH"
    )
    warm: int = option(
        "Keep N sandboxes started for sessions to come, so that a session's first call waits for none.", "N", min=0,
        max=1000, default=0,
    )  # fmt: skip
    max_sessions: int | None = option("With --http: maximum number of concurrent sandboxes.  [default: 8]", "N", min=1)
    idle_timeout_s: float | None = option(
        "With --http: end a session that is idle for this time.  [default: 1800]",
        "SECONDS",
        flags=["--idle-timeout"],
        parser=positive_number,
    )
    settings: SettingsFile = None
    enable: list[str] | None = _enable()
    disable: list[str] | None = _disable()


# --- evaluation -----------------------------------------------------------------------------------

_MAX_SHARDS = 100_000

_eval = partial(option, rich_help_panel="Evaluation")
_agent = partial(option, rich_help_panel="Agent")
_agent_network = _agent("Network while the agent works, for all tasks.  [default: what the task says]")
_agent_allow = _agent(
    "Host that the sandbox may reach while the agent works, as `run --allow`; implies --agent-network allowlist. May "
    "be repeated.",
    "HOST[:PORT]",
)
_concurrent = _eval("Trials at the same time.", "N", default=4, flags=["--concurrent", "-n"], min=1, max=256)
_timeout_multiplier = _eval("Multiply the time limits of all tasks.", "X", default=1.0, parser=positive_number)
_filters = _eval("Only tasks whose id matches, as in 'sum-*'; may be repeated.", "PATTERN", flags=["--filter", "-f"])
EVALUATED_MODEL = frozenset(
    {"settings", "secrets", "model", "api_key", "base_url", "tool_choice", "max_iterations", "max_time_s", "max_tokens"}
    | {"max_cost_usd", "price", "instructions", "mcp_config", "enable", "disable"}
)
"""The options of `run` that `eval` has for our agent."""


def _shard(text: str) -> str:
    """Check a shard: I/N with 1 <= I <= N."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count) <= _MAX_SHARDS):
        raise BadParameter(f"expected I/N with I from 1 to N, as in 2/8, got {text!r}")
    return text


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """The options of `eval run`."""

    agent: str | None = _agent(
        "oracle: the task's own solution. nop: nobody. ohsandbox: our agent, with --model. command: --agent-command. "
        "replay:DIR: our agent with the answers recorded in the results DIR.  [default: ohsandbox with "
        "--model, command with --agent-command, else oracle]",
        "oracle|nop|ohsandbox|command|replay:DIR",
        flags=["--agent", "-a"],
    )
    agent_command: str | None = _agent(
        "Shell command that runs in the sandbox; it is told the instruction by $OHSANDBOX_INSTRUCTION, by the file "
        "$OHSANDBOX_INSTRUCTION_FILE and on stdin.",
        "COMMAND",
    )
    agent_env: list[str] | None = _agent(
        "Set this environment variable for --agent-command and mask its value in the results; NAME alone takes the "
        "value from this environment. May be repeated.",
        "NAME[=VALUE]",
    )
    agent_setup: str | None = _agent("Shell command that runs as root before --agent-command.", "COMMAND")
    agent_network: Literal["none", "allowlist", "open"] | None = _agent_network
    agent_allow: list[str] | None = _agent_allow
    agent_credential: list[str] | None = _agent(
        "Key that never enters the sandbox and is added to the agent's requests to its host, as `run --credential`; "
        "implies --agent-network allowlist. May be repeated.",
        "HOST=env:NAME",
    )
    predictions: Path | None = _agent(
        "Apply the patches of this file, a JSONL of instance_id and model_patch as SWE-bench has it, in the place of "
        "an agent.",
        "FILE", parser=path,
    )  # fmt: skip
    output: Path = _eval(
        "Directory of the results; what is finished there is not run again.",
        "DIR", default=Path("eval-results"), flags=["--output", "-o"], parser=path,
    )  # fmt: skip
    concurrent: int = _concurrent
    attempts: int = _eval("Trials of each task.", "N", default=1, flags=["--attempts", "-k"], min=1, max=1000)
    min_pass_rate: float = _eval("Exit with 1 below this.", "RATE", default=1.0, min=0, max=1)
    no_tui: NoTui = False
    fail_fast: bool = switch("Start no more trials after one that did not pass.")
    filters: list[str] | None = _filters
    shard: str | None = _eval(
        "Only part I of N of the tasks, for N machines; `eval report` puts the results together.", "I/N", parser=_shard
    )
    timeout_multiplier: float = _timeout_multiplier
    verifier: Literal["shared", "separate"] = _eval(
        "shared: tests run in the agent's sandbox, after it. separate: in a fresh one, which gets only what it changed "
        "in the working directory, and the task's artifacts.", default="shared",
    )  # fmt: skip
    ca_bundle: Path | None = _eval(
        "PEM file with additional CA certificates to trust in the sandboxes.", "FILE", parser=path
    )
    infrastructure_retries: int = _eval(
        "New tries of a trial that the engine, an image or this machine failed.", "N", default=2, min=0, max=100
    )
    repeat_failed: int = _eval(
        "Repeat the tasks that failed N times, to tell flaky from broken; they count in no rate.",
        "N", default=0, min=0, max=1000,
    )  # fmt: skip
    image_budget: int | None = _eval(
        "Remove images that eval built or pulled, the least recently used first, when all of them take more than this. "
        " [default: 40g]",
        "SIZE", parser=byte_size_of(minimum=1024**2),
    )  # fmt: skip
    engine: Literal["local", "ray"] = _eval(
        "local: this machine's engine. ray: the engines of a Ray cluster's nodes, -n trials on each.", default="local"
    )
    address: str | None = _eval(
        "Address of the Ray cluster.  [default: RAY_ADDRESS, else this machine alone]", "ADDRESS"
    )


@dataclass(frozen=True, kw_only=True)
class ValidateOptions:
    """The options of `eval validate`."""

    static: bool = switch("Read the tasks only: no sandbox is started.")
    output: Path | None = _eval(
        "Directory of the results; what is finished there is not run again.  [default: a temporary one, which is "
        "removed if all tasks are valid]",
        "DIR", flags=["--output", "-o"], parser=path,
    )  # fmt: skip
    concurrent: int = _concurrent
    filters: list[str] | None = _filters
    agent_network: Literal["none", "allowlist", "open"] | None = _agent_network
    agent_allow: list[str] | None = _agent_allow
    timeout_multiplier: float = _timeout_multiplier
    no_tui: NoTui = False
    as_json: bool = switch("Print JSON.", "--json")


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of `eval compare`."""

    alpha: float = option(
        "Exit with 1 if B is worse with a p-value (one-sided) of at most this.", "P", default=0.05, min=0, max=1
    )
    max_regressions: int | None = option(
        "Exit with 1 if more than N tasks are broken: they passed in A, and not once in B.", "N", min=0
    )
    html: Path | None = option("Also write a page that shows both side by side.", "FILE", parser=path)
    as_json: bool = switch("Print JSON.", "--json")
