"""The options of `eval`, each declared here, once; those that it shares with `run` are in `options`."""

# ruff: noqa: RUF009 - `option` gives a dataclasses.field
from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from typer import BadParameter

from ohsandbox.cli.option_values import byte_size_of, path, positive_number
from ohsandbox.cli.options import NoTui  # noqa: TC001 - typer reads annotations at run time
from ohsandbox.cli.typer_options import option, switch

MAX_SHARDS = 100_000

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
"""Of the options of `run`, those that `eval` has for our agent."""


def _shard(text: str) -> str:
    """I/N, with 1 <= I <= N."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count) <= MAX_SHARDS):
        raise BadParameter(f"expected I/N with I from 1 to N, as in 2/8, got {text!r}")
    return text


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """How tasks are evaluated."""

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
    fail_fast: bool = switch("Start no more trials after one that did not pass.", "--fail-fast")
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
    """How tasks are validated."""

    static: bool = switch("Read the tasks only: no sandbox is started.", "--static")
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
    """How two evaluations are compared."""

    alpha: float = option(
        "Exit with 1 if B is worse with a p-value (one-sided) of at most this.", "P", default=0.05, min=0, max=1
    )
    max_regressions: int | None = option(
        "Exit with 1 if more than N tasks are broken: they passed in A, and not once in B.", "N", min=0
    )
    html: Path | None = option("Also write a page that shows both side by side.", "FILE", parser=path)
    as_json: bool = switch("Print JSON.", "--json")
