"""What a project's file may do with each setting without trust."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ohsandbox.agent import ActionSecurityRisk
from ohsandbox.conversation.approvals.policy import POLICIES, PolicyName, policy_of
from ohsandbox.limit_ranges import RESOURCE_LIMITS
from ohsandbox.project.project_file import ProjectSandbox
from ohsandbox.project.setting_rules import FILES, NEVER, RULES, SettingRule, needs_trust
from ohsandbox.runtime.docker import SandboxLimits
from ohsandbox.settings import Settings
from ohsandbox.tool import CallHint

OF_DEVCONTAINER = {"features", "start", "local", "remote user"}
NARROWED = {
    "network": (["open", "allowlist", "none"], "allowlist"),
    "git": (["rw", "guarded", "ro"], None),
    "hard_links": (["keep", "separate"], "separate"),
    "confirm": (["never", "risky", "medium", "always"], "risky"),
    "skill_servers": (["allow", "ask", "never"], "ask"),
}
"""Settings with their words, widest first, and the word that None means."""
SETS = ("allow", "mounts", "forward", "expose_host")
AT_MOST = ("max_iterations", "max_time_s", "max_tokens", "max_cost_usd", *RESOURCE_LIMITS)
ONLY = {"profile": "strict", "cache": "none", "checkpoints": True, "stuck_detection": True}


def test_each_rule_is_for_something_that_a_project_can_say() -> None:
    of_file = Settings.model_fields.keys() | ProjectSandbox.model_fields.keys() | OF_DEVCONTAINER
    assert RULES.keys() - RESOURCE_LIMITS.keys() <= of_file  # not each limit is a setting
    assert {"api_key", "base_url", "api_version", "custom_llm_provider", "price", "mcpServers", "mcp"} == NEVER
    assert FILES == ("instructions", "ca_bundle")


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_without_trust_a_project_only_narrows(name: str) -> None:
    values: list[Any] = [None, True, False, 1, 2, "x", ("a",), ("a", "b"), ()]
    for value, before in [(value, before) for value in values for before in values]:
        if name in NARROWED or name in AT_MOST or name in SETS or name in ONLY:
            continue
        assert needs_trust(name, value, before) is (value != before)
    if name in NARROWED:
        words, unset = NARROWED[name]
        for before in [*words, *([None] if unset else [])]:
            allowed = words[words.index(before or unset or "") :]
            assert [word for word in words if not needs_trust(name, word, before)] == allowed
    if name in SETS:
        assert [needs_trust(name, ("packages",), before) for before in ((), ("packages", "a"))] == [True, False]
        assert needs_trust(name, ("packages",), None) is (name != "allow")
    if name in AT_MOST:
        assert [needs_trust(name, value, 2) for value in (1, 2, 3)] == [False, False, True]
    if name in ONLY:
        assert [needs_trust(name, ONLY[name], before) for before in (None, False, "trusted")] == [False] * 3
        assert needs_trust(name, value=False, before=True)
        assert needs_trust(name, "trusted", "strict")


def test_a_limit_that_is_not_set_is_the_sandboxs_own() -> None:
    own = SandboxLimits()
    for name in ("memory", "pids"):
        default = getattr(own, RESOURCE_LIMITS[name].field)
        assert RULES[name] == SettingRule(gives_less=RULES[name].gives_less, unset=default)
        assert [needs_trust(name, value, None) for value in (default, default + 1)] == [False, True]
    assert [needs_trust("cpus", value, None) for value in (2.0, 2.1)] == [False, True]
    assert not needs_trust("disk", 1 << 40, None)


@pytest.mark.parametrize("before", POLICIES)
@pytest.mark.parametrize("after", POLICIES)
def test_a_policy_that_needs_no_trust_asks_about_all_that_the_users_asks(before: PolicyName, after: PolicyName) -> None:
    assert needs_trust("confirm", before, before) is False
    if needs_trust("confirm", after, before):
        return
    look: Any = SimpleNamespace(hint=CallHint(kind="url"), tool=SimpleNamespace(is_read_only=True), action=None)
    for risk in ActionSecurityRisk:
        assert policy_of(after).asks(look, risk) >= policy_of(before).asks(look, risk)


def test_plan_mode_needs_no_trust_where_less_was_asked() -> None:
    assert [before for before in POLICIES if not needs_trust("confirm", "plan", before)] == ["never", "risky", "plan"]
    assert not needs_trust("confirm", "plan", None)
    assert all(needs_trust("confirm", after, "plan") for after in POLICIES if after != "plan")
