from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.cli.commands.eval import make_agent
from ohsandbox.cli.options.per_command import EvalOptions, RunOptions
from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("how", "what", "name"),
    [
        ({}, {}, "oracle"),
        ({"agent": "nop"}, {}, "nop"),
        ({}, {"model": "scripted:demo"}, "ohsandbox"),
        ({"agent_command": "cat"}, {}, "command"),
        ({"agent": "command", "agent_command": "cat", "agent_network": "open"}, {}, "command"),
    ],
)
def test_the_agent_is_the_one_named_or_implied(how: dict[str, Any], what: dict[str, Any], name: str) -> None:
    agent = make_agent(EvalOptions(**how), RunOptions(**what))
    assert (agent.name, agent.network) == (name, how.get("agent_network"))


@pytest.mark.parametrize(
    ("how", "what", "said"),
    [
        ({"agent": "claude"}, {}, "Unknown agent 'claude'"),
        ({"agent": "replay"}, {}, "Unknown agent 'replay'"),
        ({"agent": "oracle:x"}, {}, "Unknown agent 'oracle:x'"),
        ({"agent": "oracle"}, {"model": "openai/x"}, "--model is not for the agent 'oracle'"),
        ({"agent": "nop"}, {"max_time_s": 3.0}, "--max-time-s is not for the agent 'nop'"),
        ({"agent": "ohsandbox", "agent_env": ["A=b"]}, {"model": "scripted:demo"}, "--agent-env is not for"),
        ({"agent_command": "cat"}, {"secrets": ["TOKEN"]}, "--secret is not for the agent 'command'"),
        ({"agent": "command"}, {}, "needs a command"),
        ({"agent": "replay:/nowhere"}, {"model": "openai/x"}, "--model is not for the agent 'replay'"),
        ({"agent": "replay:/nowhere"}, {}, "/nowhere holds no results"),
        ({"agent": "ohsandbox"}, {}, "No model is named"),
        ({"agent_command": "cat", "agent_env": ["UNSET_HERE"]}, {}, "--agent-env UNSET_HERE has no value"),
        ({"agent_command": "cat", "agent_env": ["A=1", "A=2"]}, {}, "--agent-env A is given twice"),
        ({"agent_command": "cat", "agent_env": ["PATH=/x"]}, {}, "cannot be named 'PATH'"),
    ],
)
def test_what_does_not_fit_is_refused(how: dict[str, Any], what: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_agent(EvalOptions(**how), RunOptions(**what))


def test_a_credential_stays_outside_and_gives_the_agent_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "sk-planted-0123456789")
    flag = "api.example.org=env:TOKEN"
    agent = make_agent(EvalOptions(agent_command="cat", agent_credential=[flag]), RunOptions())
    assert (agent.credentials, agent.network) == ((flag,), "allowlist")
    assert agent.settings["credentials"] == [flag]
    assert "TOKEN" not in agent.secrets.environment()
    assert agent.secrets.masker.mask("it is sk-planted-0123456789") == "it is <secret:TOKEN>"
    with pytest.raises(UsageError, match="--agent-credential and --agent-network open exclude each other"):
        make_agent(EvalOptions(agent_credential=[flag], agent_network="open"), RunOptions())
    with pytest.raises(UsageError, match="never enters a sandbox"):
        make_agent(EvalOptions(agent_command="cat", agent_env=["TOKEN"], agent_credential=[flag]), RunOptions())
    monkeypatch.delenv("TOKEN")
    with pytest.raises(UsageError, match="TOKEN"):
        make_agent(EvalOptions(agent_credential=[flag]), RunOptions())


def test_variables_of_the_command_come_from_the_flag_or_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "value of here")
    agent = make_agent(EvalOptions(agent_command="cat", agent_env=["HERE", "GIVEN=a=b"]), RunOptions())
    assert agent.secrets.environment() == {"HERE": "value of here", "GIVEN": "a=b"}


def test_our_agent_takes_settings_and_flags_as_run_does(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"model": "scripted:demo", "max_iterations": 9, "max_tokens": 5}))
    what = RunOptions(settings=settings, max_tokens=7, disable=["jupyter"])
    told = make_agent(EvalOptions(agent="ohsandbox"), what).settings
    assert (told["model"], told["limits"]["max_iterations"], told["limits"]["max_tokens"]) == ("scripted:demo", 9, 7)
    assert "execute_ipython_cell" not in told["tools"]
