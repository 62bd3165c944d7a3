"""From the options of `ohsandbox eval` to the agent that works on its tasks."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.cli.options_commands import RunOptions
from ohsandbox.cli.options_eval import EVALUATED_MODEL
from ohsandbox.cli.rendering.text import say
from ohsandbox.errors import UsageError
from ohsandbox.evaluation.agents import CommandAgent, NopAgent, OracleAgent, PredictionsAgent
from ohsandbox.network.credentials.credentials import check_outside, parse_credentials
from ohsandbox.network.open_addresses import parse_exception
from ohsandbox.network.policy import NetworkPolicy
from ohsandbox.secrets import HiddenValues, Secrets, check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ohsandbox.cli.options_eval import EvalOptions, ValidateOptions
    from ohsandbox.evaluation.agents import EvaluatedAgent
    from ohsandbox.evaluation.agents.own import OhsandboxAgent, ReplayAgent

AGENTS = ("oracle", "nop", "ohsandbox", "command", "predictions", "replay:DIR")
_FLAGS = {"secrets": "--secret"}
"""Of the options that are not named as their fields are."""


def make_agent(how: EvalOptions, what: RunOptions) -> EvaluatedAgent:
    """The agent that the options name; one that does not fit to it is refused, never ignored.

    Raises:
        UsageError: there is no such agent, an option is not one of its, or what it needs is missing.
    """
    default = RunOptions()
    for_model = [one.name for one in fields(RunOptions) if one.name in EVALUATED_MODEL]
    of_model = [name for name in for_model if getattr(what, name) != getattr(default, name)]
    of_command = [name for name in ("agent_command", "agent_env", "agent_setup") if getattr(how, name) is not None]
    name, _, recorded = (how.agent or _implied(how, what)).partition(":")
    if how.predictions is not None and name != "predictions":
        raise UsageError(f"--predictions is not for the agent {name!r}. Leave it out, or leave --agent out.")
    agent: EvaluatedAgent
    match name, recorded:
        case "oracle" | "nop", "":
            _refuse(name, [*of_model, *of_command])
            agent = OracleAgent() if name == "oracle" else NopAgent()
        case "ohsandbox", "":
            _refuse(name, of_command)
            agent = _own(what)
        case "command", "":
            _refuse(name, of_model)
            agent = _command(how)
        case "predictions", "" if how.predictions is not None:
            _refuse(name, [*of_model, *of_command])
            agent = PredictionsAgent(how.predictions)
        case "replay", directory if directory:
            _refuse(name, [*of_command, *(one for one in of_model if one in {"model", "api_key", "base_url"})])
            agent = _replay(what, Path(directory))
        case _:
            raise UsageError(f"Unknown agent {how.agent!r}. Name one of: {', '.join(AGENTS)}.")
    take_network(agent, how)
    _take_credentials(agent, how.agent_credential or (), how.agent_network)
    for warning in agent.secrets.warnings:
        say(f"warning: {warning}")
    return agent


def _take_credentials(agent: EvaluatedAgent, flags: Sequence[str], network: str | None) -> None:
    """Have the agent's sandboxes use these; their values are in no file of the results.

    Raises:
        UsageError: one is none, has no value here, or is given to the agent besides; or the network is another one.
    """
    if not flags:
        return
    if network not in {None, "allowlist"}:
        raise UsageError(f"--agent-credential and --agent-network {network} exclude each other. Leave one out.")
    found = parse_credentials(flags)
    check_outside(found, agent.secrets.environment())
    agent.credentials, agent.network = tuple(flags), "allowlist"
    agent.secrets = agent.secrets.hiding(HiddenValues((one.name, one.value) for one in found))


def take_network(agent: EvaluatedAgent, how: EvalOptions | ValidateOptions) -> None:
    """Give the agent the network that the options say.

    Raises:
        UsageError: a host is no rule of an allowlist, or they say two things.
    """
    if how.agent_allow and how.agent_network == "none":
        raise UsageError(f"--agent-allow and --agent-network {how.agent_network} exclude each other. Leave one out.")
    if how.agent_network == "open":
        agent.allow = tuple(str(parse_exception(one)) for one in how.agent_allow or ())
        agent.network = "open"
    else:
        agent.allow = NetworkPolicy(how.agent_allow or ()).rules
        agent.network = "allowlist" if agent.allow else how.agent_network


def _implied(how: EvalOptions, what: RunOptions) -> str:
    if how.predictions is not None:
        return "predictions"
    if how.agent_command is not None:
        return "command"
    return "oracle" if what.model is None else "ohsandbox"


def _refuse(agent: str, names: Iterable[str]) -> None:
    for name in names:
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        raise UsageError(f"{flag} is not for the agent {agent!r}. Leave it out, or name another agent with --agent.")


def _own(what: RunOptions) -> OhsandboxAgent:
    from ohsandbox.cli.model_check import check_model_name  # noqa: PLC0415 - other agents do without, and it is slow
    from ohsandbox.cli.run_settings import complete, settings_of  # noqa: PLC0415 - as above
    from ohsandbox.cli.session_inputs import instructions_of  # noqa: PLC0415 - as above
    from ohsandbox.evaluation.agents.own import OhsandboxAgent  # noqa: PLC0415 - as above

    settings = complete(settings_of(what), person=False)
    if told := check_model_name(settings):
        say(f"warning: {told}")
    extensions = instructions_of(settings.instructions)
    return OhsandboxAgent(settings, extensions=extensions, tool_choice=what.tool_choice)


def _replay(what: RunOptions, directory: Path) -> ReplayAgent:
    from ohsandbox.cli.run_settings import settings_of  # noqa: PLC0415 - as above
    from ohsandbox.evaluation.agents.own import ReplayAgent  # noqa: PLC0415 - as above

    return ReplayAgent(directory, settings_of(what))


def _command(how: EvalOptions) -> CommandAgent:
    if not (how.agent_command or "").strip():
        raise UsageError("The agent 'command' needs a command. Give one with --agent-command.")
    return CommandAgent(how.agent_command or "", setup=how.agent_setup, secrets=_variables(how.agent_env or ()))


def _variables(flags: Iterable[str]) -> Secrets:
    """The variables of `NAME=VALUE`, and of `NAME` with its value here.

    Raises:
        UsageError: a name is invalid, or given twice, or its value is missing.
    """
    found: dict[str, str] = {}
    for flag in flags:
        name, is_given, value = flag.partition("=")
        if check_name(name) in found:
            raise UsageError(f"--agent-env {name} is given twice. Leave one out.")
        found[name] = value if is_given else os.environ.get(name, "")
        if not found[name]:
            raise UsageError(f"--agent-env {name} has no value. Set the variable, or write {name}=VALUE.")
    return Secrets(found)
