"""The pages are true: what their blocks say runs, their links lead somewhere, and they are built as a site."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest

from ohsandbox import CLIRuntime, Conversation
from ohsandbox.mcp import MCPConfig
from ohsandbox.settings import Settings
from ohsandbox.tool import unregister_tool
from tests.fakes import FakeModel, answer, call, results_of

ROOT = Path(__file__).parents[1]
README, DOCS, EXAMPLES = ROOT / "README.md", ROOT / "docs", ROOT / "examples"
IMAGE = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")
PAGES = [README, *sorted(DOCS.glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
GENERATED = {"api.md", "command-line.md"}
RUN_ELSEWHERE = {
    "adding-a-backend.md": "tests/test_adding_a_backend.py",
    "integrations.md": "tests/integrations/test_examples.py",
}
"""Pages whose blocks make one program, or need other projects."""
NOT_RUN = {
    "pip install": "CI begins with it",
    "ohsandbox init": "asks: tests/cli/commands/test_init.py",
    "ohsandbox config edit": "opens an editor: tests/cli/commands/test_config.py",
    "ohsandbox config set api_key": "asks: tests/cli/commands/test_config.py",
    "ohsandbox branches merge": "asks: tests/runtime/workspace/test_branches.py",
    "ohsandbox cache prune": "asks: tests/runtime/docker/mounts/test_caches.py",
    "ohsandbox shell": "needs a terminal: tests/cli/sandbox/test_terminal.py",
    "make ": "is what runs this",
}
ANSWER = {"turns": [{"content": "Done."}]}
_GET = "python3 -c \"import urllib.request; urllib.request.urlopen('http://example.com')\""
ASK = {
    "turns": [{"tool_calls": [{"name": "execute_bash", "arguments": {"command": _GET}}]}, {"content": "It is blocked."}]
}
BEFORE = {
    "viewing.md": ["ohsandbox run -q hello"],
    "network.md": ["ohsandbox run -q --model scripted:../ask.json hello"],
    "evaluation.md": ["ohsandbox eval tasks -o main-results", "cp -r main-results branch-results"],
}
"""What has happened already where a page begins."""
_RESULT = r"ExecResult\(exit_code=3, stdout=b'\\x00\\xff', .*\)"
PRINTED = {
    "README.md": [
        r"ConversationStatus.FINISHED /workspace/ohsandbox-demo/intervals.py\nOK",
        rf"hello, world, from /tmp\n{_RESULT}",
    ],
    "compatibility.md": [r"file_editor True 60.0\n\[MessageAction\(content='Hello.', .*\)\]"],
    "mcp.md": [
        r"It is 42\.\n\[\('calc', <ServerState.READY: 'ready'>, \('double',\)\)\]",
        r"ConversationStatus.FINISHED",
    ],
    "migrating.md": [r"0 b'42\\n'"],
    "projects.md": [r"/srv/api, /workspaces/docs \(read-only\)", r"42"],
    "python.md": [
        rf"hello, world, from /tmp\n{_RESULT}\nb'done\\n'",
        r"stdout b'building\\n'\nTrue\ndebug\n0",
        r"2 /tmp/in/data.csv",
        r"True 1",
        r"first",
        r"ConversationStatus.FINISHED I wrote `ohsandbox-demo/intervals.py`.* all four pass now. 0.0",
        r"done\nuser_message\nstatus_update\n(?s:.*)tool_result\n(?s:.*)status_update",
        r"It is 42\.",
    ],
    "time-travel.md": [
        r"diff --git a/ohsandbox-demo/(?s:.*)\+\+\+ b/ohsandbox-demo/intervals.py\n(?s:.*)ConversationStatus.FINISHED",
        r"one\n one\ntwo\ndiff --git a/log.txt b/log.txt\n(?s:.*)\n one\n\+two",
    ],
}  # fmt: skip
"""What the blocks of Python of a page that print something print, in order, as patterns; without blank lines."""
TOLD_HERE = {
    "mcp.md": r"MCP server 'tracker', failed: .*|MCP server 'files', failed: .* program 'npx' was not found.*",
    "network.md": r"Blocked: example\.com .*",
}
"""What goes wrong with lines of shell of a page where no network is, and no image but ours."""
MAX_README_WORDS = 900
MAX_RECORDING_BYTES = 300_000


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"


def _blocks(path: Path) -> list[Block]:
    found = re.findall(r"^```([\w ]+)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(path.name, number, language, text) for number, (language, text) in enumerate(found)]


def _texts(path: Path, language: str) -> list[str]:
    return [block.text for block in _blocks(path) if block.language == language]


def _all(language: str) -> list[Block]:
    pages = [path for path in PAGES if path.name not in GENERATED | RUN_ELSEWHERE.keys()]
    return [block for path in pages for block in _blocks(path) if block.language == language]


def _shell_lines(page: str) -> list[str]:
    """What a page has a reader type, in order; a comment is cut off."""
    texts = [block.text.replace("\\\n", " ") for block in _all("sh") if block.page == page]
    typed = [re.sub(r"\s+# .*$", "", line).strip() for text in texts for line in text.splitlines()]
    return [line for line in typed if line and not line.startswith(tuple(NOT_RUN))]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IMAGE", IMAGE)
    monkeypatch.delenv("OHSANDBOX_HOME")


def _run(argv: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=110, check=False, stdin=subprocess.DEVNULL, cwd=cwd
    )


def _python(code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, "-c", code.replace("python:3.12", IMAGE)], cwd)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home directory of a reader who has the directories that the pages name."""
    for name in ("shop", "shop-api", "docs", "data"):
        (tmp_path / name).mkdir()
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", str(tmp_path / "shop")], check=True)
    first = ["commit", "-q", "--allow-empty", "-m", "first"]
    subprocess.run(["git", "-C", str(tmp_path / "shop"), *author, *first], check=True)
    return tmp_path


def _printing(page: str) -> list[Block]:
    return [block for block in _all("python") if block.page == page and re.search(r"\bprint\b", block.text)]


@pytest.mark.docker
@pytest.mark.parametrize("block", _all("python"), ids=str)
def test_a_block_of_python_runs_and_prints_what_it_should(block: Block, home: Path) -> None:
    ended = _python(block.text, home)
    expected = dict(zip(_printing(block.page), PRINTED.get(block.page, ()), strict=True)).get(block, "")
    printed = re.sub(r"\n\n+", "\n", ended.stdout).strip()
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(expected, printed), f"{printed}\n{ended.stderr}"


def test_the_first_screen_says_what_its_lines_of_python_print() -> None:
    assert re.fullmatch(PRINTED["README.md"][0], _texts(README, "text")[0].strip())


@pytest.mark.docker
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_prints_what_its_docstring_says(path: Path) -> None:
    expected = re.match(r'r?""".*?\n\n(.*?)"""', path.read_text(encoding="utf-8"), re.DOTALL)
    ended = _run([sys.executable, str(path)])
    assert expected is not None
    assert (ended.returncode, ended.stdout) == (0, expected[1]), ended.stderr


def test_there_are_ten_examples_and_the_page_names_each() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert len(names) >= 10
    assert [name for name in sorted(names) if f"`{name}`" not in (DOCS / "python.md").read_text(encoding="utf-8")] == []


@pytest.fixture
def project(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in which what the pages name is there, a model that answers, and the command itself."""
    tmp_path, here = home, home / "project"
    (here / "tasks").mkdir(parents=True)
    (here / "tasks" / "tasks.yaml").write_text(_texts(DOCS / "evaluation.md", "yaml")[0].replace("python:3.13", IMAGE))
    (here / "nginx.conf").write_text("events {}")
    (here / "mcp.json").write_text(_texts(DOCS / "mcp.md", "json")[0])
    (tmp_path / "answer.json").write_text(json.dumps(ANSWER))
    (tmp_path / "ask.json").write_text(json.dumps(ASK))
    subprocess.run(["git", "init", "-q", str(here)], check=True)
    command = tmp_path / "bin" / "ohsandbox"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ohsandbox "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OHSANDBOX_MODEL", f"scripted:{tmp_path / 'answer.json'}")
    monkeypatch.setenv("OHSANDBOX_IMAGE", IMAGE)
    for name in ("ANTHROPIC_API_KEY", "GITHUB_TOKEN", "GH_TOKEN", "TOKEN"):
        monkeypatch.setenv(name, "a-key-that-opens-nothing-at-all")
    return here


@pytest.mark.docker
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", sorted({block.page for block in _all("sh")}))
def test_the_lines_of_shell_of_a_page_run_one_after_another(page: str, project: Path) -> None:
    """A model of a provider is one that answers, and an image that is not here is one that is."""
    faults, where = [], project
    for line in BEFORE.get(page, []) + _shell_lines(page):
        typed = re.sub(
            r"(?<=--model )anthropic/\S+|…", "$OHSANDBOX_MODEL", re.sub(r"\b(python:3\.12|node:22)\b", IMAGE, line)
        )
        if " demo" in typed:
            typed += f" --image {IMAGE}"
        if line.startswith("cd "):
            where = Path(line.removeprefix("cd ")).expanduser()
            continue
        ended = _run(["bash", "-o", "pipefail", "-c", typed], where)
        is_unsolved = ended.returncode == 1 and "eval" in line  # by a model that only answers
        if ended.returncode != 0 and not is_unsolved:
            faults.append(f"{line}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")
        told = re.findall(
            r"^.*?(?: notice +|warning: |error: |Traceback )(.*)$", ended.stdout + ended.stderr, re.MULTILINE
        )
        faults += [f"{line}: {text}" for text in told if not re.fullmatch(TOLD_HERE.get(page, ""), text)]
    assert faults == [], "\n".join(faults)


def test_a_tool_of_your_own_takes_twenty_lines_and_an_agent_can_call_it(tmp_path: Path) -> None:
    [text] = [text for text in _texts(DOCS / "tools.md", "python") if "count_lines" in text]
    assert len([line for line in text.splitlines() if line.strip()]) <= 20
    names: dict[str, Any] = {}
    exec(text, names)
    (tmp_path / "three.txt").write_text("1\n2\n3\n")
    model = FakeModel(answer("", call("count_lines", {"path": "three.txt"})))
    with CLIRuntime(tmp_path, bubblewrap=False, quiet=True) as runtime:
        conversation = Conversation(names["agent"].with_llm(model), runtime, tmp_path / "conversations")
        with conversation:
            conversation.run("How long is it?")
            [result] = results_of(conversation)
    unregister_tool("count_lines")
    assert json.loads(result["output"]) == {"lines": 3}


@pytest.mark.parametrize("block", _all("json"), ids=str)
def test_a_block_of_json_is_a_settings_file(block: Block) -> None:
    settings = Settings.model_validate(json.loads(block.text))
    assert settings.model or MCPConfig.parse(settings.mcp_config or {}).servers


@pytest.mark.parametrize("block", _all("toml"), ids=str)
def test_a_block_of_toml_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text)


def test_the_first_screen_holds_install_code_and_output() -> None:
    screen = README.read_text(encoding="utf-8").split("\n")[:24]
    for part in ("pip install", "ohsandbox demo", "```python", "```text", "OK"):
        assert any(part in line for line in screen), part


def test_the_recording_is_small_and_loads_nothing() -> None:
    recording = (DOCS / "images" / "session.svg").read_text(encoding="utf-8")
    assert len(recording.encode()) < MAX_RECORDING_BYTES
    assert "@keyframes" in recording
    assert re.findall(r"<script|<foreignObject|href=|url\(|@import", recording) == []


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= MAX_README_WORDS


def _anchors(path: Path) -> set[str]:
    """The addresses of a page's headings, as the forges make them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*?)\s*$", text, re.MULTILINE)
    words = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", one).replace(" ", "-") for one in words}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_each_link_leads_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in re.findall(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "``", text)):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = unquote(link).partition("#")
        target = (path.parent / place).resolve() if place else path
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for name in (".zensical.toml", "docs"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    built = _run([sys.executable, "-m", "zensical", "build", "--strict", "-f", ".zensical.toml"], tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    made = tmp_path / ".cache" / "site"
    assert (made / "index.html").is_file()
    names = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert [name for name in sorted(names) if not (made / name / "index.html").is_file()] == []
    assert "allowlist" in (made / "search.json").read_text(encoding="utf-8")

    linked = _run([sys.executable, str(DOCS / "generate_sources.py"), str(made)])
    assert linked.returncode == 0, linked.stderr
    assert _dead_links(made) == []
    assert "Settings" in (made / "source" / "ohsandbox" / "settings.py.html").read_text(encoding="utf-8")


def _dead_links(site: Path) -> list[str]:
    """Links of the site's pages to files that are not in it; a source file's text may only look like a link."""
    dead = []
    for page in (site / "index.html", *site.glob("*/index.html")):
        for link in re.findall(r'(?:href|src)="([^"#?:]+)["#?]', page.read_text(encoding="utf-8")):
            target = (site / link[1:] if link.startswith("/") else page.parent / unquote(link)).resolve()
            if not target.exists() or not target.is_relative_to(site):
                dead.append(f"{page.relative_to(site)}: {link}")
    return dead


def test_every_page_stands_in_the_navigation_once() -> None:
    navigation = tomllib.loads((ROOT / ".zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    named = re.findall(r"[\w-]+\.md", json.dumps(navigation))
    assert sorted(named) == sorted(path.name for path in DOCS.glob("*.md"))
