"""MCP servers that skills bring: what is found, where, and what is refused whoever wrote it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.mcp import skill_files, skills
from ohsandbox.mcp.skill_files import find_skill_files
from ohsandbox.mcp.skills import SkillServers, read_skill_servers
from tests.fakes import RecordingRuntime

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ohsandbox.runtime import Runtime

MICROAGENT = ".openhands/microagents/tools.md"
SKILL = ".agents/skills/pdf"


class Sandbox(RecordingRuntime):
    """Files, and whether there is a container around them."""

    def __init__(self, files: Mapping[str, str | bytes], *, isolated: bool) -> None:
        super().__init__()
        self.isolated = isolated
        self.files = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}


def skill(**servers: Any) -> str:
    """A microagent; JSON is YAML."""
    return f"---\nname: tools\nmcp_tools:\n  mcpServers: {json.dumps(servers)}\n---\nUse them.\n"


def servers_in(runtime: Runtime) -> SkillServers:
    return read_skill_servers(find_skill_files(runtime), runtime)


def found(files: Mapping[str, str | bytes], *, isolated: bool = True) -> SkillServers:
    return servers_in(Sandbox(files, isolated=isolated))


def of_microagent(text: str | bytes) -> SkillServers:
    return found({MICROAGENT: text})


# --- what is found ------------------------------------------------------------------------------------


def test_servers_of_a_microagent_have_their_file_and_line() -> None:
    text = """---
name: default-tools
type: repo
version: 1.0.0
mcp_tools:
  shttp_servers:
    - url: http://localhost:8080/mcp
      api_key: of-the-repository
  stdio_servers:
    - name: "fetch"
      command: "uvx"
      args: ["mcp-server-fetch"]

    - name: files
      command: ./server
      env: {PORT: 8080, DEBUG: yes, "NONE": "null"}
      timeout: 60
# We leave the body empty.
---
"""
    one, two, three = of_microagent(text).servers
    assert (one.name, one.file, one.line) == ("shttp1", MICROAGENT, 7)
    assert one.definition == {
        "url": "http://localhost:8080/mcp", "headers": {"Authorization": "Bearer of-the-repository"},
        "transport": "http", "where": "sandbox",
    }  # fmt: skip
    assert (two.name, two.line, two.definition) == ("fetch", 10, {"command": "uvx", "args": ["mcp-server-fetch"]})
    assert (three.name, three.line) == ("files", 14)
    env = {"PORT": "8080", "DEBUG": "yes", "NONE": "null"}
    assert three.definition == {"command": "./server", "env": env, "timeout": 60.0}


def test_mcp_json_counts_beside_a_skill_and_nowhere_else() -> None:
    config = '{\n\t"mcpServers": {\n\t\t"a": {"command": "x", "args": ["\\"{"]},\n\n\t\t"b": {"command": "y"}\n\t}\n}'
    places = (f"{SKILL}/.mcp.json", f"{SKILL}/deep/.mcp.json", ".mcp.json", ".openhands/.mcp.json")
    files = dict.fromkeys(places, config)
    servers = found({**files, f"{SKILL}/SKILL.md": "---\nname: pdf\n---\n", "SKILL.md": "x"}).servers
    assert [(one.name, one.file, one.line) for one in servers] == [
        ("a", f"{SKILL}/.mcp.json", 3), ("b", f"{SKILL}/.mcp.json", 5),
    ]  # fmt: skip
    assert found(files) == SkillServers()


@pytest.mark.parametrize("place", [*skill_files.PLACES, ".agents/skills/a/b"])
def test_each_place_of_skills_is_looked_at(place: str) -> None:
    assert [one.name for one in found({f"{place}/x.md": skill(a={"command": "x"})}).servers] == ["a"]


@pytest.mark.parametrize("path", ["x.md", "AGENTS.md", "docs/x.md", ".openhands/x.md", f"{SKILL}/README.md", ".agents"])
def test_other_files_bring_none(path: str) -> None:
    assert found({path: skill(a={"command": "x"})}) == SkillServers()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mcp_tools: {}",
        "---\nname: x\n---\nmcp_tools:\n",
        "--- \nname: x\n",
        "x\n---\nmcp_tools: 1\n---\n",
        b"\xff\xfe",
    ],
)
def test_text_without_front_matter_about_servers_is_a_skill_like_any_other(text: str | bytes) -> None:
    assert of_microagent(text) == SkillServers()


def test_byte_order_mark_and_windows_lines_change_nothing() -> None:
    windows = "\ufeff" + skill(a={"command": "x"}).replace("\n", "\r\n")
    assert [(one.name, one.line) for one in of_microagent(windows).servers] == [("a", 4)]


def test_disabled_server_is_left_out() -> None:
    assert of_microagent(skill(a={"command": "x", "disabled": True})) == SkillServers()


def test_directory_of_the_skill_is_filled_in_and_nothing_else() -> None:
    entry = {"command": "python3", "args": ["${SKILL_ROOT}/s.py", "${HOME}", "$PATH"], "env": {"D": "${SKILL_ROOT}"}}
    files = {f"{SKILL}/SKILL.md": "x", f"{SKILL}/.mcp.json": json.dumps({"mcpServers": {"a": entry}})}
    [one] = found(files).servers
    assert one.definition == {
        "command": "python3", "args": [f"/workspace/{SKILL}/s.py", "${HOME}", "$PATH"],
        "env": {"D": f"/workspace/{SKILL}"},
    }  # fmt: skip


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "skills").mkdir(parents=True)
    (elsewhere / "skills" / "x.md").write_text(skill(a={"command": "x"}))
    work = tmp_path / "work"
    (work / ".openhands" / "microagents").mkdir(parents=True)
    (work / ".agents").symlink_to(elsewhere)
    (work / ".openhands" / "skills").symlink_to(elsewhere / "skills")
    (work / ".openhands" / "microagents" / "x.md").symlink_to(elsewhere / "skills" / "x.md")
    os.mkfifo(work / ".openhands" / "microagents" / "y.md")
    with CLIRuntime(work, bubblewrap=False, quiet=True) as runtime:
        runtime.isolated = True
        assert servers_in(runtime) == SkillServers()
        (work / ".openhands" / "microagents" / "z.md").write_text(skill(b={"command": "x"}))
        assert [one.name for one in servers_in(runtime).servers] == ["b"]


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "entry", "reason"),
    [
        ("a", {"command": "x", "where": "host"}, "asks to run on"),
        ("a", {"url": "http://localhost:1/", "where": "host"}, "reached from, your machine"),
        ("a", {"command": "x", "user": "root"}, "a user of its own"),
        ("a", {"command": "x", "trusted": True}, "to be trusted"),
        ("a", {"command": "x", "env": {"T": "${GITHUB_TOKEN}"}}, "a variable of yours"),
        ("a", {"command": "x", "env": {"T": "${secret:GITHUB_TOKEN:-}"}}, "a variable of yours"),
        ("a", {"url": "http://x/", "headers": {"A": "Bearer ${KEY}"}}, "a variable of yours"),
        ("a", {"url": "http://x/${KEY}"}, "a variable of yours"),
        ("a", {"url": "${URL}"}, "a variable of yours"),
        ("a", {"command": "x", "args": ["\u202etxt"]}, "cannot be seen"),
        ("a", {"command": "x\x1b[2J"}, "cannot be seen"),
        ("a", {"command": "x", "env": {"T": "a\u200bb"}}, "cannot be seen"),
        ("a", {"command": "p\u0430ss"}, "cannot be seen"),
        ("a__b", {"command": "x"}, "Rename it"),
        ("a_", {"command": "x"}, "Rename it"),
        ("\u0430", {"command": "x"}, "Rename it"),
        ("a" * 41, {"command": "x"}, "Rename it"),
        ("a", {"command": "x", "url": "http://x/"}, "either `command` or `url`"),
        ("a", {"url": "file:///etc/passwd"}, "does not begin with http"),
        ("a", {"command": "x", "env": {"A B": "x"}}, "not a valid variable name"),
        ("a", {"command": "x", "env": {"A": "1\n2"}}, "a line break or NUL"),
        ("a", {"command": "x", "shell": True}, "unknown key 'shell'"),
        ("a", "x", "must be an object"),
        ("a", {}, "either `command` or `url`"),
    ],
    ids=str,
)
def test_what_only_a_person_may_ask_for_and_what_hides_is_refused(name: str, entry: Any, reason: str) -> None:
    told = of_microagent(skill(**{"good": {"command": "x"}, name: entry}))
    assert told.servers == (), "a file with a wrong definition brings none"
    [sentence] = told.refused
    assert reason in sentence
    assert MICROAGENT in sentence


def test_url_is_reached_from_inside_a_sandbox_or_not_at_all() -> None:
    text = skill(a={"url": "http://127.0.0.1:9/mcp"})
    [one] = found({MICROAGENT: text}).servers
    assert (one.config.where, one.config.runs_in) == ("sandbox", "sandbox")
    told = found({MICROAGENT: text}, isolated=False)
    assert told.servers == ()
    assert "only a sandbox may connect to" in told.refused[0]


@pytest.mark.parametrize(
    ("matter", "reason"),
    [
        ("a: &x {b: 1}\nmcp_tools: *x", "anchors, aliases and tags"),
        ("mcp_tools: &x {b: 1}", "anchors, aliases and tags"),
        ("mcp_tools: !!python/object/apply:os.system [id]", "anchors, aliases and tags"),
        ("mcp_tools: {}\nmcp_tools: {}", "is repeated"),
        ("mcp_tools:\n  mcpServers: {a: {command: x, command: y}}", "is repeated"),
        ("mcp_tools: " + "[" * 30 + "]" * 30, "nested too deep"),
        ("mcp_tools: " + "{a: " * 3000, "nested too deep"),
        ("mcp_tools: [", "not valid YAML"),
        ("\tmcp_tools: x", "not valid YAML"),
        ("mcp_tools: \x07", "not valid YAML"),
        ("mcp_tools: x", "must be a mapping"),
        ("mcp_tools: {mcp: {mcpServers: {a: {command: x}}}}", "must be a mapping"),
        ("mcp_tools: {servers: {}}", "Unknown key 'servers'"),
        ("mcp_tools: {mcpServers: [a]}", "must be an object"),
        ("mcp_tools: {stdio_servers: x}", "must be a list"),
        (
            "mcp_tools: {sse_servers: [http://x/sse, http://x/sse], stdio_servers: [{name: sse1, command: x}]}",
            "Two MCP",
        ),
        ("- mcp_tools", "must be a mapping"),
    ],
    ids=range(17),
)
def test_front_matter_that_could_be_read_in_two_ways_is_refused(matter: str, reason: str) -> None:
    told = of_microagent(f"---\n{matter}\n---\n")
    assert told.servers == ()
    assert len(told.refused) == 1
    assert reason in told.refused[0]
    assert "\n" not in told.refused[0]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"mcpServers": []}', '{"mcpServers": {"a": 1}}', '{"mcpServers": {}, "x": 1}', "[" * 20_000,
     '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}'],
    ids=range(7),
)  # fmt: skip
def test_mcp_json_that_is_wrong_is_refused(text: str) -> None:
    told = found({f"{SKILL}/SKILL.md": "x", f"{SKILL}/.mcp.json": text})
    assert (told.servers, len(told.refused)) == ((), 1)


def test_text_that_is_not_utf8_is_refused() -> None:
    assert "codec" in of_microagent(b"---\nmcp_tools: {a: \xff}\n---\n").refused[0]


def test_huge_front_matter_is_refused_unread() -> None:
    filler = "# " + "x" * skill_files.MAX_DEFINITION_BYTES
    told = of_microagent(f"---\n{filler}\nmcp_tools: {{}}\n---\n")
    assert "too much to define servers" in told.refused[0]
    assert of_microagent(f"---\n{filler}\n---\n") == SkillServers()


def test_path_that_hides_characters_is_refused() -> None:
    told = found({".openhands/skills/a\u202eb.md": skill(a={"command": "x"})})
    assert told.servers == ()
    assert "holds characters that cannot be seen" in told.refused[0]


def _many(count: int, *, of: int = 1, size: int = 0, letter: str = "y") -> dict[str, str]:
    return {
        f".openhands/skills/{number}.md": skill(**{
            f"s{number}-{one}": {"command": "x", "args": [letter * size]} for one in range(of)
        })
        for number in range(count)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("files", "fact"),
    [
        (_many(1, of=skills.MAX_SERVERS + 1), "more than 16 servers"),
        (_many(9, of=2), "more than 16 servers"),
        (_many(2, size=3_000), "definitions of 12,"),
        (_many(1, size=1_500, letter="'"), "definitions of 12,"),
        (dict.fromkeys(_many(40), skill()), "more than 32 files that name servers"),
        (dict.fromkeys(_many(501), "x"), "more than 500 files"),
        ({f".openhands/skills/{number}": "x" for number in range(10_001)}, "10000 names"),
        ({f".openhands/skills/{number}/x": "x" for number in range(501)}, "500 directories"),
        ({".openhands/skills/" + "d/" * 8 + "x.md": "x"}, "over 6 deep"),
        (
            {".openhands/skills/a.md": skill(a={"command": "x"}), ".agents/skills/a.md": skill(A={"command": "y"})},
            "two servers of one name",
        ),
    ],
    ids=[
        "in one file",
        "in all",
        "characters",
        "quotes",
        "files",
        "skills",
        "names",
        "directories",
        "depth",
        "one name",
    ],
)
def test_where_there_is_too_much_none_starts_and_one_line_says_so(files: dict[str, str], fact: str) -> None:
    told = found(files)
    assert told.servers == ()
    assert len(told.refused) == 1
    assert fact in told.refused[0]


def test_as_much_as_is_allowed_is_found() -> None:
    assert len(found(_many(1, of=skills.MAX_SERVERS)).servers) == skills.MAX_SERVERS


def test_skill_that_lies_in_two_places_counts_once() -> None:
    text = skill(a={"command": "x"})
    assert len(found({".openhands/skills/a.md": text, ".agents/skills/a.md": text}).servers) == 1


def test_only_the_first_refusals_are_told_and_the_rest_counted() -> None:
    files = {f".openhands/skills/{number}.md": skill(a={"where": "host", "command": "x"}) for number in range(15)}
    assert len(refused := found(files).refused) == skills.MAX_REFUSED + 1
    assert refused[-1].startswith("5 more")


@pytest.mark.parametrize("name", ["my-tracker", "My-Tracker", "my.tracker"])
def test_name_of_a_configured_server_is_refused_whatever_its_case_and_signs(name: str) -> None:
    told = of_microagent(skill(my_tracker={"command": "x"}, mine={"command": "y"})).without([name])
    assert [one.name for one in told.servers] == ["mine"]
    assert (
        "'my_tracker' in '.openhands/microagents/tools.md', line 4: a server that you have configured"
        in told.refused[0]
    )


# --- what an approval stands for ----------------------------------------------------------------------


def test_digest_changes_with_every_definition_and_the_place_and_not_with_the_line() -> None:
    base = of_microagent(skill(a={"command": "x", "args": ["1"]}))
    lower = of_microagent(skill(a={"command": "x", "args": ["1"]}).replace("name: tools", "name: tools\n# more\n"))
    others = [
        of_microagent(skill(a={"command": "x", "args": ["2"]})),
        of_microagent(skill(a={"command": "x", "args": ["1"], "env": {"LD_PRELOAD": "x"}})),
        of_microagent(skill(a={"command": "x", "args": ["1"], "include": ["*"]})),
        of_microagent(skill(a={"command": "x", "args": ["1"]}, b={"command": "y"})),
        of_microagent(skill(b={"command": "x", "args": ["1"]})),
        found({".openhands/skills/x.md": skill(a={"command": "x", "args": ["1"]})}),
    ]
    assert base.digest(["/w"]) == lower.digest(["/w"])
    assert len({base.digest(["/w"]), base.digest(["/v"]), *(one.digest(["/w"]) for one in others)}) == 8
